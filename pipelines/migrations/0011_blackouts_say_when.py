from django.db import migrations, models
from django.db.models import Q

ONE_BLACKOUT = """
-- Whether this blackout covers an instant, wherever it is for and whether or not it is enabled.
CREATE FUNCTION recourse_covers(b pipelines_blackout, instant timestamptz)
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

-- The name of a blackout that holds at an instant, a freeze first; NULL when none does.
CREATE OR REPLACE FUNCTION recourse_blackout(workspace uuid, environment uuid, trigger uuid, instant timestamptz)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT b.name FROM pipelines_blackout b
    WHERE b.workspace_id = $1 AND b.enabled
        AND (b.environment_id IS NULL OR b.environment_id = $2)
        AND (b.trigger_id IS NULL OR b.trigger_id = $3)
        AND recourse_covers(b, $4)
    ORDER BY b.is_freeze DESC, b.created_at, b.id LIMIT 1
$$
"""

BEFORE = """
CREATE OR REPLACE FUNCTION recourse_blackout(workspace uuid, environment uuid, trigger uuid, instant timestamptz)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT b.name FROM pipelines_blackout b
    CROSS JOIN LATERAL (SELECT $4 AT TIME ZONE b.timezone AS wall) l
    WHERE b.workspace_id = $1 AND b.enabled
        AND (b.environment_id IS NULL OR b.environment_id = $2)
        AND (b.trigger_id IS NULL OR b.trigger_id = $3)
        AND CASE b.kind
            WHEN 'period' THEN (b.starts_at IS NULL OR b.starts_at <= $4) AND (b.ends_at IS NULL OR b.ends_at > $4)
            WHEN 'dates' THEN l.wall::date = ANY(b.dates)
            ELSE CASE WHEN b.to_time > b.from_time THEN
                    extract(isodow FROM l.wall)::int = ANY(b.days)
                    AND l.wall::time >= b.from_time AND l.wall::time < b.to_time
                ELSE
                    (extract(isodow FROM l.wall)::int = ANY(b.days) AND l.wall::time >= b.from_time)
                    OR (extract(isodow FROM l.wall - interval '1 day')::int = ANY(b.days)
                        AND l.wall::time < b.to_time)
                END
            END
    ORDER BY b.is_freeze DESC, b.created_at, b.id LIMIT 1
$$;
DROP FUNCTION recourse_covers(pipelines_blackout, timestamptz)
"""


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0010_triggers_ticks_lanes")]

    operations = [
        migrations.RunSQL(ONE_BLACKOUT, BEFORE),
        migrations.AddConstraint(
            model_name="blackout",
            constraint=models.CheckConstraint(
                condition=Q(
                    kind="weekly",
                    days__len__gt=0,
                    days__contained_by=[1, 2, 3, 4, 5, 6, 7],
                    from_time__isnull=False,
                    to_time__isnull=False,
                )
                | Q(kind="dates", dates__len__gt=0)
                | Q(kind="period", starts_at__isnull=True)
                | Q(kind="period", ends_at__isnull=True)
                | Q(kind="period", ends_at__gte=models.F("starts_at")),
                name="blackout_says_when",
            ),
        ),
        migrations.AddConstraint(
            model_name="blackout",
            constraint=models.CheckConstraint(
                condition=Q(is_freeze=False) | Q(kind="period", trigger__isnull=True, starts_at__isnull=False),
                name="blackout_freeze_is_a_period",
            ),
        ),
    ]
