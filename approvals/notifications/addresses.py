"""Where a webhook may go: to public addresses, and to what RECOURSE_NOTIFY_ALLOW names. No other door into the network.

A name is looked up once for each try; one answer that is not allowed refuses them all, and the connection is made to
an address that was checked, so that a name cannot point elsewhere a moment later. http is for allowed receivers only.
Without effect on the mail server, which the operator sets and no workspace does.
"""

from __future__ import annotations

import queue
import re
import socket
import threading
import time
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from django.conf import settings

from pipelines.errors import Refusal

LONGEST_URL = 2000
PORTS = {"http": 80, "https": 443}

# what is_global takes for public, and is not: cloud hosts' own services, documentation, and ways around
NOT_PUBLIC = [
    ip_network(network)
    for network in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20")
]
UNICAST = ip_network("2000::/3")
NAT64 = ip_network("64:ff9b::/96")
SIX_TO_FOUR = ip_network("2002::/16")


class NotTaken(Exception):
    """The receiver did not take it; the text says why and holds no secret. `wait`: the seconds it asked for."""

    def __init__(self, sentence: str, *, wait: int = 0) -> None:
        super().__init__(sentence)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Place:
    """An address to post to, in its parts; `path` with the query. Never told but by its host."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """As a Host header names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def place_of(url: str) -> Place:
    """The parts of a webhook's address. Refuses with `validation_error` on the field `address`; asks no name server."""
    if len(url) > LONGEST_URL:
        raise _refusal(f"must be at most {LONGEST_URL} characters")
    if not re.fullmatch(r"[^\s\x00-\x1f\x7f]+", url):
        raise _refusal("must hold no spaces or line breaks")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").rstrip(".").encode("idna").decode("ascii") if "%" not in parts.netloc else ""
    except ValueError:
        raise _refusal("is no address like https://hooks.example.org/path") from None
    if parts.scheme not in PORTS or not host or port == 0:
        raise _refusal("must look like https://hooks.example.org/path")
    if parts.username is not None:
        raise _refusal("must hold no user name or password before the host")
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    if not path.isascii():
        raise _refusal("must be percent-encoded after the host")
    place = Place(parts.scheme, host, port or PORTS[parts.scheme], path)
    if _literal(host) and not _is_reachable(host, host):
        raise _refusal("is a private address, which RECOURSE_NOTIFY_ALLOW does not name")
    return place


def checked(place: Place, deadline: float) -> list[str]:
    """The addresses of the host, looked up now and all allowed, until a moment of `time.monotonic()`.

    Raises `NotTaken`, which names the host and no more.
    """
    found = _looked_up(place, deadline - time.monotonic())
    if not all(_is_reachable(place.host, address) for address in found):
        raise NotTaken(f"{place.host} is at a private address, which RECOURSE_NOTIFY_ALLOW does not name")
    if place.scheme == "http" and not all(_is_named(place.host, address) for address in found):
        raise NotTaken("http is for receivers that RECOURSE_NOTIFY_ALLOW names; let the address begin with https")
    return found


def is_public(text: str) -> bool:
    """Whether an IP address is one of the public internet's, whatever other address is wrapped up in it."""
    address = _literal(text)
    if isinstance(address, IPv6Address):
        within = _within(address)
        return is_public(str(within)) if within else address in UNICAST and _is_global(address)
    return address is not None and _is_global(address)


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address.version == network.version and address in network for network in NOT_PUBLIC)


def _within(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a packet to this one may end at: mapped, 6to4, NAT64."""
    if address.ipv4_mapped:
        return address.ipv4_mapped
    if address in SIX_TO_FOUR:
        return address.sixtofour
    return IPv4Address(address.packed[-4:]) if address in NAT64 else None


def _is_reachable(host: str, address: str) -> bool:
    return _is_named(host, address) or is_public(address)


def _is_named(host: str, address: str) -> bool:
    """Whether RECOURSE_NOTIFY_ALLOW names the host, or a network that the address is in."""
    literal = _literal(address)
    if isinstance(literal, IPv6Address) and literal.ipv4_mapped:
        literal = literal.ipv4_mapped
    for entry in settings.RECOURSE_NOTIFY_ALLOW:
        try:
            network = ip_network(entry)
        except ValueError:
            if entry == host:
                return True
        else:
            if literal is not None and literal.version == network.version and literal in network:
                return True
    return False


def _literal(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _looked_up(place: Place, seconds: float) -> list[str]:
    """All addresses of a host, each once. The system's resolver cannot be told how long it may take: it is left behind
    when it takes longer."""
    answers: queue.SimpleQueue[list[str] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            answers.put(list(dict.fromkeys(str(entry[4][0]) for entry in found)))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise NotTaken(f"{place.host} could not be looked up in time") from None
    if isinstance(answer, list) and answer:
        return answer
    raise NotTaken(f"there is no host {place.host}")


def _refusal(message: str) -> Refusal:
    return Refusal("validation_error", f"address: {message}", errors={"address": [message]})
