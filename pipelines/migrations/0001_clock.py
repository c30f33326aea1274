from django.db import migrations


class Migration(migrations.Migration):
    """The one function through which SQL reads the clock; stable, so that comparisons with it may use an index."""

    initial = True
    dependencies = []
    operations = [
        migrations.RunSQL(
            """
            CREATE FUNCTION recourse_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$
                SELECT statement_timestamp()
                    + coalesce(nullif(current_setting('recourse.clock_shift', true), '')::interval, interval '0')
            $$
            """,
            "DROP FUNCTION recourse_now()",
        )
    ]
