"""Triggers, backfills, blackouts and the freeze."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from recourse.calls.base import Call, Planned, Some, Told, When, given, page, planned, put, read, segment, write
from recourse.calls.methods import Group, Sender_co, asks, iterates, lists, plans
from recourse.models import operations
from recourse.models.pages import Page


class Triggers(Group[Sender_co]):
    """When pipelines start by themselves."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        application: Some = None,
        enabled: Told = None,
        environment: Some = None,
        name: Some = None,
        pipeline: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.TriggerView]]:
        """One page, newest first."""
        return page(
            "v1/triggers",
            next,
            application=application,
            enabled=enabled,
            environment=environment,
            name=name,
            pipeline=pipeline,
            page_size=page_size,
        )

    iterate = iterates(list)

    @asks
    def get(self, trigger_id: str) -> Call[operations.TriggerView]:
        """One trigger with its next ticks."""
        return read(f"v1/triggers/{segment(trigger_id)}")

    @asks
    def create(
        self,
        *,
        pipeline: str,
        environment: str,
        application: str,
        cron: str,
        timezone: str,
        name: str | None = None,
        gap: Literal["first_existing", "shift", "skip"] | None = None,
        overlap: Literal["first", "second", "both"] | None = None,
        input: Mapping[str, Any] | None = None,
        overlap_policy: Literal["allow", "skip", "queue_one", "queue_all"] | None = None,
        catch_up: Literal["none", "latest", "all"] | None = None,
        catch_up_limit: int | None = None,
        start_within: int | None = None,
        spread: int | None = None,
        deadline_seconds: int | None = None,
        enabled: bool | None = None,
        starts_at: When | None = None,
        ends_at: When | None = None,
        reason: str | None = None,
        client_request_id: str | None = None,
    ) -> Call[operations.TriggerView]:
        """A schedule. `cron` is read in its `timezone`."""
        body = given(
            pipeline=pipeline,
            environment=environment,
            application=application,
            cron=cron,
            timezone=timezone,
            name=name,
            gap=gap,
            overlap=overlap,
            input=input,
            overlap_policy=overlap_policy,
            catch_up=catch_up,
            catch_up_limit=catch_up_limit,
            start_within=start_within,
            spread=spread,
            deadline_seconds=deadline_seconds,
            enabled=enabled,
            starts_at=starts_at,
            ends_at=ends_at,
            reason=reason,
        )
        return write("v1/triggers", body, client_request_id)

    @asks
    def change(
        self,
        trigger_id: str,
        *,
        pipeline: str | None = None,
        environment: str | None = None,
        application: str | None = None,
        name: str | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        gap: Literal["first_existing", "shift", "skip"] | None = None,
        overlap: Literal["first", "second", "both"] | None = None,
        input: Mapping[str, Any] | None = None,
        overlap_policy: Literal["allow", "skip", "queue_one", "queue_all"] | None = None,
        catch_up: Literal["none", "latest", "all"] | None = None,
        catch_up_limit: int | None = None,
        start_within: int | None = None,
        spread: int | None = None,
        deadline_seconds: int | None = None,
        enabled: bool | None = None,
        starts_at: When | None = None,
        ends_at: When | None = None,
        reason: str | None = None,
        client_request_id: str | None = None,
    ) -> Call[operations.TriggerView]:
        """Changes what is given of a trigger. It never invents ticks of the past."""
        body = given(
            pipeline=pipeline,
            environment=environment,
            application=application,
            name=name,
            cron=cron,
            timezone=timezone,
            gap=gap,
            overlap=overlap,
            input=input,
            overlap_policy=overlap_policy,
            catch_up=catch_up,
            catch_up_limit=catch_up_limit,
            start_within=start_within,
            spread=spread,
            deadline_seconds=deadline_seconds,
            enabled=enabled,
            starts_at=starts_at,
            ends_at=ends_at,
            reason=reason,
        )
        return write(f"v1/triggers/{segment(trigger_id)}", body, client_request_id, "PATCH")

    @lists
    def ticks(
        self,
        trigger_id: str,
        *,
        next: str | None = None,
        from_time: When | None = None,
        reason: Some = None,
        status: Some = None,
        to_time: When | None = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.TickView]]:
        """One page of its ledger: every tick, and what came of it."""
        return page(
            f"v1/triggers/{segment(trigger_id)}/ticks",
            next,
            from_time=from_time,
            reason=reason,
            status=status,
            to_time=to_time,
            page_size=page_size,
        )

    @plans
    def backfill(
        self,
        *,
        trigger_binding_id: str,
        from_time: When,
        to_time: When,
        flow_slug: str | None = None,
        workload_id: str | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        gap: Literal["first_existing", "shift", "skip"] | None = None,
        overlap: Literal["first", "second", "both"] | None = None,
        max_concurrent: int | None = None,
        environment: str | None = None,
        reprocess: Literal["none", "failed", "all"] | None = None,
        order: Literal["oldest", "newest"] | None = None,
        max_ticks: int | None = None,
        override_reason: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.BackfillAnswer, operations.BackfillAnswer]:
        """A run for every tick of the window that has none. `dry_run` lists them and changes nothing."""
        body = given(
            trigger_binding_id=trigger_binding_id,
            from_time=from_time,
            to_time=to_time,
            flow_slug=flow_slug,
            workload_id=workload_id,
            cron=cron,
            timezone=timezone,
            gap=gap,
            overlap=overlap,
            max_concurrent=max_concurrent,
            environment=environment,
            reprocess=reprocess,
            order=order,
            max_ticks=max_ticks,
            override_reason=override_reason,
            reason=reason,
        )
        return planned("v1/triggers/backfill", body, dry_run, plan_digest, client_request_id)


