from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

# Of these queues the lines in which something waits for a policy: from one line to the next, so that a backlog costs no
# more than one entry.
LINES = """
    WITH RECURSIVE throttled AS (
        SELECT queue.application_id, queue.environment_id, queue.handler, following.throttle
        FROM unnest(of_applications, of_environments, of_handlers) AS queue(application_id, environment_id, handler)
        CROSS JOIN LATERAL (
            SELECT q.throttle FROM pipelines_queueentry q
            WHERE q.application_id = queue.application_id AND q.environment_id = queue.environment_id
                AND q.handler = queue.handler AND q.throttle > '00000000-0000-0000-0000-000000000000'
            ORDER BY q.throttle LIMIT 1
        ) following
        UNION ALL
        SELECT throttled.application_id, throttled.environment_id, throttled.handler, following.throttle
        FROM throttled CROSS JOIN LATERAL (
            SELECT q.throttle FROM pipelines_queueentry q
            WHERE q.application_id = throttled.application_id AND q.environment_id = throttled.environment_id
                AND q.handler = throttled.handler AND q.throttle > throttled.throttle
            ORDER BY q.throttle LIMIT 1
        ) following
    )"""
# The rate policy that rules a stage besides: for who waits for a slot.
RATE_OF = """
    SELECT recourse_ruling('rate', r.workspace_id, r.environment_id, r.pipeline_id, s.name, s.handler)
    FROM pipelines_stage s JOIN pipelines_run r ON r.id = s.run_id WHERE s.id = head.stage_id"""
# Who sends to nobody that an entry names looks past it. Without `sends_to` everything is seen.
GOES_TO = "(q.recipients IS NULL OR sends_to IS NULL OR q.recipients && sends_to)"


