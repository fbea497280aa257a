"""`lowtide records show`: shows records of one or more partitions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import typer

from lowtide.admin.batch_rows import MarkerRow, Row, fetched_batches, rows_of
from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
from lowtide.admin.records import FetchedRecords
from lowtide.admin.search_conditions import Conditions, Matcher
from lowtide.admin.searching import Place as SearchPlace
from lowtide.admin.searching import SearchLimits, SearchRequest
from lowtide.admin.value_decoding import ValueDecoder
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import parsed_partitions
from lowtide.cli.coordinator_records import decoded, in_words
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, print_json_line, remark
from lowtide.cli.record_format import Form, record_text, record_value
from lowtide.cli.record_search import (
    HELD_BYTES,
    WITHOUT_END,
    ConditionOptions,
    InterruptedSearchError,
    read_by_schema,
    say_end,
    searched,
)
from lowtide.cli.registry_options import RegistryOptions
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import Record
from lowtide.protocol.types import Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.schemas.values import SchemaValues

RECORD_BYTES_MAX: Final = 256 << 20
"""The largest decompressed batch that is read."""

COUNT: Final = 100
"""The default of --count without --follow."""

LAST_MAX: Final = 100_000
"""The most records of --last, which are in memory at once."""

FOLLOW_WAIT_MS: Final = 1_000
"""How long the broker waits for new records before it is asked again."""

ENDLESS: Final = 1 << 63
"""Larger than any offset and any number of records."""


FormOption = Annotated[Form, typer.Option("--format", help="the format of keys and values")]
CommittedOption = Annotated[bool, typer.Option("--read-committed", help="leave out aborted and uncommitted records")]
CountOption = Annotated[
    int | None,
    typer.Option(
        "--count",
        "-n",
        "--max-messages",
        min=1,
        metavar="N",
        help=f"the most records of each partition, or of a search; default: {COUNT}, or with --follow no limit",
    ),
]
LastOption = Annotated[
    int | None,
    typer.Option(
        "--last", min=1, max=LAST_MAX, metavar="N", help="the last N records of all these partitions, by time"
    ),
]
Place = OffsetSpec | Timestamp | Offset
"""Where to begin or end."""


class ShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to show of partitions. `end` is exclusive. `named`: each line begins with the partition."""

    named: bool
    end: Offset
    count: int
    form: Form
    control: bool
    read_committed: bool
    conditions: Conditions = Conditions()
    schemas: SchemaValues | None = None
    """Reads keys and values by a schema registry."""

    def decoder(self) -> ValueDecoder:
        """Returns what --where sees of values."""
        return ValueDecoder(self.schemas)


@network
async def show(
    call: NetworkCall,
    partitions: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[:PARTITIONS]", help="all partitions of a topic, as in flights, or some, as in flights:0,2-4"
        ),
    ],
    *,
    first: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help="an offset or a time; default: the log start")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="WHERE", help="an offset or a time, exclusive; default: the high watermark"),
    ] = None,
    count: CountOption = None,
    last: LastOption = None,
    only: ConditionOptions,
    registry: RegistryOptions,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="continue with new records until Ctrl-C; without --from show only these"),
    ] = False,
    form: FormOption = Form.TEXT,
    control: Annotated[bool, typer.Option("--control", help="show markers that end transactions too")] = False,
    read_committed: CommittedOption = False,
) -> ExitCode:
    """Show records: offset, time, key, value, headers.

    With several partitions, each line begins with the partition. With --output json, each line is a JSON object.
    Records of __consumer_offsets and __transaction_state are decoded. --last, --search, --key, --header and --where
    merge the partitions by time.
    """
    _check_exclusive({"--follow": follow or None, "--to": end})
    _check_exclusive({"--last": last, "--from": first, "--count": count})
    begins = _place_of(first, OffsetSpec.LATEST if follow else OffsetSpec.EARLIEST)
    ends = ENDLESS if follow else _place_of(end, OffsetSpec.LATEST)
    keys, conditions = await _chosen(call, partitions), only.conditions()
    wanted = ShowRequest(
        named=len(keys) > 1,
        end=ENDLESS,
        count=count or (ENDLESS if follow else COUNT),
        form=form,
        control=control,
        read_committed=read_committed,
        conditions=conditions,
        schemas=registry.values(),
    )
    starts: Mapping[TopicPartition, Offset] = {}
    if last is not None or (conditions.has_any and not follow):
        done = await _search(call, keys, wanted, last or wanted.count, (None if last else begins, ends))
        if not follow:
            return done.code
        starts = done.ends

    async def shown(key: TopicPartition) -> None:
        start = starts[key] if key in starts else await _offset_at(call, key, begins)
        own = msgspec.structs.replace(wanted, end=await _offset_at(call, key, ends))
        if first is not None and start >= own.end:
            remark(f"{key}: there are no records between {start} and its end, {own.end}.")
        await _show(call, key, own, start, follow=follow)

    if follow:
        await asyncio.gather(*map(shown, keys))
        return ExitCode.DONE
    return await _one_after_the_other(keys, shown)


