from django.db import migrations, models


class Migration(migrations.Migration):
    """A kind of policy for whole runs that failed; there is none before somebody makes one."""

    dependencies = [("pipelines", "0027_child_runs")]

    operations = [
        migrations.RemoveConstraint(model_name="policy", name="policy_kind_known"),
        migrations.AlterField(
            model_name="policy",
            name="kind",
            field=models.CharField(
                choices=[
                    ("retry", "Retry"),
                    ("timeout", "Timeout"),
                    ("rate", "Rate"),
                    ("concurrency", "Concurrency"),
                    ("run_retry", "Run Retry"),
                ],
                max_length=20,
            ),
        ),
        migrations.AddConstraint(
            model_name="policy",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["retry", "timeout", "rate", "concurrency", "run_retry"])),
                name="policy_kind_known",
            ),
        ),
    ]
