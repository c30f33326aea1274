"""What all routes of the operations API (`/v1`) share: who calls, what they may, the strict body, pages.

A route declares which capability each of its methods needs; one that declares none cannot be called. Refusals are
looked for in the order of model §5: method and media type, 401, 404, 403, then filters and body. What was refused to
somebody who wanted to change something is kept as an audit event.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.http.request import QueryDict

from pipelines import audit, queries
from pipelines.access import CHECKPOINT, VIEW, Actor
from pipelines.api.authentication import NO_PERSON, actor_of, application_caller, key_caller, person_caller
from pipelines.api.bodies import Unsupported, read_body
from pipelines.api.endpoints import Endpoint, answer, check_accept, path_ids
from pipelines.api.shapes import Flag, Shape, Text
from pipelines.audit import LONGEST_REASON
from pipelines.errors import Refusal
from pipelines.filters import refuse_unknown
from pipelines.models import Run, Stage
from pipelines.paging import Page

_LOWERCASE_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class Verb(Shape):
    """What every verb takes. One that cannot be planned yet refuses the two fields about plans by name."""

    later: ClassVar[Sequence[str]] = ("dry_run", "plan_digest")

    reason = Text(blank=True, trim=True, max_length=LONGEST_REASON, default="")
    client_request_id = Text(required=False, help_text="a lowercase UUID that makes the request safe to repeat")


class PlannedVerb(Verb):
    """What a verb takes that can be planned first. Looking at a plan needs no more than the right to view."""

    later = ()

    dry_run = Flag(default=False, help_text="answer the plan and change nothing")
    plan_digest = Text(required=False, max_length=64, help_text="of the plan that was looked at; another is refused")


class StartingVerb(PlannedVerb):
    """What a verb takes that makes something start: while a blackout holds, it needs to be told why all the same."""

    override_reason = Text(
        trim=True, max_length=LONGEST_REASON, required=False, help_text="starts it although a blackout holds"
    )


@dataclass(slots=True)
class Call:
    """One request that may go on: by whom, about what, with which checked body or filters."""

    actor: Actor
    request: HttpRequest
    target: Any = None
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> QueryDict:
        return self.request.GET

    @property
    def reason(self) -> str:
        return self.body.get("reason", "")

    @property
    def override_reason(self) -> str:
        return self.body.get("override_reason", "")

    @property
    def is_dry_run(self) -> bool:
        return bool(self.body.get("dry_run"))

    @property
    def plan_digest(self) -> str:
        return self.body.get("plan_digest", "")

    @property
    def key(self) -> str:
        """What makes it safe to repeat: `client_request_id`, or the header `Idempotency-Key`; often nothing."""
        header = self.request.META.get("HTTP_IDEMPOTENCY_KEY")
        told = self.body.get("client_request_id")
        if told is not None and not _LOWERCASE_UUID.fullmatch(told):
            message = "must be a lowercase RFC 4122 UUID"
            raise Refusal("client_request_id_invalid", message, errors={"client_request_id": [message]})
        if header is not None and not (header.strip() and header.isprintable() and len(header) <= 200):
            raise _wrong("Idempotency-Key", "must be 1 to 200 printable characters")
        if header is not None and told is not None and header != told:
            raise _wrong("Idempotency-Key", "differs from client_request_id; send one of them, or the same in both")
        return told or header or ""


class OperationsEndpoint(Endpoint):
    """`get(call)`, `post(call)` or `patch(call)` on what the path names.

    `access` maps a method to the capability it needs, `bodies` to its shape, `actions` to the name under which a
    refusal is kept. `filters` are the query parameters that GET knows. `for_key`: an application's key may read here.
    """

    authentication_classes = []
    access: ClassVar[Mapping[str, str]] = {}
    bodies: ClassVar[Mapping[str, type[Shape]]] = {}
    actions: ClassVar[Mapping[str, str]] = {}
    filters: ClassVar[Collection[str]] = ()
    for_key: ClassVar[bool] = False

    def dispatch(self, request: HttpRequest, *args: Any, **names: str) -> HttpResponse:
        response = super().dispatch(request, *args, **names)
        if response.status_code == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def find(self, actor: Actor, **ids: uuid.UUID) -> Any:
        """What the path names, as far as the actor may know of it; 404 otherwise. Runs and stages by default."""
        if "execution_id" in ids:
            return queries.run_detail(actor, ids["execution_id"])
        if "stage_id" in ids:
            return queries.stage_detail(actor, ids["stage_id"])
        return None

    def tried(self, method: str, target: Any) -> str:
        """How the audit calls what was refused."""
        return self.actions[method]

    @property
    def allowed_methods(self) -> list[str]:
        offered = [method for method in ("GET", "POST", "PATCH") if method in self.access]
        return [*offered, "HEAD"] if self.gives_bytes else offered

    def _answer(self, request: HttpRequest, names: Mapping[str, str]) -> HttpResponse:
        method = request.method or ""
        if method == "HEAD" and self.gives_bytes:
            method = "GET"  # the server leaves the body out
        if method not in self.access or not hasattr(self, method.lower()):
            raise Unsupported(405, f"{method} is not offered here; {' and '.join(self.allowed_methods)} are")
        if not self.gives_bytes:
            check_accept(request.META.get("HTTP_ACCEPT"))
        actor = self._caller(request)
        call = Call(actor, request)
        ids: dict[str, uuid.UUID] = {}
        try:
            ids = path_ids(names)
            return self._respond(call, method, ids)
        except Refusal as refusal:
            if method != "GET" and not call.is_dry_run:
                self._record(call, method, ids, refusal)
            raise

    def _respond(self, call: Call, method: str, ids: Mapping[str, uuid.UUID]) -> HttpResponse:
        call.target = self.find(call.actor, **ids)
        told, unreadable = self._read(call, method)
        self._admit(call.actor, method, told)
        refuse_unknown(call.params, self.filters if method == "GET" else ())
        if unreadable is not None:
            raise unreadable
        if method != "GET":
            call.body = self.bodies[method].clean(told)
        handler: Callable[[Call], HttpResponse] = getattr(self, method.lower())
        return handler(call)

    def _read(self, call: Call, method: str) -> tuple[Any, Exception | None]:
        """The body as sent, or why it cannot be read; that is told only once it is clear that the actor may ask."""
        if method == "GET":
            return None, None
        try:
            return read_body(call.request, self.most_bytes), None
        except (Refusal, Unsupported) as error:
            return None, error

    def _caller(self, request: HttpRequest) -> Actor:
        actor = person_caller(request) if "HTTP_AUTHORIZATION" in request.META else None
        if actor is None and "HTTP_X_API_KEY" in request.META:
            # a change is refused further down, to a key of whatever scope, where the audit keeps who tried
            is_reading = request.method in ("GET", "HEAD") and self.access["GET"] != CHECKPOINT
            return actor_of((application_caller if is_reading else key_caller)(request))
        actor = actor or person_caller(request)
        if actor is None:
            raise Refusal("unauthorized", NO_PERSON)
        return actor

    def _admit(self, actor: Actor, method: str, told: Any) -> None:
        """Makes sure that the actor may do this, to what was found before (404 before 403)."""
        if self._is_preview(method, told):
            actor.require(VIEW)
        elif actor.is_person or self.access[method] == CHECKPOINT:
            actor.require(self.access[method])
        elif method != "GET" or not self.for_key:
            raise Refusal("permission_denied", "an application's key only reads its own runs here; use a token")

    def _is_preview(self, method: str, told: Any) -> bool:
        """Whether only a plan is asked for."""
        shape = self.bodies.get(method)
        if shape is None or not issubclass(shape, PlannedVerb) or not isinstance(told, dict):
            return False
        return told.get("dry_run") is True

    def _record(self, call: Call, method: str, ids: Mapping[str, uuid.UUID], refusal: Refusal) -> None:
        target = call.target
        run_id = target.id if isinstance(target, Run) else getattr(target, "run_id", ids.get("execution_id"))
        stage_id = target.id if isinstance(target, Stage) else getattr(target, "stage_id", ids.get("stage_id"))
        data = {name: str(found) for name, found in ids.items() if name not in ("execution_id", "stage_id")}
        entry = audit.Entry(run=run_id, stage=stage_id, reason=call.reason, data=data)
        audit.record_refusal(call.actor, self.tried(method, target), refusal, entry)


def page_answer(request: HttpRequest, page: Page[Any], items: Sequence[Any]) -> HttpResponse:
    """A page of a list: the items and the URLs of its neighbours."""
    return answer(page_told(request, page, items))


def page_told(request: HttpRequest, page: Page[Any], items: Sequence[Any]) -> dict[str, Any]:
    """The same, to be put into a larger answer."""
    return {"next": _url(request, page.next), "previous": _url(request, page.previous), "results": list(items)}


def _url(request: HttpRequest, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    params = request.GET.copy()
    params["cursor"] = cursor
    return request.build_absolute_uri(f"{request.path}?{params.urlencode()}")


def _wrong(name: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{name}: {message}", errors={name: [message]})