class _Searched(NamedTuple):
    code: ExitCode
    ends: Mapping[TopicPartition, Offset]
    """Where each partition goes on."""


async def _search(
    call: NetworkCall,
    keys: Sequence[TopicPartition],
    wanted: ShowRequest,
    count: int,
    places: tuple[Place | None, Place],
) -> _Searched:
    """Prints the first records between two places that meet the conditions, or the last ones before the second place.

    Errors: CommandError, AdminError.
    """
    begin, end = places
    numbers = tuple(key.partition for key in keys)

    def place(given: Place) -> SearchPlace:
        return given if isinstance(given, OffsetSpec | Timestamp) else dict.fromkeys(numbers, given)

    request = SearchRequest(
        topic=keys[0].topic,
        partitions=numbers,
        conditions=wanted.conditions,
        backwards=begin is None,
        place=place(end if begin is None else begin),
        until=None if begin is None else place(end),
        limits=SearchLimits(hits=count, bytes_read=WITHOUT_END, ms=WITHOUT_END, held_bytes=HELD_BYTES),
        control=wanted.control,
        read_committed=wanted.read_committed,
    )
    interrupted = False
    try:
        search = await searched(call, request, wanted.decoder())
    except InterruptedSearchError as error:
        search, interrupted = error.search, True
    for hit in search.hits[::-1] if request.backwards else search.hits:
        await print_row(call.output, TopicPartition(request.topic, hit.partition), hit.row, wanted)
    sys.stdout.flush()
    code = ExitCode.DONE if say_end(search, interrupted=interrupted) else ExitCode.FAILED
    ends = {TopicPartition(request.topic, number): high for number, (_, high) in search.ends.items()}
    return _Searched(ExitCode.INTERRUPTED if interrupted else code, ends)


def _check_exclusive(options: Mapping[str, object]) -> None:
    """Raises CommandError if the first option and another one are both given."""
    (first, value), *others = options.items()
    for name, other in others:
        if value is not None and other is not None:
            raise misused(f"{first} and {name} exclude each other.")


async def _one_after_the_other(
    keys: Sequence[TopicPartition], shown: Callable[[TopicPartition], Awaitable[None]]
) -> ExitCode:
    """Shows all partitions, and prints the errors of those that fail. Errors: those of a single partition."""
    if len(keys) == 1:
        await shown(keys[0])
        return ExitCode.DONE
    failed = False
    for key in keys:
        try:
            await shown(key)
        except (CommandError, AdminError) as error:
            remark(str(error))
            failed = True
    return ExitCode.FAILED if failed else ExitCode.DONE


async def _chosen(call: NetworkCall, text: str) -> list[TopicPartition]:
    """Returns the partitions that `topic` or `topic:0,2-4` names. Errors: CommandError, AdminError."""
    topic, numbers = parsed_partitions(text)
    if numbers is None:
        described = (await call.client.describe_topics([topic]))[topic]
        if not isinstance(described, TopicDescription):
            raise CommandError(f"{described}.")
        numbers = sorted(described.partitions)
    return [TopicPartition(topic, number) for number in numbers]


async def _show(call: NetworkCall, key: TopicPartition, wanted: ShowRequest, offset: Offset, *, follow: bool) -> None:
    """Prints records from `offset` on; with `follow` also new ones. Errors: CommandError, AdminError."""
    shown, matcher = 0, Matcher(wanted.conditions, wanted.decoder())
    while offset < wanted.end and shown < wanted.count:
        fetched = await _fetched(call, key, wanted, offset, follow=follow)
        if isinstance(fetched, int):
            remark(f"{key}: the records from {offset} to {fetched - 1} are deleted.")
            offset = fetched
            continue
        rows, following = readable(fetched, key, offset, wanted)
        if wanted.conditions.has_any:
            rows = [row for row in rows if isinstance(row, Record) and await matcher.meets(row)]
        for row in rows[: wanted.count - shown]:
            await print_row(call.output, key, row, wanted)
        shown += len(rows)
        if follow and rows:
            sys.stdout.flush()
        elif following <= offset and not follow:
            break
        offset = max(offset, following)


