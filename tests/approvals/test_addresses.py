"""Where webhooks may go: the public internet, and what the operator allowed. Asked of real sockets where it can be."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.notifications import sending
from approvals.notifications.addresses import NotTaken, Place, checked, is_public, place_of
from pipelines.errors import Refusal
from tests.approvals.receivers import Receiver, receiver_server
from tests.vault_server import Certificate, make_certificate

Resolve = Callable[..., list[str]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiver_server() as receiver:
        yield receiver


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """A name server of the test's own: each look-up of any name takes the next of these answers, the last for ever."""

    def answer(*answers: str) -> list[str]:
        asked: list[str] = []

        def look_up(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
            asked.append(host)
            found = answers[min(len(asked), len(answers)) - 1].split()
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return asked

    return answer


def soon() -> float:
    return time.monotonic() + 5


def refused(url: str) -> str:
    with pytest.raises(Refusal) as caught:
        place_of(url)
    assert caught.value.code == "validation_error"
    (message,) = caught.value.errors["address"]
    return message


@pytest.mark.parametrize(
    "address",
    [
        *["127.0.0.1", "127.8.9.10", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"],
        *["169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.8", "192.0.2.1", "198.18.0.1"],
        *["198.51.100.7", "203.0.113.7", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255", "192.88.99.1"],
        *["::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"],
        *["3fff::1", "100::1", "2001::1", "64:ff9b:1::1", "5f00::1"],
        # an IPv4 address in the clothes of IPv6
        *["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1", "::127.0.0.1", "64:ff9b::169.254.169.254"],
        *["64:ff9b::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "::ffff:169.254.169.254"],
        *["", "localhost", "1.2.3", "8.8.8.8.8"],
    ],
)
def test_no_address_of_a_private_or_special_network_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::8", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


PRIVATE = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
]
SPECIAL = ["192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"]


@given(st.sampled_from([*PRIVATE, *SPECIAL]).flatmap(lambda network: st.ip_addresses(network=network)))
def test_no_address_of_a_closed_network_is_public_in_whatever_clothes(address: IPv4Address) -> None:
    assert not is_public(str(address))
    assert not any(is_public(str(clothes)) for clothes in dressed(address))


@given(st.ip_addresses(v=4))
def test_clothes_change_nothing_about_an_address(address: IPv4Address) -> None:
    assert {is_public(str(clothes)) for clothes in dressed(address)} == {is_public(str(address))}


@given(st.ip_addresses(v=6))
def test_only_unicast_addresses_of_ipv6_and_what_leads_to_ipv4_can_be_public(address: IPv6Address) -> None:
    if is_public(str(address)):
        networks = [ip_network(network) for network in ("2000::/3", "64:ff9b::/96", "::ffff:0:0/96")]
        assert any(address in network for network in networks)


def dressed(address: IPv4Address) -> list[IPv6Address]:
    """The IPv6 addresses that lead to an IPv4 one: mapped, NAT64, 6to4."""
    bits = int(address)
    heads = (0xFFFF << 32, 0x64FF9B << 96)
    return [IPv6Address(head | bits) for head in heads] + [IPv6Address(0x2002 << 112 | bits << 80)]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must hold no spaces or line breaks"),
        ("hooks.example.org", "must look like https://hooks.example.org/path"),
        ("ftp://hooks.example.org/", "must look like https://hooks.example.org/path"),
        ("file:///etc/passwd", "must look like https://hooks.example.org/path"),
        ("https:///path", "must look like https://hooks.example.org/path"),
        ("https://hooks.example.org:0/", "must look like https://hooks.example.org/path"),
        ("https://hooks.example.org:99999/", "is no address like https://hooks.example.org/path"),
        ("https://[::1/", "is no address like https://hooks.example.org/path"),
        ("https://me:word@hooks.example.org/", "must hold no user name or password before the host"),
        ("https://hooks.example.org/a b", "must hold no spaces or line breaks"),
        ("https://hooks.example.org/\r\nX: y", "must hold no spaces or line breaks"),
        ("https://hooks.example.org/ü", "must be percent-encoded after the host"),
        ("https://[fe80::1%25eth0]/", "must look like https://hooks.example.org/path"),
        ("https://127.0.0.1/", "is a private address, which RECOURSE_NOTIFY_ALLOW does not name"),
        ("https://[::ffff:10.0.0.1]/", "is a private address, which RECOURSE_NOTIFY_ALLOW does not name"),
        ("https://x.example/" + "a" * 1983, "must be at most 2000 characters"),
    ],
)
def test_what_is_no_address_of_a_receiver_is_refused_with_the_reason(url: str, message: str) -> None:
    assert refused(url) == message
    assert len("https://x.example/" + "a" * 1982) == 2000
    assert place_of("https://x.example/" + "a" * 1982).host == "x.example"


def test_an_address_is_read_as_it_is_sent_to() -> None:
    place = place_of("https://Hooks.Example.ORG.:8443/in?token=x%20y#top")
    assert (place.scheme, place.host, place.port, place.path) == ("https", "hooks.example.org", 8443, "/in?token=x%20y")
    assert place.origin == "hooks.example.org:8443"
    assert place_of("https://bücher.example").host == "xn--bcher-kva.example"
    assert place_of("https://[2606:4700::1111]/").origin == "[2606:4700::1111]"


def test_one_private_answer_of_several_refuses_them_all(names: Resolve) -> None:
    """An address that is tried second is reached as well."""
    names("8.8.8.8 10.0.0.5")
    with pytest.raises(NotTaken, match=r"^hooks\.example is at a private address, which RECOURSE_NOTIFY_ALLOW does"):
        checked(place_of("https://hooks.example/x"), soon())
    names("8.8.8.8 2606:4700::1111")
    assert checked(place_of("https://hooks.example/x"), soon()) == ["8.8.8.8", "2606:4700::1111"]


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "017700000001", "localhost"])
def test_a_number_or_name_that_the_resolver_takes_for_loopback_is_refused(host: str) -> None:
    """Asked of the real resolver: whatever it makes of a spelling is what is judged."""
    with pytest.raises(NotTaken, match="private address"):
        checked(place_of(f"https://{host}/"), soon())


