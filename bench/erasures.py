"""Measures what it costs to find and erase the records of a person in a cluster with much data.

Three brokers, and partitions with zstd batches in which one record of a million has the person's key. The figures: CPU
of a search for each GiB of the leaders' files, without filters of keys, with the first search that builds them, and
with them; a search for a thousand keys; the time until no reader gets a record of the person after the search, and
until no file of any broker has one, raw or decompressed; the memory of the brokers while 100,000 records are erased.

Run: `python -m bench.erasures --gib 10 --directory DIR`; it needs three times as much room.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from lowtide.admin import BlockingAdminClient, ConfigChange, ConfigResource, ConfigResourceType, TopicPartition
from lowtide.admin.erasing import PartitionErasure
from lowtide.admin.finding import SearchedPartition
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.erasure_ledger_records import NamedRecords, decode_entry
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.replication.topic_names import LEDGER_TOPIC
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.random import Random
from lowtide.storage.compaction.cleanable import RELATIVE_OFFSET_MAX
from lowtide.storage.compaction.cleaning import split_batches
from lowtide.storage.erasures.record_search import FoundRecords, KeySelector, RecordMatcher, has_records
from lowtide.storage.log.validation.validation_rules import MAXIMUM_DECOMPRESSED_BYTES

from .__main__ import circumstances, keep_bytecode
from .cluster import ClusterTarget
from .errors import BenchError
from .figures import show
from .frames import produce_error_position, produce_frame
from .loads import now_ms
from .measure import Figures, cost_of
from .pump import Lane, pump
from .targets import LOWTIDE_OF_SEVERAL, TargetSpec
from .topics import Topic, create_topic
from .usage import resident_bytes

BROKERS: Final = 3
PERSON, MANY = b"person-4711-of-the-measurement", b"key-of-many-records"
RECORD_BYTES, PER_BATCH = 1_000, 100
ONE_IN: Final = 1_000_000
DIFFERENT_BATCHES: Final = 200
MANY_RECORDS: Final = 100_000
LIMIT_S = 600.0
GIB: Final = 1 << 30
FILTER: Final = "lowtide.erasure.key.filter"
ZSTD_SINCE: Final = 7
"""The lowest version of Produce with zstd."""


def letters(rng: Random, key: bytes | None) -> bytes:
    """Returns a batch of texts that compress about as well as JSON does: to a third."""
    words = [b"%08x" % rng.getrandbits(32) for _ in range(30)]
    rows = []
    for _ in range(PER_BATCH):
        text = b" ".join(rng.choice(words) for _ in range(RECORD_BYTES // 9 - 35)) + rng.randbytes(RECORD_BYTES // 4)
        rows.append((now_ms(), b"key-%016x" % rng.getrandbits(64), text, ()))
    if key is not None:
        rows[rng.randrange(PER_BATCH)] = (now_ms(), key, rng.randbytes(RECORD_BYTES), ())
    return build_batch(rows, compression=Compression.ZSTD)


def fill(topic: Topic, leader_bytes: float) -> tuple[int, int]:
    """Writes so many bytes over all partitions. Returns the number of records, and of those of the person."""
    rng = Random(1)
    batches = [letters(rng, None) for _ in range(DIFFERENT_BATCHES)]
    size = sum(map(len, batches)) / len(batches)
    partitions = len(topic.leaders)
    each = max(int(leader_bytes / size / partitions), 1)
    every = ONE_IN // PER_BATCH + 7  # It shares no divisor with the number of partitions.

    def frames(partition: int) -> Iterator[bytes]:
        plain = [produce_frame(topic.name, partition, batch, version=ZSTD_SINCE) for batch in batches]
        for number in range(each):
            if (number * partitions + partition) % every == 0:
                yield produce_frame(topic.name, partition, letters(rng, PERSON), version=ZSTD_SINCE)
            else:
                yield plain[number % len(plain)]

    lanes = [Lane(address, frames(partition)) for partition, address in enumerate(topic.leaders)]
    pump(lanes, count=each * partitions, depth=4, error_position=produce_error_position(topic.name))
    persons = -(-each * partitions // every)
    return each * partitions * PER_BATCH, persons


def files_with(target: ClusterTarget, key: bytes) -> list[str]:
    """Returns the files of all brokers that have the key, as it lies there or in a decompressed record."""
    found = []
    matcher = RecordMatcher(KeySelector(frozenset([key])), decompressed_bytes_max=MAXIMUM_DECOMPRESSED_BYTES)
    for path in sorted(Path(target.directory).rglob("*")):
        with suppress(FileNotFoundError):
            if not path.is_file() or not path.stat().st_size:
                continue
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                has = content.find(key) >= 0
            if has or (path.suffix in (".log", ".cleaned", ".swap") and _in_records(path, matcher)):
                found.append(str(path.relative_to(target.directory)))
    return found


def _in_records(path: Path, matcher: RecordMatcher) -> bool:
    file, records, position = OsFileSystem().open(str(path)), FoundRecords(), 0
    try:
        size = path.stat().st_size
        while position < size:
            for header, batch in split_batches(file, position, size, 0, RELATIVE_OFFSET_MAX):
                position += header.size_bytes
                if has_records(header):
                    matcher.search(header, matcher.records(header, batch), records)
    finally:
        file.close()
    return bool(records)


class PeakMemory:
    """Samples the memory of the brokers, each alone, while a block runs."""

    def __init__(self, target: ClusterTarget) -> None:
        self.pids = [member.process.pid for member in target.members if member.process is not None]
        self.before_mb = max(resident_bytes([pid]) for pid in self.pids) / 1e6
        self.peak_mb = self.before_mb
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._over.wait(0.05):
            self.peak_mb = max(self.peak_mb, *(resident_bytes([pid]) / 1e6 for pid in self.pids))

    def __enter__(self) -> Self:
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sampler.join()


def search(admin: BlockingAdminClient, places: list[TopicPartition], keys: list[bytes]) -> int:
    """Returns how many records the leaders find. Errors: BenchError."""
    count = 0
    for result in admin.find_records(places, keys=keys, timeout=LIMIT_S).values():
        if not isinstance(result, SearchedPartition):
            raise BenchError(f"a search failed: {result}")
        count += result.count
    return count


def erase(admin: BlockingAdminClient, places: list[TopicPartition], key: bytes) -> int:
    """Erases a key everywhere; returns how many records. Errors: BenchError."""
    count = 0
    for result in admin.erase_records(places, keys=[key], timeout=LIMIT_S).values():
        if not isinstance(result, PartitionErasure) or result.not_erased_by:
            raise BenchError(f"an erasure failed: {result}")
        count += result.count
    return count


def readable(admin: BlockingAdminClient, place: TopicPartition, offset: int) -> bool:
    """Returns whether a reader gets the person's record at an offset."""
    content = bytes(admin.fetch_records(place, offset).records)
    for at, header in iterate_batches(content):
        if header.base_offset > offset:
            break
        batch = content[at : at + header.size_bytes]
        if has_records(header) and any(
            record.key == PERSON and record.offset == offset
            for record in iterate_records(batch, max_bytes=MAXIMUM_DECOMPRESSED_BYTES)
        ):
            return True
    return False


