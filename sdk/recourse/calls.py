"""Paths and shapes of everything a client can ask, once for both clients. Nothing here sends anything."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode, urlsplit

A = TypeVar("A")

Json = dict[str, Any]
Items = Mapping[str, str] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `person`: it is of the operations API and goes with the bearer token, where there is one.

    Every call may be repeated: it reads, or the server knows it by `key` or by its own nature. `bytes_with_digest`:
    the answer is no JSON, but bytes whose SHA-256 is its ETag.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    key: str | None = None
    person: bool = False
    bytes_with_digest: bool = False


class Runs(Generic[A]):
    """An application's own runs."""

    def __init__(self, send: Callable[[Call], A]) -> None:
        self._send = send

    def create(
        self,
        *,
        idempotency_key: str,
        name: str | None = None,
        stages: Sequence[Mapping[str, Any]] | None = None,
        pipeline: str | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002
        environment: str | None = None,
        context: Items | None = None,
        keywords: Items | None = None,
        trace_id: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
        deadline_seconds: int | None = None,
        limits: Mapping[str, Any] | None = None,
    ) -> A:
        """Creates a run of inline `stages`, or of the managed `pipeline` with `input`, once for the key.

        Answers `{created, wasExisting, pipeline}`. Choose one stable key for the business operation and keep it: after
        an unknown outcome the same call, now or tomorrow, finds the run or makes it (P27). The key with another intent
        raises `IdempotencyConflict`.
        """
        body = _given(
            idempotencyKey=idempotency_key,
            name=name,
            stages=None if stages is None else list(stages),
            pipeline=pipeline,
            input=input,
            environment=environment,
            contextItems=_items(context),
            keywords=_items(keywords),
            traceId=trace_id,
            traceparent=traceparent,
            tracestate=tracestate,
            deadlineSeconds=deadline_seconds,
            limits=limits,
        )
        return self._send(Call("POST", "pipelines/idempotent", body, key=idempotency_key))

    def lookup(self, idempotency_key: str) -> A:
        """The run that the key created; raises `NotFound` when there is none (P28, P29)."""
        return self._send(Call("POST", "pipelines/by-idempotency-key", {"idempotencyKey": idempotency_key}))

    def get(self, run_id: str) -> A:
        return self._send(Call("GET", f"pipelines/{_id(run_id)}"))

    def cancel(self, run_id: str, reason: str | None = None) -> A:
        """Ends the run and its unfinished stages; answers `{pipeline, reconciliation}`: what may still go on outside.

        Of a cancelled run it changes nothing; of a completed or failed one it raises `StateInvalid`.
        """
        return self._send(Call("POST", f"pipelines/{_id(run_id)}/cancel", _given(reason=reason)))


