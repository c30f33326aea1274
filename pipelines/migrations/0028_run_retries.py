from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0027_child_runs")]

    operations: list = []
