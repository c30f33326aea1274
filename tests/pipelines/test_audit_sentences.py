"""Every audit event is told in a sentence: whatever the code writes, and names read in one query for a page."""

from __future__ import annotations

import ast
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from config import console_urls
from pipelines.audit import ALLOWED, DENIED, FAILED, NO_OP, record
from pipelines.audit_names import names_of
from pipelines.audit_sentences import ACTIONS, KINDS, NOUNS, VERDICT, VERDICTS, WHY, Names, said_of, tell
from pipelines.console import screens
from pipelines.errors import STATUS
from pipelines.models import AuditEvent, Run
from pipelines.tenant_admin import TenantAdmin
from recovery.states import Disposition, OperationKind
from recovery.transitions import VERBS
from tests.cast import Api, Person, stages_of

ROOT = Path(__file__).resolve().parents[2]
APPS = ("pipelines", "approvals", "recovery", "config")
# calls that write an audit event: where among their arguments the action is
WRITERS = {"tell_workspaces": 1, "audited": 1, "record": 1, "write": 1, "record_refusal": 1, "record_fault": 1}
ADMIN_MODELS = {
    str(model._meta.model_name) for model, site in admin.site._registry.items() if isinstance(site, TenantAdmin)
}
ADMIN_ROWS = {f"{model}.{verb}" for model in ADMIN_MODELS for verb in ("save", "remove")}
# an action that is no text where it is written → what it may be
COMPUTED: dict[str, set[str]] = {
    "verb.action": {verb.action for verb in VERBS.values()} | {"stage.reconcile", "effect.reconcile"},
    "action_of(asked.kind)": {"run.rerun", "run.replay"},
    "action_of(operation.kind)": {"run.rerun", "run.replay"},
    "forks.action_of(kind)": {"run.rerun", "run.replay"},
    "transitions.VERBS[kind].action": {verb.action for verb in VERBS.values()},
    "f'{self.opts.model_name}.{verb}'": ADMIN_ROWS,
    "f'{self.opts.model_name}.save'": ADMIN_ROWS,
    "f'{self.opts.model_name}.remove'": ADMIN_ROWS,
    "ACTIONS.get(match.url_name or '', f'screen.{match.url_name}')": set(screens.ACTIONS.values()),
    "self.tried(method, target)": {"gate.decide", "operation.decide"},
    "self.actions[method]": set(),  # they stand on the classes, which are walked too
    "self.action": set(),
}


def written() -> set[str]:
    """Every action that the code may write."""
    found = {VERDICT} | set(screens.ACTIONS.values())
    for path in sources():
        tree = ast.parse(path.read_text())
        for scope in ast.walk(tree):
            if isinstance(scope, ast.ClassDef):
                found |= set(_on_class(scope))
            if isinstance(scope, ast.FunctionDef):
                found |= set(_in_function(scope, tree, path))
    return found


def sources() -> Iterator[Path]:
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            if "migrations" not in path.parts and path.name != "audit.py":
                yield path


def _on_class(scope: ast.ClassDef) -> Iterator[str]:
    """`actions = {"POST": "run.pause"}` and `action = "gate.decide"` of the endpoints."""
    for line in scope.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            if line.targets[0].id == "actions" and isinstance(line.value, ast.Dict):
                yield from (str(one.value) for one in line.value.values if isinstance(one, ast.Constant))
            if line.targets[0].id == "action" and isinstance(line.value, ast.Constant):
                yield str(line.value.value)