def measure(target: ClusterTarget, arguments: argparse.Namespace, figures: Figures) -> None:
    """Measures searches, the erasure of the person, and that of many records."""
    target.start()
    topic = create_topic(
        target, "letters", arguments.partitions, {"segment.bytes": str(arguments.segment_mib << 20), FILTER: "none"}
    )
    places = [TopicPartition(topic.name, number) for number in range(arguments.partitions)]
    began = time.perf_counter()
    records, persons = fill(topic, arguments.gib * GIB)
    figures["records"], figures["of the person"] = records, persons
    figures["written in, s"] = time.perf_counter() - began
    size = sum(path.stat().st_size for path in Path(target.directory).rglob("letters-*/*.log")) / BROKERS
    figures["GiB of a replica's files"] = size / GIB
    time.sleep(5)
    with BlockingAdminClient(target.bootstrap) as admin:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
        for title, keys, filters in (
            ("without filters", [PERSON], "none"),
            ("first one with filters", [PERSON], "search"),
            ("with filters", [PERSON], "search"),
            ("of 1,000 keys without filters", [PERSON, *(b"nobody-%d" % number for number in range(999))], "none"),
        ):
            admin.alter_configs({resource: [ConfigChange(FILTER, filters)]})
            time.sleep(1)
            began = time.perf_counter()
            with cost_of(target) as cost:
                count = search(admin, places, keys)
            if count != persons:
                raise BenchError(f"{count} records were found instead of {persons}")
            figures[f"search {title}, CPU s a GiB"] = cost.cpu_s / (size / GIB)
            figures[f"search {title}, s"] = time.perf_counter() - began
        admin.alter_configs({resource: [ConfigChange(FILTER, "search")]})
        measure_erasure(target, admin, places, figures)
        measure_many(target, admin, figures)


