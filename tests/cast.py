"""Who plays in the tests: a workspace with its people, an application with its worker, and those who must see nothing.

    def test_…(start_run, hand, people): …

`hand` works through the engine, `worker` through the application API; both speak of jobs in the words of the wire.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from pipelines import keys, leases, results
from pipelines.access import Actor
from pipelines.creation import Intent, Place, create_run
from pipelines.ids import new_id
from pipelines.jobs import Job, Lease
from pipelines.listen import listener
from pipelines.models import (
    Application,
    Environment,
    Member,
    PersonalToken,
    Role,
    Run,
    Stage,
    WorkerSession,
    Workspace,
)
from pipelines.recipients import keys_of
from pipelines.wake import Queue
from pipelines.wire import job_body
from tests.factories import ApplicationFactory, UserFactory, WorkspaceFactory


@dataclass(frozen=True, slots=True)
class Person:
    """A user of one workspace, their bearer token there, and themselves as an actor."""

    user: Any
    token: str
    actor: Actor


@pytest.fixture(autouse=True)
def closed_ear() -> Iterator[None]:
    """No test leaves the process's ear on its database open; the database could not be removed."""
    yield
    listener.rest()


@pytest.fixture
def workspace(db: None) -> Workspace:
    return WorkspaceFactory(slug="acme")


@pytest.fixture
def environments(workspace: Workspace) -> dict[str, Environment]:
    """The ladder by slug: development, staging, production (protected)."""
    return {environment.slug: environment for environment in workspace.environments.all()}


@pytest.fixture
def environment(environments: dict[str, Environment]) -> Environment:
    """Where the application's key works: development."""
    return environments["development"]


@pytest.fixture
def application(workspace: Workspace) -> Application:
    return ApplicationFactory(workspace=workspace, name="billing")


@pytest.fixture
def api_key(application: Application, environment: Environment) -> str:
    return keys.issue_key(application, environment)[1]


@pytest.fixture
def place(workspace: Workspace, application: Application, environment: Environment) -> Place:
    return Place(workspace.id, application.id, environment.id, environment.slug)


@pytest.fixture
def application_actor(workspace: Workspace, application: Application, environment: Environment) -> Actor:
    return Actor(
        application.name,
        workspace.id,
        "application",
        application_id=application.id,
        environment_id=environment.id,
    )


@pytest.fixture
def people(workspace: Workspace) -> dict[str, Person]:
    """One person for each role: people["operator"].token."""
    joined = _join(workspace, {f"{role}-{workspace.slug}": role for role in Role.values})
    return dict(zip(Role.values, joined, strict=True))


@pytest.fixture
def other_workspace(db: None) -> Workspace:
    return WorkspaceFactory(slug="globex")


@pytest.fixture
def outsider(other_workspace: Workspace) -> Person:
    """An admin, of another workspace: must see nothing here."""
    return _join(other_workspace, {"olga": Role.ADMIN})[0]


@pytest.fixture
def foreign_key(other_workspace: Workspace) -> str:
    """The key of an application of another workspace: must see nothing here."""
    return _key_of(ApplicationFactory(workspace=other_workspace, name="billing"))


@pytest.fixture
def sibling_key(workspace: Workspace) -> str:
    """The key of another application of the same workspace."""
    return _key_of(ApplicationFactory(workspace=workspace, name="shipping"))


class Api:
    """Speaks JSON with the console in this process. `headers` go with every request; bodies are JSON, or sent as is."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = dict(headers)
        self._client = Client()

    def get(self, path: str, **headers: str) -> Any:
        return self._client.get(path, headers=self.headers | _names(headers))

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self._send("post", path, {} if body is None else body, headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Any:
        return self._send("patch", path, {} if body is None else body, headers)

    def _send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        send = getattr(self._client, method)
        return send(path, data, content_type="application/json", headers=self.headers | _names(headers))


@pytest.fixture
def api(api_key: str) -> Api:
    """The application's own client."""
    return Api({"X-API-Key": api_key})


@pytest.fixture
def as_person() -> Callable[[Person], Api]:
    """A client of the operations API: as_person(people["operator"]).get("/v1/executions")."""
    return lambda someone: Api({"Authorization": f"Bearer {someone.token}"})


@pytest.fixture
def start_run(place: Place) -> Callable[..., Run]:
    """Makes a run through the engine: start_run("first", {"name": "second", "effect_mode": "external"}).

    A stage given by its name alone has the handler `Handler`; so has every other that names none. Keyword arguments
    are those of `Intent`, and `key`, `in_place`.
    """

    def start(
        *stages: str | Mapping[str, Any], key: str | None = None, in_place: Place | None = None, **more: Any
    ) -> Run:
        if "pipeline" not in more:
            more = {"name": "nightly", **more, "stages": [stage_of(stage) for stage in stages or ("first",)]}
        run_id, _ = create_run(in_place or place, Intent(**{"name": None, **more}), key=key, actor="billing")
        return Run.objects.get(id=run_id)

    return start


def stage_of(stage: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"handler": "Handler", **({"name": stage} if isinstance(stage, str) else stage)}