def _in_function(scope: ast.FunctionDef, tree: ast.Module, path: Path) -> Iterator[str]:
    named: dict[str, ast.expr] = {}
    for node in (*tree.body, *ast.walk(scope)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                named.update(_pairs(target, node.value))
    for call in _calls(scope, set(WRITERS)):
        place = WRITERS[_name(call.func)]
        if len(call.args) > place and not (_name(call.func) == "write" and len(call.args) != 3):
            action = call.args[place]
            parameters = [one.arg for one in scope.args.args]
            if isinstance(action, ast.Name) and action.id in parameters and action.id not in named:
                where = parameters.index(action.id)
                for asked in _calls(tree, {scope.name}):
                    yield from _texts(asked.args[where], named, path)
            else:
                yield from _texts(action, named, path)


def _calls(scope: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and _name(node.func) in names and not _stores_bytes(node.func):
            yield node


def _stores_bytes(func: ast.expr) -> bool:
    """`write` of another module is about other things."""
    module = func.value if isinstance(func, ast.Attribute) else None
    return isinstance(module, ast.Name) and module.id == "artifact_places"


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, told in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, told)


def _texts(node: ast.expr, named: dict[str, ast.expr], path: Path) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, named, path)
        yield from _texts(node.orelse, named, path)
    elif isinstance(node, ast.Name) and node.id in named:
        yield from _texts(named[node.id], named, path)
    else:
        assert ast.unparse(node) in COMPUTED, f"{path.name}: say in COMPUTED which actions {ast.unparse(node)} may be"
        yield from COMPUTED[ast.unparse(node)]


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def event(action: str, outcome: str = ALLOWED, **more: Any) -> Any:
    told: dict[str, Any] = {
        "code": "",
        "actor": "ann",
        "channel": "api",
        "on_behalf_of": "",
        "run": None,
        "stage": None,
        "reason": "",
    }
    told |= {"before": None, "after": None, "data": {}, "workspace_id": None}
    return SimpleNamespace(action=action, outcome=outcome, **told | more)


# nothing is without words


def test_every_action_that_the_code_writes_has_a_sentence() -> None:
    """O4: a new action without words fails here instead of being told by its bare name."""
    found = written()
    assert {"run.cancel", "gate.approve", "policy.change", "run.rerun", "key.rotate", "member.save"} <= found
    rows = {action for action in found if said_of(action).did in ("saved", "removed")}
    assert {action for action in found - rows - {VERDICT} if action not in ACTIONS} == set()
    assert {action.partition(".")[0] for action in rows} - set(NOUNS) == set()


def test_no_sentence_is_kept_for_what_nobody_writes() -> None:
    assert {action for action in ACTIONS if not action.startswith("screen.")} - written() == set()
    assert set(NOUNS) == ADMIN_MODELS


def test_every_form_of_a_screen_has_a_sentence() -> None:
    """F145: what is refused to somebody on a screen is kept under the verb's name, or the form's own."""
    kept = {screens.ACTIONS.get(name, f"screen.{name}") for name in forms()}
    assert kept - set(ACTIONS) == set()
    assert {action for action in ACTIONS if action.startswith("screen.")} <= kept


def forms() -> set[str]:
    """The screens that take a POST, by name; those that need no log-in are about no workspace."""
    request = RequestFactory().post("/")
    request.user = AnonymousUser()
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined] # as Django's own test client has it
    found = [one for one in console_urls.urlpatterns if one.name not in ("login", "logout", "preferences")]
    asked = {str(one.name): one.callback(request, **dict.fromkeys(one.pattern.converters)) for one in found}
    return {name for name, answer in asked.items() if answer.status_code != 405}


@pytest.mark.parametrize("outcome", [ALLOWED, NO_OP, DENIED, FAILED])
def test_every_sentence_reads_also_when_nothing_is_known_of_what_it_was_about(outcome: str) -> None:
    """A request may be refused before anybody looked what it names."""
    for action in written():
        told = tell(event(action, outcome, code="not_found" if outcome == FAILED else ""), Names())
        assert told.startswith("ann"), action
        assert "{" not in told
        assert "None" not in told
        assert "  " not in told
        assert action not in told, "told by its bare name"


def test_every_refusal_and_every_verdict_has_words() -> None:
    assert set(STATUS) | {"internal_error"} == set(WHY)
    assert set(Disposition.values) == set(VERDICTS)
    assert set(OperationKind.values) <= set(KINDS)


# how they read

