from django.db import migrations, models

from pipelines.models.runs import NO_THROTTLE


class Migration(migrations.Migration):
    """What rules a stage, how much room a policy of kind rate or concurrency has, and when it has some again."""

    dependencies = [
        ("pipelines", "0018_slots_from_indexes"),
    ]
    operations = [
        migrations.AddField(
            model_name="policy",
            name="unlined_at",
            field=models.DateTimeField(
                editable=False,
                help_text="since when stages that wait may stand in lines that it changed",
                null=True,
            ),
        ),
        # whom a freed slot is for: walked from one queue to the next, so that a backlog costs no more than one entry
        migrations.RemoveIndex(model_name="queueentry", name="queue_by_throttle"),
        migrations.AddIndex(
            model_name="queueentry",
            index=models.Index(
                condition=models.Q(("throttle", NO_THROTTLE), _negated=True),
                fields=["throttle", "application", "environment", "handler"],
                name="queue_by_throttle",
            ),
        ),
        migrations.RunSQL(
            """
            -- the policy of a kind that rules a stage, as pipelines.retries.effective_policy says; none: NULL
            CREATE FUNCTION recourse_ruling(
                wanted text, workspace uuid, environment uuid, pipeline uuid, stage text, handler text
            ) RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE AS $$
                SELECT p.id FROM pipelines_policy p
                WHERE p.workspace_id = workspace AND p.kind = wanted AND p.status = 'active'
                    AND coalesce(p.match ->> 'stage', '') IN ('', stage)
                    AND coalesce(p.match ->> 'handler', '') IN ('', handler)
                    AND (coalesce(p.match ->> 'pipeline', '') = ''
                        OR p.match ->> 'pipeline' = (SELECT slug FROM pipelines_pipeline WHERE id = pipeline))
                    AND (coalesce(p.match ->> 'environment', '') = ''
                        OR p.match ->> 'environment' = (SELECT slug FROM pipelines_environment WHERE id = environment))
                ORDER BY CASE WHEN p.match ->> 'stage' <> '' THEN 4 WHEN p.match ->> 'handler' <> '' THEN 3
                    WHEN p.match ->> 'pipeline' <> '' THEN 2 WHEN p.match ->> 'environment' <> '' THEN 1 ELSE 0 END DESC,
                    p.created_at DESC, p.id DESC
                LIMIT 1
            $$;

            -- in which line of its queue a stage waits: its concurrency policy's, else its rate policy's, else nobody's
            CREATE FUNCTION recourse_throttle(
                workspace uuid, environment uuid, pipeline uuid, stage text, handler text
            ) RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE AS $$
                SELECT coalesce(recourse_ruling('concurrency', workspace, environment, pipeline, stage, handler),
                    recourse_ruling('rate', workspace, environment, pipeline, stage, handler),
                    '00000000-0000-0000-0000-000000000000')
            $$;

            -- how many more a policy lets go now; NULL: it bounds nothing. A lease that is over holds no slot, whether
            -- or not a sweep has seen it.
            CREATE FUNCTION recourse_room(policy uuid) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
                SELECT CASE p.kind WHEN 'concurrency' THEN (p.rule ->> 'max_active')::bigint - (
                        SELECT count(*) FROM (SELECT FROM pipelines_attempt a
                            WHERE a.slot = p.id AND a.state IN ('dispatched', 'running')
                                AND a.expires_at > recourse_now()
                            ORDER BY a.expires_at DESC LIMIT (p.rule ->> 'max_active')::bigint) held)
                    WHEN 'rate' THEN (p.rule ->> 'count')::bigint - (
                        SELECT count(*) FROM (SELECT FROM pipelines_attempt a
                            WHERE a.rate = p.id
                                AND a.dispatched_at > recourse_now() - make_interval(secs => (p.rule ->> 'per_seconds')::float)
                            ORDER BY a.dispatched_at DESC LIMIT (p.rule ->> 'count')::bigint) gone)
                    END
                FROM pipelines_policy p WHERE p.id = policy AND p.status = 'active'
            $$;

            -- when a policy without room has some by the clock alone; NULL: it has room, or bounds nothing
            CREATE FUNCTION recourse_opens(policy uuid) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$
                SELECT CASE p.kind WHEN 'concurrency' THEN (
                        SELECT a.expires_at FROM pipelines_attempt a
                        WHERE a.slot = p.id AND a.state IN ('dispatched', 'running') AND a.expires_at > recourse_now()
                        ORDER BY a.expires_at DESC OFFSET (p.rule ->> 'max_active')::bigint - 1 LIMIT 1)
                    WHEN 'rate' THEN (
                        SELECT a.dispatched_at + make_interval(secs => (p.rule ->> 'per_seconds')::float)
                        FROM pipelines_attempt a
                        WHERE a.rate = p.id
                            AND a.dispatched_at > recourse_now() - make_interval(secs => (p.rule ->> 'per_seconds')::float)
                        ORDER BY a.dispatched_at DESC OFFSET (p.rule ->> 'count')::bigint - 1 LIMIT 1)
                    END
                FROM pipelines_policy p WHERE p.id = policy AND p.status = 'active'
            $$;
            """,
            """
            DROP FUNCTION recourse_opens(uuid);
            DROP FUNCTION recourse_room(uuid);
            DROP FUNCTION recourse_throttle(uuid, uuid, uuid, text, text);
            DROP FUNCTION recourse_ruling(text, uuid, uuid, uuid, text, text);
            """,
        ),
    ]
