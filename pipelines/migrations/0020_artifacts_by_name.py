from django.db import migrations, models


class Migration(migrations.Migration):
    """Lists of artifacts by name, and of baselines, which are few among many: each page from an index."""

    dependencies = [
        ("pipelines", "0019_lines_of_throttles"),
    ]
    operations = [
        migrations.AddIndex(
            model_name="artifact",
            index=models.Index(fields=["workspace", "name", "-at", "-id"], name="artifact_by_name"),
        ),
        migrations.AddIndex(
            model_name="artifact",
            index=models.Index(
                condition=models.Q(("run__isnull", True)),
                fields=["workspace", "-at", "-id"],
                name="artifact_baselines",
            ),
        ),
    ]
