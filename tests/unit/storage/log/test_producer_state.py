"""Idempotent producers: duplicates, batches out of order, expired producers, and snapshots byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import read_batch_header
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.producers.producer_snapshot import CorruptSnapshotError, decode_snapshot
from lowtide.storage.log.producers.producer_state import ACCEPTED, DuplicateBatch, ProducerStateManager
from tests.markers import build_end_transaction_marker

from .producing import header_of
from .test_log import NOW_MS, AppendedBatch, new_log
from .test_log import batch as log_batch

NOW = 1_700_000_000_000
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def appended(*batches: tuple[int, int, int], epoch: int = 0, producer: int = 7) -> ProducerStateManager:
    """A state after batches of (base offset, base sequence, record count)."""
    state = ProducerStateManager()
    for base_offset, sequence, count in batches:
        add(state, base_offset, sequence, count, epoch=epoch, producer=producer)
    return state


def add(
    state: ProducerStateManager,
    base_offset: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer: int = 7,
    now_ms: int = NOW,
    transactional: bool = False,
) -> None:
    """Append one batch; its max timestamp is a function of its offset."""
    batch = header_of(
        producer, epoch, sequence, count, max_timestamp=1000 + base_offset, is_transactional=transactional
    )
    state.update(batch, base_offset=base_offset, now_ms=now_ms)


@pytest.mark.parametrize("sequence", [0, 1, 500, 2**31 - 1])
def test_an_unknown_producer_may_begin_anywhere(sequence: int) -> None:
    """Protects producers whose state has expired or was lost with deleted records (KAFKA-7190)."""
    assert ProducerStateManager().check(7, 0, sequence, 1) is ACCEPTED


def test_only_the_next_sequence_is_accepted() -> None:
    """Protects order: a gap, a step back and a part of an earlier batch are refused with 45, not with 46."""
    state = appended((0, 0, 3), (3, 3, 2))
    assert state.check(7, 0, 5, 1) is ACCEPTED
    for sequence, count in [(6, 1), (4, 1), (3, 1), (3, 3), (0, 2), (1, 2), (2, 3)]:
        assert state.check(7, 0, sequence, count) is OUT_OF_ORDER, (sequence, count)


def test_a_duplicate_returns_where_it_was_appended() -> None:
    """Protects retries after a lost response: they receive the offsets and the timestamp of the first append."""
    state = appended((10, 0, 3), (20, 3, 2))
    assert state.check(7, 0, 0, 3) == DuplicateBatch(10, 12, 1010)
    assert state.check(7, 0, 3, 2) == DuplicateBatch(20, 21, 1020)


def test_five_batches_are_remembered() -> None:
    """Protects the bound on both sides: the fifth last is a duplicate, the sixth last is out of order."""
    state = appended(*((n, n, 1) for n in range(6)))
    assert state.check(7, 0, 1, 1) == DuplicateBatch(1, 1, 1001)
    assert state.check(7, 0, 0, 1) is OUT_OF_ORDER


def test_an_older_epoch_is_fenced() -> None:
    """Protects against zombies, also when their sequence would fit or their batch was seen."""
    state = appended((0, 0, 2), epoch=4)
    assert state.check(7, 3, 2, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(7, 3, 0, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(7, -1, 2, 1) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_begins_at_zero_and_forgets_the_old_batches() -> None:
    """Protects an epoch bump: sequences start over, and the old epoch's batches are no duplicates of the new one's."""
    state = appended((0, 0, 2), (2, 2, 1))
    assert state.check(7, 1, 3, 1) is OUT_OF_ORDER
    assert state.check(7, 1, 0, 2) is ACCEPTED
    add(state, 3, 0, 1, epoch=1)
    assert state.check(7, 1, 2, 1) is OUT_OF_ORDER
    assert state.check(7, 1, 0, 1) == DuplicateBatch(3, 3, 1003)
    assert state.check(7, 1, 1, 1) is ACCEPTED


def test_sequences_wrap() -> None:
    """Protects producers beyond 2^31 records: after the largest sequence comes 0, also within a batch."""
    state = appended((0, 2**31 - 2, 1), (1, 2**31 - 1, 3))
    assert state.check(7, 0, 2**31 - 1, 3) == DuplicateBatch(1, 3, 1001)
    assert state.check(7, 0, 2, 1) is ACCEPTED
    assert appended((0, 2**31 - 1, 1)).check(7, 0, 0, 1) is ACCEPTED


def test_without_an_epoch_there_is_no_order() -> None:
    """Protects a corner that Kafka accepts: epoch -1 with a producer id; a real epoch may then begin anywhere."""
    state = appended((0, 5, 1), epoch=-1)
    assert state.check(7, -1, 90, 1) is ACCEPTED
    assert state.check(7, 0, 90, 1) is ACCEPTED


@pytest.mark.parametrize("producer", [-1, -9])
def test_negative_producer_ids_are_none(producer: int) -> None:
    """Protects plain producers: nothing is checked, nothing remembered."""
    state = appended((0, 0, 1), producer=producer)
    assert not state.producers
    assert state.check(producer, 0, 4, 1) is ACCEPTED


def test_producers_do_not_disturb_each_other() -> None:
    """Protects the key of the state."""
    state = appended((0, 0, 3))
    assert state.check(8, 0, 9, 1) is ACCEPTED
    add(state, 3, 9, 1, producer=8)
    assert state.check(7, 0, 3, 1) is ACCEPTED
    assert state.check(8, 0, 10, 1) is ACCEPTED


def test_producers_survive_the_deletion_of_their_records() -> None:
    """The producer continues, and a retry of its last batch is still a duplicate (KAFKA-7190)."""
    log = new_log()
    sent = log_batch(NOW_MS, producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_as_leader(sent, leader_epoch=0, now_ms=NOW_MS)
    log.advance_high_watermark(1)
    log.request_log_start(1)
    make_log_start_visible(log, 1)
    assert log.append_as_leader(sent, leader_epoch=0, now_ms=NOW_MS) == AppendedBatch(0, 0, NOW_MS, duplicate=True)
    following = log_batch(NOW_MS, producer_id=7, producer_epoch=0, base_sequence=1)
    assert log.append_as_leader(following, leader_epoch=0, now_ms=NOW_MS).base_offset == 1


def test_a_plain_batch_within_a_transaction_is_refused() -> None:
    """Protects transactions from batches that would be visible even if the transaction aborts."""
    state = ProducerStateManager()
    add(state, 30, 0, transactional=True)
    add(state, 31, 1, transactional=True)
    assert state.producers[7].transaction_first_offset == 30
    assert state.transactions.first_unstable(99) == 30
    assert state.check(7, 0, 2, 1) is ErrorCode.INVALID_TXN_STATE
    assert state.check(7, 0, 2, 1, is_transactional=True) is ACCEPTED
    assert state.check(7, 0, 1, 1) == DuplicateBatch(31, 31, 1031)


def test_expiry_counts_from_the_last_append() -> None:
    """Protects active producers, whatever timestamps their records have, and open transactions at any age."""
    state = ProducerStateManager(expiration_ms=lambda: 1000)
    add(state, 0, 0, producer=1, now_ms=NOW)
    add(state, 1, 0, producer=2, now_ms=NOW)
    add(state, 2, 1, producer=2, now_ms=NOW + 1)
    add(state, 3, 0, producer=3, now_ms=NOW, transactional=True)
    assert state.remove_expired(NOW + 999) == 0
    assert state.remove_expired(NOW + 1000) == 1
    assert list(state.producers) == [2, 3]
    assert state.check(1, 0, 77, 1) is ACCEPTED


def test_the_number_of_producers_is_bounded() -> None:
    """Protects memory from clients with ever new ids: those idle for longest are removed, open transactions stay."""
    state = ProducerStateManager(maximum_producers=16)
    add(state, 0, 0, producer=0, now_ms=NOW - 9, transactional=True)
    for producer in range(1, 100):
        add(state, producer, 0, producer=producer, now_ms=NOW + producer)
        assert len(state.producers) <= 16
    assert {0, 99, 98, 97} <= set(state.producers)
    assert 1 not in state.producers


def test_replay_equals_appending() -> None:
    """Protects recovery and followers: headers from the log build the state that the appends built."""
    built, replayed = appended((5, 0, 3), (8, 3, 1)), ProducerStateManager()
    for offset, sequence, count in [(5, 0, 3), (8, 3, 1)]:
        records = [(1000 + offset, None, None, ())] * count
        batch = build_batch(records, base_offset=offset, producer_id=7, producer_epoch=0, base_sequence=sequence)
        replayed.replay(read_batch_header(batch), now_ms=NOW)
    replayed.replay(read_batch_header(build_batch([(NOW, None, None, ())])), now_ms=NOW)
    assert replayed.producers == built.producers


def test_replay_takes_an_older_epoch_as_the_leader_wrote_it() -> None:
    """Protects followers, which must not validate again what is in the log."""
    state = appended((0, 0, 1), epoch=5)
    batch = build_batch([(NOW, None, None, ())], base_offset=1, producer_id=7, producer_epoch=2, base_sequence=8)
    state.replay(read_batch_header(batch), now_ms=NOW)
    assert (state.producers[7].producer_epoch, state.producers[7].last_sequence) == (2, 8)


def test_markers_end_transactions() -> None:
    """Protects the transaction's fields in replay: closed by the marker, whose epoch and coordinator count."""
    state = ProducerStateManager()
    add(state, 30, 0, transactional=True)
    marker = build_end_transaction_marker(
        ControlRecord(ControlRecordType.COMMIT, 12), timestamp_ms=NOW, producer_id=7, producer_epoch=1, base_offset=31
    )
    state.replay(read_batch_header(marker), now_ms=NOW, control=ControlRecord(ControlRecordType.COMMIT, 12))
    entry = state.producers[7]
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.transaction_first_offset, entry.last_sequence) == (
        1,
        12,
        -1,
        -1,
    )
    assert state.transactions.first_unstable(99) is None
    assert state.check(7, 1, 0, 1) is ACCEPTED
    assert state.check(7, 1, 1, 1) is OUT_OF_ORDER


