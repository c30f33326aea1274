"""Dead letters."""

from __future__ import annotations

from recourse.calls.base import Call, Planned, Some, given, page, planned, segment
from recourse.calls.methods import Group, Sender_co, iterates, lists, plans
from recourse.models import operations
from recourse.models.pages import Page


class DeadLetters(Group[Sender_co]):
    """Stages that ended for good and wait for somebody to look."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        application: Some = None,
        error_code: Some = None,
        execution_id: Some = None,
        handler: Some = None,
        pipeline: Some = None,
        reason: Some = None,
        status: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.DeadLetterView]]:
        """One page, newest first."""
        return page(
            "v1/dead-letters",
            next,
            application=application,
            error_code=error_code,
            execution_id=execution_id,
            handler=handler,
            pipeline=pipeline,
            reason=reason,
            status=status,
            page_size=page_size,
        )

    iterate = iterates(list)

    @plans
    def acknowledge(
        self,
        letter_id: str,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.LetterVerbAnswer, operations.PlanView]:
        """Says that somebody looks after it."""
        body = given(reason=reason)
        return planned(
            f"v1/dead-letters/{segment(letter_id)}/acknowledge", body, dry_run, plan_digest, client_request_id
        )

    @plans
    def redrive(
        self,
        letter_id: str,
        reason: str | None = None,
        *,
        override_reason: str | None = None,
        acknowledge_effects: bool | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.LetterVerbAnswerOrAskedAnswer, operations.PlanView]:
        """Retries its stage and all that follows."""
        body = given(reason=reason, override_reason=override_reason, acknowledge_effects=acknowledge_effects)
        return planned(f"v1/dead-letters/{segment(letter_id)}/redrive", body, dry_run, plan_digest, client_request_id)

    @plans
    def discard(
        self,
        letter_id: str,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.LetterVerbAnswerOrAskedAnswer, operations.PlanView]:
        """Says that nothing is to be done."""
        body = given(reason=reason)
        return planned(f"v1/dead-letters/{segment(letter_id)}/discard", body, dry_run, plan_digest, client_request_id)
