"""The page of records: some records of a partition from an offset or a time on, or the last ones before an offset.

Sizes are limited.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
from lowtide.admin.records import FetchedRecords, LastRows, last_rows
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.console import arguments
from lowtide.console.answers import bad, sentence_of
from lowtide.console.arguments import Parameters
from lowtide.protocol.control_records import ControlRecordType, read_control_record
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import Record, check_crc, iterate_batches, iterate_records
from lowtide.protocol.types import Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

COUNT_MAX: Final = 200
FETCH_BYTES: Final = 256 * 1024
"""The bytes of a fetch; a larger first batch is returned whole."""

RECORDS_BYTES_MAX: Final = 16 << 20
"""The largest decompressed batch that is read."""

SHOWN_BYTES_MAX: Final = 8 * 1024
"""The shown bytes of a key, a value or a header; longer ones are cut."""

HEADERS_MAX: Final = 50
PLACES: Final = ("offset", "time", "start", "end", "before")


async def records_page(client: AdminClient, given: Parameters) -> dict[str, Any]:
    """Returns the page. Errors: RefusedError, AdminError."""
    key = arguments.partition(given)
    count = arguments.number(given, "count", 1, COUNT_MAX, default=50)
    starts = (await client.list_offsets({key: OffsetSpec.EARLIEST}))[key]
    ends = (await client.list_offsets({key: OffsetSpec.LATEST}))[key]
    for each in (starts, ends):
        if isinstance(each, AdminError):
            raise each
    assert isinstance(starts, ListedOffset)
    assert isinstance(ends, ListedOffset)
    place, is_complete = arguments.choice(given, "place", PLACES, "end"), True
    if place in {"end", "before"}:
        before = ends.offset if place == "end" else min(_offset(given, ends.offset), ends.offset)
        last = await _last(client, key, starts.offset, before, count)
        following, is_complete = max(before, starts.offset), last.is_complete
        rows = [_row(each) for each in last.rows]
        first = rows[0]["offset"] if len(rows) == count else min(last.first, following)
    else:
        first = min(max(await _first(client, key, given, ends.offset, place), starts.offset), ends.offset)
        rows, following = await _read(client, key, first, ends.offset, count) if first < ends.offset else ([], first)
    return {
        "topic": key.topic,
        "partition": key.partition,
        "log_start": starts.offset,
        "high_watermark": ends.offset,
        "first": first,
        "next": following,
        "records": rows,
        "complete": is_complete,
    }


def _offset(given: Parameters, end: Offset) -> Offset:
    """Returns the offset that was given; `end` for the end. Errors: RefusedError."""
    try:
        wanted = parse_offset(arguments.text(given, "value", longest=64))
    except ValueError as error:
        raise bad(sentence_of(error)) from None
    return wanted if wanted >= 0 else end


async def _first(client: AdminClient, key: TopicPartition, given: Parameters, end: Offset, place: str) -> Offset:
    """Returns the first offset to show. Errors: RefusedError, AdminError."""
    if place == "start":
        return 0
    if place == "offset":
        return _offset(given, end)
    try:
        at = Timestamp(parse_time(arguments.text(given, "value", longest=64)))
    except ValueError as error:
        raise bad(sentence_of(error)) from None
    found = (await client.list_offsets({key: at}))[key]
    if isinstance(found, AdminError):
        raise found
    return found.offset if found.offset >= 0 else end


async def _last(
    client: AdminClient, key: TopicPartition, log_start: Offset, before: Offset, count: int
) -> LastRows[Record | dict[str, Any]]:
    """Returns the last records and markers before an offset. Errors: RefusedError, AdminError."""

    async def fetch(offset: Offset) -> FetchedRecords:
        return await client.fetch_records(key, offset, max_bytes=FETCH_BYTES)

    def rows(fetched: FetchedRecords, first: Offset, end: Offset) -> tuple[list[Record | dict[str, Any]], Offset]:
        try:
            return records_of(fetched.records, first, end, end - first)
        except ProtocolError as error:
            raise bad(f"A batch of {key} before offset {end} can't be read: {error}.") from error

    return await last_rows(fetch, rows, log_start, before, count)


async def _read(
    client: AdminClient, key: TopicPartition, first: Offset, end: Offset, count: int
) -> tuple[list[dict[str, Any]], Offset]:
    """Reads rows; returns them with the offset after them. Errors: RefusedError, AdminError."""
    try:
        fetched = await client.fetch_records(key, first, max_bytes=FETCH_BYTES)
    except BrokerAnsweredError as error:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise bad(f"{key} has no offset {first} any more: it was deleted.") from None
        raise
    try:
        return rows_of(fetched.records, first, end, count)
    except ProtocolError as error:
        raise bad(f"A batch of {key} at offset {first} or later can't be read: {error}.") from error


def rows_of(batches: bytes | memoryview, first: Offset, end: Offset, count: int) -> tuple[list[dict[str, Any]], Offset]:
    """Returns at most `count` rows from `first` to `end` (exclusive), and the offset after the last.

    Errors: ProtocolError, RefusedError.
    """
    found, following = records_of(batches, first, end, count)
    return [_row(each) for each in found], following


def records_of(
    batches: bytes | memoryview, first: Offset, end: Offset, count: int
) -> tuple[list[Record | dict[str, Any]], Offset]:
    """Like `rows_of`, with records as they are, and rows of markers."""
    rows: list[Record | dict[str, Any]] = []
    following = first
    for position, header in iterate_batches(batches):
        if not check_crc(batches, position, header):
            raise bad(f"The CRC of the batch at offset {header.base_offset} is wrong.")
        batch = memoryview(batches)[position : position + header.size_bytes]
        if header.is_control:
            if first <= header.base_offset < end:
                rows.append(_marker(batch, header.base_offset, header.max_timestamp, header.producer_id))
        else:
            for record in iterate_records(batch, max_bytes=RECORDS_BYTES_MAX):
                if first <= record.offset < end and len(rows) < count:
                    rows.append(record)
        if len(rows) >= count:
            return rows[:count], _offset_of(rows[count - 1]) + 1
        following = max(following, min(header.next_offset, end))
    if not rows and following == first:
        raise bad(f"The batch at offset {first} is too large to show.")
    return rows, following


def _marker(batch: memoryview, offset: Offset, timestamp: int, producer_id: int) -> dict[str, Any]:
    marker = read_control_record(batch, max_bytes=RECORDS_BYTES_MAX)
    kind = None if marker is None else "commit" if marker.type is ControlRecordType.COMMIT else "abort"
    return {"offset": offset, "timestamp": timestamp, "marker": kind or "control", "producer_id": producer_id}


def _offset_of(row: Record | dict[str, Any]) -> Offset:
    return row["offset"] if isinstance(row, dict) else row.offset


def _row(record: Record | dict[str, Any]) -> dict[str, Any]:
    if isinstance(record, dict):
        return record
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": content(record.key),
        "value": content(record.value),
        "headers": [
            {"name": name.decode("utf-8", "backslashreplace")[:SHOWN_BYTES_MAX], "value": content(value)}
            for name, value in record.headers[:HEADERS_MAX]
        ],
        "headers_left_out": max(0, len(record.headers) - HEADERS_MAX),
    }


def content(value: bytes | None) -> dict[str, Any] | None:
    """Returns bytes for the page: their number, hex digits, and text or JSON if they are valid."""
    if value is None:
        return None
    shown = value[:SHOWN_BYTES_MAX]
    described: dict[str, Any] = {"bytes": len(value), "hex": shown.hex()}
    try:
        described["text"] = value.decode("utf-8")[:SHOWN_BYTES_MAX]
    except UnicodeDecodeError:
        return described
    if len(value) <= SHOWN_BYTES_MAX and value[:1] in (b"{", b"["):
        try:
            described["json"] = json.dumps(json.loads(described["text"]), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return described
    return described
