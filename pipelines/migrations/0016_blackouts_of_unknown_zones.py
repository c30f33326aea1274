from django.db import migrations

# A zone that the console's data has and the database's has not (or no longer, after the server moved to another host)
# must not make every claim an error: a blackout of it holds.
SAFE = """
CREATE FUNCTION recourse_knows_zone(zone text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM now() AT TIME ZONE zone;
    RETURN true;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN false;
END
$$;

-- Whether this blackout covers an instant, wherever it is for and whether or not it is enabled. One of days in a zone
-- that is not known here always does.
CREATE OR REPLACE FUNCTION recourse_covers(b pipelines_blackout, instant timestamptz)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN ($1).kind = 'period' THEN (($1).starts_at IS NULL OR ($1).starts_at <= $2)
            AND (($1).ends_at IS NULL OR ($1).ends_at > $2)
        WHEN NOT recourse_knows_zone(($1).timezone) THEN true
        WHEN ($1).kind = 'dates' THEN ($2 AT TIME ZONE ($1).timezone)::date = ANY(($1).dates)
        ELSE CASE WHEN ($1).to_time > ($1).from_time THEN
                extract(isodow FROM $2 AT TIME ZONE ($1).timezone)::int = ANY(($1).days)
                AND ($2 AT TIME ZONE ($1).timezone)::time >= ($1).from_time
                AND ($2 AT TIME ZONE ($1).timezone)::time < ($1).to_time
            ELSE
                (extract(isodow FROM $2 AT TIME ZONE ($1).timezone)::int = ANY(($1).days)
                    AND ($2 AT TIME ZONE ($1).timezone)::time >= ($1).from_time)
                OR (extract(isodow FROM ($2 AT TIME ZONE ($1).timezone) - interval '1 day')::int = ANY(($1).days)
                    AND ($2 AT TIME ZONE ($1).timezone)::time < ($1).to_time)
            END
        END
$$
"""

BEFORE = """
CREATE OR REPLACE FUNCTION recourse_covers(b pipelines_blackout, instant timestamptz)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE ($1).kind
        WHEN 'period' THEN (($1).starts_at IS NULL OR ($1).starts_at <= $2)
            AND (($1).ends_at IS NULL OR ($1).ends_at > $2)
        WHEN 'dates' THEN ($2 AT TIME ZONE ($1).timezone)::date = ANY(($1).dates)
        ELSE CASE WHEN ($1).to_time > ($1).from_time THEN
                extract(isodow FROM $2 AT TIME ZONE ($1).timezone)::int = ANY(($1).days)
                AND ($2 AT TIME ZONE ($1).timezone)::time >= ($1).from_time
                AND ($2 AT TIME ZONE ($1).timezone)::time < ($1).to_time
            ELSE
                (extract(isodow FROM $2 AT TIME ZONE ($1).timezone)::int = ANY(($1).days)
                    AND ($2 AT TIME ZONE ($1).timezone)::time >= ($1).from_time)
                OR (extract(isodow FROM ($2 AT TIME ZONE ($1).timezone) - interval '1 day')::int = ANY(($1).days)
                    AND ($2 AT TIME ZONE ($1).timezone)::time < ($1).to_time)
            END
        END
$$;
DROP FUNCTION recourse_knows_zone(text)
"""


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0015_letters_by_handler")]

    operations = [migrations.RunSQL(SAFE, BEFORE)]
