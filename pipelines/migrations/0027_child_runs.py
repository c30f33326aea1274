from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0026_workspace_store")]

    operations: list = []
