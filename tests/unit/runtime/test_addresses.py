"""Addresses in one form, whose share they use, and which of them a proxy names."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from lowtide.runtime.addresses import is_covered, is_loopback, network_of, normal_address, normal_range
from lowtide.runtime.http_origin import NO_PROXIES, Proxies


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("0000:0000:0000:0000:0000:0000:0000:0001", "::1"),
        ("2001:DB8::A", "2001:db8::a"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::FFFF:a00:7", "10.0.0.7"),
        ("fe80::1%eth0", "fe80::1"),
        ("10.0.0", None),
        ("10.0.0.07", None),
        ("10.0.0.0/8", None),
        ("fe80::1%eth0/64", None),
        ("[::1]", None),
        ("broker-1", None),
        ("*", None),
        ("", None),
    ],
)
def test_an_address_has_one_form(text, normal):
    assert normal_address(text) == normal


@pytest.mark.parametrize(
    ("address", "visitor"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"),
        ("2001:db8:1:ffff::1", "2001:db8:1::/48"),
        ("2001:db8:2::1", "2001:db8:2::/48"),
        ("2001:db8::1", "2001:db8::/48"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_a_visitor_is_an_address_or_a_network_of_ipv6(address, visitor):
    assert network_of(address) == visitor


def test_this_machine_has_a_network_of_addresses():
    assert [is_loopback(each) for each in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "128.0.0.1", "")] == [
        True
    ] * 4 + [False] * 2


class Peer:
    def __init__(self, address: str) -> None:
        self.address = address

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self.address, 1) if name == "peername" else default


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", "10.0.0.9", "192.0.2.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "127.0.0.1, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", "[2001:DB8::1]:4711", "2001:db8::1"),
        ("10.0.0.1", "2001:DB8::1", "2001:db8::1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_is_the_client(peer, forwarded, client):
    request = make_mocked_request("GET", "/", {"X-Forwarded-For": forwarded} if forwarded else {}, transport=Peer(peer))
    assert Proxies(["10.0.0.0/8"]).client_of(request) == client
    assert NO_PROXIES.client_of(request) == peer


NO_RANGES = (
    "10.0.0.0/33",
    "2001:db8::/129",
    "10.0.0.0/",
    "/8",
    "10.0.0/8",
    "10.0.0.0/8/8",
    "10.0.0.0/-1",
    "10.0.0.0/+8",
    "10.0.0.0/٨",
    "10.0.0.0/255.0.0.0",
    "010.0.0.0/8",
    "broker-1/8",
    "*/8",
    "10.0.0.0/0008",
    "10.0.0.7",
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.0.0.0/08", "10.0.0.0/8"),
        ("10.0.0.7/32", "10.0.0.7/32"),
        ("10.0.0.7/0", "0.0.0.0/0"),
        ("2001:DB8:0::7/32", "2001:db8::/32"),
        ("::/0", "::/0"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:0:0/95", "::fffe:0:0/95"),
        ("fe80::1%eth0/64", "fe80::/64"),
        *((text, None) for text in NO_RANGES),
    ],
)
def test_a_range_of_addresses(text: str, normal: str | None) -> None:
    """Kafka 4.4.0 refuses the same texts, except that it takes leading zeros and no mapped addresses."""
    assert normal_range(text) == normal


@pytest.mark.parametrize(
    ("address", "addresses", "covered"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.255.255.255", "10.9.9.9/8", True),
        ("11.0.0.0", "10.0.0.0/8", False),
        ("9.255.255.255", "10.0.0.0/8", False),
        ("10.0.0.7", "10.0.0.7/32", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("255.255.255.255", "0.0.0.0/0", True),
        ("::1", "0.0.0.0/0", False),
        ("10.0.0.7", "::/0", False),
        ("::ffff:10.0.0.7", "10.0.0.0/8", True),
        ("2001:db8:ffff::1", "2001:db8::/32", True),
        ("2001:db9::1", "2001:db8::/32", False),
        ("broker-1", "0.0.0.0/0", False),
        ("broker-1", "broker-1", False),
        ("10.0.0.7", "10.0.0.0/33", False),
        ("", "::/0", False),
    ],
)
def test_a_range_covers_its_addresses(address: str, addresses: str, covered: bool) -> None:
    assert is_covered(address, addresses) is covered