def test_other_control_batches_change_nothing() -> None:
    """Protects state from control records that end no transaction."""
    state = ProducerStateManager()
    batch = build_batch([(NOW, b"\0\0\0\x02", b"", ())], producer_id=7, producer_epoch=0, is_control=True)
    state.replay(read_batch_header(batch), now_ms=NOW)
    assert not state.producers


def test_batches_without_a_sequence_have_none() -> None:
    """Protects transactional offset commits, which carry a producer id and sequence -1."""
    state = ProducerStateManager()
    add(state, 0, -1, 3, transactional=True)
    assert state.producers[7].last_sequence == -1
    copy = ProducerStateManager()
    copy.load_snapshot(state.encode_snapshot(), now_ms=NOW)
    assert copy.producers == state.producers


ENTRIES = bytes.fromhex(
    "00000002"  # two entries
    # id 7, epoch 3, last sequence 9, last offset 42, offset delta 2, timestamp, no coordinator, no transaction
    "0000000000000007 0003 00000009 000000000000002a 00000002 0000018bcfe56800 ffffffff ffffffffffffffff"
    # id 1000, epoch 0, no batch, coordinator epoch 12, transaction open since offset 40
    "00000000000003e8 0000 ffffffff ffffffffffffffff 00000000 ffffffffffffffff 0000000c 0000000000000028"
)
SNAPSHOT = b"\x00\x01" + crc32c(ENTRIES).to_bytes(4, "big") + ENTRIES


