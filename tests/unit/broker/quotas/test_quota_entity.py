"""What a quota may be set on, which quotas, and how that stands in the metadata store."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.broker.quotas.quota_entity import NAME_LENGTH_MAX, check_quota, entity_of, entity_text, parse_entity
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

NAMES = st.none() | st.text(min_size=1, max_size=20).filter(
    lambda name: not any("\ud800" <= each <= "\udfff" for each in name)
)


@given(user=NAMES, client_id=NAMES)
def test_text_and_entity_are_the_same(user: str | None, client_id: str | None) -> None:
    entity = entity_of([("user", user), ("client-id", client_id)])
    assert not isinstance(entity, Refusal)
    assert parse_entity(entity_text(entity)) == entity


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "")], "Empty user not supported"),
        ([("group", "g")], "Unhandled client quota entity type: group"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("user", "a"), ("ip", "10.0.0.1")], "cannot be combined"),
        ([("ip", "no.such.host")], "no.such.host is not an IP address"),
        ([("user", "a" * (NAME_LENGTH_MAX + 1))], "1024 are allowed"),
    ],
)
def test_entities_that_cannot_be(pairs: list[tuple[str, str | None]], message: str) -> None:
    refusal = entity_of(pairs)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.INVALID_REQUEST
    assert message in refusal.message


@pytest.mark.parametrize(
    ("kind", "key", "value", "good"),
    [
        ("user", "producer_byte_rate", 1024.0, True),
        ("client-id", "request_percentage", 12.5, True),
        ("user", "controller_mutation_rate", 0.5, True),
        ("user", "producer_byte_rate", 10.5, False),
        ("user", "producer_byte_rate", 0.0, False),
        ("user", "request_percentage", -1.0, False),
        ("user", "request_percentage", math.nan, False),
        ("user", "request_percentage", math.inf, False),
        ("user", "connection_creation_rate", 5.0, False),
        ("ip", "connection_creation_rate", 5.0, True),
        ("ip", "producer_byte_rate", 5.0, False),
        ("user", "retention.ms", 5.0, False),
    ],
)
def test_keys_and_values(kind: str, key: str, value: float, *, good: bool) -> None:
    refusal = check_quota(((kind, None),), key, value)
    assert (refusal is None) == good
