"""The page of records: rows as values for the page, and some records of one partition.

Sizes are limited. `searches` sends rows of several partitions as they are found.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.batch_rows import MarkerRow, Row
from lowtide.admin.offsets import OffsetSpec, Timestamp
from lowtide.admin.schemas.framing import NotPreparedError
from lowtide.admin.schemas.values import plain
from lowtide.admin.searching import Place, Search, SearchLimits, SearchRequest
from lowtide.admin.value_decoding import decode_msgpack
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.console import arguments
from lowtide.console.answers import bad, sentence_of
from lowtide.console.arguments import Parameters

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.schemas.values import SchemaValues

COUNT_MAX: Final = 200
"""The most rows of a page."""

SHOWN_BYTES_MAX: Final = 8 * 1024
"""The shown bytes of a key, a value or a header; longer ones are cut."""

SCHEMA_BYTES_MAX: Final = 64 * 1024
"""The longest value that is read by a schema."""

DECODED_CHARACTERS_MAX: Final = 64 * 1024
HEADERS_MAX: Final = 50
PLACES: Final = ("offset", "time", "start", "end", "before")


async def records_page(client: AdminClient, given: Parameters) -> dict[str, Any]:
    """Returns the page of one partition, the oldest record first. Errors: RefusedError, AdminError."""
    key = arguments.partition(given)
    count = arguments.number(given, "count", 1, COUNT_MAX, default=50)
    place = arguments.choice(given, "place", PLACES, "end")
    backwards = place in {"end", "before"}
    request = SearchRequest(
        topic=key.topic,
        partitions=(key.partition,),
        backwards=backwards,
        place=_place(given, place, key.partition),
        limits=SearchLimits(hits=count),
        control=True,
    )
    search = Search(client, request)
    await search.run(_ignore)
    if search.progress.troubles:
        raise bad(search.progress.troubles[0])
    hits = search.hits[::-1] if backwards else search.hits
    rest = search.next_offsets()[key.partition]
    begin = search.begins[key.partition]
    log_start, high_watermark = search.ends[key.partition]
    return {
        "topic": key.topic,
        "partition": key.partition,
        "log_start": log_start,
        "high_watermark": high_watermark,
        "first": (hits[0].row.offset if len(hits) == count else rest) if backwards else begin,
        "next": begin if backwards else rest,
        "records": [row_value(each.row) for each in hits],
        "complete": len(hits) == count or rest == (log_start if backwards else high_watermark),
    }


async def _ignore(_: object) -> None:
    """Waits for all hits."""


def _place(given: Parameters, place: str, partition: int) -> Place:
    """Returns where to begin. Errors: RefusedError."""
    if place in {"start", "end"}:
        return OffsetSpec.EARLIEST if place == "start" else OffsetSpec.LATEST
    try:
        text = arguments.text(given, "value", longest=64)
        if place == "time":
            return Timestamp(parse_time(text))
        wanted = parse_offset(text)
    except ValueError as error:
        raise bad(sentence_of(error)) from None
    return OffsetSpec.LATEST if wanted < 0 else {partition: wanted}


def row_value(row: Row, schemas: SchemaValues | None = None) -> dict[str, Any]:
    """Returns a row for the page. `schemas` reads values by a registry, those of schemas that are prepared."""
    if isinstance(row, MarkerRow):
        return {
            "offset": row.offset,
            "timestamp": row.timestamp,
            "marker": row.kind or "control",
            "producer_id": row.producer_id,
        }
    return {
        "offset": row.offset,
        "timestamp": row.timestamp,
        "key": content(row.key, schemas),
        "value": content(row.value, schemas),
        "headers": [
            {"name": name.decode("utf-8", "backslashreplace")[:SHOWN_BYTES_MAX], "value": content(value)}
            for name, value in row.headers[:HEADERS_MAX]
        ],
        "headers_left_out": max(0, len(row.headers) - HEADERS_MAX),
    }


def content(value: bytes | None, schemas: SchemaValues | None = None) -> dict[str, Any] | None:
    """Returns bytes for the page: their number, hex digits, and the other forms that they have."""
    if value is None:
        return None
    shown = value[:SHOWN_BYTES_MAX]
    described: dict[str, Any] = {"bytes": len(value), "hex": shown.hex()}
    if schemas is not None and len(value) <= SCHEMA_BYTES_MAX:
        described |= _by_schema(value, schemas)
    try:
        described["text"] = value.decode("utf-8")[:SHOWN_BYTES_MAX]
    except UnicodeDecodeError:
        if len(value) <= SHOWN_BYTES_MAX and "schema" not in described:
            described |= _msgpack(value)
        return described
    if len(value) <= SHOWN_BYTES_MAX and value[:1] in (b"{", b"["):
        try:
            described["json"] = json.dumps(json.loads(described["text"]), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return described
    return described


def _by_schema(value: bytes, schemas: SchemaValues) -> dict[str, Any]:
    """Returns what a schema of the registry makes of a value, or why it can't be read."""
    try:
        found = schemas.decoded(value)
    except NotPreparedError:
        return {}
    except ValueError as error:
        return {"unread": sentence_of(error)}
    if found is None:
        return {}
    text = json.dumps(found.value, indent=2, ensure_ascii=False)[:DECODED_CHARACTERS_MAX]
    return {"schema": text, "schema_name": f"{found.kind}, schema {found.schema_id}"}


def _msgpack(value: bytes) -> dict[str, Any]:
    """Returns MessagePack as JSON, if a value is a map or a list in it: any bytes begin as some number."""
    try:
        found = decode_msgpack(value)
        if not isinstance(found, dict | list):
            return {}
        return {"msgpack": json.dumps(plain(found), indent=2, ensure_ascii=False)}
    except (ValueError, RecursionError):
        return {}
