import django.contrib.postgres.fields
import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import pipelines.ids
import pipelines.models.base

# Rows of handlers, in a schema that holds nothing else. No foreign key leads out of it: what refers to them takes them
# along.
SCHEMA = """
    CREATE SCHEMA recourse_store;

    CREATE TABLE recourse_store.rows (
        table_id uuid NOT NULL,
        id bigint GENERATED ALWAYS AS IDENTITY,
        key bytea NOT NULL,
        body jsonb NOT NULL CONSTRAINT rows_are_objects CHECK (jsonb_typeof(body) = 'object'),
        size integer NOT NULL CONSTRAINT rows_have_a_size CHECK (size > 0),
        run uuid,
        written_at timestamptz NOT NULL,
        CONSTRAINT rows_in_order PRIMARY KEY (table_id, id),
        CONSTRAINT rows_once_per_key UNIQUE (table_id, key)
    );

    -- Makes the role that alone works on the rows, and lets who asks act as it; '' once that is so, else why it is not.
    -- A role belongs to the whole server: two databases may be about to make it in the same moment, and one of them
    -- then meets what the other has just done.
    CREATE FUNCTION recourse_store_open() RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
        tries integer := 0;
        to_act text := CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END;
    BEGIN
        LOOP
            BEGIN
                IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'recourse_store') THEN
                    CREATE ROLE recourse_store NOLOGIN;
                END IF;
                IF NOT pg_has_role(current_user, 'recourse_store', to_act) THEN
                    EXECUTE format('GRANT recourse_store TO %I', current_user);
                END IF;
                IF NOT has_schema_privilege('recourse_store', 'recourse_store', 'USAGE') THEN
                    GRANT USAGE ON SCHEMA recourse_store TO recourse_store;
                END IF;
                IF NOT has_table_privilege('recourse_store', 'recourse_store.rows', 'DELETE') THEN
                    GRANT SELECT, INSERT, UPDATE, DELETE ON recourse_store.rows TO recourse_store;
                END IF;
                RETURN '';
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RETURN SQLERRM;
                WHEN unique_violation OR duplicate_object OR undefined_object OR internal_error THEN
                    tries := tries + 1;
                    IF tries >= 40 THEN
                        RAISE;
                    END IF;
                    PERFORM pg_sleep(0.05);
            END;
        END LOOP;
    END $$;
    REVOKE ALL ON FUNCTION recourse_store_open() FROM PUBLIC;

    SELECT recourse_store_open();
"""
# The role stays: other databases of the server may have it too.
NO_SCHEMA = """
    DROP FUNCTION recourse_store_open();
    DROP SCHEMA recourse_store CASCADE;
"""


class Migration(migrations.Migration):
    """The workspace store: rows of handlers in a schema and under a role of their own, and account of their tables."""

    dependencies = [("pipelines", "0025_decisions_cannot_be_emptied")]
    operations = [
        migrations.RunSQL(SCHEMA, NO_SCHEMA),
        migrations.CreateModel(
            name="StoreTable",
            fields=[
                (
                    "id",
                    models.UUIDField(default=pipelines.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=100)),
                (
                    "key",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        default=list,
                        help_text="the key columns; none: the whole row is the key",
                        size=None,
                    ),
                ),
                ("rows", models.BigIntegerField(default=0)),
                ("bytes", models.BigIntegerField(default=0, help_text="of the rows as compact JSON")),
                ("created_at", models.DateTimeField(db_default=pipelines.models.base.RecourseNow())),
                ("written_at", models.DateTimeField(null=True)),
                ("written_by_run", models.UUIDField(help_text="which may have been removed since", null=True)),
                ("written_by_attempt", models.UUIDField(null=True)),
                (
                    "application",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="pipelines.application",
                    ),
                ),
                (
                    "environment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="pipelines.environment"
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="pipelines.workspace",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["workspace", "name", "id"], name="store_table_by_name")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("application", "environment", "name"), name="store_table_named_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bytes__gte", 0), ("rows__gte", 0)), name="store_table_counts"
                    ),
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="storetable",
            trigger=pgtrigger.compiler.Trigger(
                name="store_table_takes_its_rows",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="DELETE FROM recourse_store.rows WHERE table_id = OLD.id; RETURN NULL;",
                    hash="54a2140474a9a39a6b9b2edf9caa4c8d1a4dd53b",
                    operation="DELETE",
                    pgid="pgtrigger_store_table_takes_its_rows_48de3",
                    table="pipelines_storetable",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="storetable",
            trigger=pgtrigger.compiler.Trigger(
                name="store_table_takes_all_rows",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="TRUNCATE recourse_store.rows; RETURN NULL;",
                    hash="d0aadaf0bde2606f8fc139467a867a2b43881dfb",
                    level="STATEMENT",
                    operation="TRUNCATE",
                    pgid="pgtrigger_store_table_takes_all_rows_13aba",
                    table="pipelines_storetable",
                    when="AFTER",
                ),
            ),
        ),
    ]
