"""The last approval killed at every point between the decision, its carrying out, and the new run: all of it or none.

The process is really killed (kill -9), so that nothing of the language or the driver can tidy up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from approvals.models import RequestDecision
from pipelines.models import AuditEvent, Notice, Run, Workspace
from pipelines.states import NoticeKind
from recovery import forks
from recovery.models import Operation
from recovery.states import OperationKind
from tests.approvals.asked import agree, rule, states
from tests.cast import Hand, Person, stages_of
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import kinds
from tests.services import database_url
from tests.verbs import retry_stage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
StartRun = Callable[..., Run]
ROOT = Path(__file__).resolve().parents[2]

KILLED = """
import importlib, os, signal, sys
import django
django.setup()
from django.contrib.auth import get_user_model
from approvals.requests import decide_request
from pipelines.access import person

point, when, subject, workspace_id, user_id = sys.argv[1:]
home, name = point.split(":")
module = importlib.import_module(home)
real = getattr(module, name)

def dying(*args, **kwargs):
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(module, name, dying)
actor = person(get_user_model().objects.get(pk=user_id), workspace_id, "api")
decide_request(subject, actor=actor, approved=True, reason="fine")
"""

# where the process dies: before the commit of the decision nothing is there, after it all of it is done by somebody
IN_ONE_TRANSACTION = [
    ("approvals.requests:_keep", "after"),
    ("approvals.requests:_close", "after"),
    ("recovery.operations:update", "after"),
    ("approvals.requests:_decided", "after"),
    ("approvals.requests:_tell_after", "after"),
]
OF_A_RETRY = [*IN_ONE_TRANSACTION, ("recovery.carriers:carry_out", "before"), ("recovery.carriers:carry_out", "after")]
OF_A_FORK = [*IN_ONE_TRANSACTION, ("recovery.forks:allow", "after")]
AFTER_THE_COMMIT = [
    ("recovery.forks:dispatch", "before"),
    ("recovery.forks:_dispatch", "before"),
    ("recovery.forks:_make", "before"),
    ("recovery.forks:_make", "after"),
    ("recovery.forks:_locked", "after"),
]


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    run = start_run("first", "second")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    return Run.objects.get(id=run.id)


def die(point: str, when: str, subject: uuid.UUID, person: Person) -> None:
    """Another process agrees, and is killed on its way into that function or out of it."""
    told = [point, when, str(subject), str(person.actor.workspace_id), str(person.user.pk)]
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, *told],
        env={**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "config.settings"},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr


def rerun(run: Run, person: Person) -> uuid.UUID:
    asked = forks.ask_fork(OperationKind.RERUN, run, forks.Wish(), actor=person.actor)
    return forks.fork(asked, actor=person.actor).operation_id


def assert_told_once(subject: uuid.UUID) -> None:
    assert RequestDecision.objects.filter(request__subject=subject).count() == 1
    assert AuditEvent.objects.filter(action="operation.approve", outcome="allowed").count() == 1
    assert Notice.objects.filter(kind=NoticeKind.DECIDED, subject=subject).count() == 1
    assert_invariants()


@pytest.mark.parametrize(("point", "when"), OF_A_RETRY)
def test_a_retry_that_is_killed_with_its_approval_was_not_agreed_to(
    failed: Run, workspace: Workspace, people: dict[str, Person], point: str, when: str
) -> None:
    """Approval and effect commit together: nothing is there, and the same decision then does it once."""
    rule(workspace, "retry", count=1)
    asked = retry_stage(stages_of(failed)[1].id, actor=people["operator"].actor, reason="again")
    die(point, when, asked.operation_id, people["approver"])
    assert states(asked.operation_id) == ("open", "awaiting_approval")
    assert not RequestDecision.objects.exists()
    assert stages_of(failed)[1].epoch == 1
    for replayed in (False, True):
        answer = agree(asked.operation_id, people["approver"].actor, reason="fine")
        assert (answer.status, answer.replayed) == ("succeeded", replayed)
    assert (stages_of(failed)[1].epoch, kinds(failed, "second").count("stage.retry")) == (2, 1)
    assert_told_once(asked.operation_id)


@pytest.mark.parametrize(("point", "when"), OF_A_FORK)
def test_a_fork_that_is_killed_with_its_approval_was_not_agreed_to(
    failed: Run, workspace: Workspace, people: dict[str, Person], point: str, when: str
) -> None:
    """I10: no target is reserved before the approval is there."""
    rule(workspace, "rerun", count=1)
    subject = rerun(failed, people["operator"])
    die(point, when, subject, people["approver"])
    assert states(subject) == ("open", "awaiting_approval")
    assert Operation.objects.get(id=subject).target is None
    assert forks.carry_on_reserved(quiet_seconds=0) == 0
    assert agree(subject, people["approver"].actor, reason="fine").status == "dispatched"
    assert Run.objects.filter(recovered_from=failed).count() == 1
    assert_told_once(subject)


@pytest.mark.parametrize(("point", "when"), AFTER_THE_COMMIT)
def test_a_fork_that_is_killed_after_its_approval_is_made_all_the_same(
    failed: Run, workspace: Workspace, people: dict[str, Person], point: str, when: str
) -> None:
    """I10, O30: the sweep makes the run that was agreed to, once, under the id that was reserved with the approval."""
    rule(workspace, "rerun", count=1)
    subject = rerun(failed, people["operator"])
    die(point, when, subject, people["approver"])
    assert states(subject) == ("approved", "reserved")
    reserved = Operation.objects.get(id=subject).target
    assert not Run.objects.filter(recovered_from=failed).exists()
    again = agree(subject, people["approver"].actor, reason="fine")
    assert (again.replayed, again.state) == (True, "approved")
    assert [forks.carry_on_reserved(quiet_seconds=0) for _ in range(2)] == [1, 0]
    assert [run.id for run in Run.objects.filter(recovered_from=failed)] == [reserved]
    assert agree(subject, people["approver"].actor, reason="fine").target == reserved
    assert_told_once(subject)
