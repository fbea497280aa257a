"""Kafka's own tool reads what compaction leaves: batches with gaps, empty ones, tombstones with their time, in every codec."""

from __future__ import annotations

from pathlib import Path

from lowtide.protocol.compression import Compression
from lowtide.protocol.records import build_batch, iterate_records, read_batch_header
from lowtide.storage.compaction import CompactionRules, LastRecord, compact_batch, note_batch
from lowtide.storage.offset_map import OffsetMap

from .kafka import dump

LIMIT = 1 << 20
ROOM = 1 << 20


def write_compacted(path: Path) -> list[bytes]:
    """Batches of four records, in every codec; some go, one is left empty, the last ones have tombstones."""
    batches = []
    for number, codec in enumerate((*Compression, *Compression)):
        rows = [(1000 + number, f"k{number + row}".encode(), None if row == 3 else f"v{number}-{row}".encode(), ()) for row in range(4)]
        producer = {"producer_id": number, "producer_epoch": 0, "base_sequence": 5}
        batches.append(build_batch(rows, base_offset=4 * number, compression=codec, leader_epoch=2, **producer))
    headers = [read_batch_header(batch) for batch in batches]
    offsets = OffsetMap(ROOM)
    for header, batch in zip(headers, batches, strict=True):
        assert note_batch(offsets, header, batch, 0, aborted=False, decompressed_bytes_max=LIMIT)
    covered = build_batch([(1, b"k0", b"again", ())] * 4, base_offset=40)
    offsets.put(b"k0", 43)
    rules = CompactionRules(10**12, 1000, {0: LastRecord(3, 0)}, LIMIT)
    found = [compact_batch(offsets, header, batch, rules, discarded=False) for header, batch in zip(headers, batches, strict=True)]
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
