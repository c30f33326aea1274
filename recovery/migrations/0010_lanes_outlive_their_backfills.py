from django.db import migrations


class Migration(migrations.Migration):
    """The lanes of cancelled backfills were left closed: runs of them that people recover would never be let in."""

    dependencies = [
        ("pipelines", "0010_triggers_ticks_lanes"),
        ("recovery", "0009_bulks_keep_their_pace"),
    ]

    operations = [
        migrations.RunSQL(
            "UPDATE pipelines_lane l SET is_open = true FROM recovery_backfill b"
            " WHERE b.id = l.id AND NOT l.is_open AND b.state = 'cancelled' AND b.finished_at IS NOT NULL",
            migrations.RunSQL.noop,
        ),
    ]
