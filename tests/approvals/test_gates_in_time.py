"""Gates and time: their end, the run's deadline, pauses; and a database that is put back to before a decision."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from approvals.transitions import decide_gate
from pipelines import sweeps
from pipelines.access import Actor
from pipelines.models import Attempt, GateDecision, LateEvidence, Run
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from tests.cast import Api, Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempts, everything, gate, refused, stage, states, status
from tests.verbs import pause_run, resume_run, retry_stage, skip_stage

StartRun = Callable[..., Run]
People = dict[str, Person]
AsPerson = Callable[[Person], Api]


def gated(name: str = "post", when: str = "before", **asked: Any) -> dict[str, Any]:
    return {"name": name, "approval": {"when": when, **asked}}


def approve(run: Run, actor: Actor, name: str = "post", **told: Any) -> Any:
    return decide_gate(stage(run, name).id, actor=actor, approved=True, **told)


def time_and_machines(hand: Hand, clock: Clock) -> None:
    """Everything that happens without anybody's decision, for a day."""
    for _ in range(3):
        sweeps.sweep()
        hand.finish()
        clock.advance(hours=8)


# the end of a gate


def test_a_gate_expires_while_its_run_is_paused(start_run: StartRun, people: People, clock: Clock) -> None:
    """Model §2: a pause holds workers back, not the clock; a decision still counts until then."""
    run, other = start_run(gated(expires_in=600), key="one"), start_run(gated(expires_in=600), key="two")
    for one in (run, other):
        pause_run(one.id, actor=people["operator"].actor)
    clock.advance(500)
    assert approve(other, people["approver"].actor).stage_state == "ready"
    clock.advance(100)
    with refused("approval_stale"):
        approve(run, people["approver"].actor)
    assert sweeps.expire_gates() == 1
    assert (gate(run, "post").state, states(run), status(run)) == ("expired", {"post": "failed"}, "failed")
    resume_run(other.id, actor=people["operator"].actor)
    assert states(other) == {"post": "ready"}
    assert_invariants()


def test_votes_do_not_put_off_the_end_of_a_gate(start_run: StartRun, people: People, clock: Clock) -> None:
    run = start_run(gated(count=2, expires_in=600))
    clock.advance(500)
    approve(run, people["approver"].actor)
    clock.advance(100)
    with refused("approval_stale"):
        approve(run, people["admin"].actor)
    with refused("approval_stale"):
        approve(run, people["approver"].actor)
    assert sweeps.expire_gates() == 1
    assert stage(run, "post").failure_disposition == "gate_expired"


def test_an_expired_gate_lets_other_branches_go_on_and_can_be_asked_anew(
    start_run: StartRun, hand: Hand, people: People, clock: Clock
) -> None:
    """F45, F132: what was asked once is over; a retry asks again, and for the same people."""
    run = start_run("plain", gated(expires_in=600, count=2), {"name": "join", "depends_on": ["plain", "post"]})
    approve(run, people["approver"].actor)
    clock.advance(600)
    assert sweeps.expire_gates() == 1
    assert (states(run)["plain"], status(run)) == ("ready", "queued")
    hand.finish()
    assert (states(run), status(run)) == ({"plain": "completed", "post": "failed", "join": "pending"}, "failed")
    retry_stage(stage(run, "post").id, actor=people["operator"].actor)
    new = gate(run, "post")
    assert (new.state, new.count, new.require_person, new.epoch) == ("open", 2, True, 2)
    assert approve(run, people["approver"].actor).have == 1, "the old approval does not count for it"
    approve(run, people["admin"].actor)
    hand.finish()
    assert status(run) == "completed"
    assert_invariants()


def test_waiting_for_people_is_neither_failure_nor_time_of_the_attempt(
    start_run: StartRun, hand: Hand, people: People, clock: Clock
) -> None:
    """F72: nothing is tried again meanwhile, no time limit runs, and the run says that it waits."""
    options = {"max_retries": 3, "retry_interval": 1, "timeout": 10}
    run = start_run({**gated(when="after"), "options": options}, "tell")
    hand.report(hand.take(), "waiting", output=1)
    before = everything()
    time_and_machines(hand, clock)
    assert everything() == before
    assert (attempts(run, "post"), stage(run, "post").retry_count, status(run)) == (["waiting"], 0, "waiting")
    assert approve(run, people["approver"].actor).stage_state == "completed"
    assert_invariants()


# the run's deadline