RUN, STAGE, MADE = (uuid.UUID(int=number) for number in (1, 2, 3))
NAMES = Names(runs={RUN: ("nightly-billing", "production")}, stages={STAGE: "load"})
RERUN = {"environment": "production", "flow_slug": "nightly-billing", "from_step_id": "load"}
CALM = "rerun: 1 approver within 7 days"
ONE, TWO = {"role": "approver", "count": 1}, {"role": "release_manager", "count": 2}
REQUEST = {"operation": "o-1", "kind": "rerun", "round": 1}
FILLED = {"trigger": "fx-daily", "environment": "production"}
WINDOW = {"from_time": "2026-05-20T08:00:00+00:00", "to_time": "2026-05-22T08:00:00+00:00"}


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (
            event("run.pause", run=RUN, reason="the bank is\n closed", data={"until": "2026-12-01T06:00:00+00:00"}),
            "ann paused nightly-billing in production until 2026-12-01T06:00:00+00:00: the bank is closed",
        ),
        (
            event("backfill.start", data={**FILLED, **WINDOW, "ticks": 3, "skipped": 1}, reason="the feed was down"),
            "ann backfilled the trigger fx-daily in production from 2026-05-20T08:00:00+00:00 to"
            " 2026-05-22T08:00:00+00:00 (3 ticks, 1 left as they are): the feed was down",
        ),
        (
            event("backfill.start", data={**FILLED, "ticks": 1, "status": "awaiting_approval", "approvals": [ONE]}),
            "ann asked to backfill the trigger fx-daily in production (1 tick); it waits for one approver",
        ),
        (
            event("backfill.resume", data={**FILLED, "override_reason": "month end"}),
            "ann resumed the backfill of the trigger fx-daily in production; in spite of any blackout: month end",
        ),
        (
            event("backfill.cancel", NO_OP, data=FILLED),
            "ann asked to cancel the backfill of the trigger fx-daily in production; nothing changed",
        ),
        (
            event("operation.reject", on_behalf_of="bob", data={**FILLED, "kind": "backfill"}, reason="not now"),
            "ann rejected bob's backfill of the trigger fx-daily in production: not now",
        ),
        (
            event("run.rerun", run=RUN, data=RERUN, after={"target": str(MADE)}, reason="again"),
            f"ann reran nightly-billing from load in production: again; the new run is {MADE}",
        ),
        (
            event("run.rerun", DENIED, code="operator_review_required", run=RUN, data=RERUN),
            "ann asked to rerun nightly-billing from load in production; it waits for somebody else to let it go on",
        ),
        (
            event("stage.retry", NO_OP, run=RUN, stage=STAGE, data={"scope": "stage_and_downstream"}),
            "ann asked to retry load of nightly-billing in production and what follows it; nothing changed",
        ),
        (
            event("stage.skip", FAILED, code="stage_state_invalid", run=RUN, stage=STAGE, reason="not today"),
            "ann could not skip load of nightly-billing in production: not today; the stage's state does not take it",
        ),
        (
            event("run.cancel", DENIED, code="permission_denied", run=RUN, data={"detail": "the role viewer may not"}),
            "ann was not allowed to cancel nightly-billing in production; the role viewer may not",
        ),
        (
            event("run.rerun", run=RUN, data=RERUN | {"status": "awaiting_approval", "approvals": [ONE]}),
            "ann asked to rerun nightly-billing from load in production; it waits for one approver",
        ),
        (
            event("stage.retry", run=RUN, stage=STAGE, data={"status": "awaiting_approval", "approvals": [TWO]}),
            "ann asked to retry load of nightly-billing in production; it waits for 2 release managers",
        ),
        (
            event(
                "operation.approve",
                on_behalf_of="bob",
                run=RUN,
                data=REQUEST,
                after={"request": "approved", "operation": "reserved", "target": str(MADE)},
                reason="checked with the bank",
            ),
            f"ann approved bob's rerun of nightly-billing in production: checked with the bank; it goes on as {MADE}",
        ),
        (
            event(
                "operation.approve",
                on_behalf_of="bob",
                run=RUN,
                stage=STAGE,
                data=REQUEST | {"kind": "retry"},
                after={"request": "approved", "operation": "succeeded", "approvals": 2, "needed": 2},
            ),
            "ann approved bob's retry of load of nightly-billing in production; it was carried out",
        ),
        (
            event("operation.withdraw", run=RUN, data=REQUEST),
            "ann withdrew their own rerun of nightly-billing in production",
        ),
        (
            event(
                "operation.approve",
                on_behalf_of="bob",
                run=RUN,
                data=REQUEST,
                after={"request": "open", "operation": "awaiting_approval", "approvals": 1, "needed": 2},
            ),
            "ann approved bob's rerun of nightly-billing in production; 1 of 2 have agreed",
        ),
        (
            event("operation.approve", DENIED, code="self_approval", run=RUN, data=REQUEST),
            "ann was not allowed to approve their own rerun of nightly-billing in production;"
            " who asked for it does not decide it",
        ),
        (
            event("operation.approve", DENIED, code="plan_changed", on_behalf_of="bob", run=RUN, data=REQUEST),
            "ann could not approve bob's rerun of nightly-billing in production;"
            " what it would do has changed since it was looked at",
        ),
        (
            event("gate.approve", run=RUN, stage=STAGE, data={"gate": "g", "have": 1, "need": 2}),
            "ann approved load of nightly-billing in production; 1 of 2 have agreed",
        ),
        (
            event("gate.reject", run=RUN, stage=STAGE, actor="billing", channel="application", reason="no"),
            "the application billing rejected load of nightly-billing in production: no",
        ),
        (
            event(VERDICT, run=RUN, data={"kind": "rerun", "disposition": "recovery_allowed", "reasons": []}),
            "ann's rerun of nightly-billing in production may go on",
        ),
        (
            event(
                VERDICT,
                DENIED,
                code="recovery_denied",
                on_behalf_of="bob",
                run=RUN,
                data={"kind": "rerun", "disposition": "recovery_denied", "reasons": [{"text": "it charged twice"}]},
            ),
            "bob's rerun of nightly-billing in production, as ann looked at it, is denied: it charged twice",
        ),
        (
            event(
                "environment.save",
                data={"environment": "production", "created": False},
                before={"rank": 3, "protected": True},
                after={"rank": 9, "protected": True},
            ),
            "ann saved the environment production (rank 3 → 9)",
        ),
        (
            event(
                "environment.save",
                data={"environment": "production", "created": True},
                before={"rank": 3},
                after={"rank": None, "protected": True, "note": None, "colour": ""},
            ),
            "ann saved the environment production (rank 3 → nothing, protected yes)",
        ),
        (
            event("release.activate", data={"release": "r-1", "pipeline": "billing", "environment": "staging"}),
            "ann put the release r-1 of billing for staging in force",
        ),
        (
            event(
                "member.save",
                channel="admin",
                data={"id": "7", "name": "bob"},
                before={"role": "viewer"},
                after={"role": "approver"},
            ),
            "ann saved the member bob (role viewer → approver)",
        ),
        (
            event(
                "policy.change",
                data={"policy": "calm", "policy_id": "p"},
                before={"status": "active"},
                after={"status": "paused"},
            ),
            "ann changed the policy calm (status active → paused)",
        ),
        (
            event("approvalrule.save", data={"name": "calm", "rule": CALM}, after={"name": "calm", "count": 1}),
            "ann saved the approval rule calm, which says rerun: 1 approver within 7 days",
        ),
        (
            event("approvalrule.save", data={"name": "calm", "rule": CALM}, before={"count": 2}, after={"count": 1}),
            "ann saved the approval rule calm (count 2 → 1), which says rerun: 1 approver within 7 days",
        ),
        (
            event("approvalrule.save", NO_OP, data={"name": "calm", "rule": CALM}, before={}, after={}),
            "ann asked to save the approval rule calm, which says rerun: 1 approver within 7 days; nothing changed",
        ),
        (
            event("approvalrule.save", DENIED, code="permission_denied", data={"name": "calm"}, after={"count": 1}),
            "ann was not allowed to save the approval rule calm (count 1); the right is missing",
        ),
        (
            event("approvalrule.remove", data={"name": "calm", "rule": CALM}, before={"count": 1}),
            "ann removed the approval rule calm, which said rerun: 1 approver within 7 days",
        ),
        (
            event("member.remove", data={"user": "bob", "role": "approver"}, channel="admin"),
            "ann removed the member bob",
        ),
        (
            event("run.remove", actor="retention", data={"count": 12, "ended_before": "2026-01-01"}),
            "retention removed 12 runs that ended before 2026-01-01",
        ),
        (
            event("run.remove", DENIED, code="permission_denied", data={"id": str(RUN)}),
            f"ann was not allowed to remove the run {RUN}; the right is missing",
        ),
        (
            event("stage.reconcile", run=RUN, stage=STAGE, data={"outcome": "absent"}),
            "ann reported of load of nightly-billing in production that it did not happen",
        ),
        (event("run.resume", run=MADE), f"ann resumed the run {MADE}"),
        (event("made.later"), "ann did made.later to a run"),
    ],
)
def test_a_sentence_says_who_what_where_and_why(told: Any, sentence: str) -> None:
    """F145: on whose behalf, with what outcome, and in the words of whoever acted. A run that is gone has its id."""
    assert tell(told, NAMES) == sentence