@pytest.mark.parametrize(
    ("allow", "host", "address", "is_allowed"),
    [
        (["10.0.0.0/8"], "hooks.example", "10.1.2.3", True),
        (["10.0.0.0/8"], "hooks.example", "::ffff:10.1.2.3", True),
        (["10.0.0.0/8"], "hooks.example", "11.0.0.1", True),  # public all the same
        (["10.0.0.0/8"], "hooks.example", "192.168.0.1", False),
        (["fd00::/8"], "hooks.example", "fd00::7", True),
        (["fd00::/8"], "hooks.example", "10.1.2.3", False),
        (["hooks.example"], "hooks.example", "192.168.0.1", True),
        (["hooks.example"], "evil.hooks.example", "192.168.0.1", False),
        (["hooks.example"], "hooks.example.evil", "192.168.0.1", False),
        ([], "hooks.example", "127.0.0.1", False),
    ],
)
def test_private_addresses_are_reached_where_the_operator_allowed_it(
    settings: Any, names: Resolve, allow: list[str], host: str, address: str, is_allowed: bool
) -> None:
    settings.RECOURSE_NOTIFY_ALLOW = allow
    names(address)
    place = place_of(f"https://{host}/")
    if is_allowed:
        assert checked(place, soon()) == [address]
    else:
        with pytest.raises(NotTaken, match="private address"):
            checked(place, soon())


def test_http_is_for_receivers_that_were_allowed(settings: Any, names: Resolve) -> None:
    names("8.8.8.8")
    with pytest.raises(NotTaken, match="let the address begin with https"):
        checked(place_of("http://hooks.example/"), soon())
    settings.RECOURSE_NOTIFY_ALLOW = ["hooks.example"]
    assert checked(place_of("http://hooks.example/"), soon()) == ["8.8.8.8"]


