"""Kafka's own tool reads compacted logs: batches with gaps, empty ones, tombstones with their time, in every codec."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from lowtide import LowtideCluster
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.records import iterate_records, read_batch_header
from lowtide.protocol.types import TopicPartition
from lowtide.storage.checkpoint import decode_offsets
from lowtide.storage.compaction.compaction import CompactionRules, LastRecord, compact_batch, note_batch
from lowtide.storage.compaction.offset_map import OffsetMap

from . import load
from .kafka import Kafka, dump, replace_folder

LIMIT = 1 << 20
ROOM = 1 << 20


def write_compacted(path: Path) -> list[bytes]:
    """Batches of four records in every codec: some records removed, one batch empty, tombstones last."""
    batches = []
    for number, codec in enumerate((*Compression, *Compression)):
        rows = [
            (1000 + number, f"k{number + row}".encode(), None if row == 3 else f"v{number}-{row}".encode(), ())
            for row in range(4)
        ]
        producer = {"producer_id": number, "producer_epoch": 0, "base_sequence": 5}
        batches.append(build_batch(rows, base_offset=4 * number, compression=codec, leader_epoch=2, **producer))
    headers = [read_batch_header(batch) for batch in batches]
    offsets = OffsetMap(ROOM)
    for header, batch in zip(headers, batches, strict=True):
        assert note_batch(offsets, header, batch, 0, aborted=False, decompressed_bytes_max=LIMIT)
    covered = build_batch([(1, b"k0", b"again", ())] * 4, base_offset=40)
    assert note_batch(offsets, read_batch_header(covered), covered, 0, aborted=False, decompressed_bytes_max=LIMIT)
    rules = CompactionRules(10**12, 1000, {0: LastRecord(3, 0)}, LIMIT)
    found = [
        compact_batch(offsets, header, batch, rules, discarded=False)
        for header, batch in zip(headers, batches, strict=True)
    ]
    left = [bytes(each) for each in [*found, covered] if each is not None]
    path.write_bytes(b"".join(left))
    return left


def test_dump_log_segments_reads_what_is_left(jars: Path, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    left = write_compacted(path)
    assert any(read_batch_header(batch).record_count == 0 for batch in left)
    assert any(0 < read_batch_header(batch).record_count < 4 for batch in left)
    found = dump(jars, [path])
    gaps = ("Non-consecutive offsets", " is followed by ")
    assert [line for line in found.invalid if not any(words in line for words in gaps)] == []
    records = [record for batch in left for record in iterate_records(batch, max_bytes=LIMIT)]
    told = [(record.offset, record.key) for record in found.records]
    with_values = [(record.offset, (record.key or b"").decode()) for record in records if record.value is not None]
    assert [row for row in told if row in with_values] == with_values
    assert found.text.count("isvalid: true") >= len(left)
    assert "deleteHorizonMs: OptionalLong[1000000001000]" in found.text


TOPIC = "compacted"
CONFIG = {
    "log.cleanup.policy": "compact",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.bytes": "1048576",
    "log.index.interval.bytes": "512",
    "log.segment.delete.delay.ms": "0",
}


def write_a_compacted_log(directory: Path) -> list[load.Entry]:
    """Makes a Lowtide broker write every key twice and compact; return the remaining records."""
    folder = directory / f"{TOPIC}-0"
    with LowtideCluster(data_directory=directory, config=CONFIG) as cluster:
        load.create_topic(cluster.bootstrap, TOPIC)
        written = load.produce(cluster.bootstrap, TOPIC)
        written += load.produce(cluster.bootstrap, TOPIC, first_offset=load.COUNT)
        deadline = time.monotonic() + load.DEADLINE_S
        while (end := compacted_to(directory)) < max(int(path.stem) for path in folder.glob("*.log")):
            assert time.monotonic() < deadline, f"it is compacted up to {end}"
            time.sleep(0.05)
    last = {entry.key: entry.offset for entry in written if entry.offset < end}
    return [entry for entry in written if entry.offset >= end or last[entry.key] == entry.offset]


def compacted_to(directory: Path) -> int:
    checkpoint = directory / "cleaner-offset-checkpoint"
    return (
        decode_offsets(checkpoint.read_bytes(), str(checkpoint)).get(TopicPartition(TOPIC, 0), 0)
        if checkpoint.exists()
        else 0
    )


def test_dump_log_segments_finds_no_fault_in_a_log_that_a_broker_compacted(jars: Path, tmp_path: Path) -> None:
    left = write_a_compacted_log(tmp_path / "data")
    assert len(left) < 2 * load.COUNT
    folder = tmp_path / "data" / f"{TOPIC}-0"
    files = [path for kind in ("log", "index", "timeindex", "snapshot") for path in sorted(folder.glob(f"*.{kind}"))]
    found = dump(jars, files)
    # Offsets have gaps; and an empty batch keeps the timestamp of its removed records, which the tool does not find.
    expected = ("Non-consecutive offsets", " is followed by ", "Found timestamp mismatch")
    assert [line for line in found.invalid if not any(words in line for words in expected)] == []
    assert set(re.findall(r"log timestamp: (-?\d+)", found.text)) <= {"-1"}
    told = [(record.offset, record.key, record.payload) for record in found.records]
    assert told == [(entry.offset, entry.key.decode(), entry.value.decode()) for entry in left]


def test_kafka_serves_a_log_that_lowtide_compacted(kafka: Kafka, tmp_path: Path) -> None:
    left = write_a_compacted_log(tmp_path / "data")
    kafka.start()
    load.create_topic(kafka.bootstrap, TOPIC, configs={"cleanup.policy": "compact"})
    load.offsets(kafka.bootstrap, TOPIC)
    kafka.stop()
    replace_folder(tmp_path / "data" / f"{TOPIC}-0", kafka.directory / f"{TOPIC}-0", keep="partition.metadata")
    for checkpoint in (
        "cleaner-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ):
        shutil.copyfile(tmp_path / "data" / checkpoint, kafka.directory / checkpoint)
    kafka.start()
    assert load.offsets(kafka.bootstrap, TOPIC) == (0, 2 * load.COUNT)
    assert load.read(kafka.bootstrap, TOPIC, 0, len(left)) == left
    more = load.produce(kafka.bootstrap, TOPIC, first_offset=2 * load.COUNT, codecs=["lz4"])
    assert load.read(kafka.bootstrap, TOPIC, 2 * load.COUNT, 2 * load.COUNT + load.PER_CODEC) == more
    assert "corrupt" not in kafka.words().lower()
