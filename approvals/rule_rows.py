"""Approval rules as rows: reading those in force, checking what somebody wants, and keeping it with its audit event.

The API and the admin site change rules through here. Changing, disabling or removing one touches nothing that waits:
a request keeps what it asked for, and is asked anew only when more is asked for by then (ADR 0069).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Value
from django.db.models.functions import Lower

from approvals import gates
from approvals.models import ApprovalRule, Counted
from approvals.rules import PROTECTED, Rule, people, roles_from, sentence
from pipelines.access import ADMINISTER, CAPABILITIES, FORK, Actor
from pipelines.audit import NO_OP, Entry, audited
from pipelines.errors import Refusal
from pipelines.models import Environment, Member, Pipeline, Workspace

FIELDS = tuple(Rule.__dataclass_fields__)
LARGEST_SIZE = 1_000_000  # of what a rule counts
SAVE, REMOVE = "approvalrule.save", "approvalrule.remove"
Problems = dict[str, list[str]]


def in_force(workspace_id: uuid.UUID, kind: str) -> list[Rule]:
    """The enabled rules of the workspace that are about this kind. One query."""
    found = ApprovalRule.objects.filter(workspace_id=workspace_id, enabled=True, kinds__contains=[kind])
    return [as_rule(row) for row in found]


def as_rule(row: ApprovalRule) -> Rule:
    """The row as what `approvals/rules.py` matches."""
    return Rule(
        name=row.name,
        kinds=frozenset(row.kinds),
        environments=frozenset(row.environments),
        pipelines=frozenset(row.pipelines),
        counted=row.counted,
        at_least=row.at_least,
        role=row.role,
        count=row.count,
        expires_in=row.expires_in,
    )


def hold(workspace_id: uuid.UUID) -> None:
    """Lets one change of a workspace's rules happen at a time, until the transaction ends."""
    Workspace.objects.select_for_update(no_key=True).get(id=workspace_id)


def problems(workspace_id: uuid.UUID, wanted: Mapping[str, Any], rule_id: uuid.UUID | None = None) -> Problems:
    """What is wrong with a rule in this workspace, by field: a taken name, and what it names and nobody knows there.

    `wanted` has of `FIELDS` what could be read; types and limits of single values are checked by whoever read them.
    `rule_id` is that of the rule itself when there is one already.
    """
    found: Problems = {}
    others = ApprovalRule.objects.filter(workspace_id=workspace_id)
    if rule_id is not None:
        others = others.exclude(id=rule_id)
    named: dict[str, list[str]] = {name: list(wanted.get(name, ())) for name in ("kinds", "environments", "pipelines")}
    if others.annotate(lower=Lower("name")).filter(lower=Lower(Value(wanted.get("name", "")))).exists():
        found["name"] = ["another approval rule has this name"]
    if strange := _strange(named["kinds"], gates.kinds()):
        found["kinds"] = [f"{strange}: what may wait for agreement is {', '.join(gates.kinds())}"]
    if "kinds" in wanted and not named["kinds"]:
        found["kinds"] = ["must name at least one kind of operation"]
    found |= unknown_places(workspace_id, named["environments"], named["pipelines"])
    if wanted.get("counted") == "" and wanted.get("at_least", 1) != 1:
        found["counted"] = [f"must say what there are {wanted['at_least']} of: {', '.join(Counted.values)}"]
    return found


def unknown_places(workspace_id: uuid.UUID, environments: Sequence[str], pipelines: Sequence[str]) -> Problems:
    """What a rule of any sort names and the workspace does not have, by field."""
    found: Problems = {}
    known = Environment.objects.filter(workspace_id=workspace_id, slug__in=environments)
    if strange := _strange(environments, [PROTECTED, *known.values_list("slug", flat=True)]):
        found["environments"] = [f"no environment here is called {strange}"]
    there = Pipeline.objects.filter(workspace_id=workspace_id, slug__in=pipelines)
    if strange := _strange(pipelines, there.values_list("slug", flat=True)):
        found["pipelines"] = [f"no pipeline here is called {strange}"]
    return found


def add_rule(*, actor: Actor, wanted: Mapping[str, Any]) -> ApprovalRule:
    """A new rule, which binds what is asked for from now on. `wanted` has all of `FIELDS`, and `enabled`."""
    row, _ = _add(actor, wanted, once=False)
    return row


