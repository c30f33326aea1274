import uuid
from collections import defaultdict

from django.db import migrations

from pipelines.ids import new_id
from pipelines.states import OPEN_EFFECT

BATCH = 500  # runs a transaction

# What earlier cancels listed, of runs that have no rows of it yet.
LISTED = """
    SELECT r.id, r.workspace_id, e.data, e.at FROM pipelines_run r CROSS JOIN LATERAL (
        SELECT data, at FROM pipelines_event e WHERE e.run_id = r.id AND e.kind = 'run.reconciliation_list'
        ORDER BY e.id DESC LIMIT 1
    ) e
    WHERE r.id = ANY(%s) AND NOT EXISTS (
        SELECT FROM pipelines_reconciliationitem i WHERE i.run_id = r.id AND i.kind <> 'process_left')
"""
EFFECTS = """
    SELECT e.id, e.state, s.name, a.number, e.effect_class, e.step_id, e.key, e.external_ref, e.stage_id
    FROM pipelines_effect e JOIN pipelines_attempt a ON a.id = e.attempt JOIN pipelines_stage s ON s.id = e.stage_id
    WHERE e.run_id = ANY(%s) AND e.effect_class <> 'internal_state'
"""


def make_items(apps, editor):
    """Rows of what earlier cancels told as events, a batch of runs at a time. Again: nothing more.

    An open effect that was reconciled since is left out: nothing is left to be said of it.
    """
    from django.db.transaction import atomic

    last = uuid.UUID(int=0)
    while True:
        with atomic(using=editor.connection.alias), editor.connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM pipelines_run WHERE status = 'cancelled' AND id > %s ORDER BY id LIMIT %s",
                [last, BATCH],
            )
            runs = [row[0] for row in cursor.fetchall()]
            if not runs:
                return
            last = runs[-1]
            _make_items_of(apps, cursor, runs)


def _make_items_of(apps, cursor, runs):
    item_of = apps.get_model("pipelines", "ReconciliationItem")
    cursor.execute(LISTED, [runs])
    listed = [(*row[:2], _read(row[2]), row[3]) for row in cursor.fetchall()]
    cursor.execute("SELECT id FROM pipelines_stage WHERE run_id = ANY(%s)", [[row[0] for row in listed]])
    stages = {str(row[0]) for row in cursor.fetchall()}
    effects = _effects(cursor, [row[0] for row in listed])
    rows = []
    for run, workspace, items, at in listed:
        for item in items:
            if item.get("stageId") not in stages:
                continue
            known = effects[item["stageId"], item["detail"]] if item["kind"] == "open_effect" else []
            subject, state = known.pop(0) if known else (None, "unknown")
            if state in OPEN_EFFECT:
                rows.append(
                    item_of(
                        id=new_id(),
                        run_id=run,
                        workspace_id=workspace,
                        stage_id=item["stageId"],
                        attempt_number=item["attempt"],
                        kind=item["kind"],
                        subject=subject,
                        detail=item["detail"],
                        opened_at=at,
                    )
                )
    item_of.objects.bulk_create(rows, batch_size=1000)


def _read(data):
    """The items of an event, whether the driver reads JSON or leaves it as text."""
    import json

    found = json.loads(data) if isinstance(data, str) else data
    return [item for item in found or [] if isinstance(item, dict)]


def _effects(cursor, runs):
    """By stage and by how a cancel told of them: (id, state) of effects."""
    cursor.execute(EFFECTS, [runs])
    found = defaultdict(list)
    for effect, state, stage, number, effect_class, step, key, reference, stage_id in cursor.fetchall():
        names = "".join(f", {name} {value}" for name, value in (("key", key), ("reference", reference)) if value)
        what = " ".join(filter(None, (effect_class.replace("_", " "), step)))
        told = f"{stage}: nobody knows whether attempt {number} did {what}{names}"
        found[str(stage_id), told].append((effect, state))
    return found


class Migration(migrations.Migration):
    """What earlier cancels listed becomes rows that can be worked off."""

    atomic = False
    dependencies = [("pipelines", "0023_items_stay_as_listed")]
    operations = [migrations.RunPython(make_items, migrations.RunPython.noop)]
