"""Cluster checkers accept the loss of records without a promise, and nothing else."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse
from lowtide.protocol.records import iterate_batches, read_batch_header
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_ports import SIMULATION_WALL_START_MS
from lowtide.simulation.cluster_invariants import ClusterInvariants
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.simulation.history import HistoryError
from lowtide.simulation.kept_load import KeptLoad, Rules
from lowtide.simulation.pipelined_producer import PipelinedProducer
from lowtide.simulation.transaction_invariants import CommittedTransactions
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.log import FollowerAppend, Log, LogConfig
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.loader import create_log
from tests.markers import build_end_transaction_marker

NOW_MS = SIMULATION_WALL_START_MS + 40_000
HUNG, OTHER = 7, 8


def new_log() -> Log:
    return create_log(
        LogPlace(
            filesystem=MemoryFileSystem(),
            directory="/disk/t-0",
            config=LogConfig(),
            topic_partition=TopicPartition("t", 0),
            topic_id=bytes(16),
        ),
        now_ms=NOW_MS,
    )


def append(log: Log, batch: bytes) -> None:
    assert isinstance(log.append_as_follower(memoryview(batch), now_ms=NOW_MS), FollowerAppend)
    log.advance_high_watermark(log.log_end_offset)


def append_record(log: Log, timestamp_ms: int = NOW_MS, **keywords: Any) -> None:
    append(
        log, build_batch([(timestamp_ms, b"k", b"v", ())], base_offset=log.log_end_offset, leader_epoch=0, **keywords)
    )


def append_transactional(log: Log, producer_id: int) -> None:
    append_record(log, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)


def committed_in(log: Log, *, after_a_loss: bool) -> CommittedTransactions:
    """Returns the transactions that are read again from the log start on."""
    committed = CommittedTransactions()
    if after_a_loss:
        committed.void()
    for segment in log.segments:
        for _, header in segment.batches(0):
            if header.base_offset >= log.log_start_offset:
                committed.note(header)
    return committed


def delete_first(log: Log) -> None:
    log.request_log_start(1)
    make_log_start_visible(log, 1)
    assert log.log_start_offset == 1


def log_with_a_transaction_below_its_start() -> Log:
    log = new_log()
    append_transactional(log, HUNG)
    append_record(log)
    delete_first(log)
    return log


def test_a_transaction_whose_marker_was_lost_may_hold_the_stable_offset_at_the_log_start() -> None:
    """The coordinator has lost it too, and its records were deleted since: nothing shows it."""
    log = log_with_a_transaction_below_its_start()
    assert log.last_stable_offset == 1
    assert committed_in(log, after_a_loss=True).check(log) is None


def test_nothing_holds_it_without_a_loss() -> None:
    log = log_with_a_transaction_below_its_start()
    wrong = committed_in(log, after_a_loss=False).check(log)
    assert wrong is not None
    assert wrong.startswith("T3: the last stable offset is 1, and should be 2")


def test_after_a_loss_a_transaction_that_has_ended_holds_nothing() -> None:
    log = log_with_a_transaction_below_its_start()
    committed = committed_in(log, after_a_loss=True)
    marker = build_end_transaction_marker(
        ControlRecord(ControlRecordType.ABORT, 0),
        timestamp_ms=NOW_MS,
        producer_id=HUNG,
        producer_epoch=0,
        base_offset=log.log_end_offset,
    )
    for _, header in iterate_batches(marker):
        committed.note(header)
    assert committed.check(log) is None, "its marker is not committed"
    append_record(log)
    assert committed.check(log) is not None


def test_after_a_loss_open_transactions_hold_the_offset_where_they_begin() -> None:
    log = new_log()
    append_record(log)
    append_transactional(log, OTHER)
    append_record(log)
    committed = committed_in(log, after_a_loss=True)
    assert committed.check(log) is None
    told: Any = SimpleNamespace(
        log_start_offset=0,
        high_watermark=3,
        last_stable_offset=0,
        config=log.config,
        producer_state=log.producer_state,
        describe=log.describe,
    )
    assert committed.check(told) is not None


def test_a_segment_is_overdue_by_its_own_records() -> None:
    """Records below the log start may differ from those that clients read there, because those were lost."""

    def load() -> KeptLoad:
        never: Any = None
        return KeptLoad("t", 0, never, Random(1), never, Rules(1500, -1), lambda _: 0)

    machine: Any = SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: NOW_MS))
    log = new_log()
    for timestamp_ms in (NOW_MS + 9000, NOW_MS - 9000):
        append_record(log, timestamp_ms)
    log.roll(NOW_MS)
    append_record(log)
    delete_first(log)
    known = load()
    for _, header in log.segments[0].batches(0):
        if header.base_offset >= log.log_start_offset:
            known.on_committed(header)
    assert known.overdue(log, machine) is None
    machine.clock.wall_ms = lambda: NOW_MS + 20_000
    assert known.overdue(log, machine) == f"t-0 has records of {NOW_MS + 9000}"


@pytest.mark.parametrize(("was_tried", "start", "is_right"), [(True, 6, True), (True, 5, False), (False, 6, False)])
def test_a_producer_may_be_refused_what_it_sends_again_and_was_deleted(
    was_tried: bool, start: int, is_right: bool
) -> None:
    """A broker that has started since knows the last batch of each producer, and those that its log still has."""
    batch = build_batch([(NOW_MS, None, b"v", ())], producer_id=HUNG, producer_epoch=0, base_sequence=3)
    committed = SimpleNamespace(start=start, batches={5: (0, read_batch_header(batch).crc, 5), 6: (0, 1, 9)})
    topic, promises = (
        SimpleNamespace(topic_id=bytes(16)),
        SimpleNamespace(committed=lambda _topic_id, _number: committed),
    )
    invariants: Any = SimpleNamespace(_topic_of=lambda _load: topic, promises=promises)
    observer = SimpleNamespace(
        leads=lambda _load, _broker_id: True, has_deleted=partial(ClusterInvariants.has_deleted, invariants)
    )
    history = SimpleNamespace(records_are_void=False, name="t-0")
    load: Any = SimpleNamespace(
        topic="t",
        partition=0,
        history=history,
        observer=observer,
        has_retention=False,
        counts=Counter(),
        next_producer=lambda: HUNG,
    )
    producer = PipelinedProducer(load, SimpleNamespace(), Random(1))  # as far as is needed
    producer._id, producer._under_way, producer._tried = HUNG, [([b"v"], batch)], [batch] if was_tried else []
    refused = PartitionProduceResponse(
        index=0,
        error_code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        base_offset=-1,
        log_start_offset=-1,
        error_message=None,
    )
    with nullcontext() if is_right else pytest.raises(HistoryError, match="R1: t-0: broker 2 answers OUT_OF_ORDER"):
        assert not producer._on_answer([b"v"], batch, refused, 2)
        assert (producer._id, producer._under_way) == (-1, [])


def test_a_rule_may_delete_what_the_checker_has_not_read() -> None:
    """It reads nothing while a broker has no descriptors, nor after a power cut until the next record."""
    simulate_cluster(23457)
