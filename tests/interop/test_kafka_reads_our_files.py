"""Kafka's own programs read Lowtide's files: DumpLogSegments file by file, and the broker as its own log directory."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from lowtide import BlockingAdminClient, LowtideCluster, TopicPartition
from lowtide.admin import ErasedRecords

from . import load
from .kafka import Dump, Kafka, dump, replace_folder

pytestmark = pytest.mark.interop

TOPIC = "interop"
DELETED = 1234
CONFIG = {"log.segment.bytes": "1048576", "log.index.interval.bytes": "512", "log.segment.delete.delay.ms": "0"}


def write_a_directory(directory: Path, *, delete: bool, erase: bool = False) -> list[load.Entry]:
    """Makes a Lowtide broker write every codec into several segments and stops; return the records."""
    with LowtideCluster(data_directory=directory, config=CONFIG) as cluster:
        load.create_topic(cluster.bootstrap, TOPIC)
        written = load.produce(cluster.bootstrap, TOPIC)
        if delete:
            segments = len(list((directory / f"{TOPIC}-0").glob("*.log")))
            if erase:
                with BlockingAdminClient(cluster.bootstrap) as admin:
                    (erased,) = admin.delete_records({TopicPartition(TOPIC, 0): DELETED}, erase=True).values()
                assert isinstance(erased, ErasedRecords), erased
                return written
            load.delete_below(cluster.bootstrap, TOPIC, DELETED)
            wait_for_fewer(directory / f"{TOPIC}-0", segments)
            wait_for_hole(directory / f"{TOPIC}-0", written[DELETED - 100])
    return written


def wait_for_fewer(folder: Path, segments: int) -> None:
    """Waits until a segment's file is removed."""
    deadline = time.monotonic() + load.DEADLINE_S
    while len(list(folder.glob("*.log"))) >= segments:
        assert time.monotonic() < deadline, "no segment was removed"
        time.sleep(0.05)


def wait_for_hole(folder: Path, deleted: load.Entry) -> None:
    """Waits until an uncompressed record is gone from the segment that holds the log start."""
    deadline = time.monotonic() + load.DEADLINE_S
    while (first := min(folder.glob("*.log"))).read_bytes()[61:4096] != bytes(
        4035
    ) or deleted.value in first.read_bytes():
        assert time.monotonic() < deadline, "no hole was found"
        time.sleep(0.05)


def segment_files(folder: Path) -> list[Path]:
    """Returns all segments, indexes and snapshots in the order of their offsets."""
    files = [path for kind in ("log", "index", "timeindex", "snapshot") for path in sorted(folder.glob(f"*.{kind}"))]
    assert {path.suffix for path in files} == {".log", ".index", ".timeindex", ".snapshot"}, files
    return files


def check_records(found: Dump, expected: list[load.Entry], *, has_hole: bool = False) -> None:
    """The tool reports nothing as invalid; with a hole, only missing offsets."""
    gaps = ("Non-consecutive offsets", " is followed by ") if has_hole else ()
    assert [line for line in found.invalid if not any(words in line for words in gaps)] == []
    assert [(record.offset, record.key, record.payload) for record in found.records] == [
        (entry.offset, entry.key.decode(), entry.value.decode()) for entry in expected
    ]


def test_dump_log_segments_finds_every_record_and_no_fault(jars: Path, tmp_path: Path) -> None:
    written = write_a_directory(tmp_path / "data", delete=False)
    folder = tmp_path / "data" / f"{TOPIC}-0"
    assert len(list(folder.glob("*.log"))) > 2
    check_records(dump(jars, segment_files(folder)), written)


