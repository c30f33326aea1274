"""Two clients, one for asyncio and one without, over the same calls and the same rules for repeating them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from hashlib import sha256
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from recourse import settings
from recourse.calls import Groups
from recourse.calls.base import Call, Json, encoded
from recourse.calls.methods import Async, Sync
from recourse.errors import ApiError, ConfigurationError, OutcomeUnknown, api_error
from recourse.repeating import Backoff, retry_after

T = TypeVar("T")

Attempted = httpx.Response | httpx.TransportError


class _Connection:
    """What both clients know: where, as whom, and how often.

    An unknown outcome (timeout, broken connection, 5xx) is followed by the same request with the same key, `attempts`
    times in all with growing waits, then by `OutcomeUnknown`. 429 waits as told, and is `RateLimited` where each try
    was answered so. Any other refusal is definite: `ApiError`. `channel`: how records say that a person came, `mcp`.
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
        channel: str | None = None,
    ) -> None:
        self._base_url = settings.base_url(base_url).rstrip("/")
        self._api_key = api_key
        self._token = token
        self._timeout = timeout
        self._attempts = attempts
        self._first_wait = first_wait
        self._channel = channel

    def _request(self, call: Call[Any]) -> httpx.Request:
        headers = {"accept": "application/json"}
        content = encoded(call.body)
        if content is not None:
            headers["content-type"] = "application/json"
        return httpx.Request(
            call.method,
            f"{self._base_url}/{call.path}",
            headers=headers | self._identity(call) | dict(call.headers),
            content=content,
            extensions={"timeout": httpx.Timeout(self._timeout + call.waits).as_dict()},
        )

    def _identity(self, call: Call[Any]) -> dict[str, str]:
        """A person's token for the operations API; the application's key for all else, and for reading without one."""
        token = settings.token(self._token) if call.person else None
        if token:
            channel = {"x-recourse-channel": self._channel} if self._channel else {}
            return {"authorization": f"Bearer {token}"} | channel
        if call.person and (call.method != "GET" or not settings.has_api_key(self._api_key)):
            raise ConfigurationError(
                "no token: set RECOURSE_TOKEN (manage.py issue_token makes one), or give the client token=..."
            )
        return {"x-api-key": settings.api_key(self._api_key)}

    def _conversation(self, call: Call[T]) -> Generator[float, Attempted, T]:
        """The rules for repeating, without doing any I/O: yields how long to wait before the next try, is sent what the
        try brought, and returns the answer's body.
        """
        backoff = Backoff(first=self._first_wait)
        wait, last, refusals = 0.0, "", []
        for _ in range(self._attempts):
            outcome = yield wait
            if isinstance(outcome, httpx.TransportError):
                wait, last = backoff.next(), f"{type(outcome).__name__} {outcome}".strip()
                continue
            if outcome.status_code == 429 or outcome.status_code >= 500:
                wait = backoff.next(retry_after(outcome.headers.get("retry-after")))
                last = f"the server answered {outcome.status_code}"
                refusals.append(_refusal(outcome))
                continue
            if not call.bytes_with_digest or outcome.status_code >= 300:
                return _answer(outcome, call)
            told = outcome.headers.get("etag", "").strip('"')
            if sha256(outcome.content).hexdigest() == told:
                content: Any = {
                    "content": outcome.content,
                    "sha256": told,
                    "mediaType": outcome.headers.get("content-type", ""),
                }
                return content
            wait, last = backoff.next(), "the bytes did not arrive as they were sent"
        if refusals and [refusal.status for refusal in refusals] == [429] * self._attempts:
            raise refusals[-1]
        raise OutcomeUnknown(
            f"{call.method} {self._base_url}/{call.path}: no definite answer in {self._attempts} tries, last: {last}. "
            + ("Keep the key and repeat, or look it up." if call.key else "Is the console there?"),
            key=call.key,
        ) from (refusals[-1] if refusals else None)


class SyncClient(_Connection, Groups[Sync], Sync):
    """The client for plain code. Give the address, the application's key and a person's token, or set `RECOURSE_URL`,
    `RECOURSE_API_KEY` and `RECOURSE_TOKEN`. May be shared by threads.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        _Connection.__init__(self, *args, **options)
        Groups.__init__(self, self)
        self._http = httpx.Client()

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, call: Call[T]) -> T:
        """Sends one call, also one that was made elsewhere, and repeats it as long as that is of use."""
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
                answer: T = end.value
                return answer


class Client(_Connection, Groups[Async], Async):
    """The client for asyncio: every verb is awaited. Else as `SyncClient`; use it with `async with`, in one loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        _Connection.__init__(self, *args, **options)
        Groups.__init__(self, self)
        self._http = httpx.AsyncClient()

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(self, call: Call[T]) -> T:
        """Sends one call, also one that was made elsewhere, and repeats it as long as that is of use."""
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
                answer: T = end.value
                return answer


def _answer(response: httpx.Response, call: Call[T]) -> T:
    """The answer's JSON object, or the part of it that is meant. Raises `ApiError` for a refusal."""
    if response.status_code >= 300:
        raise _refusal(response)
    body: Any = _object(response) if response.content else dict(call.nothing)
    return body[call.inside] if call.inside else body


def _refusal(response: httpx.Response) -> ApiError:
    """The typed refusal, also when its body is not ours."""
    return api_error(response.status_code, _object(response))


def _object(response: httpx.Response) -> Json:
    try:
        body = response.json() if response.content else {}
    except ValueError:
        body = {"title": response.text[:500]}
    return body if isinstance(body, dict) else {"title": str(body)[:500]}
