"""Everything a client can ask, by what it is about; once for both clients. Nothing here sends anything."""

from typing import Generic

from recourse.calls.approvals import ApprovalRules, Approvals
from recourse.calls.artifacts import Artifacts
from recourse.calls.base import Call
from recourse.calls.bulk import BulkOperations
from recourse.calls.catalog import Applications, Environments, Pipelines, Policies, Releases
from recourse.calls.checkpoints import Checkpoints
from recourse.calls.dead_letters import DeadLetters
from recourse.calls.executions import Executions
from recourse.calls.fleet import SigningKeys, Workers
from recourse.calls.guarantees import Guarantees
from recourse.calls.methods import Sender_co
from recourse.calls.records import AuditEvents, Operations, Reconciliation
from recourse.calls.runs import Runs
from recourse.calls.schedules import Backfills, Blackouts, Triggers
from recourse.calls.stages import Stages
from recourse.calls.store import Store
from recourse.calls.work import Work

__all__ = ["Call", "Groups"]


class Groups(Generic[Sender_co]):
    """The groups that a client has."""

    def __init__(self, sender: Sender_co) -> None:
        self.runs = Runs(sender)
        self.stages = Stages(sender)
        self.executions = Executions(sender)
        self.checkpoints = Checkpoints(sender)
        self.operations = Operations(sender)
        self.approvals = Approvals(sender)
        self.approval_rules = ApprovalRules(sender)
        self.artifacts = Artifacts(sender)
        self.store = Store(sender)
        self.dead_letters = DeadLetters(sender)
        self.reconciliation = Reconciliation(sender)
        self.bulk_operations = BulkOperations(sender)
        self.triggers = Triggers(sender)
        self.backfills = Backfills(sender)
        self.blackouts = Blackouts(sender)
        self.pipelines = Pipelines(sender)
        self.releases = Releases(sender)
        self.policies = Policies(sender)
        self.applications = Applications(sender)
        self.environments = Environments(sender)
        self.audit_events = AuditEvents(sender)
        self.workers = Workers(sender)
        self.signing_keys = SigningKeys(sender)
        self.guarantees = Guarantees(sender)
        self.work = Work(sender)
