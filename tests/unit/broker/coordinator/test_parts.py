"""The parts of a coordinator that can be tested alone: timers, the partition of a group, batches of records."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.runtime.offsets_topic import java_hash
from lowtide.broker.coordinator.runtime.shard import RECORD_OVERHEAD, make_batch, split_batches
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("group", 98629247), ("hello world", 1794106052), ("polygenelubricants", 0)])
def test_a_group_is_where_kafka_has_it(text: str, expected: int):
    """The last hash is the smallest integer, which has no positive counterpart: Kafka uses 0 for it."""
    assert java_hash(text) == expected


def test_letters_beyond_sixteen_bits_count_as_two():
    assert java_hash("\U0001f30a") == java_hash("\ud83c\udf0a") == 0xD83C * 31 + 0xDF0A


@pytest.mark.parametrize("length", [1, 255, 256, 257, 512, 1000])
def test_the_hash_of_a_long_name_is_javas(length: int):
    """Java hashes unit by unit: each step adds one unit to the hash of the prefix."""
    text = "gruppé\u4e00"[:1] + "gruppé\u4e00" * length
    value = 0
    for unit in text:
        value = (value * 31 + ord(unit)) & 0xFFFF_FFFF
    assert java_hash(text) == abs(value - (1 << 32) if value & 0x8000_0000 else value)


def test_timers_fire_in_the_order_of_their_deadlines():
    timers: Timers[str] = Timers()
    timers.schedule("late", 30)
    timers.schedule("soon", 10)
    timers.schedule("moved", 5)
    timers.schedule("moved", 20)
    timers.schedule("gone", 1)
    timers.cancel("gone")
    assert timers.take_due(9) is None
    assert [timers.take_due(30) for _ in range(4)] == ["soon", "moved", "late", None]
    assert (len(timers), timers.next_ms) == (0, None)


def test_a_timer_can_be_set_earlier():
    timers: Timers[str] = Timers()
    timers.schedule("a", 30)
    timers.schedule("a", 10)
    assert timers.next_ms == 10
    assert timers.take_due(10) == "a"
    assert timers.take_due(99) is None


def test_timers_report_a_deadline_before_all_others_and_no_other():
    """Protects waiting requests: the single timer of all coordinators is set again only for these."""
    timers: Timers[str] = Timers()
    told = []
    for key, deadline_ms in (("first", 20), ("later", 30), ("as soon", 20), ("sooner", 10), ("later", 5), ("sooner", 40)):
        timers.has_sooner = False
        timers.schedule(key, deadline_ms)
        told.append(timers.has_sooner)
    assert told == [True, False, False, True, True, False]


def test_cancelled_timers_leave_nothing_behind():
    timers: Timers[int] = Timers()
    for key in range(10_000):
        timers.schedule(key, key)
        timers.cancel(key)
    assert len(timers._heap) < 200


def test_records_are_split_into_batches_that_fit():
    records = [(b"k" * 50, b"v" * 50)] * 10
    room = RECORD_BATCH_OVERHEAD + 3 * (100 + RECORD_OVERHEAD)
    batches = split_batches(records, room)
    assert batches is not None
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert all(make_batch(batch, 0).size_bytes <= room for batch in batches)
    assert split_batches(records, RECORD_BATCH_OVERHEAD + 100) is None
    assert split_batches(records, 1 << 20) == [records]
