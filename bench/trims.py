"""Measures the disk space of a topic that is filled at a rate and read, while another client deletes what was read.

The space is the allocated blocks (`st_blocks`) of all files of the partition. The bytes of readable records, from the
acknowledged log start to the acknowledged end, are shown beside it. The end is looked up first, so records that arrive
in between count as extra space.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.fetch import FetchRequest
from lowtide.protocol.messages.produce import ProduceRequest

from .client import Client, check, decode
from .errors import BenchError
from .figures import MEBIBYTE, percentile
from .frames import KEYS, TIMEOUT_MS, VERSIONS, batch, fetch_frame, produce_frame
from .loads import now_ms
from .measure import Amounts, Figures, Workload, cost_of
from .targets import Target
from .topics import Topic, topic_on

SEGMENT_BYTES = 1 << 30
RECORDS_PER_BATCH = 200
RECORD_BYTES = 1024
BYTES_PER_S = 20_000_000
DELETE_EACH_S = 0.1
SAMPLE_EACH_S = 0.05
_OFFSET = struct.Struct(">q")
_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


@dataclass
class _Partition:
    """The state of a partition's clients, and their measurements."""

    batch_bytes: int
    start: int = 0
    """The acknowledged log start."""
    end: int = 0
    """The acknowledged end, exclusive."""
    produce_us: list[float] = field(default_factory=list)
    fetch_us: list[float] = field(default_factory=list)
    delete_us: list[float] = field(default_factory=list)
    over_bytes: list[int] = field(default_factory=list)
    """Space beyond that of readable records, by sample."""
    failures: list[BaseException] = field(default_factory=list)

    @property
    def live_bytes(self) -> int:
        """The bytes of readable records."""
        return (self.end - self.start) * self.batch_bytes // RECORDS_PER_BATCH


def trims(target: Target, amounts: Amounts) -> Figures:
    """Fills, reads the newest records, deletes and measures, each at its own rate."""
    target.ensure_up()
    records = batch(RECORDS_PER_BATCH, RECORD_BYTES, now_ms())
    with topic_on(target, 1, {"segment.bytes": str(SEGMENT_BYTES)}) as topic:
        known = _Partition(len(records))
        until_s = time.perf_counter() + amounts.trimmed_s
        paces = (
            (_fill, len(records) / BYTES_PER_S),
            (_read, len(records) / BYTES_PER_S),
            (_delete, DELETE_EACH_S),
            (_look, SAMPLE_EACH_S),
        )
        makers = [(make(target, topic, records, known), pace_s) for make, pace_s in paces]
        threads = [
            threading.Thread(target=_at_a_pace, args=(act, pace_s, until_s, known.failures)) for act, pace_s in makers
        ]
        with cost_of(target) as cost:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for failure in known.failures:
            raise failure
        return _figures(known, cost.cpu_s, amounts.trimmed_s)