def test_a_long_reason_is_cut_in_the_sentence_alone() -> None:
    told = tell(event("run.pause", run=RUN, reason="why " * 1000), NAMES)
    assert len(told) < 400
    assert told.endswith("…")


# in the API and in the admin site


def test_a_page_of_events_is_told_in_one_query_for_all_names(
    start_run: Callable[..., Run], people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """Not one for each event: nothing is looked up twice, and nothing for a page that names nothing."""
    runs = [start_run("first", name=f"nightly-{number}") for number in range(5)]
    for run in runs:
        actor = people["operator"].actor
        record(actor, "stage.skip", ALLOWED, run=run.id, stage=stages_of(run)[0].id, reason="not today")
    viewer = as_person(people["viewer"])
    told = [one["sentence"] for one in viewer.get("/v1/audit-events").json()["results"]]
    assert told == [
        f"operator-acme skipped first of nightly-{number} in development: not today" for number in (4, 3, 2, 1, 0)
    ]
    events = list(AuditEvent.objects.all())
    with CaptureQueriesContext(connection) as captured:
        names_of(events)
    assert len(captured) == 1
    assert names_of([]) == Names()


def test_the_name_of_another_workspaces_run_is_not_told(
    start_run: Callable[..., Run], outsider: Person, as_person: Callable[[Person], Api]
) -> None:
    """I16: who tries an id of others has it in their own audit, and learns nothing from it."""
    run = start_run("first", name="secret-plans")
    olga = as_person(outsider)
    assert olga.post(f"/v1/executions/{run.id}/pause", {"reason": "try"}).status_code == 404
    assert olga.post(f"/v1/stages/{stages_of(run)[0].id}/skip", {"reason": "try"}).status_code == 404
    skip, pause = [one["sentence"] for one in olga.get("/v1/audit-events").json()["results"]]
    assert pause == f"olga could not pause the run {run.id}; there is no such thing here"
    assert skip.startswith(f"olga could not skip the stage {stages_of(run)[0].id}")


def test_the_admin_site_lists_sentences_in_as_many_queries_for_many_as_for_one(
    start_run: Callable[..., Run], people: dict[str, Person]
) -> None:
    user = people["admin"].user
    user.is_staff = True
    user.save()
    client = Client()
    client.force_login(user)

    def looked() -> int:
        with CaptureQueriesContext(connection) as captured:
            answer = client.get("/admin/pipelines/auditevent/")
        assert "admin-acme paused nightly in development" in answer.content.decode()
        return len(captured)

    record(people["admin"].actor, "run.pause", ALLOWED, run=start_run("first").id)
    looked()
    few = looked()
    for _ in range(5):
        record(people["admin"].actor, "run.pause", ALLOWED, run=start_run("first").id)
    assert looked() == few
    one = AuditEvent.objects.order_by("at").values_list("pk", flat=True)[0]
    shown = client.get(f"/admin/pipelines/auditevent/{one}/change/").content.decode()
    assert "admin-acme paused nightly in development" in shown


def test_a_refusal_says_which_right_is_missing(
    start_run: Callable[..., Run], people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """F145: the code alone would not."""
    run = start_run("first")
    assert as_person(people["viewer"]).post(f"/v1/executions/{run.id}/cancel", {"reason": "try"}).status_code == 403
    (told,) = as_person(people["viewer"]).get("/v1/audit-events").json()["results"]
    assert told["sentence"] == (
        "viewer-acme was not allowed to cancel nightly in development;"
        " the role viewer may not cancel; this needs one of: admin, operator, release_manager"
    )
