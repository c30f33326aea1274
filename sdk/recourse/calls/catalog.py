"""What an administrator keeps: pipelines, releases, policies, applications, environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from recourse.calls.base import Call, Planned, Some, given, page, put, read, segment, write
from recourse.calls.methods import Group, Sender_co, asks, iterates, lists, plans
from recourse.models import operations
from recourse.models.pages import Page


class Pipelines(Group[Sender_co]):
    """What is run again and again."""

    @lists
    def list(
        self, *, next: str | None = None, slug: Some = None, page_size: int | None = None
    ) -> Call[Page[operations.PipelineView]]:
        """One page, by slug."""
        return page("v1/pipelines", next, slug=slug, page_size=page_size)

    iterate = iterates(list)

    @asks
    def save(self, *, slug: str, name: str, description: str | None = None) -> Call[operations.PipelineView]:
        """Makes a pipeline, or changes its name and description."""
        body = given(slug=slug, name=name, description=description)
        return put("v1/pipelines", body, again="it is made or changed to what is said")

    @asks
    def readiness(self, slug: str) -> Call[operations.ReadinessView]:
        """What it lacks, and which of its stages are safe to repeat, in each environment with a release in force."""
        return read(f"v1/pipelines/{segment(slug)}/readiness")


class Releases(Group[Sender_co]):
    """Definitions of a pipeline, as they were registered for an environment."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        environment: Some = None,
        pipeline: Some = None,
        status: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.ReleaseView]]:
        """One page, newest first."""
        return page("v1/releases", next, environment=environment, pipeline=pipeline, status=status, page_size=page_size)

    iterate = iterates(list)

    @asks
    def get(self, release_id: str) -> Call[operations.WholeRelease]:
        """One release with its definition."""
        return read(f"v1/releases/{segment(release_id)}")

    @plans
    def register(
        self,
        *,
        pipeline: str,
        environment: str,
        definition: Mapping[str, Any],
        activate: bool | None = None,
        dry_run: bool = False,
    ) -> Planned[operations.ReleaseView, operations.ReleasePlanView]:
        """Registers a definition for an environment; `activate`: new runs take it from now on. Its plan tells what is
        otherwise than in the release in force.
        """
        body = given(pipeline=pipeline, environment=environment, definition=definition, activate=activate)
        if dry_run:
            return Planned("POST", "v1/releases", body | {"dry_run": True}, person=True)
        again = "the same definition is the same release, by its digest"
        return Planned("POST", "v1/releases", body, again=again, person=True)

    @asks
    def activate(
        self, release_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.ReleaseView]:
        """New runs take this release from now on."""
        body = given(reason=reason)
        return write(f"v1/releases/{segment(release_id)}/activate", body, client_request_id)

    @asks
    def review(
        self, release_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.ReleaseView]:
        """Says that somebody looked at it."""
        body = given(reason=reason)
        return write(f"v1/releases/{segment(release_id)}/review", body, client_request_id)


class Policies(Group[Sender_co]):
    """Rules that target stages and outrank their own options."""

    @lists
    def list(
        self, *, next: str | None = None, kind: Some = None, status: Some = None, page_size: int | None = None
    ) -> Call[Page[operations.PolicyItem]]:
        """One page, newest first."""
        return page("v1/policies", next, kind=kind, status=status, page_size=page_size)

    iterate = iterates(list)

    @asks
    def add(
        self,
        *,
        name: str,
        kind: Literal["retry", "timeout", "rate", "concurrency", "run_retry"],
        rule: Mapping[str, Any],
        match: operations.Match | None = None,
        status: Literal["active", "paused"] | None = None,
    ) -> Call[operations.PolicyItem]:
        """A policy, in force at once. A taken name with anything else in it is refused."""
        body = given(name=name, kind=kind, rule=rule, match=match, status=status)
        return put("v1/policies", body, again="the same again changes nothing, and answers what is there")

    @asks
    def change(
        self,
        policy_id: str,
        *,
        name: str | None = None,
        match: operations.Match | None = None,
        rule: Mapping[str, Any] | None = None,
        status: Literal["active", "paused"] | None = None,
    ) -> Call[operations.PolicyItem]:
        """Changes what is given of a policy; its kind stays."""
        body = given(name=name, match=match, rule=rule, status=status)
        return put(f"v1/policies/{segment(policy_id)}", body, again="what is said again holds already", method="PATCH")


class Applications(Group[Sender_co]):
    """Who has runs and workers."""

    @lists
    def list(self, *, next: str | None = None, page_size: int | None = None) -> Call[Page[operations.ApplicationView]]:
        """One page, by name."""
        return page("v1/applications", next, page_size=page_size)

    iterate = iterates(list)

    @asks
    def save(self, name: str) -> Call[operations.ApplicationView]:
        """The application of this name; it is made when there is none."""
        body = given(name=name)
        return put("v1/applications", body, again="the same again changes nothing, and answers what is there")

    @asks
    def rename(self, application_id: str, name: str | None = None) -> Call[operations.ApplicationView]:
        """Gives it another name."""
        body = given(name=name)
        return put(
            f"v1/applications/{segment(application_id)}", body, again="what is said again holds already", method="PATCH"
        )


class Environments(Group[Sender_co]):
    """The workspace's ladder."""

    @lists
    def list(self) -> Call[Page[operations.EnvironmentView]]:
        """All rungs, from the lowest."""
        return page("v1/environments")

    iterate = iterates(list)

    @asks
    def save(
        self, slug: str, *, rank: int | None = None, protected: bool | None = None
    ) -> Call[operations.EnvironmentView]:
        """Makes a rung, or changes it."""
        body = given(slug=slug, rank=rank, protected=protected)
        return put("v1/environments", body, again="it is made or changed to what is said")