def _figures(known: _Partition, cpu_s: float, seconds: float) -> Figures:
    over = sorted(known.over_bytes)
    produced = known.end * known.batch_bytes / RECORDS_PER_BATCH
    deletes_us, produces_us, fetches_us = sorted(known.delete_us), sorted(known.produce_us), sorted(known.fetch_us)
    figures = {
        "space over live, most MiB": over[-1] / MEBIBYTE,
        "space over live, p99 MiB": percentile(over, 0.99) / MEBIBYTE,
        "space over live, p50 MiB": percentile(over, 0.5) / MEBIBYTE,
        "produced, MB/s": produced / seconds / 1e6,
        "broker CPU s a GB": cpu_s / produced * 1e9,
        "produce, p50 us": percentile(produces_us, 0.5),
        "produce, p99 us": percentile(produces_us, 0.99),
        "fetch, p50 us": percentile(fetches_us, 0.5),
        "fetch, p99 us": percentile(fetches_us, 0.99),
        "delete, p50 us": percentile(deletes_us, 0.5),
        "delete, p99 us": percentile(deletes_us, 0.99),
    }
    tenths = [
        known.over_bytes[number * len(known.over_bytes) // 10 :][: max(len(known.over_bytes) // 10, 1)]
        for number in range(10)
    ]
    return figures | {
        f"over live, tenth {number}, most MiB": max(each) / MEBIBYTE for number, each in enumerate(tenths, 1)
    }


def _at_a_pace(act: Callable[[], None], pace_s: float, until_s: float, failures: list[BaseException]) -> None:
    """Runs steps at a rate; late ones run at once."""
    due_s = time.perf_counter()
    try:
        while due_s < until_s and not failures:
            act()
            due_s += pace_s
            time.sleep(max(due_s - time.perf_counter(), 0))
    except (OSError, BenchError) as error:
        failures.append(error)


def _fill(_target: Target, topic: Topic, records: bytes, known: _Partition) -> Callable[[], None]:
    client, frame = Client(topic.leaders[0]), produce_frame(topic.name, 0, records, acks=1)
    key = KEYS[ProduceRequest]

    def act() -> None:
        began = time.perf_counter_ns()
        answer = decode(key, VERSIONS[key], client.ask_bytes(frame))
        known.produce_us.append((time.perf_counter_ns() - began) / 1000)
        (row,) = answer.responses[0].partition_responses
        check(row.error_code, "Produce")
        known.end = row.base_offset + RECORDS_PER_BATCH

    return act


def _read(_target: Target, topic: Topic, _records: bytes, known: _Partition) -> Callable[[], None]:
    client, frame = Client(topic.leaders[0]), fetch_frame(topic.name, 0)
    key = KEYS[FetchRequest]

    def act() -> None:
        offset = known.end - RECORDS_PER_BATCH
        if offset < known.start:
            return
        request = bytearray(frame.request)
        _OFFSET.pack_into(request, frame.offset_position, offset)
        began = time.perf_counter_ns()
        answer = decode(key, VERSIONS[key], client.ask_bytes(bytes(request)))
        took_us = (time.perf_counter_ns() - began) / 1000
        (row,) = answer.responses[0].partitions
        if row.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:  # It may have been deleted meanwhile.
            check(row.error_code, "Fetch")
            known.fetch_us.append(took_us)

    return act


def _delete(_target: Target, topic: Topic, _records: bytes, known: _Partition) -> Callable[[], None]:
    client = Client(topic.leaders[0])

    def act() -> None:
        offset = known.end
        if offset == known.start:
            return
        row = DeleteRecordsTopic(name=topic.name, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
        began = time.perf_counter_ns()
        answer = client.ask(DeleteRecordsRequest(topics=[row], timeout_ms=TIMEOUT_MS))
        known.delete_us.append((time.perf_counter_ns() - began) / 1000)
        check(answer.topics[0].partitions[0].error_code, "DeleteRecords")
        known.start = offset

    return act


def _look(target: Target, topic: Topic, _records: bytes, known: _Partition) -> Callable[[], None]:
    # A broker that has no folders of partitions has no other topic either.
    folders = list(target.directory.rglob(f"{topic.name}-0")) or [target.directory]

    def act() -> None:
        live_bytes = known.live_bytes
        known.over_bytes.append(sum(map(_space_bytes, folders)) - live_bytes)

    return act


def _space_bytes(folder: Path) -> int:
    found = 0
    with contextlib.suppress(FileNotFoundError):
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                found += path.stat().st_blocks * _BLOCK_BYTES
    return found


WORKLOADS = {
    "trim": Workload(
        run=trims,
        says=(
            "one partition, 20 MB/s, everything deleted each 100 ms, segments of 1 GiB: blocks on the disk beyond "
            "what can be read"
        ),
        headline=("space over live, most MiB", "broker CPU s a GB", "delete, p50 us"),
        warms=False,
        starts=True,
    )
}
