"""Two clients, one for asyncio and one without, over the same calls and the same rules for repeating them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator
from hashlib import sha256
from types import TracebackType
from typing import Any, Self

import httpx

from recourse import settings
from recourse.calls import Approvals, Artifacts, Call, Executions, Json, Operations, Runs, Stages, encoded
from recourse.errors import ConfigurationError, OutcomeUnknown, api_error
from recourse.repeating import Backoff, retry_after

Attempted = httpx.Response | httpx.TransportError


class _Connection:
    """What both clients know: where, as whom, and how often.

    An unknown outcome (timeout, broken connection, 5xx) is followed by the same request with the same key, `attempts`
    times in all with growing waits, then by `OutcomeUnknown`. 429 waits as told. Any other refusal is definite:
    `ApiError`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 10.0,
        attempts: int = 5,
        first_wait: float = 0.2,
    ) -> None:
        self._base_url = settings.base_url(base_url).rstrip("/")
        self._api_key = api_key
        self._token = token
        self._timeout = timeout
        self._attempts = attempts
        self._first_wait = first_wait

    def _request(self, call: Call) -> httpx.Request:
        headers = {"accept": "application/json"}
        content = encoded(call.body)
        if content is not None:
            headers["content-type"] = "application/json"
        return httpx.Request(
            call.method,
            f"{self._base_url}/{call.path}",
            headers=headers | self._identity(call),
            content=content,
            extensions={"timeout": httpx.Timeout(self._timeout).as_dict()},
        )

    def _identity(self, call: Call) -> dict[str, str]:
        """A person's token for the operations API; the application's key for all else, and for reading without one."""
        token = settings.token(self._token) if call.person else None
        if token:
            return {"authorization": f"Bearer {token}"}
        if call.person and (call.method != "GET" or not settings.has_api_key(self._api_key)):
            raise ConfigurationError(
                "no token: give token=..., or set RECOURSE_TOKEN (manage.py issue_token makes one)"
            )
        return {"x-api-key": settings.api_key(self._api_key)}

    def _conversation(self, call: Call) -> Generator[float, Attempted, Json]:
        """The rules for repeating, without doing any I/O: yields how long to wait before the next try, is sent what the
        try brought, and returns the answer's body.
        """
        backoff = Backoff(first=self._first_wait)
        wait, last = 0.0, ""
        for _ in range(self._attempts):
            outcome = yield wait
            if isinstance(outcome, httpx.TransportError):
                wait, last = backoff.next(), f"{type(outcome).__name__} {outcome}".strip()
                continue
            if outcome.status_code == 429 or outcome.status_code >= 500:
                wait = backoff.next(retry_after(outcome.headers.get("retry-after")))
                last = f"the server answered {outcome.status_code}"
                continue
            if not call.bytes_with_digest or outcome.status_code >= 300:
                return _body(outcome)
            told = outcome.headers.get("etag", "").strip('"')
            if sha256(outcome.content).hexdigest() == told:
                return {
                    "content": outcome.content,
                    "sha256": told,
                    "mediaType": outcome.headers.get("content-type", ""),
                }
            wait, last = backoff.next(), "the bytes did not arrive as they were sent"
        raise OutcomeUnknown(
            f"{call.method} {self._base_url}/{call.path}: no definite answer in {self._attempts} tries, last: {last}. "
            + ("Keep the key and repeat, or look it up." if call.key else "Is the console there?"),
            key=call.key,
        )


class SyncClient(_Connection):
    """The client for plain code. Give the address, the application's key and a person's token, or set `RECOURSE_URL`,
    `RECOURSE_API_KEY` and `RECOURSE_TOKEN`. May be shared by threads.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._http = httpx.Client()
        self.runs: Runs[Json] = Runs(self._send)
        self.stages: Stages[Json] = Stages(self._send)
        self.executions: Executions[Json] = Executions(self._send)
        self.operations: Operations[Json] = Operations(self._send)
        self.approvals: Approvals[Json] = Approvals(self._send)
        self.artifacts: Artifacts[Json] = Artifacts(self._send)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, call: Call) -> Json:
        request = self._request(call)
        conversation = self._conversation(call)
        wait = next(conversation)
        while True:
            time.sleep(wait)
            outcome: Attempted
            try:
                outcome = self._http.send(request)
            except httpx.TransportError as error:
                outcome = error
            try:
                wait = conversation.send(outcome)
            except StopIteration as end:
                return end.value


class Client(_Connection):
    """The client for asyncio: every verb is awaited. Else as `SyncClient`; use it with `async with`, in one loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._http = httpx.AsyncClient()
        self.runs: Runs[Awaitable[Json]] = Runs(self._send)
        self.stages: Stages[Awaitable[Json]] = Stages(self._send)
        self.executions: Executions[Awaitable[Json]] = Executions(self._send)
        self.operations: Operations[Awaitable[Json]] = Operations(self._send)
        self.approvals: Approvals[Awaitable[Json]] = Approvals(self._send)
        self.artifacts: Artifacts[Awaitable[Json]] = Artifacts(self._send)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, call: Call) -> Json:
        request = self._request(call)
        conversation = self._conversation(call)
        wait = next(conversation)
        while True:
            await asyncio.sleep(wait)
            outcome: Attempted
            try:
                outcome = await self._http.send(request)
            except httpx.TransportError as error:
                outcome = error
            try:
                wait = conversation.send(outcome)
            except StopIteration as end:
                return end.value


def _body(response: httpx.Response) -> Json:
    """The answer's JSON object. Raises `ApiError` for a refusal, also when its body is not ours."""
    try:
        body = response.json() if response.content else {}
    except ValueError:
        body = {"title": response.text[:500]}
    if not isinstance(body, dict):
        body = {"title": str(body)[:500]}
    if response.status_code >= 300:
        raise api_error(response.status_code, body)
    return body