def test_a_host_that_is_not_there_is_told_by_its_name_only() -> None:
    with pytest.raises(NotTaken) as caught:
        checked(place_of("https://nowhere.invalid/hook?token=t0p-s3cret"), soon())
    assert str(caught.value) == "there is no host nowhere.invalid"


def test_a_name_server_that_does_not_answer_is_left_behind_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(30) and [])
    began = time.monotonic()
    with pytest.raises(NotTaken, match=r"^slow\.example could not be looked up in time$"):
        checked(place_of("https://slow.example/"), began + 0.2)
    assert time.monotonic() - began < 5
    answered.set()


def test_the_connection_goes_to_the_address_that_was_checked_whatever_the_name_says_next(
    settings: Any, names: Resolve, receiver: Receiver
) -> None:
    """DNS rebinding: the first answer is allowed, the second is the console's own machine."""
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.2"]
    place = place_of(receiver.url.replace("127.0.0.1", "hooks.example"))
    asked = names("127.0.0.2", "127.0.0.1")
    with pytest.raises(NotTaken, match="refuses the connection"):  # nobody listens at 127.0.0.2
        sending.post(place, checked(_secure(place), soon()), b"{}", {}, soon())
    assert asked == ["hooks.example"]
    assert receiver.requests == []
    with pytest.raises(NotTaken, match="private address"):
        checked(_secure(place), soon())


def _secure(place: Place) -> Place:
    return dataclasses.replace(place, scheme="https")


def test_of_several_addresses_the_first_that_answers_is_taken(settings: Any, receiver: Receiver) -> None:
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.0/8"]
    place = place_of(receiver.url)
    assert sending.post(place, ["127.0.0.9", "127.0.0.1"], b"{}", {}, soon()) == "answered 200"
    assert receiver.received.path == "/hook?token=t0p-s3cret"


@pytest.fixture
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure_receiver(certificate: Certificate) -> Iterator[Receiver]:
    with receiver_server(certificate) as receiver:
        yield receiver


@pytest.fixture
def trusting(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test's own authority is trusted, as an operator would have it trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    sending._tls.cache_clear()
    yield
    sending._tls.cache_clear()


def test_a_certificate_is_verified_against_the_name(settings: Any, secure_receiver: Receiver, trusting: None) -> None:
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.1"]
    place = place_of(secure_receiver.url)
    assert sending.post(place, ["127.0.0.1"], b"{}", {}, soon()) == "answered 200"
    other = place_of(secure_receiver.url.replace("127.0.0.1", "hooks.example"))
    with pytest.raises(NotTaken, match=r"^the certificate of hooks\.example cannot be verified: Hostname mismatch"):
        sending.post(other, ["127.0.0.1"], b"{}", {}, soon())
    assert len(secure_receiver.requests) == 1


def test_a_certificate_of_nobody_one_trusts_is_refused(settings: Any, secure_receiver: Receiver) -> None:
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.1"]
    with pytest.raises(NotTaken, match=r"^the certificate of 127\.0\.0\.1 cannot be verified: self-signed certificate"):
        sending.post(place_of(secure_receiver.url), ["127.0.0.1"], b"{}", {}, soon())
    assert secure_receiver.requests == []


def test_no_proxy_of_the_environment_is_asked(
    settings: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would look the name up itself, and reach what is refused here."""
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.1"]
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert sending.post(place_of(receiver.url), ["127.0.0.1"], b"{}", {}, soon()) == "answered 200"


def test_a_private_address_may_be_set_where_the_operator_allowed_it(settings: Any) -> None:
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.1"]
    assert place_of("https://127.0.0.1/").host == "127.0.0.1"
    assert refused("https://127.0.0.2/") == "is a private address, which RECOURSE_NOTIFY_ALLOW does not name"