async def _fetched(
    call: NetworkCall, partition: TopicPartition, wanted: ShowRequest, offset: Offset, *, follow: bool
) -> FetchedRecords | Offset:
    """Fetches records from an offset on. With `follow`, returns the log start if the next records are deleted.

    Errors: CommandError for an offset outside the log; AdminError.
    """
    wait_ms = FOLLOW_WAIT_MS if follow else 0
    try:
        return await call.client.fetch_records(partition, offset, wait_ms=wait_ms, read_committed=wanted.read_committed)
    except BrokerAnsweredError as error:
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
    begins = (await call.client.list_offsets({partition: OffsetSpec.EARLIEST}))[partition]
    if follow and isinstance(begins, ListedOffset) and offset < begins.offset:
        return begins.offset
    where = f"its log starts at {begins.offset}" if isinstance(begins, ListedOffset) else "its log start is unknown"
    raise CommandError(f"{partition} has no offset {offset}: {where}.")


def _place_of(text: str | None, otherwise: OffsetSpec) -> Place:
    """Returns the offset or the time that a text names. Errors: CommandError."""
    if text is None:
        return otherwise
    try:
        if text == "end" or (text.isascii() and text.isdigit() and len(text) < len("1600000000000")):
            offset = parse_offset(text)
            return offset if offset >= 0 else OffsetSpec.LATEST
        return Timestamp(parse_time(text))
    except ValueError as error:
        raise misused(f"{error}.") from None


async def _offset_at(call: NetworkCall, partition: TopicPartition, place: Place) -> Offset:
    """Returns the offset of a place; for a time after all records, the high watermark.

    Errors: CommandError, AdminError.
    """
    if not isinstance(place, (OffsetSpec, Timestamp)):
        return place
    for each in dict.fromkeys((place, OffsetSpec.LATEST)):
        found = (await call.client.list_offsets({partition: each}))[partition]
        if isinstance(found, AdminError):
            raise CommandError(f"{found}.")
        offset = found.offset
        if offset >= 0:
            break
    return offset


def readable(
    fetched: FetchedRecords, key: TopicPartition, offset: Offset, wanted: ShowRequest
) -> tuple[list[Row], Offset]:
    """Returns records and markers from `offset` on, and the offset after them.

    Errors: CommandError for corrupt batches.
    """
    rows: list[Row] = []
    following = offset
    try:
        for batch in fetched_batches(fetched):
            following = max(following, batch.header.next_offset)
            found = rows_of(batch, control=wanted.control, max_bytes=RECORD_BYTES_MAX)
            rows += [row for row in found if offset <= row.offset < wanted.end]
            if len(rows) >= wanted.count:
                break
    except ProtocolError as error:
        raise CommandError(f"{key}: {error}.") from error
    return rows, following


async def print_row(output: Output, key: TopicPartition, row: Row, wanted: ShowRequest) -> None:
    """Prints a record or a marker as one line."""
    where = f"{key.partition}:" if wanted.named else ""
    if isinstance(row, MarkerRow):
        if output is Output.JSON:
            figures = {"offset": row.offset, "timestamp": row.timestamp}
            print_json_line(
                {"partition": key.partition, **figures, "control": row.kind, "producer_id": row.producer_id}
            )
        else:
            text = f"{row.kind or 'control'} marker of producer {row.producer_id}"
            print(f"{where}{row.offset}  {moment(row.timestamp)}  {text}")
        return
    said = decoded(key.topic, row.key, row.value)
    if wanted.schemas is not None:
        row = await read_by_schema(wanted.schemas, row)
    if output is Output.JSON:
        extra = {} if said is None else {"decoded": said}
        print_json_line({"partition": key.partition} | record_value(row, wanted.form) | extra)
    else:
        text = record_text(row, wanted.form) if said is None else in_words(said)
        print(f"{where}{row.offset}  {moment(row.timestamp)}  {text}")
