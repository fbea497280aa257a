"""Which standing erasures cover a topic."""

from __future__ import annotations

import pytest

from lowtide.broker.ledger.standing_index import StandingIndex
from lowtide.metadata.records import StandingRecord
from lowtide.metadata.standing_image import StandingImage
from lowtide.protocol.key_digest import key_digest
from lowtide.replication.topic_names import LEDGER_TOPIC

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def standing(person: bytes, *, topics: tuple[str, ...] = (), patterns: tuple[str, ...] = ()) -> StandingImage:
    secret = person.ljust(32, b".")
    digests = (key_digest(secret, person),)
    return StandingImage(
        StandingRecord(
            begun_ms=0,
            ends_ms=1,
            principal="User:a",
            topics=topics,
            patterns=patterns,
            secret=secret,
            digests=digests,
            commitment=b"",
        ),
        1,
    )


STANDING = {
    A: standing(b"anna", topics=("t", "u"), patterns=("t*",)),
    B: standing(b"bert", topics=("t",)),
    C: standing(b"carl", patterns=("*", "v?")),
}


@pytest.mark.parametrize(
    ("topic", "ids"),
    [("t", (A, B, C)), ("u", (A, C)), ("tt", (A, C)), ("other", (C,)), ("v1", (C,)), (LEDGER_TOPIC, ())],
)
def test_an_erasure_covers_its_topics_and_those_of_its_patterns(topic: str, ids: tuple[bytes, ...]) -> None:
    """Protects internal topics, also from a pattern for all; and from erasing twice what two of its names cover."""
    index = StandingIndex(STANDING)
    found = index.of(topic)
    assert sorted(found.ids) == sorted(ids)
    assert index.names(topic) == bool(ids)
    for name, erasure_id in ((b"anna", A), (b"bert", B), (b"carl", C), (b"dora", None)):
        assert [found.ids[group] for group in found.digests.groups_of(name)] == [erasure_id] * (erasure_id in ids)
    assert index.of(topic) is found
    assert not StandingIndex({}).names(topic)
