"""Screens that make pipelines, register releases and put one in force.

`pipelines.catalog` and `pipelines.releases` decide and write the audit event; definitions go through the checks of the
API and the command, whose refusals are shown at the field.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines import catalog, material, releases
from pipelines import pipeline_queries as queries
from pipelines.access import RELEASE
from pipelines.api.bodies import MIB
from pipelines.api.operations_serializers import PipelineRequest
from pipelines.console.acts import Act, Step, listed, perform
from pipelines.console.pipeline_pages import missing_handlers, why_no_review
from pipelines.console.screens import ScreenRequest, go_on, of_form, screen, show, typed
from pipelines.definitions import for_pipeline, read_document
from pipelines.errors import Refusal
from pipelines.models import Environment, Pipeline, Release, Trigger
from pipelines.states import ReleaseStatus

MOST_TRIGGERS = 1000  # counted no further
acting = require_http_methods(["GET", "HEAD", "POST"])


@acting
@screen
def pipeline_new(request: ScreenRequest) -> HttpResponse:
    """A new pipeline: its slug, name and description. Nothing of it can run before a release is in force."""
    return _pipeline_form(request, None)


@acting
@screen
def pipeline_change(request: ScreenRequest, pipeline_id: uuid.UUID) -> HttpResponse:
    """Another name or description of a pipeline; its slug and releases stay."""
    return _pipeline_form(request, queries.find_pipeline(request.visit.actor, pipeline_id))


@acting
@screen
def release_new(request: ScreenRequest, pipeline_id: uuid.UUID) -> HttpResponse:
    """Registers a definition, pasted or uploaded as JSON or TOML, for an environment; if asked to, puts it in force."""
    actor = request.visit.actor
    actor.require(RELEASE)
    pipeline = queries.find_pipeline(actor, pipeline_id)
    ladder = queries.environments(actor)
    given = {
        name: request.POST.get(name, "").replace("\0", "")[:MIB] for name in ("environment", "activate", "document")
    }
    refusal: Refusal | None = None
    if request.method == "POST":
        try:
            raw, is_toml = _document(request)
            given["document"] = raw.decode(errors="replace").replace("\0", "")
            document = read_document(raw, toml=is_toml)
            if not isinstance(document, dict):
                raise Refusal("validation_error", "the definition must be an object with a list of stages")
            release, is_new = releases.register_release(
                actor=actor,
                pipeline=pipeline,
                environment=_environment(given["environment"], ladder),
                definition=for_pipeline(document, pipeline.slug),
                activate=bool(given["activate"]),
            )
            messages.success(request, _said(release, is_new), release.status)
            return go_on(request, reverse("console:release", args=[release.id]))
        except Refusal as refused:
            refusal = of_form(request, refused)
    errors = dict(refusal.errors or {}) if refusal else {}
    context = {
        "pipeline": pipeline,
        "ladder": ladder,
        "given": given | {"environment": given["environment"] or request.GET.get("environment", "")},
        "refusal": refusal,
        "environment_errors": errors.pop("environment", []),
        "problems": errors or ({"": [refusal.detail]} if refusal and not refusal.errors else {}),
    }
    return show(request, "pipelines/release_form.html", context, status=refusal.status if refusal else 200)


@acting
@screen
def release_activate(request: ScreenRequest, release_id: uuid.UUID) -> HttpResponse:
    """Says what is superseded, what is otherwise in it and what takes it, then puts the release in force."""
    actor = request.visit.actor
    actor.require(RELEASE)
    release, pipeline, environment = queries.find_release(actor, release_id)
    current = queries.in_force(pipeline, environment)
    is_possible = release.status not in (ReleaseStatus.ACTIVE, ReleaseStatus.REVOKED, ReleaseStatus.RETIRED)
    lacking = missing_handlers(actor, environment, queries.definition_of(release))
    act = Act(
        title=f"Put {release.digest[:12]} in force: {pipeline.slug} in {environment.slug}",
        needs=RELEASE,
        steps=_consequences(release, pipeline, environment, current),
        button="Put it in force",
        back=reverse("console:release", args=[release.id]),
        warning=f"No live worker has {listed(lacking)}: runs would wait for one there" if lacking else "",
        danger=environment.protected,
        help="" if is_possible else f"It is {release.status}: there is nothing to do.",
        is_possible=is_possible,
    )

    def carry_out(reason: str) -> str:
        done = releases.activate_release(release.id, actor=actor, reason=reason)
        messages.success(request, f"{done.digest[:12]} is in force in {environment.slug}.", "active")
        return act.back

    return perform(request, act, carry_out)


@acting
@screen
def release_review(request: ScreenRequest, release_id: uuid.UUID) -> HttpResponse:
    """Says to whom the release sends otherwise than what is in force, and takes a person's word on it."""
    actor = request.visit.actor
    actor.require(RELEASE)
    release, pipeline, environment = queries.find_release(actor, release_id)
    why_not = why_no_review(release, actor)
    act = Act(
        title=f"Review to whom {release.digest[:12]} sends: {pipeline.slug} in {environment.slug}",
        needs=RELEASE,
        steps=[
            Step("review_required", "Otherwise than in force", material.sentence(one))
            for one in release.material_changes or ()
        ],
        button="It may send to them",
        back=reverse("console:release", args=[release.id]),
        reason_required=True,
        danger=environment.protected,
        help=why_not or "It can be put in force then; a run keeps the recipients of the release it was made of.",
        is_possible=not why_not,
    )

    def carry_out(reason: str) -> str:
        done = releases.review_release(release.id, actor=actor, reason=reason)
        messages.success(request, f"{done.digest[:12]} is reviewed; it can be put in force.", "active")
        return act.back

    return perform(request, act, carry_out)