def measure_erasure(
    target: ClusterTarget, admin: BlockingAdminClient, places: list[TopicPartition], figures: Figures
) -> None:
    """Erases the person while readers look."""
    began = time.perf_counter()
    first: dict[TopicPartition, int] = {}
    for place, result in admin.find_records(places, keys=[PERSON], timeout=LIMIT_S).items():
        if isinstance(result, SearchedPartition) and result.offsets:
            first[place] = result.offsets[0][0]
    searched_s = time.perf_counter() - began
    gone: dict[TopicPartition, float] = {}
    over = threading.Event()

    def look() -> None:
        with BlockingAdminClient(target.bootstrap) as reader:
            while not over.is_set() and len(gone) < len(first):
                for place in [each for each in first if each not in gone]:
                    if not readable(reader, place, first[place]):
                        gone[place] = time.perf_counter()

    reader = threading.Thread(target=look, daemon=True)
    reader.start()
    began = time.perf_counter()
    with cost_of(target) as cost:
        erase(admin, places, PERSON)
    clean_s = time.perf_counter() - began
    over.set()
    reader.join()
    figures["search before the erasure, s"] = searched_s
    figures["erasure until nobody reads it, s"] = max(gone.values(), default=began) - began
    figures["from the end of a search to the commit, s (most)"] = committed_after_s(admin)
    figures["erasure until all brokers have clean files, s"] = clean_s
    figures["erasure, CPU s of all brokers"] = cost.cpu_s
    found = files_with(target, PERSON)
    if found:
        raise BenchError(f"files with the person: {found[:5]}")
    figures["files with the person"] = 0


def committed_after_s(admin: BlockingAdminClient) -> float:
    """Returns the longest time from the end of a search, when the ledger gets its result, to the commit."""
    content = bytes(admin.fetch_records(TopicPartition(LEDGER_TOPIC, 0), 0).records)
    waits = [0]
    for at, header in iterate_batches(content):
        batch = content[at : at + header.size_bytes]
        for record in iterate_records(batch, max_bytes=MAXIMUM_DECOMPRESSED_BYTES) if has_records(header) else ():
            entry = decode_entry(record.key, record.value)
            if entry is not None and isinstance(entry.value, NamedRecords) and entry.value.committed_ms >= 0:
                waits.append(entry.value.committed_ms - entry.value.named_ms)
    return max(waits) / 1000


def measure_many(target: ClusterTarget, admin: BlockingAdminClient, figures: Figures) -> None:
    """Erases many records of one partition, and looks at the memory."""
    topic = create_topic(target, "many", 1, {"segment.bytes": str(64 << 20)})
    rng = Random(2)
    rows = [(now_ms(), MANY if number % 2 else b"other", rng.randbytes(100), ()) for number in range(200)]
    frame = produce_frame(topic.name, 0, build_batch(rows, compression=Compression.ZSTD), version=ZSTD_SINCE)
    pump(
        [Lane(topic.leaders[0], itertools.repeat(frame))],
        count=MANY_RECORDS // 100,
        depth=4,
        error_position=produce_error_position(topic.name),
    )
    time.sleep(2)
    with PeakMemory(target) as memory:
        began = time.perf_counter()
        count = erase(admin, [TopicPartition("many", 0)], MANY)
        figures["100,000 records erased in, s"] = time.perf_counter() - began
    if count != MANY_RECORDS or files_with_many(target):
        raise BenchError(f"{count} records were erased instead of {MANY_RECORDS}, or a file still has some")
    figures["resident of a broker before, MB (most)"] = memory.before_mb
    figures["at its peak, MB (most)"] = memory.peak_mb


def files_with_many(target: ClusterTarget) -> list[str]:
    """Returns the files of the topic that still have one of the many records."""
    return [each for each in files_with(target, MANY) if "/many-0/" in each]


def main() -> int:
    """Runs the measurement; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.erasures", description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="of the leaders' files")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--segment-mib", type=int, default=256, help="of the topic")
    parser.add_argument("--directory", help="where the brokers keep their data; default: the system's")
    arguments = parser.parse_args()
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        keep_bytecode(Path(scratch))
        target = ClusterTarget(TargetSpec(name="lowtide", command=LOWTIDE_OF_SEVERAL, brokers=BROKERS), Path(scratch))
        try:
            print(circumstances(), flush=True)
            measure(target, arguments, figures)
        except BenchError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            target.close()
            for name, value in figures.items():
                print(f"{name}: {show(value)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
