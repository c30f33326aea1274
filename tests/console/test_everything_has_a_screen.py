"""What the operations API can do, people can do or see on a screen: a new route fails here until it is said where."""

from __future__ import annotations

from django.urls import NoReverseMatch, reverse

from pipelines.api.operations_endpoint import OperationsEndpoint
from tests.routes import every_route

RUN, EFFECT, RUNTIME = "run", "effect", "the runtime's own checkpoints, by its key alone"
# route → the name of a screen of the console, or of a page of the admin site
SCREENS = {
    "GET executions": "runs",
    "GET executions/<str:execution_id>": RUN,
    "GET executions/<str:execution_id>/stages": RUN,
    "GET executions/<str:execution_id>/attempts": RUN,
    "GET executions/<str:execution_id>/timeline": "run-events",
    "GET executions/<str:execution_id>/logs": "attempt",
    "GET executions/<str:execution_id>/blockers": RUN,
    "GET executions/<str:execution_id>/budget": RUN,
    "GET executions/<str:execution_id>/snapshot": RUN,
    "GET executions/<str:execution_id>/checkpoints": "checkpoints",
    "GET executions/<str:execution_id>/checkpoints/latest": "checkpoints",
    "GET executions/<str:execution_id>/checkpoints/<str:checkpoint_id>": "checkpoint",
    "POST executions/<str:execution_id>/checkpoints": RUNTIME,
    "PATCH executions/<str:execution_id>/checkpoints/<str:checkpoint_id>": RUNTIME,
    "GET executions/<str:execution_id>/artifacts": RUN,
    "GET executions/<str:execution_id>/reconciliation": RUN,
    "POST executions/<str:execution_id>/reconciliation/<str:item_id>/settle": "reconciliation-settle",
    "GET reconciliation": "reconciliation",
    "GET executions/<str:execution_id>/evidence": "evidence-graph",
    "GET executions/<str:execution_id>/effects": "effects",
    "GET executions/<str:execution_id>/effects/<str:effect_id>/late-results": EFFECT,
    "GET executions/<str:execution_id>/effects/<str:effect_id>/evidence": EFFECT,
    "POST executions/<str:execution_id>/effects/<str:effect_id>/evidence": "effect-evidence",
    "POST executions/<str:execution_id>/effects/<str:effect_id>/reconciliation": "effect-reconcile",
    "POST executions/<str:execution_id>/pause": "pause",
    "POST executions/<str:execution_id>/resume": "resume",
    "POST executions/<str:execution_id>/cancel": "cancel",
    "POST executions/<str:execution_id>/rerun": "rerun",
    "POST executions/<str:execution_id>/replay": "replay",
    "GET executions/<str:execution_id>/run-retry": RUN,
    "POST executions/<str:execution_id>/run-retry/stop": "run-retry-stop",
    "POST stages/<str:stage_id>/retry": "retry",
    "POST stages/<str:stage_id>/skip": "skip",
    "POST stages/<str:stage_id>/reconcile": "reconcile",
    "GET stages/<str:stage_id>/import-request": "import-request",
    "POST stages/<str:stage_id>/import": "import-answer",
    "GET executions/<str:execution_id>/account": RUN,
    "GET executions/<str:execution_id>/children": "children",
    "GET stages/<str:stage_id>/policies": RUN,
    "GET stages/<str:stage_id>/outputs": RUN,
    "GET operations": "operations",
    "GET bulk-operations": "bulk-list",
    "POST bulk-operations": "bulk-new",
    "GET bulk-operations/<str:bulk_id>": "bulk",
    "GET bulk-operations/<str:bulk_id>/items": "bulk-items",
    "POST bulk-operations/<str:bulk_id>/pause": "bulk-pause",
    "POST bulk-operations/<str:bulk_id>/resume": "bulk-resume",
    "POST bulk-operations/<str:bulk_id>/abort": "bulk-abort",
    "GET dead-letters": "dead-letters",
    "POST dead-letters/<str:letter_id>/acknowledge": "acknowledge",
    "POST dead-letters/<str:letter_id>/redrive": "redrive",
    "POST dead-letters/<str:letter_id>/discard": "discard",
    "GET approvals": "approvals",
    "POST approvals/<str:approval_id>/decision": "approval-approve",
    "POST approvals/<str:approval_id>/withdraw": "approval-withdraw",
    "GET triggers": "triggers",
    "POST triggers": "trigger-new",
    "GET triggers/<str:trigger_id>": "trigger",
    "PATCH triggers/<str:trigger_id>": "trigger-change",
    "GET triggers/<str:trigger_id>/ticks": "trigger",
    "POST triggers/backfill": "backfill-planner",
    "GET backfills": "backfills",
    "GET backfills/<str:backfill_id>": "backfill",
    "GET backfills/<str:backfill_id>/ticks": "backfill-ticks",
    "POST backfills/<str:backfill_id>/pause": "backfill-pause",
    "POST backfills/<str:backfill_id>/resume": "backfill-resume",
    "POST backfills/<str:backfill_id>/cancel": "backfill-cancel",
    "GET blackouts": "blackouts",
    "POST blackouts": "blackout-new",
    "PATCH blackouts/<str:blackout_id>": "blackout-change",
    "GET freeze": "blackouts",
    "POST freeze": "freeze",
    "POST freeze/lift": "freeze-lift",
    "GET guarantees": "guarantees",
    "GET pipelines/<str:slug>/readiness": "pipeline",
    "GET pipelines": "pipelines",
    "POST pipelines": "pipeline-new",
    "GET releases": "pipeline",
    "GET releases/<str:release_id>": "release",
    "POST releases": "release-new",
    "POST releases/<str:release_id>/activate": "release-activate",
    "POST releases/<str:release_id>/review": "release-review",
    "GET artifacts": "artifacts",
    "POST artifacts": "baseline-new",
    "GET artifacts/<str:artifact_id>": "artifacts",
    "GET artifacts/<str:artifact_id>/content": "artifact-content",
    "GET store/tables": "store",
    "GET store/tables/<str:table_id>": "store-table",
    "GET store/tables/<str:table_id>/rows": "store-table",
    "POST store/tables/<str:table_id>/remove": "store-remove",
    "GET workers": "workers",
    "GET audit-events": "audit",
    "GET audit-heads": "audit",
    "GET signing-keys": "signing-keys",
    "POST signing-keys/rotate": "key-rotate",
    "POST signing-keys/<str:key_id>/revoke": "key-revoke",
    "GET approval-rules": "admin:approvals_approvalrule_changelist",
    "POST approval-rules": "admin:approvals_approvalrule_add",
    "PATCH approval-rules/<str:rule_id>": "admin:approvals_approvalrule_change",
    "GET policies": "admin:pipelines_policy_changelist",
    "POST policies": "admin:pipelines_policy_add",
    "PATCH policies/<str:policy_id>": "admin:pipelines_policy_change",
    "GET environments": "admin:pipelines_environment_changelist",
    "POST environments": "admin:pipelines_environment_add",
    "GET applications": "admin:pipelines_application_changelist",
    "POST applications": "admin:pipelines_application_add",
    "PATCH applications/<str:application_id>": "admin:pipelines_application_change",
}


def found() -> set[str]:
    return {
        f"{method} {route.removeprefix('v1/')}"
        for route, pattern in every_route()
        if issubclass(getattr(pattern.callback, "view_class", object), OperationsEndpoint)
        for method in pattern.callback.view_class.access  # type: ignore[attr-defined]
    }


def test_every_route_of_the_operations_api_has_a_screen() -> None:
    """P88: what integrations can do, operators can."""
    assert found() - set(SCREENS) == set(), "say on which screen people do this"
    assert set(SCREENS) - found() == set(), "these are gone"


def test_every_screen_that_is_named_is_there() -> None:
    names = {pattern.name for route, pattern in every_route() if route.startswith("console/")}
    for place in set(SCREENS.values()) - {RUNTIME}:
        if place.startswith("admin:"):
            assert is_there(place), place
        else:
            assert place in names, place


def is_there(name: str) -> bool:
    for args in ([], ["1"]):
        try:
            return bool(reverse(name, args=args))
        except NoReverseMatch:
            continue
    return False