def _consequences(
    release: Release, pipeline: Pipeline, environment: Environment, current: Release | None
) -> list[Step]:
    started = Trigger.objects.filter(pipeline=pipeline, environment=environment, enabled=True)
    triggers = len(started.values_list("id")[: MOST_TRIGGERS + 1])
    steps = [
        Step("superseded", "Superseded", f"{current.digest[:12]}, which is in force now")
        if current
        else Step("absent", "Before", "nothing is in force there, so nothing could be started"),
        Step("ready", "From now on", "what is started by applications, triggers and backfills is made of this release"),
        Step("running", "Goes on", "what has begun, with the release it was made of"),
    ]
    if triggers:
        more = "+" if triggers > MOST_TRIGGERS else ""
        told = f"{min(triggers, MOST_TRIGGERS):,}{more} that {'is' if triggers == 1 else 'are'} on"
        steps.append(Step("due", "Triggers", told))
    if current:
        steps += _otherwise(queries.definition_of(current), queries.definition_of(release))
    return steps


def _otherwise(before: dict[str, Any], after: dict[str, Any]) -> list[Step]:
    """Which stages are otherwise than in the release that is in force."""
    old, new = ({stage["name"]: stage for stage in one["stages"]} for one in (before, after))
    changed = [name for name in new if name in old and old[name] != new[name]]
    groups = {
        "Added": [name for name in new if name not in old],
        "Removed": [name for name in old if name not in new],
        "Changed": changed,
    }
    told = [Step("review_required", word, listed(names)) for word, names in groups.items() if names]
    return told or [Step("no_op", "Stages", "the same as in the release that is in force")]


def _pipeline_form(request: ScreenRequest, pipeline: Pipeline | None) -> HttpResponse:
    actor = request.visit.actor
    actor.require(RELEASE)
    refusal: Refusal | None = None
    given = {"slug": "", "name": "", "description": ""}
    if pipeline is not None:
        given = {"slug": pipeline.slug, "name": pipeline.name, "description": pipeline.description}
    if request.method == "POST":
        given |= {
            "name": typed(request.POST, "name"),
            "description": request.POST.get("description", "").replace("\0", ""),
        }
        if pipeline is None:
            given["slug"] = typed(request.POST, "slug")
        try:
            wanted = PipelineRequest.clean(given)
            if pipeline is None and queries.visible(actor).filter(slug=wanted["slug"]).exists():
                message = "another pipeline has this slug"
                raise Refusal("validation_error", f"slug: {message}", errors={"slug": [message]})
            saved, _ = catalog.save_pipeline(actor=actor, **wanted)
            said = "is made; register a release of it next." if pipeline is None else "is as you set it."
            messages.success(request, f"{saved.slug} {said}", "completed")
            return go_on(request, reverse("console:pipeline", args=[saved.id]))
        except Refusal as refused:
            refusal = of_form(request, refused)
    context = {
        "pipeline": pipeline,
        "given": given,
        "refusal": refusal,
        "errors": dict(refusal.errors or {}) if refusal else {},
    }
    return show(request, "pipelines/form.html", context, status=refusal.status if refusal else 200)


def _document(request: ScreenRequest) -> tuple[bytes, bool]:
    """What was uploaded, else what was pasted, and whether it is TOML: by the file's name, or what it begins with."""
    uploaded = request.FILES.get("file")
    if uploaded is not None:
        if uploaded.size is None or uploaded.size > MIB:
            message = f"the file has more than {MIB:,} bytes"
            raise Refusal("validation_error", message, errors={"definition": [message]})
        raw, name = uploaded.read(), str(uploaded.name or "").lower()
        if name.endswith((".toml", ".json")):
            return raw, name.endswith(".toml")
    else:
        raw = request.POST.get("document", "").encode(errors="replace")
    if not raw.strip():
        message = "paste a definition, or choose its file"
        raise Refusal("validation_error", message, errors={"definition": [message]})
    return raw, not raw.lstrip().startswith((b"{", b"[")) or raw.lstrip().startswith(b"[[")


def _environment(slug: str, ladder: list[Environment]) -> Environment:
    for environment in ladder:
        if environment.slug == slug:
            return environment
    message = "choose the environment that it is for"
    raise Refusal("validation_error", message, errors={"environment": [message]})


def _said(release: Release, is_new: bool) -> str:
    what = f"{release.digest[:12]} is {'registered' if is_new else 'registered already; it is the same definition'}"
    return f"{what}, and in force." if release.status == ReleaseStatus.ACTIVE else f"{what}; it is not in force."