class Hand:
    """A worker session that works through the engine, without HTTP."""

    def __init__(
        self, place: Place, name: str, handlers: Sequence[str], recipients: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.handlers = list(handlers)
        session = WorkerSession.objects.create(
            id=new_id(),
            application_id=place.application_id,
            environment_id=place.environment_id,
            worker_name=name,
            handlers=self.handlers,
            recipients=list(recipients),
        )
        self.holder = leases.Holder(
            session.id, place.application_id, place.environment_id, name, sends_to=keys_of(recipients)
        )
        self._queues = [Queue(place.application_id, place.environment_id, handler) for handler in self.handlers]

    def pull(self, limit: int = 1, *, acquire: bool = True) -> list[Job]:
        return leases.claim(self.holder, self._queues, limit=limit, acquire=acquire)

    def take(self) -> Job:
        """Exactly the next job, its lease acquired."""
        (job,) = self.pull()
        return job

    def acquire(self, job: Job) -> Lease:
        lease = leases.acquire(self.holder, job.stage.id, job.attempt_id)
        assert lease is not None
        return lease

    def renew(self, *jobs: Job) -> list[Lease]:
        return leases.renew(self.holder, [(job.stage.id, job.attempt_id) for job in jobs])

    def report(self, job: Job, status: str = "succeeded", **told: Any) -> results.Receipt:
        (receipt,) = results.report(
            self.holder, [results.Result(job.stage.id, job.attempt_id, job.number, status, **told)]
        )
        return receipt

    def finish(self, limit: int = 100) -> int:
        """Runs whatever is there to its success; returns how many stages that were."""
        ended = 0
        while jobs := self.pull(limit):
            for job in jobs:
                assert self.report(job, output={"stage": job.stage.name}).accepted
            ended += len(jobs)
        return ended


@pytest.fixture
def hand(place: Place) -> Hand:
    """A worker of the application for `Handler`, through the engine."""
    return Hand(place, "hand-1", ["Handler"])


@pytest.fixture
def new_hand(place: Place) -> Callable[..., Hand]:
    """More workers: new_hand("hand-2", "Handler", "OtherHandler", recipients=[{"handler": "Handler", …}])."""
    return lambda name, *handlers, recipients=(): Hand(place, name, handlers or ("Handler",), recipients)


class Worker(Api):
    """A worker session that works through the application API, as a custom HTTP worker would (P48–P53)."""

    def __init__(self, api_key: str, handlers: Sequence[str], name: str = "worker-1") -> None:
        super().__init__({"X-API-Key": api_key})
        answer = self.post("/workers/bootstrap", {"workerName": name, "supportedHandlers": list(handlers)})
        assert answer.status_code == 200, answer.content
        self.session: dict[str, Any] = answer.json()
        self.headers["X-Worker-Session"] = self.session["sessionToken"]

    def pull(self, **body: Any) -> list[dict[str, Any]]:
        answer = self.post("/jobs/pull", {"acquire": True, **body})
        assert answer.status_code in (200, 204), answer.content
        return answer.json()["jobs"] if answer.status_code == 200 else []

    def take(self, **body: Any) -> dict[str, Any]:
        """Exactly the next job, its lease acquired."""
        (job,) = self.pull(**body)
        return job

    def acquire(self, job: Mapping[str, Any]) -> dict[str, Any]:
        answer = self.post(f"/stages/{job['stageId']}/lease/acquire", {"executionId": job["executionId"]})
        assert answer.status_code == 200, answer.content
        return answer.json()

    def report(self, job: Mapping[str, Any], status: str = "succeeded", **told: Any) -> Any:
        """The whole response: told apart by its status."""
        body = {"executionId": job["executionId"], "attempt": job["attempt"], "status": status, **told}
        return self.post(f"/stages/{job['stageId']}/result", body)


@pytest.fixture
def worker(api_key: str) -> Worker:
    """A worker of the application for `Handler`, through the application API."""
    return Worker(api_key, ["Handler"])


@pytest.fixture
def new_worker(api_key: str) -> Callable[..., Worker]:
    """More workers: new_worker("worker-2", "Handler", key=…)."""
    return lambda name, *handlers, key=None: Worker(key or api_key, handlers or ("Handler",), name)


def stages_of(run: Run) -> list[Stage]:
    """The run's stages as they are now, in order."""
    return list(Stage.objects.filter(run=run).order_by("position"))


def wire(job: Job) -> dict[str, Any]:
    """A job of the engine as a worker gets it."""
    return job_body(job)


def unknown_id() -> str:
    return str(uuid.uuid4())


def _join(workspace: Workspace, roles: Mapping[str, str]) -> list[Person]:
    """Members by their names, each with a role and a token, all in three statements: most tests have all roles."""
    made = [UserFactory.build(username=name) for name in roles]
    users = get_user_model().objects.bulk_create(made)
    Member.objects.bulk_create(
        Member(workspace=workspace, user=user, role=role) for user, role in zip(users, roles.values(), strict=True)
    )
    secrets = [keys.make_secret("rt") for _ in users]
    PersonalToken.objects.bulk_create(
        PersonalToken(user=user, workspace=workspace, prefix=secret[: keys.PREFIX_LENGTH], digest=keys.digest(secret))
        for user, secret in zip(users, secrets, strict=True)
    )
    actors = [
        Actor(name=name, workspace_id=workspace.id, channel="api", user_id=user.pk, role=role)
        for user, (name, role) in zip(users, roles.items(), strict=True)
    ]
    return [Person(*one) for one in zip(users, secrets, actors, strict=True)]


def _key_of(application: Application) -> str:
    return keys.issue_key(application, application.workspace.environments.get(slug="development"))[1]


def _names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
