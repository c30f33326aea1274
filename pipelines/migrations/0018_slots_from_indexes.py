from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Attempts are many: their indexes are built while work goes on."""

    atomic = False
    dependencies = [
        ("pipelines", "0017_boundaries"),
    ]
    operations = [
        AddIndexConcurrently(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("slot__isnull", False), ("state__in", ["dispatched", "running"])),
                fields=["slot", "expires_at"],
                name="attempt_in_slot",
            ),
        ),
        AddIndexConcurrently(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("rate__isnull", False)), fields=["rate", "-dispatched_at"], name="attempt_by_rate"
            ),
        ),
    ]