def test_the_checks_see_a_damaged_log_and_a_damaged_index(jars: Path, tmp_path: Path) -> None:
    """The control case: one byte of a batch, and one entry of an index, are enough for an error."""
    write_a_directory(tmp_path / "data", delete=False)
    folder = tmp_path / "data" / f"{TOPIC}-0"
    log, index = min(folder.glob("*.log")), min(folder.glob("*.index"))
    assert dump(jars, [log, index]).invalid == []
    for damaged, position in ((log, 400), (index, 15)):
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        assert dump(jars, [log, index]).invalid != []
        damaged.write_bytes(whole)


def test_dump_log_segments_reads_what_a_delete_left(jars: Path, tmp_path: Path) -> None:
    """Whole segments below the start are removed; the one that holds it begins with an empty batch."""
    written = write_a_directory(tmp_path / "data", delete=True)
    folder = tmp_path / "data" / f"{TOPIC}-0"
    base_offset = min(int(path.stem) for path in folder.glob("*.log"))
    assert 0 < base_offset <= DELETED
    found = dump(jars, segment_files(folder))
    first = found.records[0].offset
    assert base_offset < first <= DELETED
    check_records(found, written[first:], has_hole=True)
    assert "isvalid: false" not in found.text


def test_dump_log_segments_reads_what_was_erased(jars: Path, tmp_path: Path) -> None:
    """The batch across the log start begins with the first record that is kept."""
    written = write_a_directory(tmp_path / "data", delete=True, erase=True)
    found = dump(jars, segment_files(tmp_path / "data" / f"{TOPIC}-0"))
    assert found.records[0].offset == DELETED
    check_records(found, written[DELETED:], has_hole=True)
    assert "isvalid: false" not in found.text


def test_dump_log_segments_reads_a_log_after_an_unclean_stop(jars: Path, tmp_path: Path) -> None:
    """A copy of the files while the broker runs, which is the state after SIGKILL: after recovery they are valid."""
    live, copied = tmp_path / "live", tmp_path / "copied"
    with LowtideCluster(data_directory=live, config=CONFIG) as cluster:
        load.create_topic(cluster.bootstrap, TOPIC)
        written = load.produce(cluster.bootstrap, TOPIC)
        shutil.copytree(live, copied)
    with LowtideCluster(data_directory=copied, config=CONFIG) as cluster:
        written += load.produce(cluster.bootstrap, TOPIC, first_offset=load.COUNT, codecs=["none"])
    check_records(dump(jars, segment_files(copied / f"{TOPIC}-0")), written)


@pytest.mark.parametrize("erase", [False, True])
def test_kafka_serves_a_partition_that_lowtide_wrote(kafka: Kafka, tmp_path: Path, *, erase: bool) -> None:
    """KRaft knows topics only by its own metadata, so Kafka creates the topic and our files replace its own.

    The topic id in `partition.metadata` stays Kafka's; segments, indexes, snapshots, epochs and the log start offset
    are ours.
    """
    written = write_a_directory(tmp_path / "data", delete=True, erase=erase)
    kafka.start()
    load.create_topic(kafka.bootstrap, TOPIC)
    load.offsets(kafka.bootstrap, TOPIC)
    kafka.stop()
    replace_folder(tmp_path / "data" / f"{TOPIC}-0", kafka.directory / f"{TOPIC}-0", keep="partition.metadata")
    for checkpoint in (
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ):
        shutil.copyfile(tmp_path / "data" / checkpoint, kafka.directory / checkpoint)
    kafka.start()
    assert load.offsets(kafka.bootstrap, TOPIC) == (DELETED, load.COUNT)
    assert load.read(kafka.bootstrap, TOPIC, DELETED, load.COUNT) == written[DELETED:]
    for offset in (DELETED, 1777, load.COUNT - 1):
        assert load.offset_for_time(kafka.bootstrap, TOPIC, written[offset].timestamp_ms) == offset
    more = load.produce(kafka.bootstrap, TOPIC, first_offset=load.COUNT, codecs=["lz4"])
    assert load.read(kafka.bootstrap, TOPIC, load.COUNT, load.COUNT + load.PER_CODEC) == more
    assert "corrupt" not in kafka.words().lower()