class Backfills(Group[Sender_co]):
    """Runs for ticks that were missed."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        pipeline: Some = None,
        status: Some = None,
        trigger: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.BackfillView]]:
        """One page, newest first."""
        return page("v1/backfills", next, pipeline=pipeline, status=status, trigger=trigger, page_size=page_size)

    iterate = iterates(list)

    @asks
    def get(self, backfill_id: str) -> Call[operations.BackfillDetail]:
        """One backfill, with how far it is."""
        return read(f"v1/backfills/{segment(backfill_id)}")

    @lists
    def ticks(
        self, backfill_id: str, *, next: str | None = None, status: Some = None, page_size: int | None = None
    ) -> Call[Page[operations.BackfillTickView]]:
        """One page of its ticks."""
        return page(f"v1/backfills/{segment(backfill_id)}/ticks", next, status=status, page_size=page_size)

    @asks
    def pause(
        self, backfill_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.BackfillAnswer]:
        """Starts no further run."""
        body = given(reason=reason)
        return write(f"v1/backfills/{segment(backfill_id)}/pause", body, client_request_id)

    @asks
    def resume(
        self,
        backfill_id: str,
        reason: str | None = None,
        *,
        override_reason: str | None = None,
        client_request_id: str | None = None,
    ) -> Call[operations.BackfillAnswer]:
        """Goes on. While a blackout holds it needs an `override_reason`."""
        body = given(reason=reason, override_reason=override_reason)
        return write(f"v1/backfills/{segment(backfill_id)}/resume", body, client_request_id)

    @asks
    def cancel(
        self, backfill_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.BackfillAnswer]:
        """Cancels what is held; those ticks are missed again."""
        body = given(reason=reason)
        return write(f"v1/backfills/{segment(backfill_id)}/cancel", body, client_request_id)


class Blackouts(Group[Sender_co]):
    """When nothing is to start, and the freeze: from now on, until it is lifted."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        enabled: Told = None,
        environment: Some = None,
        is_freeze: Told = None,
        kind: Some = None,
        name: Some = None,
        trigger_id: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.BlackoutItem]]:
        """One page, newest first."""
        return page(
            "v1/blackouts",
            next,
            enabled=enabled,
            environment=environment,
            is_freeze=is_freeze,
            kind=kind,
            name=name,
            trigger_id=trigger_id,
            page_size=page_size,
        )

    iterate = iterates(list)

    @asks
    def create(
        self,
        *,
        name: str,
        kind: Literal["weekly", "dates", "period"],
        timezone: str | None = None,
        days: Sequence[int] | None = None,
        from_time: str | None = None,
        to_time: str | None = None,
        dates: Sequence[str] | None = None,
        starts_at: When | None = None,
        ends_at: When | None = None,
        enabled: bool | None = None,
        environment: str | None = None,
        trigger_id: str | None = None,
        reason: str | None = None,
    ) -> Call[operations.BlackoutItem]:
        """A blackout of the workspace, of an environment or of a trigger."""
        body = given(
            name=name,
            kind=kind,
            timezone=timezone,
            days=days,
            from_time=from_time,
            to_time=to_time,
            dates=dates,
            starts_at=starts_at,
            ends_at=ends_at,
            enabled=enabled,
            environment=environment,
            trigger_id=trigger_id,
            reason=reason,
        )
        return put("v1/blackouts", body, again="the same again changes nothing, and answers what is there")

    @asks
    def change(
        self,
        blackout_id: str,
        *,
        name: str | None = None,
        timezone: str | None = None,
        days: Sequence[int] | None = None,
        from_time: str | None = None,
        to_time: str | None = None,
        dates: Sequence[str] | None = None,
        starts_at: When | None = None,
        ends_at: When | None = None,
        enabled: bool | None = None,
        reason: str | None = None,
    ) -> Call[operations.BlackoutItem]:
        """Changes what is given of a blackout, or switches it off and on."""
        body = given(
            name=name,
            timezone=timezone,
            days=days,
            from_time=from_time,
            to_time=to_time,
            dates=dates,
            starts_at=starts_at,
            ends_at=ends_at,
            enabled=enabled,
            reason=reason,
        )
        return put(
            f"v1/blackouts/{segment(blackout_id)}", body, again="what is said again holds already", method="PATCH"
        )

    @asks
    def freeze_now(self) -> Call[operations.FreezeAnswer]:
        """Which freezes hold, who declared them, and why."""
        return read("v1/freeze")

    @asks
    def freeze(
        self, *, environment: str | None = None, until: When | None = None, reason: str
    ) -> Call[operations.FreezeItem]:
        """Declares that nothing starts from now on."""
        body = given(environment=environment, until=until, reason=reason)
        return put("v1/freeze", body, again="the same freeze again changes nothing")

    @asks
    def lift(self, *, environment: str | None = None, reason: str | None = None) -> Call[operations.LiftAnswer]:
        """Ends a freeze: what waits is handed out."""
        body = given(environment=environment, reason=reason)
        return put("v1/freeze/lift", body, again="where nothing is frozen nothing changes")
