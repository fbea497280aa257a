"""Searches records for `lowtide records show`: its options, its progress, and what it says at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lowtide.admin.schemas.framing import NotPreparedError
from lowtide.admin.search_conditions import Conditions, header_condition
from lowtide.admin.search_expression import Expression
from lowtide.admin.search_walk import Hit
from lowtide.admin.searching import Search, SearchEnd, SearchRequest
from lowtide.cli.call import NetworkCall, OptionGroup
from lowtide.cli.outcome import misused
from lowtide.cli.printing import plural, progress, remark
from lowtide.protocol.records import Record
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    from lowtide.admin.schemas.values import SchemaValues
    from lowtide.admin.value_decoding import ValueDecoder

PROGRESS_S: Final = 0.2
HELD_BYTES: Final = 256 << 20
"""The bytes of all records that are found, which are in memory at once."""

WITHOUT_END: Final = 1 << 62
"""A limit of bytes and of time that no search reaches: Ctrl-C ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionOptions(OptionGroup):
    """What a record must have to be shown."""

    search: Annotated[
        str | None, typer.Option("--search", metavar="TEXT", help="only records whose key or value contains a text")
    ] = None
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="only records with this key")] = None
    header: Annotated[
        str | None,
        typer.Option(
            "--header", metavar="NAME[=VALUE]", help="only records with this header, or with this value of it"
        ),
    ] = None
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="EXPR", help="only records for whose JSON value a JMESPath expression is true"),
    ] = None

    def conditions(self) -> Conditions:
        """Returns the conditions. Errors: CommandError."""
        try:
            return Conditions(
                text=None if self.search is None else self.search.encode(),
                key=None if self.key is None else self.key.encode(),
                header=None if self.header is None else header_condition(self.header),
                where=None if self.where is None else Expression(self.where),
            )
        except ValueError as error:
            raise misused(f"{error}.") from None


async def searched(call: NetworkCall, request: SearchRequest, decoder: ValueDecoder) -> Search:
    """Runs a search, with a progress bar on a terminal. Errors: AdminError; InterruptedSearchError after Ctrl-C."""
    search = Search(call.client, request, decoder)
    tasks = TaskRegistry(lambda *_: None)
    with progress("searching", 100) as bar:

        async def draw() -> None:
            drawn = 0
            while True:
                await asyncio.sleep(PROGRESS_S)
                percent = int(100 * search.share) if search.walks else 0
                bar.advance(percent - drawn)
                drawn = percent

        tasks.spawn(draw(), name="progress of a search")
        try:
            await search.run(_keep)
        except asyncio.CancelledError:
            raise InterruptedSearchError(search) from None
        finally:
            await tasks.cancel_all()
    return search


class InterruptedSearchError(Exception):
    """A search that Ctrl-C ended."""

    def __init__(self, search: Search) -> None:
        super().__init__("the search was interrupted")
        self.search = search


async def _keep(_: Sequence[Hit]) -> None:
    """Does nothing: the search keeps its hits, and they are printed in their order at its end."""


def say_end(search: Search, *, interrupted: bool) -> bool:
    """Prints what a reader of the records must know; returns whether everything could be read."""
    request, figures, matcher = search.request, search.progress, search.matcher
    if interrupted:
        searched_part = f"{plural(figures.records, 'record')}, {int(100 * search.share)} % of all offsets"
        remark(f"Interrupted after {searched_part}: {plural(figures.hits, 'record')} found.")
    elif search.end is SearchEnd.HITS and len(search.hits) < request.limits.hits:
        remark(f"{len(search.hits)} records are shown, because the others are too large to read here.")
    elif search.end is SearchEnd.HITS and request.conditions.has_any and not request.backwards:
        remark(f"The first {len(search.hits)} records are shown; there may be more. --count changes that.")
    if matcher.other_format_total:
        values = plural(matcher.other_format_total, "value")
        remark(
            f"--where did not see {values} of another format; the reason for the first: {matcher.other_format_reason}."
        )
    if matcher.too_large_total:
        remark(f"--where did not see {plural(matcher.too_large_total, 'value')}: too large.")
    for sentence in figures.troubles:
        remark(sentence)
    if figures.troubles_total > len(figures.troubles):
        remark(f"{figures.troubles_total - len(figures.troubles)} more batches or partitions could not be read.")
    return not figures.troubles_total


async def read_by_schema(schemas: SchemaValues, record: Record) -> Record:
    """Returns a record whose key and value are JSON, if schemas of the registry can read them.

    Prints why they can't be read.
    """
    key, value = [
        None if content is None else await _json_of(schemas, content, record.offset)
        for content in (record.key, record.value)
    ]
    return Record(record.offset, record.timestamp, key, value, record.headers)


async def _json_of(schemas: SchemaValues, content: bytes, offset: int) -> bytes:
    try:
        try:
            found = schemas.decoded(content)
        except NotPreparedError:
            await asyncio.to_thread(schemas.prepare, content)
            found = schemas.decoded(content)
    except (ValueError, NotPreparedError) as error:
        remark(f"offset {offset}: {error}.")
        return content
    return content if found is None else msgspec.json.encode(found.value)