def test_a_snapshot_of_kafkas_layout_is_read_and_written_back() -> None:
    """Protects the format field by field, in both directions."""
    state = ProducerStateManager()
    state.load_snapshot(SNAPSHOT, now_ms=NOW)
    first, second = state.producers[7], state.producers[1000]
    assert (first.producer_epoch, first.last_sequence, first.last_timestamp, first.last_append_ms) == (
        3,
        9,
        0x18BCFE56800,
        NOW,
    )
    assert (second.batches, second.coordinator_epoch, second.transaction_first_offset) == ([], 12, 40)
    assert state.check(7, 3, 7, 3) == DuplicateBatch(40, 42, 0x18BCFE56800)
    assert state.check(7, 3, 10, 1) is ACCEPTED
    assert state.encode_snapshot() == SNAPSHOT


def test_an_empty_snapshot() -> None:
    """Protects the smallest file: version, CRC, no entries."""
    empty = ProducerStateManager().encode_snapshot()
    assert empty == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)
    assert decode_snapshot(empty, now_ms=NOW) == {}


def test_a_sequence_that_wrapped_survives_a_snapshot() -> None:
    """Protects the first sequence, which is not in the file but counted back from the last."""
    state = appended((0, 2**31 - 1, 3))
    copy = ProducerStateManager()
    copy.load_snapshot(state.encode_snapshot(), now_ms=NOW)
    assert copy.producers == state.producers


def test_every_damaged_byte_of_a_snapshot_is_noticed() -> None:
    """Protects recovery from a state that is not the log's: any flipped bit, any cut, anything added."""
    state = appended((0, 0, 1))
    before = state.encode_snapshot()
    for position in range(len(SNAPSHOT)):
        damaged = bytearray(SNAPSHOT)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptSnapshotError):
            state.load_snapshot(damaged, now_ms=NOW)
        with pytest.raises(CorruptSnapshotError):
            state.load_snapshot(SNAPSHOT[:position], now_ms=NOW)
    with pytest.raises(CorruptSnapshotError):
        state.load_snapshot(SNAPSHOT + b"\0", now_ms=NOW)
    assert state.encode_snapshot() == before


@pytest.mark.parametrize("count", [1, 3, -1, 2**31 - 1])
def test_a_count_that_lies_under_a_right_crc_is_noticed(count: int) -> None:
    """Protects against a writer's mistake, which the CRC cannot see."""
    body = count.to_bytes(4, "big", signed=True) + ENTRIES[4:]
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(b"\x00\x01" + crc32c(body).to_bytes(4, "big") + body, now_ms=NOW)


def test_a_snapshot_beyond_the_bound_is_cut_to_it() -> None:
    """Protects the bound on the way in from disk."""
    state = ProducerStateManager()
    for producer in range(40):
        add(state, producer, 0, producer=producer)
    small = ProducerStateManager(maximum_producers=16)
    small.load_snapshot(state.encode_snapshot(), now_ms=NOW)
    assert len(small.producers) <= 16


@pytest.mark.parametrize(
    "forget",
    [
        ProducerStateManager.reset,
        lambda state: state.load_snapshot(ProducerStateManager().encode_snapshot(), now_ms=NOW),
    ],
)
def test_reset_forgets_all_producers(forget: Callable[[ProducerStateManager], None]) -> None:
    """Protects truncation: no producer of the old log may stay."""
    state = appended((0, 0, 1))
    forget(state)
    assert not state.producers
    assert state.check(7, 0, 40, 1) is ACCEPTED