def test_human_time_counts_and_after_the_deadline_only_a_new_run_helps(
    start_run: StartRun, hand: Hand, people: People, clock: Clock
) -> None:
    """R30, R31: approve, reject, retry, skip and a late result are refused, swept or not; a new run is taken."""
    run = start_run("load", gated(when="after"), gated("other"), deadline_seconds=1000)
    hand.finish()
    clock.advance(900)
    assert sweeps.enforce_deadlines() == 0
    clock.advance(100)
    for _ in range(2):
        for approved in (True, False):
            with refused("deadline_exceeded"):
                decide_gate(stage(run, "post").id, actor=people["approver"].actor, approved=approved, reason="at last")
        with refused("deadline_exceeded"):
            retry_stage(stage(run, "load").id, actor=people["operator"].actor, reason="again")
        with refused("deadline_exceeded"):
            skip_stage(stage(run, "other").id, actor=people["operator"].actor, reason="not needed")
        sweeps.sweep()
    run.refresh_from_db()
    assert (run.status, run.failure_code, gate(run, "post").state) == ("failed", "deadline_exceeded", "cancelled")
    anew = start_run(gated(), key="anew")
    assert approve(anew, people["approver"].actor).stage_state == "ready"
    assert_invariants()


def test_nothing_moves_the_deadline_of_a_run_that_has_begun(
    start_run: StartRun, hand: Hand, people: People, as_person: AsPerson
) -> None:
    """R32: no route takes one, and neither decision, pause, retry nor skip changes it on the way."""
    run = start_run("load", gated(when="after", count=2), {"name": "tell", "handler": "Nobody"}, deadline_seconds=1000)
    hand.report(hand.take(), "failed", error_code="FOO")
    admin, path = as_person(people["admin"]), f"/v1/executions/{run.id}"
    later = {"deadline_seconds": 9000, "deadlineSeconds": 9000, "deadline_at": "2100-01-01T00:00:00Z"}
    assert admin.patch(path, later).status_code == 405
    assert admin.post(path, later).status_code == 405
    stage_path = f"/v1/stages/{stage(run, 'load').id}"
    for target in (f"{path}/pause", f"{path}/resume", f"{stage_path}/retry", f"{stage_path}/skip"):
        for name, value in later.items():
            answer = admin.post(target, {"reason": "longer", name: value})
            assert (answer.status_code, list(answer.json()["errors"])) == (400, [name])
    deadline = Run.objects.get(id=run.id).deadline_at
    retry_stage(stage(run, "load").id, actor=people["operator"].actor)
    pause_run(run.id, actor=people["operator"].actor)
    resume_run(run.id, actor=people["operator"].actor)
    hand.finish()
    for role in ("approver", "admin"):
        approve(run, people[role].actor)
    skip_stage(stage(run, "tell").id, actor=people["operator"].actor, reason="not needed")
    run.refresh_from_db()
    assert (run.status, run.deadline_at) == ("completed", deadline)


# the six boundary cases of source 001: none advances by itself to acceptance (R45)


def test_a_denial_persists(start_run: StartRun, hand: Hand, people: People, clock: Clock) -> None:
    """R12, I9."""
    run = start_run(gated(when="after"), "tell")
    hand.report(hand.take(), output=1)
    decide_gate(stage(run, "post").id, actor=people["approver"].actor, approved=False, reason="wrong")
    before = everything()
    time_and_machines(hand, clock)
    assert everything() == before
    for again in (retry_stage, skip_stage):
        with refused("gate_denied"):
            again(stage(run, "post").id, actor=people["admin"].actor, reason="please")
    with refused("gate_decision_conflict"):
        approve(run, people["admin"].actor)
    assert (states(run), status(run)) == ({"post": "failed", "tell": "pending"}, "failed")


def test_a_stale_approval_accepts_nothing(start_run: StartRun, hand: Hand, people: People, clock: Clock) -> None:
    """Of an older attempt, or too late: neither completes what is there now."""
    run = start_run(gated(when="after", expires_in=600))
    hand.report(hand.take(), output="draft")
    seen = gate(run, "post")
    clock.advance(600)
    sweeps.sweep()
    retry_stage(stage(run, "post").id, actor=people["operator"].actor)
    hand.report(hand.take(), output="another draft")
    with refused("approval_stale"):
        approve(run, people["approver"].actor, gate_id=seen.id)
    time_and_machines(hand, clock)
    assert (states(run), status(run)) == ({"post": "failed"}, "failed")


