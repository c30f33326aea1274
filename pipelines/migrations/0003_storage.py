from django.db import migrations


class Migration(migrations.Migration):
    """How the tables that move all day are kept: room in their pages, and early sweeping of what is gone."""

    dependencies = [("pipelines", "0002_tables")]
    operations = [
        migrations.RunSQL(
            """
            -- a stage's moves touch no index, and so stay in its page as long as there is room
            ALTER TABLE pipelines_stage SET (fillfactor = 70);
            -- rows live for moments: sweep them out early, or claims wade through the dead
            ALTER TABLE pipelines_queueentry SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0,
                autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
            """,
            migrations.RunSQL.noop,
        ),
    ]
