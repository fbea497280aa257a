"""The page of records: some records of a partition from an offset or a time on. Sizes are limited."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
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
PLACES: Final = ("offset", "time", "start", "end")


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
    first = min(max(await _first(client, key, given, ends.offset, count), starts.offset), ends.offset)
    rows, following = await _read(client, key, first, ends.offset, count) if first < ends.offset else ([], first)
    return {
        "topic": key.topic,
        "partition": key.partition,
        "log_start": starts.offset,
        "high_watermark": ends.offset,
        "first": first,
        "next": following,
        "records": rows,
    }


async def _first(client: AdminClient, key: TopicPartition, given: Parameters, end: Offset, count: int) -> Offset:
    """Returns the first offset to show. Errors: RefusedError, AdminError."""
    place = arguments.choice(given, "place", PLACES, "end")
    if place == "start":
        return 0
    if place == "end":
        return max(0, end - count)
    text = arguments.text(given, "value", longest=64)
    try:
        if place == "offset":
            wanted = parse_offset(text)
            return wanted if wanted >= 0 else end
        at = Timestamp(parse_time(text))
    except ValueError as error:
        raise bad(sentence_of(error)) from None
    found = (await client.list_offsets({key: at}))[key]
    if isinstance(found, AdminError):
        raise found
    return found.offset if found.offset >= 0 else end


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
    rows: list[dict[str, Any]] = []
    following = first
    for position, header in iterate_batches(batches):
        if not check_crc(batches, position, header):
            raise bad(f"The CRC of the batch at offset {header.base_offset} is wrong.")
        batch = memoryview(batches)[position : position + header.size_bytes]
        if header.is_control:
            if header.base_offset >= first:
                rows.append(_marker(batch, header.base_offset, header.max_timestamp, header.producer_id))
        else:
            for record in iterate_records(batch, max_bytes=RECORDS_BYTES_MAX):
                if first <= record.offset < end and len(rows) < count:
                    rows.append(_row(record))
        if len(rows) >= count:
            return rows[:count], rows[count - 1]["offset"] + 1
        following = max(following, min(header.next_offset, end))
    if not rows and following == first:
        raise bad(f"The batch at offset {first} is too large to show.")
    return rows, following


def _marker(batch: memoryview, offset: Offset, timestamp: int, producer_id: int) -> dict[str, Any]:
    marker = read_control_record(batch, max_bytes=RECORDS_BYTES_MAX)
    kind = None if marker is None else "commit" if marker.type is ControlRecordType.COMMIT else "abort"
    return {"offset": offset, "timestamp": timestamp, "marker": kind or "control", "producer_id": producer_id}


def _row(record: Record) -> dict[str, Any]:
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