class Migration(migrations.Migration):
    """What claims ask of whom a session's adapters send to: noted with the session and with what waits."""

    dependencies = [
        ("pipelines", "0021_lines_with_room"),
    ]
    operations = [
        migrations.AddField(
            model_name="workersession",
            name="recipients",
            field=models.JSONField(
                default=list, db_default=[], help_text="[{handler, organisation, service, billing, retention}]"
            ),
        ),
        migrations.AddField(
            model_name="queueentry",
            name="recipients",
            field=ArrayField(
                models.TextField(), null=True, help_text="keys of those to whom it may go now; none: to anyone"
            ),
        ),
        migrations.RunSQL(
            """
            -- which adapter this is: as pipelines/recipients.py says
            CREATE FUNCTION recourse_recipient_key(of_handler text, told jsonb) RETURNS text
            LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
                SELECT encode(sha256(convert_to(of_handler || chr(31) || (told ->> 'organisation') || chr(31)
                    || (told ->> 'service') || chr(31) || coalesce(told ->> 'billing', '') || chr(31)
                    || coalesce(told ->> 'retention', ''), 'UTF8')), 'hex')
            $$;

            -- to whom a stage may go now: in the declared order one more with each attempt that failed in its epoch
            CREATE FUNCTION recourse_recipients(of_stage uuid) RETURNS text[]
            LANGUAGE sql STABLE AS $$
                SELECT array_agg(recourse_recipient_key(s.handler, one.told) ORDER BY one.place)
                FROM pipelines_stage s CROSS JOIN LATERAL jsonb_array_elements(s.recipients)
                    WITH ORDINALITY one(told, place)
                WHERE s.id = of_stage AND one.place <= 1 + (SELECT count(*) FROM pipelines_attempt a
                    WHERE a.stage_id = s.id AND a.epoch = s.epoch AND a.state IN ('failed', 'timed_out'))
            $$;
            """,
            """
            DROP FUNCTION recourse_recipients(uuid);
            DROP FUNCTION recourse_recipient_key(text, jsonb);
            """,
        ),
        migrations.RunSQL(
            f"""
            DROP FUNCTION recourse_throttled_due(uuid[], uuid[], text[], uuid[], float);
            DROP FUNCTION recourse_let_through(uuid[], uuid[], text[], uuid[], bigint, bigint);

            -- the heads of the lines whose policies have room, of each policy `per_room` for each that it lets go, and
            -- `most` at the most; in the environments `closed` nothing that begins
            CREATE FUNCTION recourse_let_through(
                of_applications uuid[], of_environments uuid[], of_handlers text[], closed uuid[], most bigint,
                per_room bigint, sends_to text[] DEFAULT NULL
            ) RETURNS TABLE (stage_id uuid, available_at timestamptz, is_background boolean)
            LANGUAGE plpgsql STABLE AS $$
            #variable_conflict use_column
            BEGIN
                RETURN QUERY {LINES}, open AS MATERIALIZED (
                    SELECT known.throttle, known.workspace_id, known.kind,
                        least(most, coalesce(known.room * per_room, most)) AS reach
                    FROM (
                        SELECT one.throttle, p.workspace_id, p.kind, recourse_room(one.throttle) AS room
                        FROM (SELECT DISTINCT throttle FROM throttled) one
                        LEFT JOIN pipelines_policy p ON p.id = one.throttle
                    ) known WHERE known.room IS NULL OR known.room > 0
                ), used_up AS MATERIALIZED (
                    SELECT p.id FROM pipelines_policy p
                    WHERE p.workspace_id IN (SELECT open.workspace_id FROM open WHERE open.kind = 'concurrency')
                        AND p.kind = 'rate' AND p.status = 'active' AND recourse_room(p.id) <= 0
                )
                SELECT ranked.stage_id, ranked.available_at, ranked.is_background FROM (
                    SELECT head.stage_id, head.available_at, line.is_background, open.reach, row_number() OVER (
                        PARTITION BY throttled.throttle ORDER BY head.available_at, head.stage_id) AS number
                    FROM throttled JOIN open ON open.throttle = throttled.throttle
                    CROSS JOIN (VALUES (false, false), (false, true), (true, false), (true, true))
                        line(is_background, is_start)
                    CROSS JOIN LATERAL (
                        SELECT q.stage_id, q.available_at FROM pipelines_queueentry q
                        WHERE q.application_id = throttled.application_id
                            AND q.environment_id = throttled.environment_id AND q.handler = throttled.handler
                            AND q.throttle = throttled.throttle AND q.is_background = line.is_background
                            AND q.is_start = line.is_start AND q.available_at <= recourse_now() AND {GOES_TO}
                        ORDER BY q.available_at, q.stage_id LIMIT open.reach
                    ) head
                    WHERE NOT (line.is_start AND throttled.environment_id = ANY(closed))
                        AND CASE WHEN open.kind = 'concurrency' AND EXISTS (SELECT FROM used_up)
                            THEN NOT coalesce(({RATE_OF}) IN (SELECT id FROM used_up), false) ELSE true END
                ) ranked WHERE ranked.number <= ranked.reach;
            END $$;

            -- in how many seconds the first of these lines has somebody due and its policy room; at most `longest` for
            -- who waits for a policy or for the end of a blackout
            CREATE FUNCTION recourse_throttled_due(
                of_applications uuid[], of_environments uuid[], of_handlers text[], closed uuid[], longest float,
                sends_to text[] DEFAULT NULL
            ) RETURNS float LANGUAGE plpgsql STABLE AS $$
            #variable_conflict use_column
            BEGIN
                RETURN ({LINES}, known AS MATERIALIZED (
                    SELECT one.throttle, recourse_opens(one.throttle) AS opens, EXISTS (SELECT FROM pipelines_policy slot
                        JOIN pipelines_policy rate ON rate.workspace_id = slot.workspace_id AND rate.kind = 'rate'
                        WHERE slot.id = one.throttle AND slot.kind = 'concurrency') AS has_rates
                    FROM (SELECT DISTINCT throttle FROM throttled) one
                )
                SELECT min(greatest(
                    extract(epoch FROM head.available_at - recourse_now())::float,
                    CASE WHEN line.is_start AND throttled.environment_id = ANY(closed) THEN longest END,
                    CASE WHEN opening.at IS NOT NULL
                        THEN least(longest, extract(epoch FROM opening.at - recourse_now())::float) END
                ))
                FROM throttled JOIN known ON known.throttle = throttled.throttle
                CROSS JOIN (VALUES (false, false), (false, true), (true, false), (true, true))
                    line(is_background, is_start)
                CROSS JOIN LATERAL (
                    SELECT q.stage_id, q.available_at FROM pipelines_queueentry q
                    WHERE q.application_id = throttled.application_id
                        AND q.environment_id = throttled.environment_id AND q.handler = throttled.handler
                        AND q.throttle = throttled.throttle AND q.is_background = line.is_background
                        AND q.is_start = line.is_start AND {GOES_TO}
                    ORDER BY q.available_at, q.stage_id LIMIT 1
                ) head
                CROSS JOIN LATERAL (
                    SELECT greatest(known.opens,
                        CASE WHEN known.has_rates THEN recourse_opens(({RATE_OF})) END) AS at
                ) opening);
            END $$;
            """,
            migrations.RunSQL.noop,
        ),
    ]