def test_an_output_beyond_its_allowance_never_comes_before_a_decider(
    start_run: StartRun, hand: Hand, people: People, clock: Clock
) -> None:
    """P17: it fails as what it is; there is nothing to approve."""
    run = start_run({**gated(when="after"), "options": {"max_output_bytes": 10}})
    hand.report(hand.take(), output="x" * 100)
    with refused("stage_state_invalid"):
        approve(run, people["approver"].actor)
    time_and_machines(hand, clock)
    assert (stage(run, "post").last_error_code, run.gates.count()) == ("OUTPUT_TOO_LARGE", 0)
    assert (states(run), status(run)) == ({"post": "failed"}, "failed")


def test_a_deadline_ends_what_waits_for_a_decision(
    start_run: StartRun, hand: Hand, people: People, clock: Clock
) -> None:
    run = start_run(gated(when="after"), deadline_seconds=600)
    hand.report(hand.take(), output=1)
    clock.advance(600)
    time_and_machines(hand, clock)
    with refused("deadline_exceeded"):
        approve(run, people["approver"].actor)
    assert (states(run), status(run)) == ({"post": "cancelled"}, "failed")


@pytest.mark.parametrize("told", ["waiting", "succeeded"])
def test_what_comes_in_after_a_cancel_opens_no_gate(
    start_run: StartRun, hand: Hand, people: People, clock: Clock, told: str
) -> None:
    """P74: kept as late evidence, and put before nobody."""
    run = start_run(gated(when="after"))
    job = hand.take()
    cancel_run(run.id, actor=people["operator"].actor)
    assert not hand.report(job, told, output=1).accepted
    time_and_machines(hand, clock)
    with refused("execution_state_invalid"):
        approve(run, people["approver"].actor)
    assert (run.gates.count(), LateEvidence.objects.count(), status(run)) == (0, 1, "cancelled")


@pytest.mark.parametrize(("mode", "state"), [("idempotent", "ready"), ("external", "needs_reconciliation")])
def test_an_interrupted_attempt_is_never_taken_for_a_result(
    start_run: StartRun, hand: Hand, people: People, clock: Clock, mode: str, state: str
) -> None:
    run = start_run({**gated(when="after"), "effect_mode": mode})
    hand.take()
    clock.advance(120)
    sweeps.sweep()
    assert (attempts(run, "post"), states(run)) == (["lost"], {"post": state})
    with refused("stage_state_invalid"):
        approve(run, people["approver"].actor)
    assert run.gates.count() == 0
    time_and_machines(hand, clock)
    assert states(run)["post"] in ("waiting", "needs_reconciliation"), "done again it waits; undecided it stays"
    assert Attempt.objects.filter(stage__run=run, state="succeeded").count() == (mode == "idempotent")


# what was decided stays decided


def test_nobody_takes_a_decision_back_in_the_database(start_run: StartRun, people: People) -> None:
    """R44, I7, I9: rows are only added, and a decided gate stays decided."""
    run = start_run(gated())
    decide_gate(stage(run, "post").id, actor=people["approver"].actor, approved=False, reason="no")
    for sql in (
        "DELETE FROM pipelines_gatedecision",
        "UPDATE pipelines_gatedecision SET approved = true",
        "UPDATE pipelines_gatedecision SET reason = 'fine'",
        "UPDATE pipelines_gate SET state = 'open'",
        "UPDATE pipelines_gate SET state = 'approved'",
        "DELETE FROM pipelines_auditevent",
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            execute(sql)
    assert GateDecision.objects.get().approved is False


def test_a_database_put_back_to_before_a_rejection_is_found_out(
    start_run: StartRun, people: People, tmp_path: Path
) -> None:
    """R44: by the head of the audit that was exported since; also when somebody approves in the meantime."""
    run = start_run(gated())
    assert verified() == "acme: 0 sealed events hold\n"
    backup = transaction.savepoint()
    decide_gate(stage(run, "post").id, actor=people["approver"].actor, approved=False, reason="the sums are wrong")
    verified()
    head = tmp_path / "head.json"
    head.write_text(called("export_audit_head", "--workspace", "acme"))
    assert verified("--head", str(head)) == "acme: 1 sealed events hold\n"
    transaction.savepoint_rollback(backup)

    assert (states(run), gate(run, "post").state) == ({"post": "waiting"}, "open")
    with pytest.raises(CommandError, match="does not hold: acme"):
        verified("--head", str(head))
    approve(run, people["admin"].actor)
    assert verified() == "acme: 1 sealed events hold\n", "by itself it looks whole"
    with pytest.raises(CommandError, match="does not hold: acme"):
        verified("--head", str(head))


def called(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def verified(*more: str) -> str:
    return called("verify_audit", *more)
