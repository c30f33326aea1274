"""HTTP APIs: a busy provider is waited for within one call, and nothing is sent twice that may not be.

429 and 503 are waited for as the provider asks, a few times and up to a cap; beyond it the call fails with a code that
a retry policy can name, and says when. What may have been carried out (a time-out, a broken connection, 5xx) is sent
again only where that changes nothing: GET, PUT, DELETE, or a write whose key this provider knows. Else its effect stays
`unknown`, for a person. Serves N7, N8, N10, N11, N23.

Not promised: that a provider which takes a key honours it.
"""

from __future__ import annotations

import asyncio
import json as json_codec
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

import httpx

from recourse.adapters import matrix
from recourse.adapters.base import (
    BUSY,
    INVALID,
    MISCONFIGURED,
    NOT_ALLOWED,
    REFUSED,
    TIMED_OUT,
    TOO_LARGE,
    UNKNOWN,
    UNREACHABLE,
    UPSTREAM,
    Capabilities,
    Ground,
    Op,
    Row,
    RowLimits,
    Written,
    failure,
)
from recourse.adapters.rows import check
from recourse.adapters.waits import retry_after, wait_before
from recourse.effects import Effect, never_sent
from recourse.errors import StageFailure
from recourse.texts import clean, shortened

READING = frozenset({"GET", "HEAD"})
REPEATABLE = READING | {"PUT", "DELETE"}
METHODS = REPEATABLE | {"POST", "PATCH"}
OURS = frozenset({"authorization", "host", "content-length", "transfer-encoding", "connection"})
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
MOST_REDIRECTS = 3
MOST_TOLD = 500  # characters of a refusal
Guard = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """One provider. `headers` and `token` are secret; `idempotency_header` only where the provider documents one."""

    url: str
    token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    idempotency_header: str | None = None
    retries: int = 3
    backoff: float = 2.0
    max_wait: float = 60.0
    timeout: float = 30.0
    max_bytes: int = 10 * 1024 * 1024
    limits: RowLimits = field(default_factory=lambda: RowLimits(max_rows=1_000))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the provider said. `already`: it was done before, by an earlier attempt or by somebody else, so nothing was
    sent and there is no content; `reference` is what the effect keeps of it.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    reference: str = ""
    already: bool = False

    def json(self) -> Any:
        try:
            return json_codec.loads(self.content)
        except (ValueError, RecursionError) as error:
            raise failure(UPSTREAM, f"the provider's answer is no JSON: {error}", True) from error


class _Fault(Exception):
    """One try that came to nothing. `acted`: the provider may have done it all the same."""

    def __init__(self, failed: StageFailure, *, acted: bool, again: bool, asked: float | None = None) -> None:
        super().__init__(str(failed))
        self.failed = failed
        self.acted = acted
        self.again = again
        self.asked = asked


