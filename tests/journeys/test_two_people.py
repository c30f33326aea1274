"""Two people, through HTTP alone, with the console that `up` starts: what one asks for is done once another agrees.

Nobody looks into the database: what happened is read from the API, and each step as a sentence of the audit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.config.console_process import ConsoleProcess, manage, processes_of, wait_until
from tests.quick import copy_of

pytestmark = pytest.mark.xdist_group("up")
ROLES = {"ann": "operator", "bob": "approver", "rose": "release_manager", "ada": "admin"}
STAGES = [{"stageName": "load", "stageHandlerName": "Work"}, {"stageName": "post", "stageHandlerName": "Work"}]


class House:
    """The people, the application and its worker, each with nothing but a credential and the console's address."""

    def __init__(self, data_dir: Path, url: str) -> None:
        def said(*command: str) -> str:
            done = manage(data_dir, *command)
            assert done.returncode == 0, done.stderr
            return done.stdout.split()[-1]

        place = ("--workspace", "acme", "--application", "billing", "--environment", "production")
        self.application = httpx.Client(base_url=url, headers={"X-API-Key": said("issue_key", *place)}, timeout=60)
        self.people = {}
        for name, role in ROLES.items():
            token = said("issue_token", "--user", name, "--workspace", "acme", "--role", role)
            self.people[name] = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        told = {"workerName": "w", "supportedHandlers": ["Work"]}
        session = self._ok(self.application.post("/workers/bootstrap", json=told))
        self.worker = {"X-Worker-Session": session["sessionToken"]}

    def close(self) -> None:
        for client in (self.application, *self.people.values()):
            client.close()

    def failed(self, name: str) -> str:
        """A run of production whose second stage fails."""
        body = {"idempotencyKey": name, "name": name, "stages": STAGES}
        run: str = self._ok(self.application.post("/pipelines/idempotent", json=body))["pipeline"]["id"]
        self.work("load")
        self.work("post", "failed", errorCode="BUSINESS_REJECTED")
        assert self.get("bob", f"/v1/executions/{run}")["status"] == "failed"
        return run

    def work(self, stage: str, status: str = "succeeded", **told: Any) -> None:
        """The next job, which must be of this stage, ends like that."""
        pulled = self._ok(self.application.post("/jobs/pull", json={"acquire": True}, headers=self.worker))
        (job,) = pulled["jobs"]
        assert job["stageName"] == stage
        body = {"executionId": job["executionId"], "attempt": job["attempt"], "status": status, **told}
        self._ok(self.application.post(f"/stages/{job['stageId']}/result", json=body, headers=self.worker))

    def nothing_to_do(self) -> bool:
        return self.application.post("/jobs/pull", json={"acquire": True}, headers=self.worker).status_code == 204

    def get(self, name: str, path: str) -> Any:
        return self._ok(self.people[name].get(path))

    def post(self, who: str, path: str, **body: Any) -> httpx.Response:
        return self.people[who].post(path, json=body)

    def decide(self, name: str, item: str, **body: Any) -> httpx.Response:
        return self.post(name, f"/v1/approvals/{item}/decision", **body)

    def stage(self, run: str, name: str) -> dict[str, Any]:
        (found,) = [one for one in self.get("bob", f"/v1/executions/{run}/stages")["results"] if one["name"] == name]
        return dict(found)

    def operation(self, operation_id: str) -> str:
        kept = self.get("bob", "/v1/operations?page_size=100")["results"]
        (status,) = [one["status"] for one in kept if one["id"] == operation_id]
        return str(status)

    def story(self, run: str) -> list[str]:
        """What people did about a run, from the first to the last: the audit in sentences."""
        events = self.get("bob", f"/v1/audit-events?execution_id={run}&page_size=100")["results"]
        return [event["sentence"] for event in reversed(events)]

    @staticmethod
    def _ok(answer: httpx.Response) -> Any:
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[House]:
    data_dir = tmp_path_factory.mktemp("two") / "data"
    copy_of(migrated, data_dir)
    console = ConsoleProcess(data_dir)
    try:
        console.wait_until_ready()
        told = House(data_dir, console.url)
        yield told
        told.close()
    finally:
        console.end()
        for pid in processes_of(data_dir):
            os.kill(pid, signal.SIGKILL)


