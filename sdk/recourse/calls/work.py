"""The routes of workers."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

from recourse.calls.base import Call, given, segment, told
from recourse.calls.methods import Group, Sender_co, asks
from recourse.models import application
from recourse.models.content import Content


class Work(Group[Sender_co]):
    """What a worker tells and is told, for workers that are not this package's `Worker`. `session`: the token that
    `bootstrap` answered.
    """

    @asks
    def bootstrap(
        self,
        *,
        worker_name: str,
        supported_handlers: Sequence[str],
        instance_id: str | None = None,
        worker_version: str | None = None,
        sdk_version: str | None = None,
        host_name: str | None = None,
        pid: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        recipients: Sequence[application.Sending] | None = None,
    ) -> Call[application.Session]:
        """Opens a session for a worker and registers its handlers: `{workerId, sessionToken, …}`."""
        body = given(
            workerName=worker_name,
            supportedHandlers=supported_handlers,
            instanceId=instance_id,
            workerVersion=worker_version,
            sdkVersion=sdk_version,
            hostName=host_name,
            pid=pid,
            metadata=metadata,
            recipients=recipients,
        )
        return told(
            "workers/bootstrap",
            body,
            again="a further session; the one whose answer was lost holds nothing and goes stale",
        )

    @asks
    def heartbeat(self, *, session: str) -> Call[application.Commands]:
        """A sign of life, for a worker that has nothing else to say."""
        return told("workers/heartbeat", {}, again="a sign of life", session=session)

    @asks
    def shutdown(self, *, session: str) -> Call[application.Commands]:
        """Nothing more is handed out; what it holds it may finish."""
        return told("workers/shutdown", {}, again="it drains already", session=session)

    @asks
    def pull(
        self,
        *,
        session: str,
        handlers: Sequence[str] | None = None,
        max_jobs: int | None = None,
        wait_seconds: float | None = None,
        acquire: bool | None = None,
    ) -> Call[application.Jobs]:
        """Takes jobs, none where there are none."""
        body = given(handlers=handlers, maxJobs=max_jobs, waitSeconds=wait_seconds, acquire=acquire)
        headers = {"x-worker-session": session}
        again = "what an answer that was lost handed out comes back when its visibility or lease is over"
        return Call(
            "POST", "jobs/pull", body, again=again, headers=headers, nothing={"jobs": []}, waits=wait_seconds or 0.0
        )

    @asks
    def acknowledge(self, delivery_id: str, *, session: str) -> Call[application.Acknowledged]:
        """Confirms a delivery."""
        body = given(deliveryId=delivery_id)
        return told("jobs/ack", body, again="nothing hangs on it", session=session)

    @asks
    def acquire(self, stage_id: str, execution_id: str, *, session: str) -> Call[application.LeaseView]:
        """Takes the lease of an attempt; only `acquired: true` allows to begin."""
        body = given(executionId=execution_id)
        return told(
            f"stages/{segment(stage_id)}/lease/acquire", body, again="who holds the lease gets it", session=session
        )

    @asks
    def renew(self, stage_id: str, execution_id: str, *, session: str) -> Call[application.LeaseView]:
        """Extends one lease."""
        body = given(executionId=execution_id)
        return told(
            f"stages/{segment(stage_id)}/lease/renew", body, again="the lease is longer by no more", session=session
        )

    @asks
    def renew_leases(self, leases: Sequence[application.LeaseOf], *, session: str) -> Call[application.RenewedLeases]:
        """Extends many leases at once."""
        body = given(leases=leases)
        return told("leases/renew", body, again="the leases are longer by no more", session=session)

    @asks
    def release(
        self, stage_id: str, execution_id: str, *, session: str, checkpoint: application.LeftBehind | None = None
    ) -> Call[application.StageStatus]:
        """Gives a running stage back, for a pause or a drain; nothing is counted."""
        body = given(executionId=execution_id, checkpoint=checkpoint)
        return told(
            f"stages/{segment(stage_id)}/release",
            body,
            again="of what the session gave back nothing changes",
            session=session,
        )

    @asks
    def report(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        attempt: int,
        status: Literal["succeeded", "failed", "waiting"],
        request_digest: str | None = None,
        output: Any | None = None,
        error_code: str | None = None,
        error_message: str | None = None,
        traceback: str | None = None,
        retryable: bool | None = None,
        context_items: Sequence[application.ContextItem] | None = None,
        logs: Sequence[application.LogEntry] | None = None,
        usage: Mapping[str, Any] | None = None,
        effects: Sequence[application.EffectTold] | None = None,
        checkpoint: application.LeftBehind | None = None,
        awaits_runs: Sequence[str] | None = None,
    ) -> Call[application.Accepted]:
        """The result of an attempt; it is durable when this returns. With `awaits_runs` one that is `waiting` waits for
        runs that it started, and for no decision.
        """
        body = given(
            executionId=execution_id,
            attempt=attempt,
            status=status,
            requestDigest=request_digest,
            output=output,
            errorCode=error_code,
            errorMessage=error_message,
            traceback=traceback,
            retryable=retryable,
            contextItems=context_items,
            logs=logs,
            usage=usage,
            effects=effects,
            checkpoint=checkpoint,
            awaitsRuns=awaits_runs,
        )
        return told(
            f"stages/{segment(stage_id)}/result", body, again="the same result gets the same answer", session=session
        )

    @asks
    def report_many(self, results: Sequence[Any], *, session: str) -> Call[application.ResultReceipts]:
        """Up to 200 results; each is answered by itself."""
        body = given(results=results)
        return told("results", body, again="each of the same results gets the same answer", session=session)

    @asks
    def tell_effects(
        self, stage_id: str, *, session: str, execution_id: str, effects: Sequence[application.EffectTold]
    ) -> Call[application.EffectAnswers]:
        """What an attempt is about to do outside, or has done. Only after an intent was taken may it act."""
        body = given(executionId=execution_id, effects=effects)
        return told(
            f"stages/{segment(stage_id)}/effects",
            body,
            again="an effect is known by its class, step and key",
            session=session,
        )

    @asks
    def checkpoint(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        state: Any,
        recovery_posture: application.CamelPosture | None = None,
    ) -> Call[application.LeftCheckpoint]:
        """Leaves the state of a running attempt for the next one."""
        body = given(executionId=execution_id, state=state, recoveryPosture=recovery_posture)
        return told(
            f"stages/{segment(stage_id)}/checkpoints",
            body,
            again="a further checkpoint with the same state",
            session=session,
        )

    @asks
    def progress(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        percent: float | None = None,
        message: str | None = None,
    ) -> Call[application.Noted]:
        """How far a running attempt is."""
        body = given(executionId=execution_id, percent=percent, message=message)
        return told(f"stages/{segment(stage_id)}/progress", body, again="the latest word only is kept", session=session)

    @asks
    def log(
        self, stage_id: str, *, session: str, execution_id: str, lines: Sequence[application.LogEntry]
    ) -> Call[application.Noted]:
        """Log lines of a running attempt. After an unknown outcome they may stand twice."""
        body = given(executionId=execution_id, lines=lines)
        return told(
            f"stages/{segment(stage_id)}/logs",
            body,
            again="the lines may stand twice; nothing else follows from them",
            session=session,
        )

    @asks
    def terminated(
        self, stage_id: str, *, session: str, execution_id: str, termination: application.Termination
    ) -> Call[application.Noted]:
        """How the processes of an attempt ended."""
        body = given(executionId=execution_id, termination=termination)
        return told(
            f"stages/{segment(stage_id)}/termination", body, again="the same end gets the same answer", session=session
        )

    @asks
    def store_artifact(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        name: str,
        data: bytes,
        media_type: str | None = None,
    ) -> Call[application.StoredArtifact]:
        """Keeps named bytes of a running attempt. The same again is the same artifact, other bytes raise
        `ArtifactImmutable`.
        """
        body = given(
            executionId=execution_id,
            name=name,
            contentBase64=base64.b64encode(data).decode("ascii"),
            sha256=sha256(data).hexdigest(),
            mediaType=media_type,
        )
        again = "the same bytes under the same name are the same artifact"
        return told(f"stages/{segment(stage_id)}/artifacts", body, again=again, session=session)

    @asks
    def declare_table(
        self, stage_id: str, *, session: str, execution_id: str, table: str, key: Sequence[str]
    ) -> Call[application.TableKept]:
        """Declares the key columns of a table of the workspace store, once and for all. Other columns raise
        `StoreConflict`.
        """
        body = given(executionId=execution_id, table=table, key=key)
        return told(f"stages/{segment(stage_id)}/store/table", body, again="it is declared already", session=session)

    @asks
    def insert_rows(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        key: Sequence[str] | None = None,
    ) -> Call[application.RowsWritten]:
        """Adds rows to a table; another row under the key of one raises `StoreConflict`."""
        body = given(executionId=execution_id, table=table, rows=rows, key=key)
        again = "rows that are there already stay as they are"
        return told(f"stages/{segment(stage_id)}/store/insert", body, again=again, session=session)

    @asks
    def upsert_rows(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        key: Sequence[str] | None = None,
    ) -> Call[application.RowsWritten]:
        """Adds rows to a table, and replaces those under their keys."""
        body = given(executionId=execution_id, table=table, rows=rows, key=key)
        again = "rows that are there already stay as they are"
        return told(f"stages/{segment(stage_id)}/store/upsert", body, again=again, session=session)

    @asks
    def read_rows(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        table: str,
        where: Mapping[str, Any] | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> Call[application.RowsRead]:
        """A page of rows: `{rows, next}`; `next` is the `after` of the following one."""
        body = given(executionId=execution_id, table=table, where=where, after=after, limit=limit)
        return told(f"stages/{segment(stage_id)}/store/read", body, again="it only reads", session=session)

    @asks
    def delete_rows(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        table: str,
        where: Mapping[str, Any] | None = None,
        everything: bool | None = None,
    ) -> Call[application.RowsDeleted]:
        """Deletes rows, a bounded number at a time: `{deleted, more}`."""
        body = given(executionId=execution_id, table=table, where=where, everything=everything)
        again = "what is gone is gone, and it goes on where it was"
        return told(f"stages/{segment(stage_id)}/store/delete", body, again=again, session=session)

    @asks
    def artifact(self, artifact_id: str, *, session: str) -> Call[Content]:
        """`{content, sha256, mediaType}`: the bytes of an artifact, checked against their digest."""
        path = f"artifacts/{segment(artifact_id)}"
        return Call("GET", path, headers={"x-worker-session": session}, bytes_with_digest=True)

    @asks
    def start_run(
        self,
        stage_id: str,
        *,
        session: str,
        execution_id: str,
        key: str,
        name: str | None = None,
        stages: Sequence[application.StageIntent] | None = None,
        pipeline: str | None = None,
        input: Mapping[str, Any] | None = None,
        environment: str | None = None,
        on_parent_end: Literal["cancel", "leave"] | None = None,
        follow: Literal["fork", "original"] | None = None,
    ) -> Call[application.StartedChild]:
        """Starts a run for a stage, or finds the one that its key stands for."""
        body = given(
            executionId=execution_id,
            key=key,
            name=name,
            stages=stages,
            pipeline=pipeline,
            input=input,
            environment=environment,
            onParentEnd=on_parent_end,
            follow=follow,
        )
        return told(f"stages/{segment(stage_id)}/runs", body, key=key, session=session)

    @asks
    def look_at_runs(
        self, stage_id: str, *, session: str, execution_id: str, runs: Sequence[str]
    ) -> Call[application.ChildrenSeen]:
        """How runs that the stage started stand now, in the order asked."""
        body = given(executionId=execution_id, runs=runs)
        return told(f"stages/{segment(stage_id)}/runs/look", body, again="it only reads", session=session)