class Http:
    """`ctx.adapters.NAME` of kind `http`."""

    def __init__(self, ground: Ground, settings: HttpSettings) -> None:
        self._ground = ground
        self._settings = settings
        self._written = 0

    @property
    def name(self) -> str:
        return self._ground.name

    @property
    def capabilities(self) -> Capabilities:
        return matrix.of_http(self._settings.idempotency_header)

    async def read(self, where: Row | None = None) -> list[dict[str, Any]]:
        """GET `where["path"]`, the rest of `where` as its query: the list that is answered, or the one object."""
        query = dict(where or {})
        found = (await self.get(str(query.pop("path", "")), query=query)).json()
        return list(found) if isinstance(found, list) else [found]

    async def write(self, rows: Sequence[Row], op: Op = "insert", *, path: str = "", key: str | None = None) -> Written:
        """A request for each row: `insert` posts it to `path`, `upsert` puts it to `path/VALUE OF key`. All rows are
        checked before the first is sent; each is an effect of its own.
        """
        keys = [key] if key else []
        checked = check(rows, op, key=keys, limits=self._settings.limits, before=self._written)
        already = 0
        for row in checked.rows:
            if op == "insert":
                answer = await self.post(path, json=dict(row))
            else:
                answer = await self.put(f"{path.rstrip('/')}/{segment(row[str(key)])}", json=dict(row))
            already += answer.already
            self._written += 1
        return Written(len(checked.rows), already)

    async def get(self, path: str, *, query: Row | None = None, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.request("GET", path, query=query, headers=headers)

    async def post(self, path: str, *, json: Any = None, step: str = "", guard: Guard | None = None) -> Answer:
        return await self.request("POST", path, json=json, step=step, guard=guard)

    async def put(self, path: str, *, json: Any = None, step: str = "") -> Answer:
        return await self.request("PUT", path, json=json, step=step)

    async def patch(self, path: str, *, json: Any = None, step: str = "", guard: Guard | None = None) -> Answer:
        return await self.request("PATCH", path, json=json, step=step, guard=guard)

    async def delete(self, path: str, *, step: str = "") -> Answer:
        return await self.request("DELETE", path, step=step)

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        query: Row | None = None,
        headers: Mapping[str, str] | None = None,
        step: str = "",
        guard: Guard | None = None,
    ) -> Answer:
        """One request below the connector's address, with all its retries; an answer of 2xx, else `StageFailure`.

        Whatever is no GET is an effect. `step` names it where the body differs from one attempt to the next; `guard` is
        asked before it is sent, and says whether it is done already (N23). What an earlier attempt of the epoch has
        done is not sent again, unless it is a PUT or DELETE; what it left unknown only with a guard or a provider's
        key.
        """
        method = method.upper()
        if method not in METHODS:
            raise failure(INVALID, f"{method!r} is none of {', '.join(sorted(METHODS))}", False)
        self._ground.look()
        request = self._request(method, path, json, content, query, headers)
        async with self.open() as client:
            if method in READING:
                return await self.exchange(client, request)
            told = [method, str(request.url), content if content is None else content.hex(), json]
            detail = {"path": path[:MOST_TOLD]}
            async with self._ground.effect("external_http", method, told, step=step, detail=detail) as effect:
                return await self._write(client, request, effect, guard)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[httpx.AsyncClient]:
        """A connection for several exchanges."""
        async with httpx.AsyncClient(
            verify=_certificates(), timeout=self._settings.timeout, follow_redirects=False
        ) as client:
            yield client

    async def fetch(self, client: httpx.AsyncClient, path: str, query: Row | None = None) -> Answer:
        """A GET on an open connection."""
        self._ground.look()
        return await self.exchange(client, self._request("GET", path, None, None, query, None))

    async def _write(
        self, client: httpx.AsyncClient, request: httpx.Request, effect: Effect, guard: Guard | None
    ) -> Answer:
        header = self._settings.idempotency_header
        repeatable = request.method in REPEATABLE or header is not None
        effect.not_sent()
        if effect.already and request.method not in REPEATABLE:
            effect.committed(effect.already.external_ref)
            return Answer(0, {}, b"", effect.already.external_ref, already=True)
        if guard is not None and await guard():
            effect.committed()
            return Answer(0, {}, b"", already=True)
        if effect.earlier and effect.earlier.state == "unknown" and guard is None and not repeatable:
            effect.unknown()
            raise failure(
                UNKNOWN,
                f"attempt {effect.earlier.attempt} may have done this {request.method} at {self.name}, which knows no"
                " keys: it is not sent again. Look first, with a guard, or settle the effect",
                False,
            )
        if header is not None:
            request.headers[header] = effect.key
        return await self.exchange(client, request, effect, repeatable=repeatable)

    async def exchange(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        effect: Effect | None = None,
        *,
        repeatable: bool = True,
    ) -> Answer:
        """Sends until it is answered, within the bounds. The effect always says what is known so far: whatever ends
        this call, also from outside, leaves it true.
        """
        doubtful = False
        for retry in range(1, self._settings.retries + 2):
            self._ground.stage.raise_if_stopped()
            if effect is not None:
                effect.detail.pop("status", None)
                effect.unknown()
            try:
                answer = await self._try(client, request, effect)
            except _Fault as fault:
                if effect is not None and 200 <= effect.detail.get("status", 0) < 300:
                    raise fault.failed from fault.__cause__  # it is done, and only its answer is lost
                doubtful = doubtful or fault.acted
                if effect is not None and not doubtful:
                    effect.not_sent()
                if effect is not None and not repeatable and fault.acted:
                    told = f"{fault.failed.message}; whether it is done is not known, and it is not sent again"
                    raise failure(fault.failed.code, told, False) from fault.__cause__
                if not fault.again:
                    raise fault.failed from fault.__cause__
                wait = self._wait(retry, fault)
            else:
                return answer
            await self._ground.pause(wait)
        raise AssertionError("the last try returns or raises")

    def _wait(self, retry: int, fault: _Fault) -> float:
        """Seconds to the next try; raises what the call comes to where there is none."""
        settings = self._settings
        wait = wait_before(retry, settings.backoff, settings.max_wait, fault.asked)
        why = ""
        if retry > settings.retries:
            why = f"after {retry} {'try' if retry == 1 else 'tries'}"
        elif fault.asked is not None and fault.asked > settings.max_wait:
            why = f"it asks for {fault.asked:.0f} s, longer than this connector waits ({settings.max_wait:.0f} s)"
        elif wait > self._ground.seconds_left:
            why = "the stage's time-out comes first"
        if not why:
            self._ground.stage.log(
                "info", f"{self.name} is waited for", seconds=round(wait, 1), why=fault.failed.message[:MOST_TOLD]
            )
            return wait
        when = ""
        if fault.asked is not None:
            try:
                at = datetime.now(UTC) + timedelta(seconds=fault.asked)
                when = f"; again from {at.isoformat(timespec='seconds')}"
            except OverflowError:
                when = "; it names no day that there is"
        raise failure(fault.failed.code, f"{fault.failed.message} ({why}){when}", fault.failed.retryable)

    async def _try(self, client: httpx.AsyncClient, request: httpx.Request, effect: Effect | None) -> Answer:
        work = asyncio.ensure_future(self._send(client, request, effect))
        if effect is None:
            answer: Answer = await self._ground.unless_stopped(work)
            return answer
        return await work

    async def _send(self, client: httpx.AsyncClient, request: httpx.Request, effect: Effect | None) -> Answer:
        """One try, with the redirects of a GET. Raises `_Fault`."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                for _ in range(MOST_REDIRECTS + 1):
                    response = await client.send(request, stream=True)
                    try:
                        if not response.has_redirect_location:
                            return await self._judge(response, effect)
                        request = self._followed(request, response)
                    finally:
                        await response.aclose()
        except TimeoutError as error:
            told = f"{self.name} did not answer within {self._settings.timeout:g} s"
            raise _Fault(failure(TIMED_OUT, told, True), acted=True, again=True) from error
        except httpx.HTTPError as error:
            sent = not never_sent(error)
            code = TIMED_OUT if sent and isinstance(error, httpx.TimeoutException) else UNREACHABLE
            told = f"{self.name}: {type(error).__name__} {clean(self._ground.hide(str(error)))[:MOST_TOLD]}".rstrip()
            raise _Fault(failure(code, told, True), acted=sent, again=True) from error
        told = f"{self.name} led to another address more than {MOST_REDIRECTS} times"
        raise _Fault(failure(REFUSED, told, False), acted=False, again=False)

    async def _judge(self, response: httpx.Response, effect: Effect | None) -> Answer:
        """The answer of 2xx, for whatever else a `_Fault`."""
        status = response.status_code
        if response.is_success:
            if effect is not None:
                effect.detail["status"] = status
                effect.committed(self._ground.hide(response.headers.get("location", "")) or None)
            content = await self._content(response)
            reference = self._ground.hide(response.headers.get("location") or _id_of(content))
            if effect is not None and reference:
                effect.committed(reference)
            return Answer(status, dict(response.headers), content, reference)
        if effect is not None:
            effect.detail["status"] = status
        told = f"{self.name} answered {status}: {await self._excerpt(response)}".rstrip(": ")
        asked = retry_after(response.headers.get("retry-after"), datetime.now(UTC))
        if status == 429:
            raise _Fault(failure(BUSY, told, True), acted=False, again=True, asked=asked)
        if status == 503:
            # with a Retry-After it is the provider's own word that it turned this down; without, anybody's on the way
            raise _Fault(failure(BUSY, told, True), acted=asked is None, again=True, asked=asked)
        if status in (408, 500, 502, 504):
            raise _Fault(failure(UPSTREAM, told, True), acted=True, again=True, asked=asked)
        if status >= 500:
            raise _Fault(failure(UPSTREAM, told, True), acted=True, again=False)
        raise _Fault(
            failure(NOT_ALLOWED if status in (401, 403) else REFUSED, told, False), acted=status < 400, again=False
        )

    def _followed(self, request: httpx.Request, response: httpx.Response) -> httpx.Request:
        """The request that a redirect asks for: of a GET, to where the credentials belong, and no other."""
        status = response.status_code
        if request.method not in READING:
            told = f"{self.name} answered {status}, which leads elsewhere: a write is not sent after it"
            raise _Fault(failure(REFUSED, told, False), acted=status not in (307, 308), again=False)
        try:
            url = request.url.join(response.headers["location"])
        except httpx.InvalidURL as error:
            raise _Fault(failure(REFUSED, f"{self.name} led to no address", False), acted=False, again=False) from error
        if _origin(url) != _origin(request.url):
            told = f"{self.name} led to another host, which gets nothing from here"
            raise _Fault(failure(REFUSED, told, False), acted=False, again=False)
        return httpx.Request(request.method, url, headers=request.headers, extensions=request.extensions)

    async def _content(self, response: httpx.Response) -> bytes:
        """Raises `_Fault` beyond the bound, as soon as it is passed."""
        most, parts, size = self._settings.max_bytes, [], 0
        async for part in response.aiter_bytes(64 * 1024):
            size += len(part)
            if size > most:
                told = f"{self.name} answered with more than {most} bytes (max_bytes)"
                raise _Fault(failure(TOO_LARGE, told, False), acted=True, again=False)
            parts.append(part)
        return b"".join(parts)

    async def _excerpt(self, response: httpx.Response) -> str:
        content, most = b"", 4 * MOST_TOLD
        async for part in response.aiter_bytes(4096):
            content += part
            if len(content) > most:
                break
        told = self._ground.hide(content.decode("utf-8", "replace"), cut=len(content) > most)
        return shortened(clean(told), MOST_TOLD)

    def _request(
        self,
        method: str,
        path: str,
        json: Any,
        content: bytes | None,
        query: Row | None,
        headers: Mapping[str, str] | None,
    ) -> httpx.Request:
        settings = self._settings
        sent = {"accept": "application/json", "user-agent": "recourse", **settings.headers}
        if settings.token:
            sent["authorization"] = f"Bearer {settings.token}"
        for name, value in (headers or {}).items():
            if name.lower() in OURS or name.lower() == (settings.idempotency_header or "").lower():
                raise failure(INVALID, f"the header {name} is the connector's to set", False)
            if not is_header(name, value):
                raise failure(INVALID, f"the header {name!r} is printable ASCII, without blanks around it", False)
            sent[name] = value
        if json is not None:
            content = encoded(json)
            sent["content-type"] = "application/json"
        try:
            url = httpx.URL(f"{settings.url.rstrip('/')}{_below(path)}")
            if query:
                url = url.copy_merge_params({name: _plain(value) for name, value in query.items()})
            request = httpx.Request(method, url, headers=sent, content=content)
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise failure(INVALID, f"{path!r} makes no address: {error}", False) from error
        seconds = settings.timeout
        request.extensions = {
            "timeout": {"connect": min(10.0, seconds), "read": seconds, "write": seconds, "pool": seconds}
        }
        return request


def is_header(name: Any, value: Any) -> bool:
    """Whether it can be sent as it is, and is one header."""
    return bool(isinstance(name, str) and isinstance(value, str) and NAME.fullmatch(name) and VALUE.fullmatch(value))


def segment(value: Any) -> str:
    """A value as one segment of a path."""
    text = str(_plain(value))
    if text in ("", ".", ".."):
        raise failure(INVALID, f"{text!r} cannot stand in an address", False)
    return quote(text, safe="")


def encoded(value: Any) -> bytes:
    """JSON; times as ISO 8601, decimals and UUIDs as their text."""
    try:
        return json_codec.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_text).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise failure(INVALID, f"what is to be sent is not JSON: {error}", False) from error


def checked_url(name: str, url: str) -> str:
    """The address of a provider. Raises `StageFailure` for one with credentials in it, or without a host."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        fits = False
    if not fits or parts.query or parts.fragment:
        told = f"the url of {name} is https://host/path, without credentials and query: give a token instead"
        raise failure(MISCONFIGURED, told, False)
    return url


def _below(path: str) -> str:
    """The path, below the connector's: it leads nowhere else."""
    if path.startswith("//") or re.search(r"[\s\\?#]|^[a-z][a-z0-9+.-]*:", path, flags=re.IGNORECASE):
        raise failure(INVALID, f"{path!r} is no path below the connector's address", False)
    if any(part in (".", "..") for part in re.split(r"[/\\]", unquote(unquote(path)))):
        raise failure(INVALID, f"{path!r} leads out of the connector's address", False)
    return f"/{path.lstrip('/')}" if path else ""


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is none of JSON's types")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _id_of(content: bytes) -> str:
    """The id that an answer gives, where it is a small JSON object with one."""
    if not content.startswith(b"{") or len(content) > 64 * 1024:
        return ""
    try:
        found = json_codec.loads(content).get("id")
    except (ValueError, RecursionError):
        return ""
    return str(found) if isinstance(found, str | int) else ""


@cache
def _certificates() -> Any:
    return httpx.create_ssl_context()
