"""What all views of the application API share: who calls, the strict body, the answer. Nothing else of DRF runs.

They are DRF views in name, so that OpenAPI is written from them; its dispatch costs more than what most of them do.
Refusals are looked for in the order of model §5: method and media type, 401, 404, 403, then the body.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from rest_framework.views import APIView

from pipelines import audit
from pipelines.api.authentication import ApiKeyAuthentication, actor_of, application_caller, worker_caller
from pipelines.api.bodies import MIB, Unsupported, read_body
from pipelines.api.shapes import Shape, read_id
from pipelines.errors import Refusal
from pipelines.sql import query

ABOUT_THE_BODY = frozenset({400, 413, 415})


class Endpoint(APIView):
    """A route of an application: `get(key)` or `post(key, body)`, with the path's ids as UUIDs.

    `body` is the shape of the request; without one, POST takes nothing but an empty object. `outage_code` is how an
    answer calls a database that is away. `action` is how the audit calls a refused POST; what workers say has none.
    `gives_bytes`: its GET answers no JSON, whatever is accepted, and HEAD tells what GET would without them.
    """

    authentication_classes = [ApiKeyAuthentication]
    http_method_names = ["get", "post"]
    body: ClassVar[type[Shape]] = Shape
    most_bytes: ClassVar[int] = MIB
    outage_code: ClassVar[str] = "unavailable"
    action: ClassVar[str] = ""
    gives_bytes: ClassVar[bool] = False

    def dispatch(self, request: HttpRequest, *args: Any, **names: str) -> HttpResponse:
        try:
            return self._answer(request, names)
        except Exception as error:
            if isinstance(error, Refusal):
                error.extra.update(self.about(error))
            answered = self.get_exception_handler()(error, {"view": self, "request": request})
            if answered is None:
                raise
            return answered

    def about(self, refusal: Refusal) -> dict[str, Any]:
        """What this route adds to the body of a refusal."""
        return {}

    def authenticate(self, request: HttpRequest) -> tuple[Any, uuid.UUID, uuid.UUID]:
        """Who calls, and the application and environment whose things they may see."""
        key = application_caller(request)
        return key, key.application_id, key.environment_id

    def _answer(self, request: HttpRequest, names: Mapping[str, str]) -> HttpResponse:
        method = request.method or ""
        if method not in self.allowed_methods:
            raise Unsupported(405, f"{method} is not offered here")
        if not self.gives_bytes:
            check_accept(request.META.get("HTTP_ACCEPT"))
        caller, application_id, environment_id = self.authenticate(request)
        if method in ("GET", "HEAD"):
            return self.get(caller, **path_ids(names))  # type: ignore[attr-defined]
        ids: dict[str, uuid.UUID] = {}
        try:
            ids = path_ids(names)
            body = self.body.clean(read_body(request, self.most_bytes))
        except Refusal as refusal:
            # a foreign id is 404 whatever the body says; looked up only now, so that good requests do not pay for it
            if refusal.status in ABOUT_THE_BODY and not _visible(ids, application_id, environment_id):
                raise self._recorded(not_found(), caller, ids) from refusal
            raise self._recorded(refusal, caller, ids) from None
        try:
            return self.post(caller, body, **ids)  # type: ignore[attr-defined]
        except Refusal as refusal:
            raise self._recorded(refusal, caller, ids) from refusal.__cause__

    def _recorded(self, refusal: Refusal, caller: Any, ids: Mapping[str, uuid.UUID]) -> Refusal:
        if self.action:
            entry = audit.Entry(run=ids.get("run_id"), stage=ids.get("stage_id"))
            audit.record_refusal(actor_of(caller), self.action, refusal, entry)
        return refusal


class WorkerEndpoint(Endpoint):
    """A route of a worker session: `post(caller, body)`. Every call is a heartbeat."""

    def authenticate(self, request: HttpRequest) -> tuple[Any, uuid.UUID, uuid.UUID]:
        caller = worker_caller(request)
        return caller, caller.key.application_id, caller.key.environment_id


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """A JSON answer. Escaped to ASCII, so that every value that could be stored can be sent."""
    text = json.dumps(body, separators=(",", ":"))
    return HttpResponse(text, content_type="application/json", status=status, headers=headers)


def not_found() -> Refusal:
    return Refusal("not_found", "there is no such thing, or it is not yours to see")


def path_ids(names: Mapping[str, str]) -> dict[str, Any]:
    """The ids in a path; what is none is 404. A `slug` is what it is called, for the endpoint to look at."""
    found = {name: text if name == "slug" else read_id(text) for name, text in names.items()}
    if None in found.values():
        raise not_found()
    return {name: one for name, one in found.items() if one is not None}


def check_accept(accept: str | None) -> None:
    if not accept or "*/*" in accept:
        return
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if kinds.isdisjoint({"application/json", "application/*", "application/problem+json"}):
        raise Unsupported(406, "the answer is application/json")


def _visible(ids: Mapping[str, uuid.UUID], application_id: uuid.UUID, environment_id: uuid.UUID) -> bool:
    tables = {"run_id": "pipelines_run", "stage_id": "pipelines_stage"}
    return all(
        query(
            f"SELECT 1 FROM {tables[name]} WHERE id = %s AND application_id = %s AND environment_id = %s",  # noqa: S608
            [found, application_id, environment_id],
        )
        for name, found in ids.items()
    )
