"""What is in force for a share group, the values of its keys, and which acknowledgements make sense."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.offset_reset import LATEST, OffsetReset, duration_ms_of, offset_reset_of
from lowtide.broker.handlers.share.share_access import checked_ranges, session_key
from lowtide.broker.partitions.share.share_rules import share_rules
from lowtide.broker.partitions.share.share_values import AcknowledgedRange, ShareLimits
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import ShareAcknowledgementBatch

BROKER = load_config(settings={"group.share.record.lock.duration.ms": "20000"}).values


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT0S", 0), ("PT15M", 900_000), ("P2D", 172_800_000), ("pt1.5s", 1_500), ("P1DT2H3M4S", 93_784_000),
        ("PT-6H+3M", None), ("-PT-6H", 21_600_000), ("-PT6H", None), ("P", None), ("PT", None), ("P1DT", None),
        ("1d", None), ("P1W", None), ("", None),
    ],
)  # fmt: skip
def test_durations_are_those_of_java(text: str, duration_ms: int | None) -> None:
    assert duration_ms_of(text) == duration_ms


def test_where_a_group_begins() -> None:
    assert offset_reset_of("latest") == LATEST
    assert offset_reset_of("earliest") == OffsetReset(is_earliest=True)
    assert offset_reset_of("by_duration:PT1H") == OffsetReset(duration_ms=3_600_000)
    assert [offset_reset_of(text) for text in ("", "Latest", "by_duration:", "by_duration:1h", "PT1H")] == [None] * 5


def test_a_group_s_own_values_count_within_the_brokers_bounds() -> None:
    assert share_rules(BROKER, {}, has_dead_letters=True).limits == ShareLimits(lock_duration_ms=20_000)
    own = {
        "share.record.lock.duration.ms": "1000",
        "share.delivery.count.limit": "99",
        "share.partition.max.record.locks": "many",
        "share.isolation.level": "read_committed",
        "share.auto.offset.reset": "earliest",
        "share.renew.acknowledge.enable": "false",
    }
    rules = share_rules(BROKER, own, has_dead_letters=True)
    assert rules.limits == ShareLimits(delivery_count_limit=10, lock_duration_ms=15_000, record_locks_max=2_000)
    assert (rules.reads_committed, rules.reset, rules.renews) == (True, OffsetReset(is_earliest=True), False)


def batch(first: int, last: int, *types: int) -> ShareAcknowledgementBatch:
    return ShareAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


def test_acknowledgements_that_make_sense() -> None:
    batches = [batch(0, 4, 1), batch(5, 6, 0, 3), batch(9, 9, 2)]
    ranges = [AcknowledgedRange(0, 4, (1,)), AcknowledgedRange(5, 6, (0, 3)), AcknowledgedRange(9, 9, (2,))]
    assert checked_ranges(batches, renews=False) == ranges
    assert checked_ranges([batch(0, 0, 4)], renews=True) == [AcknowledgedRange(0, 0, (4,))]


@pytest.mark.parametrize(
    "batches",
    [
        [batch(5, 4, 1)], [batch(-1, -1, 1)], [batch(0, 4, 1), batch(4, 5, 1)], [batch(5, 6, 1), batch(0, 1, 1)],
        [batch(0, 1)],
        [batch(0, 1, 1, 1, 1)], [batch(0, 2, 1, 1)], [batch(0, 0, 4)], [batch(0, 0, 5)], [batch(0, 0, -1)],
    ],
)  # fmt: skip
def test_acknowledgements_that_make_none(batches: list[ShareAcknowledgementBatch]) -> None:
    assert checked_ranges(batches, renews=False) is ErrorCode.INVALID_REQUEST


def test_a_group_and_a_member_are_named() -> None:
    assert session_key("g", "m" * 36) == ("g", "m" * 36)
    for group_id, member_id in (("", "m"), (None, "m"), ("g", ""), ("g", None), ("g", "m" * 37)):
        assert session_key(group_id, member_id) is ErrorCode.INVALID_REQUEST
