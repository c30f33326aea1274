from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0025_decisions_cannot_be_emptied")]

    operations: list = []
