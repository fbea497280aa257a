"""DeleteRecords: the time of the answer, beside the time of one durable write on this machine's disk."""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

from .client import Client, check
from .errors import BenchError
from .figures import percentile, ratio
from .frames import TIMEOUT_MS, batch, delete_error_position, delete_frame
from .loads import SMALL_RECORD_BYTES, now_ms
from .measure import Amounts, Figures, Workload, cost_of
from .pump import Lane, pump
from .targets import Target
from .topics import Topic, by_leader, can_fetch, check_ends, fill, is_deleted, produce_each, topic_on

SEGMENT_BYTES = 1 << 20
"""The smallest that Apache Kafka allows."""

RECORDS_PER_BATCH = 500
RECORD_BYTES = 1024
BATCHES_PER_SEGMENT = 2
"""The number of whole batches in a segment."""

_SYNCS = 200
_SYNC_FILE_BYTES = 1 << 20
_SYNC_BYTES = 64


def append_and_sync_us(folder: Path, count: int = _SYNCS) -> list[float]:
    """Returns the sorted times of durable appends of 64 bytes to a preallocated file. No log can be faster."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, _SYNC_FILE_BYTES)
        os.fsync(descriptor)
        sync = getattr(os, "fdatasync", os.fsync)
        for number in range(count):
            began = time.perf_counter_ns()
            os.pwrite(descriptor, bytes(_SYNC_BYTES), number * _SYNC_BYTES)
            sync(descriptor)
            times.append((time.perf_counter_ns() - began) / 1000)
    return sorted(times)


def deletes(target: Target, amounts: Amounts) -> Figures:
    """Deletes one record at a time, then half of the log at once, in logs of several sizes."""
    figures: Figures = {}
    for segments in amounts.segments:
        found = _delete_in(target, segments, amounts)
        figures |= {f"{segments} segment{'s' * (segments > 1)}, {name}": value for name, value in found.items()}
    return figures


def _delete_in(target: Target, segments: int, amounts: Amounts) -> Figures:
    count = amounts.deletes
    assert count < RECORDS_PER_BATCH
    with topic_on(target, 1, {"segment.bytes": str(SEGMENT_BYTES)}) as topic:
        fill(topic, batch(RECORDS_PER_BATCH, RECORD_BYTES, now_ms()), segments * BATCHES_PER_SEGMENT)
        end = check_ends(topic, segments * BATCHES_PER_SEGMENT * RECORDS_PER_BATCH)[0]
        time.sleep(amounts.settle_s)
        # Measured now, not once for all: after a log was written the disk is busier than before.
        disk_us = percentile(append_and_sync_us(target.directory), 0.5)
        frames = [delete_frame(topic.name, [(0, offset)]) for offset in range(1, count + 1)]
        with cost_of(target) as cost:
            load = pump([Lane(topic.leaders[0], frames)], count=count, error_position=delete_error_position(topic.name))
        figures = {
            "p50 us": load.p50_us,
            "append + fdatasync here, p50 us": disk_us,
            "p50 in append + fdatasync": ratio(load.p50_us, disk_us),
            "p99 us": load.p99_us,
            "broker CPU us": cost.cpu_s / count * 1e6,
        }
        began = time.perf_counter()
        _delete(topic, {0: end // 2})
        figures["half of it at once, us"] = (time.perf_counter() - began) * 1e6
        if not is_deleted(topic.leaders[0], topic.name, 0, end // 2 - 1) or not can_fetch(
            topic.leaders[0], topic.name, 0, end // 2
        ):
            raise BenchError(f"after a delete up to {end // 2}, the log does not begin there")
    return figures


def _delete(topic: Topic, offsets: dict[int, int]) -> float:
    """Sends one request for all partitions of the first one's leader. Returns its seconds. Errors: BenchError."""
    rows = [DeleteRecordsPartition(partition_index=partition, offset=offset) for partition, offset in offsets.items()]
    with Client(topic.leaders[0]) as client:
        began = time.perf_counter()
        answer = client.ask(
            DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic.name, partitions=rows)], timeout_ms=TIMEOUT_MS)
        )
        seconds = time.perf_counter() - began
    for row in answer.topics[0].partitions:
        check(row.error_code, f"DeleteRecords of partition {row.partition_index}")
        if row.low_watermark != offsets[row.partition_index]:
            raise BenchError(
                f"partition {row.partition_index} was deleted to {row.low_watermark}, not to "
                f"{offsets[row.partition_index]}"
            )
    return seconds


def delete_across(target: Target, amounts: Amounts) -> Figures:
    """Measures one request over many partitions with a few records each."""
    with topic_on(target, amounts.partitions) as topic:
        produce_each(topic, batch(4, SMALL_RECORD_BYTES, now_ms()))
        check_ends(topic, 4 * amounts.partitions)
        time.sleep(amounts.settle_s)
        partitions = by_leader(topic.leaders)[topic.leaders[0]]
        best, cpu_s = math.inf, math.inf
        figures: Figures = {"partitions": float(len(partitions))}
        for offset in (1, 2, 3):
            with cost_of(target) as cost:
                seconds = _delete(topic, dict.fromkeys(partitions, offset))
            if offset == 1:
                figures["first request, ms"] = seconds * 1000
            best, cpu_s = min(best, seconds), min(cpu_s, cost.cpu_s)
    return figures | {"best of three, ms": best * 1000, "broker CPU us a partition": cpu_s / len(partitions) * 1e6}


WORKLOADS = {
    "delete": Workload(
        run=deletes,
        says="DeleteRecords of one more record each time, one connection, in logs of 1 MiB a segment",
        headline=("1 segment, p50 us", "1 segment, append + fdatasync here, p50 us", "1000 segments, p50 us"),
    ),
    "deletemany": Workload(
        run=delete_across,
        says="one DeleteRecords over many partitions",
        headline=("first request, ms", "best of three, ms"),
        warms=False,
    ),
}
