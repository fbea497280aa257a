"""`lowtide dump-log`: its output for each kind of file, and the positions of damage."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from uuid import UUID

import pytest

from lowtide.cli.dump_log import DumpRequest, dump_file
from lowtide.cli.main import main
from lowtide.cli.record_format import Form
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.erasure_record import ErasureRecord
from lowtide.protocol.group_records import OffsetCommitValue, encode_offset_commit
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.transaction_records import TransactionLogValue, encode_transaction
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.storage.checkpoint import (
    MetaProperties,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from lowtide.storage.log.markers import make_erasure
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.producer_state import ProducerStateManager
from lowtide.storage.log.producers.transaction_index import encode_aborted
from lowtide.storage.log.segments.index import OffsetIndex, TimeIndex
from lowtide.storage.log_start.journal_image import encode_journal
from tests.markers import build_end_transaction_marker
from tests.unit.storage.log.producing import header_of

TIME_MS = 1_600_000_000_000
SEGMENT = "00000000000000000100.log"


def batch(base_offset: int, count: int = 3, **options) -> bytes:
    rows = [(TIME_MS + each, b"k%d" % each, b"v%d" % (base_offset + each), ()) for each in range(count)]
    return build_batch(rows, base_offset=base_offset, leader_epoch=2, **options)


SIZE = len(batch(100))


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    folder = tmp_path / "flights-0"
    folder.mkdir()
    return folder


def dump(capsys, *arguments: object, code: int = 0) -> str:
    assert main(["dump-log", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def rows(capsys, *arguments: object, code: int = 0) -> list[dict]:
    return [json.loads(line) for line in dump(capsys, "--output", "json", *arguments, code=code).splitlines()]


def test_batches_and_records_are_printed(partition, capsys):
    """Text has lines with timestamps as dates; records are shown only on request."""
    (partition / SEGMENT).write_bytes(
        batch(100) + batch(103, 1, producer_id=7, producer_epoch=1, base_sequence=4, is_transactional=True)
    )
    text = dump(capsys, partition / SEGMENT)
    assert text.splitlines() == [
        str(partition / SEGMENT),
        f"  byte 0, offsets 100 to 102, 3 records, {SIZE} bytes, leader epoch 2, up to 2020-09-13T12:26:40.002Z",
        (
            f"  byte {SIZE}, offsets 103 to 103, 1 record, {len(batch(100, 1))} bytes, leader epoch 2, up to "
            "2020-09-13T12:26:40.000Z, "
            "producer 7 epoch 1 from sequence 4, transactional"
        ),
    ]
    assert "    101  2020-09-13T12:26:40.001Z  key 'k1'  value 'v101'\n" in dump(
        capsys, "--records", partition / SEGMENT
    )


def test_programs_get_a_line_for_each_object(partition, capsys):
    """The keys are stable: scripts rely on them."""
    (partition / SEGMENT).write_bytes(batch(100, 1, compression=Compression.LZ4))
    (told, record) = rows(capsys, "--records", partition)
    assert told == {
        "file": str(partition / SEGMENT),
        "kind": "batch",
        "position": 0,
        "bytes": len((partition / SEGMENT).read_bytes()),
        "base_offset": 100,
        "last_offset": 100,
        "record_count": 1,
        "leader_epoch": 2,
        "timestamp_type": "create_time",
        "base_timestamp": TIME_MS,
        "max_timestamp": TIME_MS,
        "compression": "lz4",
        "producer_id": None,
        "producer_epoch": None,
        "base_sequence": None,
        "is_transactional": False,
        "is_control": False,
        "marker": None,
        "erasure": None,
        "crc": told["crc"],
        "fault": None,
    }
    assert (record["kind"], record["offset"], record["key"], record["value"], record["headers"]) == (
        "record",
        100,
        "k0",
        "v100",
        [],
    )


def test_an_erasure_shows_what_it_names(partition, capsys):
    """Protects whoever must show, from a copy of the files, which records were erased."""
    record = ErasureRecord(UUID(int=7), (OffsetRange(3, 3), OffsetRange(8, 12)))
    batch = make_erasure(record, TIME_MS)
    prefix = struct.pack(">qii", 100, batch.size_bytes - 12, 2)
    (partition / SEGMENT).write_bytes(prefix + b"".join(batch.tail))
    (row,) = rows(capsys, partition)
    assert row["erasure"] == {"id": str(UUID(int=7)), "offsets": [[3, 3], [8, 12]]}
    assert f"erasure {UUID(int=7)} of offsets 3, 8-12" in dump(capsys, partition)


def test_markers_show_how_a_transaction_ended(partition, capsys):
    marker = build_end_transaction_marker(
        ControlRecord(ControlRecordType.ABORT, 0),
        timestamp_ms=TIME_MS,
        producer_id=7,
        producer_epoch=1,
        base_offset=100,
    )
    (partition / SEGMENT).write_bytes(marker)
    assert rows(capsys, partition)[0]["marker"] == "abort"
    assert "abort marker" in dump(capsys, partition)


def test_a_range_of_offsets_is_selected(partition, capsys):
    """Whole batches that overlap it, and their records within it."""
    (partition / SEGMENT).write_bytes(batch(100) + batch(103) + batch(106))
    told = rows(capsys, "--records", "--from", 104, "--to", 106, partition)
    assert [(each["kind"], each.get("base_offset", each.get("offset"))) for each in told] == [
        ("batch", 103),
        ("record", 104),
        ("record", 105),
    ]


def test_a_flipped_bit_is_reported_and_later_batches_are_read(partition, capsys):
    """The length is correct: another batch begins behind it."""
    content = bytearray(batch(100) + batch(103))
    content[80] ^= 1
    (partition / SEGMENT).write_bytes(content)
    told = rows(capsys, partition, code=1)
    assert [(each["position"], each["fault"]) for each in told] == [(0, "byte 0: the CRC is wrong"), (SIZE, None)]
    assert "FAULT: byte 0: the CRC is wrong" in dump(capsys, partition, code=1)


@pytest.mark.parametrize("place", [8, 11, 16])
def test_behind_a_damaged_header_the_next_sound_batch_is_found(partition, capsys, place):
    """If length or magic is damaged, the end of the batch is unknown."""
    content = bytearray(batch(100) + batch(103) + batch(106))
    content[SIZE + place] ^= 0x41
    (partition / SEGMENT).write_bytes(content)
    told = rows(capsys, partition, code=1)
    assert [(each["kind"], each["position"]) for each in told] == [("batch", 0), ("damage", SIZE), ("batch", 2 * SIZE)]
    assert told[1]["bytes"] == SIZE
    assert told[1]["fault"].startswith(f"bytes {SIZE} to {2 * SIZE - 1}: ")


def test_a_cut_file_reports_how_much_is_there(partition, capsys):
    """A file cut at any length raises no exception."""
    content = batch(100) + batch(103)
    wanted = DumpRequest(records=True, form=Form.TEXT, first=0, end=None)
    for length in range(1, len(content)):
        (partition / SEGMENT).write_bytes(content[:length])
        last = list(dump_file(OsFileSystem(), str(partition / SEGMENT), wanted))[-1]
        if content[length // SIZE * SIZE : length].strip(b"\0"):  # The first bytes of an offset are zeros.
            assert last.kind == "damage"
    assert (
        rows(capsys, partition, code=1)[-1]["fault"]
        == f"bytes {SIZE} to {2 * SIZE - 2}: a batch is cut: {SIZE - 1} of {SIZE} bytes exist"
    )


def test_zeros_behind_the_last_batch_are_no_damage(partition, capsys):
    """Files are preallocated."""
    (partition / SEGMENT).write_bytes(batch(100) + bytes(3_000_000))
    assert [(each["kind"], each["bytes"]) for each in rows(capsys, partition)] == [
        ("batch", SIZE),
        ("unwritten", 3_000_000),
    ]


def test_random_bytes_are_one_damage(partition, capsys):
    """They may look like the start of a batch at many positions."""
    (partition / SEGMENT).write_bytes(batch(100) + bytes(range(256)) * 8 + bytes((2,)) * 1000 + batch(103))
    assert [each["kind"] for each in rows(capsys, partition, code=1)] == ["batch", "damage", "batch"]


def test_offsets_that_go_back_are_reported(partition, capsys):
    (partition / SEGMENT).write_bytes(batch(103) + batch(100))
    assert (
        rows(capsys, partition, code=1)[1]["fault"]
        == f"byte {SIZE}: it begins at offset 100, but 106 or a later one must follow"
    )


def test_records_that_contradict_themselves_are_reported(partition, capsys):
    """Their CRC is right: the writer wrote them so."""
    whole = bytearray(batch(100, 1))
    whole[61] = 0x7E
    import struct

    from lowtide.protocol.crc32c import crc32c

    whole[17:21] = struct.pack(">I", crc32c(bytes(whole[21:])))
    (partition / SEGMENT).write_bytes(whole)
    assert "its records can't be read" in rows(capsys, "--records", partition, code=1)[0]["fault"]


def test_records_of_coordinators_are_decoded(tmp_path, capsys):
    """Committed offsets, groups, transactions; tombstones; and any other record is reported as damage."""
    folder = tmp_path / "__consumer_offsets-3"
    folder.mkdir()
    commit = encode_offset_commit("g", "t", 3, OffsetCommitValue(offset=7, metadata="", commit_timestamp=9))
    gone = encode_offset_commit("g", "t", 4, None)
    records = [(TIME_MS, key, value, ()) for key, value in (commit, gone, (b"\0\1\0", b"x"))]
    (folder / SEGMENT).write_bytes(build_batch(records, base_offset=100))
    text = dump(capsys, "--records", folder, code=1)
    assert 'offset group g topic t partition 3: {"offset":7,' in text
    assert "offset group g topic t partition 4: deleted" in text
    assert "unreadable: " in text
    told = rows(capsys, "--records", folder, code=1)
    assert told[1]["decoded"]["value"]["offset"] == 7
    assert told[3]["fault"].startswith("offset 102: ")


def test_records_of_transactions_are_decoded(tmp_path, capsys):
    folder = tmp_path / "__transaction_state-0"
    folder.mkdir()
    value = TransactionLogValue(
        producer_id=5,
        producer_epoch=1,
        transaction_timeout_ms=60_000,
        transaction_status=4,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=TIME_MS,
        transaction_start_timestamp_ms=TIME_MS,
    )
    key, content = encode_transaction("mover", value)
    (folder / SEGMENT).write_bytes(build_batch([(TIME_MS, key, content, ())], base_offset=100))
    said = rows(capsys, "--records", folder)[1]["decoded"]
    assert (said["type"], said["transactional_id"], said["value"]["transaction_status"]) == (
        "transaction",
        "mover",
        "CompleteCommit",
    )


def test_control_characters_are_escaped(partition, capsys):
    """A value may have a sequence that clears a screen."""
    (partition / SEGMENT).write_bytes(
        build_batch([(TIME_MS, None, b"\x1b[2J\xff", ((b"h\x07", None),))], base_offset=100)
    )
    assert "key null  value '\\x1b[2J\\xff'  header h\\x07=null" in dump(capsys, "-r", partition)
    assert "value 1b5b324aff" in dump(capsys, "-r", "--format", "hex", partition)


def test_json_in_values_stays_json(partition, capsys):
    (partition / SEGMENT).write_bytes(build_batch([(TIME_MS, b"k", b'{"a": [1]}', ())], base_offset=100))
    record = rows(capsys, "-r", "--format", "json", partition)[1]
    assert (record["key"], record["value"]) == ("k", {"a": [1]})


def test_the_files_beside_a_segment_are_printed(partition, capsys):
    offsets, times = OffsetIndex(100), TimeIndex(100)
    offsets.append(115, 4160)
    times.maybe_append(TIME_MS, 115)
    producers = ProducerStateManager()
    producers.update(header_of(7, 0, 0, 2, max_timestamp=5), base_offset=40, now_ms=5)
    (partition / SEGMENT.replace(".log", ".index")).write_bytes(offsets.encode() + bytes(16))
    (partition / SEGMENT.replace(".log", ".timeindex")).write_bytes(times.encode())
    (partition / SEGMENT.replace(".log", ".txnindex")).write_bytes(
        encode_aborted([CompletedTransaction(7, 140, 142, True, 143)])
    )
    (partition / SEGMENT.replace(".log", ".snapshot")).write_bytes(producers.encode_snapshot())
    (partition / "leader-epoch-checkpoint").write_bytes(encode_epochs([(0, 0), (3, 120)]))
    (partition / "partition.metadata").write_bytes(encode_partition_metadata(bytes(range(16))))
    told = [(each["kind"], each) for each in rows(capsys, partition)]
    assert [kind for kind, _ in told] == [
        "offset-index", "unwritten", "producer", "time-index", "aborted-transaction", "leader-epoch",
        "leader-epoch", "partition-metadata",
    ]  # fmt: skip
    assert (told[0][1]["offset"], told[0][1]["position"]) == (115, 4160)
    assert (told[2][1]["producer_id"], told[2][1]["last_sequence"], told[2][1]["last_offset"]) == (7, 1, 41)
    assert (told[4][1]["first_offset"], told[4][1]["last_offset"]) == (140, 142)
    assert (told[6][1]["leader_epoch"], told[6][1]["start_offset"]) == (3, 120)
    assert told[7][1]["topic_id"] == "AAECAwQFBgcICQoLDA0ODw"


def test_the_files_of_a_directory_are_printed(tmp_path, capsys):
    properties = MetaProperties(cluster_id="c", node_id=3, directory_id=bytes(range(16)))
    (tmp_path / "meta.properties").write_bytes(encode_meta_properties(properties))
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(encode_offsets({TopicPartition("t", 1): 7}))
    image, _ = encode_journal([(bytes(range(16)), 2, 300)], first_sequence=4, exported_crc=None)
    (tmp_path / "lowtide-log-start.journal").write_bytes(image)
    told = {each["kind"]: each for each in rows(capsys, tmp_path)}
    assert told["log-start"]["offset"] == 300
    assert told["offset"]["topic"] == "t"
    assert told["meta-properties"]["node_id"] == 3
    assert told["journal"]["torn"] is False


@pytest.mark.parametrize(
    "name",
    [
        SEGMENT.replace(".log", ".index"),
        SEGMENT.replace(".log", ".timeindex"),
        SEGMENT.replace(".log", ".txnindex"),
        SEGMENT.replace(".log", ".snapshot"),
        "leader-epoch-checkpoint",
        "partition.metadata",
        "lowtide-log-start.journal",
        "replication-offset-checkpoint",
    ],
)
def test_each_small_file_with_invalid_contents_is_damage(partition, capsys, name):
    """For any contents it is reported with a reason, and raises no exception."""
    for content in (b"nonsense!\xff", b"\x7f" * 37, b"0\n2\nx\n"):
        (partition / name).write_bytes(content)
        told = rows(capsys, partition, code=1)
        assert any(each["fault"] for each in told)


def test_index_entries_that_do_not_rise_are_reported(partition, capsys):
    index = OffsetIndex(100)
    index.append(115, 4160)
    (partition / SEGMENT.replace(".log", ".index")).write_bytes(index.encode() * 2)
    assert [each["fault"] for each in rows(capsys, partition, code=1)] == [
        None,
        "entry 1 is not above the one before",
    ]


def test_index_entries_are_compared_with_the_segment(partition, capsys):
    """A position behind the offset is reported: readers would scan from there without success."""
    (partition / SEGMENT).write_bytes(batch(100) + batch(103) + batch(106))
    index = OffsetIndex(100)
    for offset, position in ((101, SIZE), (104, SIZE + 5), (108, 2 * SIZE), (120, 90 * SIZE)):
        index.append(offset, position)
    (partition / SEGMENT.replace(".log", ".index")).write_bytes(index.encode())
    told = [each["fault"] for each in rows(capsys, partition, code=1) if each["kind"] == "offset-index"]
    assert told == [
        f"at byte {SIZE} the segment has a batch that begins at 103",
        f"at byte {SIZE + 5} the segment has no batch",
        None,
        f"at byte {90 * SIZE} the segment has no batch",
    ]


def refused(capsys, *arguments: object) -> str:
    assert main(["dump-log", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_other_files_are_refused(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("dear")
    assert refused(capsys, tmp_path / "gone") == f"lowtide dump-log: there is no file {tmp_path / 'gone'}.\n"
    assert (
        refused(capsys, tmp_path / "letter.txt")
        == f"lowtide dump-log: {tmp_path / 'letter.txt'} is not a known file of a log.\n"
    )
    assert refused(capsys, tmp_path) == f"lowtide dump-log: {tmp_path} contains no file of a log.\n"


def test_nothing_is_changed(partition, capsys):
    """The files are unchanged, and none is added."""
    (partition / SEGMENT).write_bytes(batch(100)[:-1])
    (partition / SEGMENT.replace(".log", ".index")).write_bytes(b"nonsense!")
    before = {path.name: path.read_bytes() for path in partition.iterdir()}
    dump(capsys, partition, code=1)
    assert {path.name: path.read_bytes() for path in partition.iterdir()} == before