def add_rule_once(*, actor: Actor, wanted: Mapping[str, Any]) -> tuple[ApprovalRule, bool]:
    """As `add_rule`, and whether it is new: a rule that says just this is the one that was wanted, so that whoever
    heard no answer may ask again.
    """
    return _add(actor, wanted, once=True)


def _add(actor: Actor, wanted: Mapping[str, Any], *, once: bool) -> tuple[ApprovalRule, bool]:
    given = _once(wanted)
    row = ApprovalRule(workspace_id=actor.workspace_id, **given)
    with audited(actor, SAVE, id=str(row.id), name=row.name, after=given) as entry:
        actor.require(ADMINISTER)
        hold(actor.workspace_id)
        same = ApprovalRule.objects.filter(workspace_id=actor.workspace_id, **given).first() if once else None
        if same is not None:
            entry.outcome, entry.data["id"] = NO_OP, str(same.id)
            return same, False
        _save(row, entry)
    row.refresh_from_db()
    return row, True


def change_rule(rule_id: uuid.UUID, *, actor: Actor, changes: Mapping[str, Any]) -> ApprovalRule:
    """Changes what is given of a rule; one that counts nothing any more is of any size. What waits asks for no less."""
    given = _once(changes)
    if given.get("counted") == "":
        given.setdefault("at_least", 1)
    with audited(actor, SAVE, id=str(rule_id), after=given) as entry:
        actor.require(ADMINISTER)
        row = _held(rule_id, actor, entry)
        changed = {name: value for name, value in given.items() if getattr(row, name) != value}
        entry.before, entry.after = {name: getattr(row, name) for name in changed}, changed
        if not changed:
            entry.outcome = NO_OP
        for name, value in changed.items():
            setattr(row, name, value)
        _save(row, entry)
    return row


def remove_rule(rule_id: uuid.UUID, *, actor: Actor) -> None:
    """Removes a rule. What waits because of it goes on waiting."""
    with audited(actor, REMOVE, id=str(rule_id)) as entry:
        actor.require(ADMINISTER)
        row = _held(rule_id, actor, entry)
        entry.data["rule"] = sentence(as_rule(row))
        entry.before = {name: getattr(row, name) for name in (*FIELDS, "enabled")}
        row.delete()


def warnings(rows: Iterable[ApprovalRule], workspace_id: uuid.UUID) -> dict[uuid.UUID, list[str]]:
    """What to know about each rule though it may be kept: too few people to agree."""
    members = Member.objects.filter(workspace_id=workspace_id, user__is_active=True)
    roles = Counter(members.values_list("role", flat=True))
    return {row.pk: list(_too_few(row, roles)) for row in rows}


def _too_few(row: ApprovalRule, roles: Mapping[str, int]) -> Iterable[str]:
    able = {role: roles.get(role, 0) for role in roles_from(row.role)}
    some, asking = sum(able.values()), any(able[role] for role in able if role in CAPABILITIES[FORK])
    needed = people(row.role, row.count)
    if some < row.count:
        yield f"needs {needed} and the workspace has {some}: nothing that it is about can go on"
    elif asking and some - 1 < row.count:
        yield f"needs {needed} and the workspace has {some}: too few when one of them asks, who may not agree"


def _held(rule_id: uuid.UUID, actor: Actor, entry: Entry) -> ApprovalRule:
    hold(actor.workspace_id)
    row = ApprovalRule.objects.filter(id=rule_id, workspace_id=actor.workspace_id).first()
    if row is None:
        raise Refusal("not_found", "there is no such approval rule")
    entry.data["name"] = row.name
    return row


def _save(row: ApprovalRule, entry: Entry) -> None:
    found = problems(row.workspace_id, {name: getattr(row, name) for name in FIELDS}, row.id)
    if found:
        field, (message, *_) = next(iter(found.items()))
        raise Refusal("validation_error", f"{field}: {message}", errors=found)
    row.save()
    entry.data["rule"] = sentence(as_rule(row))


def _once(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with nothing twice in a list."""
    return {name: list(dict.fromkeys(one)) if isinstance(one, list) else one for name, one in values.items()}


def _strange(named: Iterable[str], known: Iterable[str]) -> str:
    """What is named and not known, quoted; blank when all of it is."""
    familiar = set(known)
    return ", ".join(repr(one) for one in named if one not in familiar)
