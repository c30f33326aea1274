"""An end of a run beside what would make its list another, in the same instant: the list tells what then holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pipelines import aftermath, imports, intents
from pipelines.access import Actor
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.models import Attempt, AuditEvent, Effect, ReconciliationItem, Run, Stage
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew

StartRun = Callable[..., Run]
ROUNDS = 20


def kinds(run: Run) -> list[str]:
    return sorted(ReconciliationItem.objects.filter(run=run).values_list("kind", flat=True))


def test_a_cancel_beside_a_result(crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]) -> None:
    """R37, F65: the attempt is listed unless its result came first."""
    actor = people["operator"].actor
    for _ in range(ROUNDS):
        run = start_run("first", "second")
        job = hand.take()
        crew.at_once(partial(cancel_run, run.id, actor=actor), partial(hand.report, job))
        state = Stage.objects.get(id=job.stage.id).state
        assert kinds(run) == ([] if state == "completed" else ["running_attempt"])


def test_a_cancel_beside_an_outcome(crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]) -> None:
    """P75: an effect is listed if and only if nobody knows of its outcome afterwards."""
    actor = people["operator"].actor
    for _ in range(ROUNDS):
        run = start_run({"name": "pay", "effect_mode": "external", "effect_protocol": "intent"})
        job = hand.take()

        def say(state: str, job: Any = job) -> Any:
            told = [Told("external_http", state, key="invoice-42")]
            return intents.tell_effects(hand.holder, job.stage.id, job.attempt_id, told)

        say("declared")
        crew.at_once(partial(cancel_run, run.id, actor=actor), partial(say, "committed"))
        state = Effect.objects.get(run=run).state
        assert state in ("committed", "unknown")
        assert kinds(run) == (["running_attempt"] if state == "committed" else ["open_effect", "running_attempt"])


def test_a_cancel_beside_an_import(
    crew: Crew, start_run: StartRun, people: dict[str, Person], application_actor: Actor
) -> None:
    """R36, R37: the answer is taken or refused; it is listed as awaited exactly when it was refused."""
    for _ in range(ROUNDS):
        run = start_run({"name": "score", "mode": "import"}, "then")
        attempt = Attempt.objects.get(stage__run=run)
        answer = imports.Answer(attempt.request_digest, output=1)
        _, taken = crew.at_once(
            partial(cancel_run, run.id, actor=people["operator"].actor),
            partial(imports.take, attempt.stage_id, answer, actor=application_actor),
        )
        assert kinds(run) == (["awaited_import"] if isinstance(taken, Refusal) else [])


def test_two_people_settle_the_same_at_once(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """R44: one word stands, and who came second hears whose."""
    for _ in range(ROUNDS):
        run = start_run("first")
        hand.take()
        cancel_run(run.id, actor=people["operator"].actor)
        item = ReconciliationItem.objects.get(run=run)

        def say(role: str, item: ReconciliationItem = item) -> Any:
            return aftermath.settle(item.run_id, item.id, actor=people[role].actor, note=f"seen by {role}")

        answers = crew.at_once(lambda: say("approver"), lambda: say("admin"))
        (refused,) = [one for one in answers if isinstance(one, Refusal)]
        (settled,) = [one for one in answers if not isinstance(one, BaseException)]
        item.refresh_from_db()
        assert (item.note, item.resolved_by) == (settled.item.note, settled.item.resolved_by)
        assert refused.code == "idempotency_conflict"
        told = AuditEvent.objects.filter(action=aftermath.ACTION, run=run.id).values_list("outcome", flat=True)
        assert sorted(told) == ["allowed", "failed"]


def test_one_person_settles_twice_at_once(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    for _ in range(ROUNDS):
        run = start_run("first")
        hand.take()
        cancel_run(run.id, actor=people["operator"].actor)
        item = ReconciliationItem.objects.get(run=run)
        say = [partial(aftermath.settle, run.id, item.id, actor=people["approver"].actor, note="gone")] * 4
        assert sorted(one.replayed for one in crew.at_once(*say)) == [False, True, True, True]