class Stages(Generic[A]):
    """Decisions of the owning application (`resume`), and what people do to one stage (`retry`, `skip`)."""

    def __init__(self, send: Callable[[Call], A]) -> None:
        self._send = send

    def resume(self, stage_id: str, approved: bool, rejection_reason: str | None = None) -> A:
        """Decides a waiting stage. The same decision and reason again changes nothing; another raises
        `GateDecisionConflict`.
        """
        body = _given(approved=approved, rejectionReason=rejection_reason)
        return self._send(Call("POST", f"stages/{_id(stage_id)}/resume", body))

    def retry(
        self,
        stage_id: str,
        *,
        reason: str,
        scope: str = "stage",
        input: str | None = None,  # noqa: A002
        acknowledge_effects: bool | None = None,
        override_reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Runs the stage again in a new epoch; `scope` is `stage` or `stage_and_downstream`. While a blackout holds it
        needs an `override_reason`.
        """
        body = _given(
            scope=scope,
            reason=reason,
            input=input,
            acknowledge_effects=acknowledge_effects,
            override_reason=override_reason,
        )
        return self._send(_verb(f"v1/stages/{_id(stage_id)}/retry", body, dry_run, plan_digest, client_request_id))

    def skip(
        self,
        stage_id: str,
        *,
        reason: str,
        output: Any = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Leaves the stage out on purpose; what depends on it may go on, with `output`."""
        body = _given(reason=reason, output=output)
        return self._send(_verb(f"v1/stages/{_id(stage_id)}/skip", body, dry_run, plan_digest, client_request_id))

    def import_request(self, stage_id: str, *, as_person: bool = False) -> A:
        """The request that an import stage awaits the answer of, with its `request_digest`: what is handed to whoever
        makes the answer. `as_person`: with the token instead of the application's key.
        """
        path = f"stages/{_id(stage_id)}/import-request"
        return self._send(Call("GET", f"v1/{path}" if as_person else path, person=as_person))

    def import_answer(
        self,
        stage_id: str,
        *,
        request_digest: str,
        output: Any = None,
        status: str = "succeeded",
        error_code: str | None = None,
        error_message: str | None = None,
        source: str | None = None,
    ) -> A:
        """Hands in what was made elsewhere, as the owning application: `{accepted, stageStatus}`. The same again
        changes nothing; an answer without the digest that is awaited now raises `StaleRequest`, and is kept as
        evidence. `status` is `succeeded` or `failed`.
        """
        body = {"output": output} | _given(
            requestDigest=request_digest,
            status=status,
            errorCode=error_code,
            errorMessage=error_message,
            source=source,
        )
        return self._send(Call("POST", f"stages/{_id(stage_id)}/import", body))

    def import_file(
        self,
        stage_id: str,
        answer: Mapping[str, Any],
        *,
        reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
    ) -> A:
        """The same as a person, with the fields of an answer file: `{request_digest, status, output, error_code,
        error_message, source}`. `dry_run` tells where it would lead.
        """
        body = dict(answer) | _given(reason=reason)
        return self._send(_verb(f"v1/stages/{_id(stage_id)}/import", body, dry_run, plan_digest))

    def reconcile(
        self,
        stage_id: str,
        *,
        outcome: str,
        note: str,
        effect_id: str | None = None,
        output: Any = None,
        evidence: Mapping[str, Any] | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Says what was found out: `committed`, `absent` or `contradicted`. With `effect_id` it settles that effect,
        without the stage, which then completes with `output`, runs again or fails. `evidence`: `{summary, source,
        sealed, clean, digest}`.
        """
        body = _given(outcome=outcome, note=note, effect_id=effect_id, output=output, evidence=evidence)
        return self._send(_verb(f"v1/stages/{_id(stage_id)}/reconcile", body, id=client_request_id))


class Executions(Generic[A]):
    """Runs, as people's tools see them: the operations API calls a run an execution."""

    def __init__(self, send: Callable[[Call], A]) -> None:
        self._send = send

    def list(self, *, next: str | None = None, **filters: str | int | Iterable[str]) -> A:  # noqa: A002
        """One page: `{next, previous, results}`. Give `next` (or `previous`) of an answer to read on.

        Filters: `status`, `pipeline`, `environment`, `application`, `handler`, `error_code`, `search`, `created_after`,
        `created_before`, `recovered_from`, `page_size`; a sequence of values means any of them.
        """
        return self._send(_page("v1/executions", next, filters))

    def get(self, execution_id: str) -> A:
        return self._send(Call("GET", f"v1/executions/{_id(execution_id)}", person=True))

    def account(self, execution_id: str) -> A:
        """What happened to the run and its stages, who decided what, what remains, what helps: in sentences."""
        return self._send(Call("GET", f"v1/executions/{_id(execution_id)}/account", person=True))

    def snapshot(self, execution_id: str) -> A:
        """Where the run stands by its newest checkpoint; raises `NotFound` when it has none."""
        return self._send(Call("GET", f"v1/executions/{_id(execution_id)}/snapshot", person=True))

    def checkpoints(self, execution_id: str, *, next: str | None = None, **filters: str | int | Iterable[str]) -> A:  # noqa: A002
        """One page of the run's checkpoints; filters `moment`, `stage_id`, `page_size`."""
        return self._send(_page(f"v1/executions/{_id(execution_id)}/checkpoints", next, filters))

    def effects(self, execution_id: str, *, next: str | None = None, **filters: str | int | Iterable[str]) -> A:  # noqa: A002
        """One page of what the run did, or was about to do, outside."""
        return self._send(_page(f"v1/executions/{_id(execution_id)}/effects", next, filters))

    def artifacts(self, execution_id: str, *, next: str | None = None, **filters: str | int | Iterable[str]) -> A:  # noqa: A002
        """One page of what the run's attempts stored; filters `stage_id`, `name`, `page_size`."""
        return self._send(_page(f"v1/executions/{_id(execution_id)}/artifacts", next, filters))

    def evidence(self, execution_id: str) -> A:
        """Where the run came from and what came of it: `{nodes, edges}`."""
        return self._send(Call("GET", f"v1/executions/{_id(execution_id)}/evidence", person=True))

    def blockers(self, execution_id: str) -> A:
        """Why the run does not move: holder, cause, and when the engine looks again."""
        return self._send(Call("GET", f"v1/executions/{_id(execution_id)}/blockers", person=True))

    def pause(
        self,
        execution_id: str,
        reason: str | None = None,
        *,
        until: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Stops further dispatch; what runs may finish. Answers `{execution_id, status: "pause_signal_sent"}`.

        `until`: when the engine resumes the run by itself, as ISO text with an offset.
        """
        body = _given(reason=reason, until=until)
        path = f"v1/executions/{_id(execution_id)}/pause"
        return self._send(_verb(path, body, dry_run, plan_digest, client_request_id))

    def resume(
        self,
        execution_id: str,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Lets a pausing or paused run go on. Answers `{execution_id, status: "resume_signal_sent"}`."""
        path = f"v1/executions/{_id(execution_id)}/resume"
        return self._send(_verb(path, _given(reason=reason), dry_run, plan_digest, client_request_id))

    def rerun(
        self,
        execution_id: str,
        *,
        from_step_id: str | None = None,
        flow_slug: str | None = None,
        environment: str | None = None,
        actor_ref: str | None = None,
        reason: str | None = None,
        override_reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """A new run out of an ended one: `from_step_id` and all that follows from it run again, the rest is kept.
        Without it, the run goes on where its newest checkpoint stands, with the handler's state.

        Answers the new run's `execution_id`, or `status: "awaiting_approval"`; `dry_run` the plan. A plan that changed
        since `plan_digest` raises `PlanChanged`; effects that may repeat `OperatorReviewRequired`, `RecoveryDenied`.
        While a blackout holds it needs an `override_reason`.
        """
        body = _given(
            from_step_id=from_step_id,
            flow_slug=flow_slug,
            environment=environment,
            actor_ref=actor_ref,
            reason=reason,
            override_reason=override_reason,
        )
        path = f"v1/executions/{_id(execution_id)}/rerun"
        return self._send(_verb(path, body, dry_run, plan_digest, client_request_id))

    def replay(
        self,
        execution_id: str,
        *,
        flow_slug: str | None = None,
        environment: str | None = None,
        freeze_release: bool | None = None,
        reason: str | None = None,
        override_reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """A new run out of an ended one, from the beginning. `freeze_release` is a recorded hint. Else as `rerun`."""
        body = _given(
            flow_slug=flow_slug,
            environment=environment,
            freeze_release=freeze_release,
            reason=reason,
            override_reason=override_reason,
        )
        path = f"v1/executions/{_id(execution_id)}/replay"
        return self._send(_verb(path, body, dry_run, plan_digest, client_request_id))

    def add_evidence(
        self,
        execution_id: str,
        effect_id: str,
        *,
        summary: Any,
        source: str,
        sealed: bool | None = None,
        clean: bool | None = None,
        digest: str | None = None,
        reason: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Keeps what an outside system says of an effect. `digest`: SHA-256 of the summary's RFC 8785 form; without
        one it counts as unsealed.
        """
        body = _given(summary=summary, source=source, sealed=sealed, clean=clean, digest=digest, reason=reason)
        path = f"v1/executions/{_id(execution_id)}/effects/{_id(effect_id)}/evidence"
        return self._send(_verb(path, body, id=client_request_id))

    def reconcile_effect(
        self,
        execution_id: str,
        effect_id: str,
        *,
        outcome: str,
        note: str,
        evidence: Mapping[str, Any] | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Says what was found out about one effect: `committed`, `absent` or `contradicted`."""
        body = _given(outcome=outcome, note=note, evidence=evidence)
        path = f"v1/executions/{_id(execution_id)}/effects/{_id(effect_id)}/reconciliation"
        return self._send(_verb(path, body, id=client_request_id))

    def cancel(
        self,
        execution_id: str,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Ends the run for good; the answer's `reconciliation` lists what may still go on outside."""
        path = f"v1/executions/{_id(execution_id)}/cancel"
        return self._send(_verb(path, _given(reason=reason), dry_run, plan_digest, client_request_id))


class Artifacts(Generic[A]):
    """Named bytes that never change: what attempts stored, and the baselines that runs build on."""

    def __init__(self, send: Callable[[Call], A]) -> None:
        self._send = send

    def list(self, *, next: str | None = None, **filters: str | int | Iterable[str]) -> A:  # noqa: A002
        """One page, newest first. Filters: `execution_id`, `stage_id`, `name`, `is_baseline` (`true`, `false`),
        `page_size`.
        """
        return self._send(_page("v1/artifacts", next, filters))

    def get(self, artifact_id: str) -> A:
        """What is known of it, without its bytes."""
        return self._send(Call("GET", f"v1/artifacts/{_id(artifact_id)}", person=True))

    def content(self, artifact_id: str) -> A:
        """`{content, sha256, mediaType}`: the bytes, checked against their digest by the server and again here. Raises
        `ArtifactCorrupt` where they are not what was stored.
        """
        path = f"v1/artifacts/{_id(artifact_id)}/content"
        return self._send(Call("GET", path, person=True, bytes_with_digest=True))

    def add_baseline(
        self,
        name: str,
        data: bytes,
        *,
        media_type: str | None = None,
        application: str | None = None,
        environment: str | None = None,
        reason: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Lays down what runs build on; its name is its own in the workspace. The same again is the same artifact,
        other bytes raise `ArtifactImmutable`.
        """
        body = _given(
            name=name,
            content_base64=base64.b64encode(data).decode("ascii"),
            sha256=sha256(data).hexdigest(),
            media_type=media_type,
            application=application,
            environment=environment,
            reason=reason,
        )
        return self._send(_verb("v1/artifacts", body, id=client_request_id))


class Operations(Generic[A]):
    """What people asked for, and what came of it."""

    def __init__(self, send: Callable[[Call], A]) -> None:
        self._send = send

    def list(self, *, next: str | None = None, **filters: str | int | Iterable[str]) -> A:  # noqa: A002
        """One page, newest first."""
        return self._send(_page("v1/operations", next, filters))


class Approvals(Generic[A]):
    """What waits for people: gates, and requests for agreement to an operation. Nobody decides what they asked for."""

    def __init__(self, send: Callable[[Call], A]) -> None:
        self._send = send

    def list(self, *, next: str | None = None, **filters: str | int | Iterable[str]) -> A:  # noqa: A002
        """One page, newest first. Filters: `view` (`waiting`, `mine`: what you may decide now, `asked`, `decided`),
        `type` (`gate`, `operation`), `page_size`.
        """
        return self._send(_page("v1/approvals", next, filters))

    def decide(
        self,
        approval_id: str,
        approved: bool,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> A:
        """Approves or rejects, which needs a reason. The same decision again changes nothing; `dry_run` tells what it
        would do. `state` is `open` while more people must agree.

        What you asked for raises `SelfApproval`; what expired, or was withdrawn, `ApprovalStale`; a plan that is not
        the one of `plan_digest`, or that the world has moved away from, `PlanChanged`: it then waits with the new plan.
        """
        body = _given(approved=approved, reason=reason)
        path = f"v1/approvals/{_id(approval_id)}/decision"
        return self._send(_verb(path, body, dry_run, plan_digest, client_request_id))

    def withdraw(self, approval_id: str, reason: str | None = None, *, client_request_id: str | None = None) -> A:
        """Takes a request of one's own back. A gate is not withdrawn: cancel its run."""
        path = f"v1/approvals/{_id(approval_id)}/withdraw"
        return self._send(_verb(path, _given(reason=reason), id=client_request_id))


def _page(path: str, following: str | None, filters: Mapping[str, str | int | Iterable[str]]) -> Call:
    """One page of a list. Of `following` only the query is taken: the token never follows a URL to another host."""
    query = urlsplit(following).query if following else urlencode(_plain(filters), doseq=True)
    return Call("GET", f"{path}?{query}" if query else path, person=True)


def _verb(
    path: str,
    body: Json,
    dry_run: bool = False,
    plan_digest: str | None = None,
    id: str | None = None,  # noqa: A002
) -> Call:
    """A mutating verb. Without an id of the caller's it gets one of its own, so that repeating it acts once; a new call
    is a new act. A dry run changes nothing and has none.
    """
    if dry_run:
        return Call("POST", path, body | _given(dry_run=True, plan_digest=plan_digest), person=True)
    key = id or str(uuid.uuid4())
    return Call("POST", path, body | _given(plan_digest=plan_digest, client_request_id=key), key=key, person=True)


def encoded(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _items(items: Items | None) -> list[Mapping[str, Any]] | None:
    if items is None:
        return None
    if isinstance(items, Mapping):
        return [{"key": key, "value": value} for key, value in items.items()]
    return list(items)


def _plain(filters: Mapping[str, str | int | Iterable[str]]) -> dict[str, Any]:
    return {name: value if isinstance(value, str | int) else list(value) for name, value in filters.items()}


def _id(value: str) -> str:
    """An id as one path segment, whatever is in it."""
    return quote(str(value), safe="")
