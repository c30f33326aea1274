"""How a handler that the console itself runs has something stored, and loads artifacts: by the draining thread of the
executor, which alone has a connection, in the shapes and with the refusals of the worker routes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import InterfaceError, OperationalError
from recourse.errors import api_error
from recourse.links import Stored
from recourse.repeating import Unavailable
from recourse.worker.leases import Held

from pipelines import artifact_storing, artifacts, children, intents, terminations
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.handler_checkpoints import leave_checkpoint
from pipelines.leases import Holder
from pipelines.wire import children_body, effects_body, left_body, started_body, stored_body

Answer = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """A write that a handler waits for."""

    write: Callable[[], Answer]
    answer: Future[Answer] = field(default_factory=Future)

    def serve(self) -> bool:
        """Carries it out and wakes the handler; False when the connection to the database is lost."""
        try:
            self.answer.set_result(self.write())
        except Refusal as refusal:
            if refusal.status >= 500:  # where artifacts lie does not answer
                self.answer.set_exception(Unavailable(refusal.detail))
                return True
            told = {"code": refusal.code, "detail": refusal.detail, "errors": refusal.errors}
            self.answer.set_exception(api_error(refusal.status, told))
        except (OperationalError, InterfaceError) as error:
            self.answer.set_exception(Unavailable(str(error).strip()))
            return False
        except Exception as error:  # noqa: BLE001 - the handler that asked for it is told, the others go on
            self.answer.set_exception(error)
        return True


class OwnLink:
    """One attempt's link. `ask` hands a write to the draining thread."""

    def __init__(self, holder: Holder, stage_id: uuid.UUID, ask: Callable[[Asked], None]) -> None:
        self._holder = holder
        self._stage_id = stage_id
        self._ask = ask

    def write(self, what: Stored, body: Answer) -> Answer:
        return self._wait_for(lambda: WRITERS[what](self._holder, self._stage_id, body))

    def load(self, artifact_id: str) -> Answer:
        return self._wait_for(lambda: _load_artifact(self._stage_id, artifact_id))

    def _wait_for(self, write: Callable[[], Answer]) -> Answer:
        asked = Asked(write)
        self._ask(asked)
        try:
            return asked.answer.result(settings.RECOURSE_LEASE_SECONDS)
        except TimeoutError as error:
            raise Unavailable("the executor did not come to it") from error


def _tell_effects(holder: Holder, stage_id: uuid.UUID, body: Answer) -> Answer:
    from pipelines.api.serializers import EffectsTold

    said = EffectsTold.clean(body)
    told = [Told(**effect) for effect in said["effects"]]
    noted = intents.tell_effects(holder, stage_id, said["execution_id"], told)
    return effects_body(_found(noted))


def _leave_checkpoint(holder: Holder, stage_id: uuid.UUID, body: Answer) -> Answer:
    from pipelines.api.serializers import Leaving, left_behind

    said = Leaving.clean(body)
    return left_body(_found(leave_checkpoint(holder, stage_id, said["execution_id"], left_behind(said))))


def _store_artifact(holder: Holder, stage_id: uuid.UUID, body: Answer) -> Answer:
    from pipelines.api.worker_artifacts import ArtifactGiven, given_of

    said = ArtifactGiven.clean(body)
    return stored_body(_found(artifact_storing.store(holder, stage_id, said["execution_id"], given_of(said))))


def _start_run(holder: Holder, stage_id: uuid.UUID, body: Answer) -> Answer:
    from pipelines.api.serializers import ChildIntent
    from pipelines.api.worker_runs import wish_of

    said = ChildIntent.clean(body)
    return started_body(_found(children.start(holder, stage_id, said["execution_id"], wish_of(said))))


def _look_at_runs(holder: Holder, stage_id: uuid.UUID, body: Answer) -> Answer:
    from pipelines.api.serializers import ChildrenLookedAt

    said = ChildrenLookedAt.clean(body)
    return children_body(_found(children.look(holder, stage_id, said["execution_id"], said["runs"])))


def _in_store(verb: str, holder: Holder, stage_id: uuid.UUID, body: Answer) -> Answer:
    from pipelines.api.worker_store import VERBS

    shape, carry_out = VERBS[verb]
    told: Answer = _found(carry_out(holder, stage_id, shape.clean(body)))
    return told


def _load_artifact(stage_id: uuid.UUID, artifact_id: str) -> Answer:
    """With the rights of the application whose stage it is."""
    from pipelines.api.shapes import read_id

    actor, found = artifacts.actor_of_stage(stage_id), read_id(artifact_id)
    if found is None:
        raise Refusal("not_found", "this is no artifact's id")
    artifact = artifacts.find(actor, found)
    return {"content": artifacts.load(actor, artifact), "sha256": artifact.digest}


def tell_termination(holder: Holder, held: Held) -> None:
    """Keeps how the processes of an attempt ended. Refused as by its route."""
    from pipelines.api.serializers import Terminated

    said = Terminated.clean({"executionId": held.job.execution_id, "termination": held.context.termination})
    terminations.tell(holder, uuid.UUID(held.job.stage_id), said["execution_id"], said["termination"])


def _found(noted: T | None) -> T:
    if noted is None:
        raise Refusal("not_found", "there is no such attempt of that stage")
    return noted


WRITERS: dict[Stored, Callable[[Holder, uuid.UUID, Answer], Answer]] = {
    "effects": _tell_effects,
    "checkpoints": _leave_checkpoint,
    "artifacts": _store_artifact,
    "store/table": partial(_in_store, "table"),
    "store/read": partial(_in_store, "read"),
    "store/insert": partial(_in_store, "insert"),
    "store/upsert": partial(_in_store, "upsert"),
    "store/delete": partial(_in_store, "delete"),
    "runs": _start_run,
    "runs/look": _look_at_runs,
}
