"""What a workspace is made of, and changing it: environments, applications, pipelines, policies.

One function for each verb, for API, commands and screens alike; each in one transaction with its audit event. Saying
the same again changes nothing. Who may is looked at before anything else.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max

from pipelines import keyring, throttle_lines
from pipelines.access import ADMINISTER, RELEASE, Actor
from pipelines.audit import ALLOWED, NO_OP, audited, record
from pipelines.errors import Refusal
from pipelines.models import Application, Environment, Pipeline, Policy, Workspace
from pipelines.policies import THROTTLES

LADDER = (("development", 1, False), ("staging", 2, False), ("production", 3, True))


def ensure_workspace(slug: str) -> tuple[Workspace, bool]:
    """The workspace of that name; a new one has the ladder development, staging, production (protected)."""
    with transaction.atomic():
        workspace, created = Workspace.objects.get_or_create(slug=slug)
        if created:
            furnish(workspace)
    return workspace, created


def furnish(workspace: Workspace) -> None:
    """Gives a new workspace its environments and its signing keys."""
    Environment.objects.bulk_create(
        Environment(workspace=workspace, slug=slug, rank=rank, protected=protected) for slug, rank, protected in LADDER
    )
    keyring.prepare(workspace.id)


def ensure_environment(workspace: Workspace, slug: str, *, actor: Actor) -> tuple[Environment, bool]:
    """The rung of that name, which a command names; a new one is put on top of the ladder, unprotected."""
    with transaction.atomic():
        defaults = {"rank": _top(workspace.id) + 1}
        environment, created = Environment.objects.get_or_create(workspace=workspace, slug=slug, defaults=defaults)
        if created:
            record(actor, "environment.save", ALLOWED, data={"environment": slug, "created": True})
    return environment, created


def save_environment(
    *, actor: Actor, slug: str, rank: int | None = None, protected: bool | None = None
) -> tuple[Environment, bool]:
    """Makes a rung or changes the one of that name: only what is given. The second value says whether it is new."""
    with audited(actor, "environment.save", environment=slug) as entry:
        actor.require(ADMINISTER)
        environment, created = Environment.objects.select_for_update(no_key=True).get_or_create(
            workspace_id=actor.workspace_id,
            slug=slug,
            defaults={
                "rank": _top(actor.workspace_id) + 1 if rank is None else rank,
                "protected": bool(protected),
            },
        )
        before = {"rank": environment.rank, "protected": environment.protected}
        environment.rank = environment.rank if rank is None else rank
        environment.protected = environment.protected if protected is None else protected
        after = {"rank": environment.rank, "protected": environment.protected}
        entry.data["created"] = created
        entry.before, entry.after = None if created else before, after
        if not created and before == after:
            entry.outcome = NO_OP
        environment.save(update_fields=["rank", "protected"])
    return environment, created


def save_application(*, actor: Actor, name: str) -> tuple[Application, bool]:
    """The application of that name, made when it is new."""
    with audited(actor, "application.save", application=name) as entry:
        actor.require(ADMINISTER)
        application, created = Application.objects.get_or_create(workspace_id=actor.workspace_id, name=name)
        if not created:
            entry.outcome = NO_OP
    return application, created


def rename_application(application_id: uuid.UUID, *, actor: Actor, name: str) -> Application:
    """Another name for an application; its keys and runs stay. A taken name is an input error."""
    with audited(actor, "application.rename", application_id=str(application_id), name=name) as entry:
        actor.require(ADMINISTER)
        application = _locked(Application, application_id, actor)
        entry.before, entry.after = {"name": application.name}, {"name": name}
        if application.name == name:
            entry.outcome = NO_OP
        application.name = name
        _save(application, "application_name_once_per_workspace", "name", "another application has this name")
    return application


def save_pipeline(*, actor: Actor, slug: str, name: str, description: str = "") -> tuple[Pipeline, bool]:
    """Makes a pipeline or changes the name and description of the one of that slug; its releases stay as they are."""
    with audited(actor, "pipeline.save", pipeline=slug) as entry:
        actor.require(RELEASE)
        pipeline, created = Pipeline.objects.select_for_update(no_key=True).get_or_create(
            workspace_id=actor.workspace_id, slug=slug, defaults={"name": name, "description": description}
        )
        entry.data["created"] = created
        entry.before = None if created else {"name": pipeline.name, "description": pipeline.description}
        entry.after = {"name": name, "description": description}
        if not created and (pipeline.name, pipeline.description) == (name, description):
            entry.outcome = NO_OP
        pipeline.name, pipeline.description = name, description
        pipeline.save(update_fields=["name", "description"])
    return pipeline, created


def add_policy(
    *, actor: Actor, name: str, kind: str, match: Mapping[str, Any], rule: Mapping[str, Any], status: str
) -> Policy:
    """A new policy, in force at once for what happens from now on (P45). A taken name is an input error.

    What is under way holds no slot of it and counts for no rate.
    """
    wanted = Policy(
        workspace_id=actor.workspace_id, name=name, kind=kind, match=dict(match), rule=dict(rule), status=status
    )
    return _add_policy(wanted, actor, once=False)


def add_policy_once(
    *, actor: Actor, name: str, kind: str, match: Mapping[str, Any], rule: Mapping[str, Any], status: str
) -> tuple[Policy, bool]:
    """As `add_policy`, and whether it is new: a policy that says just this is the one that was wanted, so that whoever
    heard no answer may ask again.
    """
    wanted = Policy(
        workspace_id=actor.workspace_id, name=name, kind=kind, match=dict(match), rule=dict(rule), status=status
    )
    policy = _add_policy(wanted, actor, once=True)
    return policy, policy is wanted


def _add_policy(policy: Policy, actor: Actor, *, once: bool) -> Policy:
    told = {"kind": policy.kind, "match": policy.match, "rule": policy.rule, "status": policy.status}
    with audited(actor, "policy.add", policy=policy.name, **told) as entry:
        actor.require(ADMINISTER)
        try:
            _save(policy, "policy_name_once_per_workspace", "name", "another policy has this name")
        except Refusal:
            same = Policy.objects.filter(workspace_id=actor.workspace_id, name=policy.name, **told).first()
            if not once or same is None:
                raise
            entry.outcome = NO_OP
            return same
        if policy.kind in THROTTLES:
            throttle_lines.put_right_later(actor.workspace_id, policy.pk)
        policy.refresh_from_db()
    return policy


def change_policy(policy_id: uuid.UUID, *, actor: Actor, changes: Mapping[str, Any]) -> Policy:
    """Changes name, match, rule or status of a policy. Decisions already taken keep the rule they were taken by."""
    with audited(actor, "policy.change", policy_id=str(policy_id), after=dict(changes)) as entry:
        actor.require(ADMINISTER)
        policy = _locked(Policy, policy_id, actor)
        entry.data["policy"] = policy.name
        entry.before = {name: getattr(policy, name) for name in changes}
        if entry.before == dict(changes):
            entry.outcome = NO_OP
        for name, value in changes.items():
            setattr(policy, name, value)
        _save(policy, "policy_name_once_per_workspace", "name", "another policy has this name")
        if policy.kind in THROTTLES and entry.outcome != NO_OP:
            throttle_lines.put_right_later(actor.workspace_id, policy.pk)
    return policy


def _locked(model: Any, found_id: uuid.UUID, actor: Actor) -> Any:
    rows = model.objects.select_for_update(no_key=True)
    found = rows.filter(id=found_id, workspace_id=actor.workspace_id).first()
    if found is None:
        raise Refusal("not_found", f"there is no such {model._meta.verbose_name}")  # noqa: SLF001 - Django's public face
    return found


def _save(row: Any, constraint: str, field: str, message: str) -> None:
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        if constraint not in str(error):
            raise
        raise Refusal("validation_error", f"{field}: {message}", errors={field: [message]}) from error


def _top(workspace_id: uuid.UUID) -> int:
    return Environment.objects.filter(workspace_id=workspace_id).aggregate(top=Max("rank"))["top"] or 0
