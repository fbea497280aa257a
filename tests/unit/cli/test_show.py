"""Which records of a fetched answer are shown.

Those of the range, without markers, and without aborted ones on request.
"""

from __future__ import annotations

import pytest

from lowtide.admin.records import FetchedRecords
from lowtide.cli.outcome import CommandError
from lowtide.cli.record_format import Form
from lowtide.cli.show import ShowRequest, readable
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.records import Record
from lowtide.protocol.types import TopicPartition
from tests.markers import build_end_transaction_marker

KEY = TopicPartition("t", 0)


def batch(base_offset: int, count: int, producer_id: int = -1) -> bytes:
    rows = [(1000 + each, b"k", b"%d" % (base_offset + each), ()) for each in range(count)]
    if producer_id < 0:
        return build_batch(rows, base_offset=base_offset)
    return build_batch(
        rows, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )


def marker(offset: int, producer_id: int, kind: ControlRecordType) -> bytes:
    return build_end_transaction_marker(
        ControlRecord(kind, 0), timestamp_ms=1, producer_id=producer_id, producer_epoch=0, base_offset=offset
    )


def fetched(records: bytes, *aborted: tuple[int, int]) -> FetchedRecords:
    return FetchedRecords(
        records=records, log_start_offset=0, high_watermark=100, last_stable_offset=100, aborted=aborted
    )


def wanted(**changed: object) -> ShowRequest:
    values: dict = {
        "named": False,
        "end": 100,
        "count": 100,
        "form": Form.TEXT,
        "control": False,
        "read_committed": True,
    }
    return ShowRequest(**(values | changed))


def readable_rows(answer: FetchedRecords, offset: int, request: ShowRequest) -> tuple[list, int]:
    return readable(answer, KEY, offset, request)


def offsets(rows: list) -> list[object]:
    return [row.offset if isinstance(row, Record) else f"{row.kind} at {row.offset}" for row in rows]


TRANSACTIONS = (
    batch(0, 2, producer_id=7)
    + batch(2, 2, producer_id=8)
    + marker(4, 7, ControlRecordType.ABORT)
    + batch(5, 1, producer_id=7)
    + marker(6, 8, ControlRecordType.COMMIT)
    + marker(7, 7, ControlRecordType.COMMIT)
    + batch(8, 2)
)


def test_aborted_records_are_left_out():
    """One producer aborts a transaction and commits the next; another producer's is in between."""
    rows, following = readable_rows(fetched(TRANSACTIONS, (7, 0)), 0, wanted())
    assert offsets(rows) == [2, 3, 5, 8, 9]
    assert following == 10


def test_read_uncommitted_shows_everything():
    """Brokers return aborted transactions only to readers of committed records."""
    rows, _ = readable_rows(fetched(TRANSACTIONS), 0, wanted(control=True))
    assert offsets(rows) == [0, 1, 2, 3, "abort at 4", 5, "commit at 6", "commit at 7", 8, 9]


def test_the_range_is_kept_within_batches():
    """A first batch may begin below it, a last one end behind it."""
    rows, following = readable_rows(fetched(batch(0, 5) + batch(5, 5)), 3, wanted(end=7))
    assert offsets(rows) == [3, 4, 5, 6]
    assert following == 10


def test_a_batch_that_is_cut_is_fetched_again():
    rows, following = readable_rows(fetched(batch(0, 5) + batch(5, 5)[:-1]), 0, wanted())
    assert (offsets(rows), following) == ([0, 1, 2, 3, 4], 5)


def test_nothing_is_shown_of_a_batch_with_a_wrong_crc():
    content = bytearray(batch(0, 5))
    content[-1] ^= 1
    with pytest.raises(CommandError, match="t-0: the batch at offset 0 can't be read: its CRC is wrong"):
        readable_rows(fetched(bytes(content)), 0, wanted())