def test_a_rerun_in_production_goes_once_another_agrees_to_its_plan(house: House) -> None:
    """F130, F138, F145, O4, O23, O45: asked, seen as the same plan, not decided by who asked, agreed to, done."""
    source = house.failed("nightly-billing")
    wish = {"from_step_id": "post", "reason": "the bank was closed"}
    plan = house.post("ann", f"/v1/executions/{source}/rerun", **wish, dry_run=True).json()
    asked = house.post("ann", f"/v1/executions/{source}/rerun", **wish, plan_digest=plan["plan_digest"])
    assert (asked.status_code, asked.json()["status"]) == (202, "awaiting_approval"), asked.text
    operation = asked.json()["operation_id"]
    assert house.nothing_to_do()

    (item,) = house.get("bob", "/v1/approvals?view=mine")["results"]
    assert (item["id"], item["plan_digest"]) == (operation, plan["plan_digest"])
    assert house.decide("bob", operation, approved=True, dry_run=True).json()["plan_digest"] == plan["plan_digest"]

    own = house.decide("ann", operation, approved=True, reason="trust me", plan_digest=plan["plan_digest"])
    assert (own.status_code, own.json()["code"]) == (403, "permission_denied"), "an operator decides nothing"
    assert house.nothing_to_do()

    reason = "checked with the bank"
    agreed = house.decide("bob", operation, approved=True, reason=reason, plan_digest=item["plan_digest"])
    assert agreed.status_code == 200, agreed.text
    target = agreed.json()["target_execution_id"]
    house.work("post")
    assert house.get("ann", f"/v1/executions/{target}")["status"] == "completed"
    wait_until(lambda: house.operation(operation) == "succeeded", why="the operation follows its run")
    assert house.get("bob", "/v1/approvals?view=waiting")["results"] == []

    graph = house.get("bob", f"/v1/executions/{target}/evidence")
    assert reason in str(graph)
    assert house.story(source) == [
        "the application billing created nightly-billing in production",
        "ann's rerun of nightly-billing in production may go on",
        "ann asked to rerun nightly-billing from post in production: the bank was closed; it waits for one approver",
        "ann was not allowed to decide on a request about nightly-billing in production;"
        " the role operator may not decide; this needs one of: admin, approver, release_manager",
        f"bob approved ann's rerun of nightly-billing in production: checked with the bank; it goes on as {target}",
    ]


def test_two_people_agree_to_a_retry_after_one_was_taken_back_and_one_expired(house: House) -> None:
    """F133–F135, F138: a rule for two binds administrators; withdrawn and expired requests do nothing, ever."""
    rule = {"name": "two for a retry", "kinds": ["retry"], "role": "approver", "count": 2}
    made = house.post("ada", "/v1/approval-rules", **rule)
    assert made.status_code == 201, made.text
    run = house.failed("month-end")
    retry = f"/v1/stages/{house.stage(run, 'post')['id']}/retry"

    def ask(reason: str) -> str:
        answer = house.post("ada", retry, reason=reason)
        assert (answer.status_code, answer.json()["status"]) == (202, "awaiting_approval"), answer.text
        operation: str = answer.json()["operation_id"]
        return operation

    first = ask("too early")
    assert house.decide("ada", first, approved=True, reason="mine").json()["code"] == "self_approval"
    assert house.decide("bob", first, approved=True).json()["have"] == 1
    assert house.post("ada", f"/v1/approvals/{first}/withdraw", reason="the ledger is open").status_code == 200
    late = house.decide("rose", first, approved=True)
    assert (late.status_code, late.json()["code"]) == (409, "approval_stale")

    changed = house.people["ada"].patch(f"/v1/approval-rules/{made.json()['id']}", json={"expires_in": 1})
    assert changed.status_code == 200, changed.text
    second = ask("before the bank closes")
    wait_until(lambda: house.operation(second) == "expired", why="nobody agreed in time")
    late = house.decide("bob", second, approved=True)
    assert (late.status_code, late.json()["code"]) == (409, "approval_stale")

    house.people["ada"].patch(f"/v1/approval-rules/{made.json()['id']}", json={"expires_in": 3600})
    third = ask("the ledger is closed")
    assert house.decide("bob", third, approved=True, reason="seen").json()["have"] == 1
    assert house.stage(run, "post")["status"] == "failed", "one of two is not enough"
    assert house.nothing_to_do()
    assert house.decide("rose", third, approved=True, reason="seen too").json()["status"] == "succeeded"
    house.work("post")
    assert house.get("bob", f"/v1/executions/{run}")["status"] == "completed"
    assert [house.operation(one) for one in (first, second, third)] == ["withdrawn", "expired", "succeeded"]
    place = "post of month-end in production"
    assert [told for told in house.story(run) if "may go on" not in told] == [
        "the application billing created month-end in production",
        f"ada asked to retry {place}: too early; it waits for 2 approvers",
        f"ada was not allowed to approve their own retry of {place}: mine;"
        " who asked for it does not decide it; somebody else must look at it",
        f"bob approved ada's retry of {place}; 1 of 2 have agreed",
        f"ada withdrew their own retry of {place}: the ledger is open",
        f"rose could not approve ada's retry of {place}; it expired or was withdrawn",
        f"ada asked to retry {place}: before the bank closes; it waits for 2 approvers",
        f"bob could not approve ada's retry of {place}; it expired or was withdrawn",
        f"ada asked to retry {place}: the ledger is closed; it waits for 2 approvers",
        f"bob approved ada's retry of {place}: seen; 1 of 2 have agreed",
        f"rose approved ada's retry of {place}: seen too; it was carried out",
    ]
