"""Searches of records, and records as they are written, as streams of lines in JSON.

    {"hits": [row, …]}     rows that were found or written; each has its partition
    {"progress": {…}}      how far the search has come, a few times a second
    {"end": {…}}           why the search ended, and where a later one goes on
    {"followed": {…}}      where a page that follows goes on, and what it did not get
    {"trouble": "…"}       an error after the first line, as a sentence

A page ends a stream by closing its connection. The conditions are in the request's body: they may be personal data, and
addresses are written to logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.following import Follow, FollowRequest
from lowtide.admin.offsets import OffsetSpec, Timestamp
from lowtide.admin.schemas.framing import NotPreparedError
from lowtide.admin.search_conditions import TEXT_BYTES_MAX, Conditions, header_condition
from lowtide.admin.search_expression import LENGTH_MAX, Expression
from lowtide.admin.search_walk import Hit
from lowtide.admin.searching import TROUBLES_MAX, Place, Search, SearchLimits, SearchRequest
from lowtide.admin.value_decoding import ValueDecoder
from lowtide.admin.wanted_offsets import parse_time
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, bad, encoded, refused, sentence_of
from lowtide.console.arguments import Parameters
from lowtide.console.records import COUNT_MAX, row_value
from lowtide.console.sessions import STREAMS_MAX, ConsoleSession
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import Record
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    from lowtide.admin.schemas.values import SchemaValues
    from lowtide.runtime.clock import Clock

KIND: Final = "application/x-ndjson"
PROGRESS_S: Final = 0.25
SECONDS_MAX: Final = 120
BYTES_MAX: Final = 10 << 30
ROUND_S: Final = 0.25
"""The least time between two rounds: a page gets at most 800 rows a second."""

FOLLOW_S: Final = 15 * 60
OFFSET_MAX: Final = 2**63 - 1


def search_request(given: Parameters) -> SearchRequest:
    """Reads what a page searches for. Errors: RefusedError."""
    backwards, place = _place(given)
    wanted = None if given.get("partitions") is None else tuple(arguments.partitions(given))
    return SearchRequest(
        topic=arguments.topic(given),
        partitions=wanted,
        conditions=_conditions(given),
        backwards=backwards,
        place=place,
        control=True,
        limits=SearchLimits(
            hits=arguments.number(given, "count", 1, COUNT_MAX, default=50),
            ms=1000 * arguments.number(given, "seconds", 1, SECONDS_MAX, default=30),
            bytes_read=arguments.number(given, "bytes", 1, BYTES_MAX, default=1 << 30),
        ),
    )


def _conditions(given: Parameters) -> Conditions:
    """Reads the conditions. Errors: RefusedError."""
    text = arguments.optional_text(given, "text", longest=TEXT_BYTES_MAX)
    key = arguments.optional_text(given, "key", longest=TEXT_BYTES_MAX)
    header = arguments.optional_text(given, "header", longest=2 * TEXT_BYTES_MAX)
    where = arguments.optional_text(given, "where", longest=4 * LENGTH_MAX)
    try:
        return Conditions(
            text=None if text is None else text.encode(),
            key=None if key is None else key.encode(),
            header=None if header is None else header_condition(header),
            where=None if where is None else Expression(where),
        )
    except ValueError as error:
        raise bad(capital(sentence_of(error))) from None


def capital(sentence: str) -> str:
    """Returns a sentence with a capital letter."""
    return sentence[:1].upper() + sentence[1:]


def _place(given: Parameters) -> tuple[bool, Place]:
    """Reads whether to go backwards, and from where. Errors: RefusedError."""
    backwards = arguments.choice(given, "order", ("newest", "oldest"), "newest") == "newest"
    if given.get("offsets") is not None:
        return backwards, _offsets(given["offsets"])
    if given.get("time") not in (None, ""):
        try:
            return backwards, Timestamp(parse_time(arguments.text(given, "time", longest=64)))
        except ValueError as error:
            raise bad(capital(sentence_of(error))) from None
    return backwards, OffsetSpec.LATEST if backwards else OffsetSpec.EARLIEST


def _offsets(value: Any) -> Mapping[int, int]:
    """Reads an offset for each of some partitions. Errors: RefusedError."""
    if not isinstance(value, dict) or not 0 < len(value) <= arguments.PARTITIONS_MAX:
        raise bad(f"offsets must be an object with the offsets of 1 to {arguments.PARTITIONS_MAX} partitions.")
    return {
        arguments.number({"partition": name}, "partition", 0, arguments.PARTITION_MAX): arguments.number(
            {"offset": each}, "offset", 0, OFFSET_MAX
        )
        for name, each in value.items()
    }


class _Lines:
    """The stream of an answer."""

    def __init__(self, response: web.StreamResponse, schemas: SchemaValues | None) -> None:
        self._response = response
        self._schemas = schemas

    async def send(self, kind: str, value: Any) -> None:
        """Sends a line. Errors: ConnectionError if the page is gone."""
        await self._response.write(encoded({kind: value}) + b"\n")

    async def send_hits(self, hits: Sequence[Hit]) -> None:
        """Sends rows, each in a step of its own, because other work waits for the event loop."""
        for hit in hits:
            if self._schemas is not None and isinstance(hit.row, Record):
                await self._prepare(self._schemas, hit.row)
            await self.send("hits", [{"partition": hit.partition, **row_value(hit.row, self._schemas)}])
            await asyncio.sleep(0)

    async def _prepare(self, schemas: SchemaValues, record: Record) -> None:
        """Asks for the schemas of a record that are not known yet."""
        for content in filter(None, (record.key, record.value)):
            try:
                schemas.decoded(content)
            except NotPreparedError:
                await asyncio.to_thread(schemas.prepare, content)
            except ValueError:
                continue


def _decoder(given: Parameters, ports: StreamPorts) -> ValueDecoder:
    """Returns the decoder of the values that a filter is applied to. Errors: RefusedError."""
    form = arguments.choice(given, "values", ("json", "msgpack"), "json")
    return ValueDecoder(ports.schemas, is_msgpack=form == "msgpack")


def follow_request(given: Parameters) -> FollowRequest:
    """Reads what a page follows. Errors: RefusedError."""
    return FollowRequest(
        topic=arguments.topic(given),
        partitions=None if given.get("partitions") is None else tuple(arguments.partitions(given)),
        conditions=_conditions(given),
        offsets={} if given.get("offsets") is None else _offsets(given["offsets"]),
        rows=COUNT_MAX,
        control=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPorts:
    """What all streams of a console have in common."""

    clock: Clock
    headers: Mapping[str, str]
    schemas: SchemaValues | None
    """Reads values by a schema registry."""
    sweep: Callable[[], None]
    """Ends expired sessions and those of removed users. This closes their clients, and so their streams."""


async def search_stream(
    request: web.Request, session: ConsoleSession, given: Parameters, ports: StreamPorts
) -> web.StreamResponse:
    """Searches until it ends, or until the page closes the connection. Errors: RefusedError before the first line."""
    search = Search(session.client, search_request(given), _decoder(given, ports))

    async def send(lines: _Lines) -> None:
        tasks = TaskRegistry(lambda *_: None)  # A page that is gone ends the search too.
        tasks.spawn(_report(search, lines, ports.sweep), name="progress of a search")
        try:
            await search.run(lines.send_hits)
        finally:
            await tasks.cancel_all()
        await lines.send("end", _progress(search) | _end(search))

    return await _streamed(request, session, ports, send)


async def follow_stream(
    request: web.Request, session: ConsoleSession, given: Parameters, ports: StreamPorts
) -> web.StreamResponse:
    """Sends new records until the page closes the connection, at most for `FOLLOW_S`; the page then asks again.

    Errors: RefusedError before the first line.
    """
    follow, clock = Follow(session.client, follow_request(given), _decoder(given, ports)), ports.clock

    async def send(lines: _Lines) -> None:
        await follow.begin()
        end_ms = clock.monotonic_ms() + FOLLOW_S * 1000
        skipped = 0
        await lines.send("followed", {"next": follow.offsets, "skipped": 0, "records": 0, "troubles": []})
        while clock.monotonic_ms() < end_ms:
            ports.sweep()
            found = await follow.round()
            skipped += found.skipped
            await lines.send_hits(found.hits)
            figures = {"next": follow.offsets, "skipped": skipped, "records": follow.records}
            await lines.send("followed", {**figures, "troubles": found.troubles[:TROUBLES_MAX]})
            session.touch(clock.monotonic_ms())
            await asyncio.sleep(ROUND_S)

    return await _streamed(request, session, ports, send)


async def _streamed(
    request: web.Request,
    session: ConsoleSession,
    ports: StreamPorts,
    send: Callable[[_Lines], Awaitable[None]],
) -> web.StreamResponse:
    """Sends lines until all are sent or the page is gone. Errors: RefusedError before the first line."""
    if session.streams >= STREAMS_MAX:
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, f"This visitor has {STREAMS_MAX} live pages already.")
    response = web.StreamResponse(headers={**ports.headers, "Cache-Control": "no-store", "Content-Type": KIND})
    session.streams += 1
    try:
        await response.prepare(request)
        lines = _Lines(response, ports.schemas)
        try:
            await send(lines)
        except AdminError as error:
            await lines.send("trouble", capital(_trouble(error)))
    except ConnectionError:
        pass  # The page is gone.
    finally:
        session.streams -= 1
        session.touch(ports.clock.monotonic_ms())
    return response


def _trouble(error: AdminError) -> str:
    """Returns a sentence for an error of the whole search."""
    if isinstance(error, BrokerAnsweredError) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return "You have no right to read this topic."
    if isinstance(error, BrokerAnsweredError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "The cluster has no such topic or partition, or you have no right to see it."
    return refused(error).sentence


async def _report(search: Search, lines: _Lines, sweep: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        sweep()
        await lines.send("progress", _progress(search))


def _progress(search: Search) -> dict[str, Any]:
    done = search.progress
    return {
        "bytes": done.bytes_read,
        "records": done.records,
        "hits": done.hits,
        "share": round(search.share, 3),
        "partitions": len(search.walks),
        "partitions_done": sum(walk.is_done for walk in search.walks),
    }


def _end(search: Search) -> dict[str, Any]:
    done, end = search.progress, search.end
    matcher = search.matcher
    return {
        "why": None if end is None else end.value,
        "next": search.next_offsets(),
        "ends": {number: list(each) for number, each in search.ends.items()},
        "troubles": done.troubles,
        "troubles_total": done.troubles_total,
        "other_format": matcher.other_format_total,
        "other_format_reason": matcher.other_format_reason,
        "too_large": matcher.too_large_total,
    }
