"""The consumers' data in JoinGroup and SyncGroup: read in every version, written in the member's, and untrusted."""

from __future__ import annotations

import random

import pytest

from lowtide.protocol.consumer_protocol import (
    ParsedAssignment,
    Subscription,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from lowtide.protocol.errors import ProtocolError

SUBSCRIPTIONS = {
    "0000 00000001 0001 74 ffffffff": Subscription(0, ("t",)),
    "0001 00000001 0001 74 00000002 6162 00000001 0001 74 00000002 00000000 00000003": Subscription(
        1, ("t",), (("t", (0, 3)),)
    ),
    "0002 00000000 ffffffff 00000000 00000007": Subscription(2, ()),
    "0003 00000001 0001 74 ffffffff 00000000 ffffffff 0001 72": Subscription(3, ("t",), (), "r"),
    "0003 00000000 ffffffff 00000000 ffffffff ffff": Subscription(3, ()),
    "0009 00000000 ffffffff 00000000 ffffffff ffff 010203": Subscription(3, ()),
}


@pytest.mark.parametrize("text", SUBSCRIPTIONS)
def test_a_subscription(text):
    assert parse_subscription(bytes.fromhex(text)) == SUBSCRIPTIONS[text]


def test_an_assignment():
    written = encode_assignment(1, [("t", (0, 2)), ("uu", ())])
    assert written == bytes.fromhex("0001 00000002 0001 74 00000002 00000000 00000002 0002 7575 00000000 ffffffff")
    assert parse_assignment(written) == ParsedAssignment((("t", (0, 2)), ("uu", ())), None)
    assert parse_assignment(bytes.fromhex("0000 00000000 00000001 61")) == ParsedAssignment((), b"a")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        "ffff 00000000 ffffffff",
        "0000 7fffffff",
        "0000 ffffffff",
        "0000 00000001 ffff ffffffff",
        "0000 00000001 0001 ff ffffffff",
    ],
)
def test_what_is_no_subscription(text):
    with pytest.raises(ProtocolError):
        parse_subscription(bytes.fromhex(text))


@pytest.mark.parametrize("parse", [parse_subscription, parse_assignment])
def test_broken_bytes_raise_nothing_else_and_allocate_nothing(parse):
    """A count never allocates more than the bytes that are there."""
    rng = random.Random(3)
    for text in SUBSCRIPTIONS:
        whole = bytes.fromhex(text)
        for _ in range(300):
            broken = bytearray(whole[: rng.randint(0, len(whole))])
            for _ in range(rng.randint(0, 3)):
                if broken:
                    broken[rng.randrange(len(broken))] = rng.randrange(256)
            try:
                parse(bytes(broken))
            except ProtocolError:
                continue
