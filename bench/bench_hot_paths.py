"""The cost of the steps of a Produce, of a delete and of a search, in this thread's CPU: `make microbench`.

Each figure is the smallest of several rounds. Compare them with those of another commit on the same machine, in turn;
alone they mean little.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.compression import Compression
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.storage.checkpoint import TEMPORARY_SUFFIX
from lowtide.storage.erasures.key_filter import key_filter_path
from lowtide.storage.erasures.record_search import KeySelector
from lowtide.storage.erasures.search_work import FOUND_MAX, SearchedSegment, SearchOrder, encode_search, search_log
from lowtide.storage.log.log import LogConfig
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.loader import create_log
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

ROUNDS = 7
CALLS = 2000
SEARCHED_BYTES = 64 << 20
CITIES = (b"Athens", b"Berlin", b"Cork")
NOW_MS = 1_700_000_000_000


def smallest_us(call: Callable[[], object]) -> float:
    """Returns the smallest mean of `ROUNDS` rounds of `CALLS` calls."""
    means = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        means.append((time.thread_time_ns() - began) / CALLS / 1000)
    return min(means)


def row(name: str, value_us: float) -> None:
    """Prints one figure."""
    print(f"{name:<58}{value_us:>9.2f}")


def bench_produce() -> None:
    """Measures decoding, validating and appending one batch."""
    codec = codec_for(ProduceRequest, 9)
    for count, size in ((1, 100), (16, 1024)):
        batch = build_batch([(NOW_MS, None, bytes(size), ()) for _ in range(count)])
        data = TopicProduceData(name="bench", partition_data=[PartitionProduceData(index=0, records=batch)])
        frame = codec.encode(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]))
        view, rules = memoryview(batch), ValidationRules()
        row(
            f"decode Produce v9, {count} x {size} B",
            smallest_us(lambda frame=frame: codec.decode(frame, 0, len(frame))),  # type: ignore[misc]
        )
        row(
            f"validate, {count} x {size} B",
            smallest_us(lambda view=view, rules=rules: validate_produce(view, rules, NOW_MS)),  # type: ignore[misc]
        )
        with tempfile.TemporaryDirectory() as folder:
            place = TopicPartition("bench", 0)
            log = create_log(
                LogPlace(
                    filesystem=OsFileSystem(),
                    directory=f"{folder}/{place}",
                    config=LogConfig(),
                    topic_partition=place,
                    topic_id=bytes(16),
                ),
                now_ms=NOW_MS,
            )
            validated = validate_produce(view, rules, NOW_MS)
            assert isinstance(validated, ValidatedBatch)
            append = log.append_as_leader
            row(
                f"append to the page cache, {count} x {size} B",
                smallest_us(
                    lambda validated=validated, append=append: append(validated, leader_epoch=0, now_ms=NOW_MS)  # type: ignore[misc]
                ),
            )


def bench_sync() -> None:
    """Measures the lower bound of a delete on this machine: one append and fdatasync, in wall time."""
    with tempfile.NamedTemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        times = []
        for number in range(500):
            began = time.perf_counter_ns()
            os.pwrite(file.fileno(), bytes(64), number * 64)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter_ns() - began) / 1000)
    row("append and fdatasync, median of wall time", statistics.median(times))


def bench_search() -> None:
    """Measures a search for one key in a million records, in seconds of CPU for a GiB of zstd; then with a filter."""
    filesystem, chance = OsFileSystem(), random.Random(39)  # noqa: S311 - it chooses test data
    texts = [
        b'{"city": "%s", "amount": %d, "note": "%s"}'
        % (chance.choice(CITIES), number * 7919, chance.randbytes(90).hex().encode())
        for number in range(2000)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path, count = f"{folder}/{0:020d}.log", 0
        with Path(path).open("wb") as file:
            while file.tell() < SEARCHED_BYTES:
                rows = [
                    (NOW_MS, b"person-%d" % chance.randrange(1_000_000), chance.choice(texts), ()) for _ in range(1000)
                ]
                file.write(build_batch(rows, base_offset=count, leader_epoch=0, compression=Compression.ZSTD))
                count += len(rows)
            size = file.tell()
        segment = SearchedSegment(0, count, path, 0, size, is_closed=True)
        for name, keys, uses_filters in (
            ("search for 1 key", [b"nobody"], False),
            ("search for 1000 keys", [b"person-%d" % number for number in range(1000)], False),
            ("search for 1 key, which writes a filter", [b"nobody"], True),
            ("search for 1 key, with a filter", [b"nobody"], True),
        ):
            selector = KeySelector(frozenset(keys))
            order = SearchOrder(folder, [segment], count, selector, FOUND_MAX, uses_filters, bytes(32))
            began = time.thread_time_ns()
            for _step in search_log(filesystem, encode_search(order)):
                pass
            spent_s = (time.thread_time_ns() - began) / 1e9
            built = Path(key_filter_path(folder, 0) + TEMPORARY_SUFFIX)
            if built.exists():
                built.rename(built.with_suffix(""))
            row(f"{name}, s/GiB", spent_s * (1 << 30) / size)


if __name__ == "__main__":
    print(f"{'step':<58}{'us':>9}")
    bench_produce()
    bench_sync()
    bench_search()
