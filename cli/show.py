"""`lowtide records show`: shows records of one or more partitions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
from lowtide.admin.records import FetchedRecords, last_rows
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import parsed_partitions
from lowtide.cli.coordinator_records import decoded, in_words
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, print_json_line, remark
from lowtide.cli.record_format import Form, marker_name, record_text, record_value
from lowtide.protocol.control_records import read_control_record
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import Record, check_crc, iterate_batches, iterate_records
from lowtide.protocol.types import Offset, TopicPartition

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
LastOption = Annotated[
    int | None, typer.Option("--last", min=1, max=LAST_MAX, metavar="N", help="the last N records of each partition")
]
Place = OffsetSpec | Timestamp | Offset
"""Where to begin or end."""


class ShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to show of a partition. `end` is exclusive. `named`: each line begins with the partition."""

    partition: TopicPartition
    named: bool
    end: Offset
    count: int
    form: Form
    control: bool
    read_committed: bool


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
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            "--max-messages",
            min=1,
            metavar="N",
            help=f"the most records of each partition; default: {COUNT}, or with --follow no limit",
        ),
    ] = None,
    last: LastOption = None,
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
    Records of __consumer_offsets and __transaction_state are decoded.
    """
    _check_exclusive({"--follow": follow or None, "--to": end})
    _check_exclusive({"--last": last, "--from": first, "--count": count})
    begins = _place_of(first, OffsetSpec.LATEST if follow else OffsetSpec.EARLIEST)
    ends = ENDLESS if follow else _place_of(end, OffsetSpec.LATEST)
    keys = await _chosen(call, partitions)

    async def shown(key: TopicPartition) -> None:
        start, stop = await _offset_at(call, key, begins), await _offset_at(call, key, ends)
        wanted = ShowRequest(
            partition=key,
            named=len(keys) > 1,
            end=stop,
            count=count or (ENDLESS if follow else COUNT),
            form=form,
            control=control,
            read_committed=read_committed,
        )
        if last is not None:
            start = await _show_last(call, wanted, last)
            if not follow:
                return
        if first is not None and start >= stop:
            remark(f"{key}: there are no records between {start} and its end, {stop}.")
        await _show(call, wanted, start, follow=follow)

    if len(keys) == 1 or follow:
        await asyncio.gather(*map(shown, keys))
        return ExitCode.DONE
    return await _one_after_the_other(keys, shown)


def _check_exclusive(options: Mapping[str, object]) -> None:
    """Raises CommandError if the first option and another one are both given."""
    (first, value), *others = options.items()
    for name, other in others:
        if value is not None and other is not None:
            raise misused(f"{first} and {name} exclude each other.")


async def _one_after_the_other(
    keys: Sequence[TopicPartition], shown: Callable[[TopicPartition], Awaitable[None]]
) -> ExitCode:
    """Shows all partitions, and prints the errors of those that fail."""
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


async def _show(call: NetworkCall, wanted: ShowRequest, offset: Offset, *, follow: bool) -> None:
    """Prints records from `offset` on; with `follow` also new ones. Errors: CommandError, AdminError."""
    shown = 0
    while offset < wanted.end and shown < wanted.count:
        fetched = await _fetched(call, wanted, offset, follow=follow)
        if isinstance(fetched, int):
            remark(f"{wanted.partition}: the records from {offset} to {fetched - 1} are deleted.")
            offset = fetched
            continue
        rows, following = readable(fetched, offset, wanted)
        for row in rows[: wanted.count - shown]:
            _print(call.output, row, wanted)
        shown += len(rows)
        if follow and rows:
            sys.stdout.flush()
        elif following <= offset and not follow:
            break
        offset = max(offset, following)


async def _show_last(call: NetworkCall, wanted: ShowRequest, count: int) -> Offset:
    """Prints the last records before the end. Returns the offset after them. Errors: CommandError, AdminError."""
    key = wanted.partition
    log_start = await _offset_at(call, key, OffsetSpec.EARLIEST)
    end = min(wanted.end, await _offset_at(call, key, OffsetSpec.LATEST))

    async def fetch(offset: Offset) -> FetchedRecords:
        return await call.client.fetch_records(key, offset, read_committed=wanted.read_committed)

    def rows(fetched: FetchedRecords, first: Offset, end: Offset) -> tuple[list[Record | dict[str, Any]], Offset]:
        return readable(fetched, first, msgspec.structs.replace(wanted, end=end, count=ENDLESS))

    found = await last_rows(fetch, rows, log_start, end, count)
    if not found.is_complete:
        remark(f"{key}: {len(found.rows)} records are shown, because earlier ones are too large to read here.")
    for row in found.rows:
        _print(call.output, row, wanted)
    sys.stdout.flush()
    return end


async def _fetched(call: NetworkCall, wanted: ShowRequest, offset: Offset, *, follow: bool) -> FetchedRecords | Offset:
    """Fetches records from an offset on. With `follow`, returns the log start if the next records are deleted.

    Errors: CommandError for an offset outside the log; AdminError.
    """
    partition = wanted.partition
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
    fetched: FetchedRecords, offset: Offset, wanted: ShowRequest
) -> tuple[list[Record | dict[str, Any]], Offset]:
    """Returns records and markers from `offset` on, and the offset after them.

    Errors: CommandError for corrupt batches.
    """
    rows: list[Record | dict[str, Any]] = []
    following = offset
    aborted = sorted(fetched.aborted, key=lambda each: each[1])
    ending: set[int] = set()
    try:
        for position, header in iterate_batches(fetched.records):
            if not check_crc(fetched.records, position, header):
                raise CommandError(f"{wanted.partition}: the CRC of the batch at offset {header.base_offset} is wrong.")
            batch = memoryview(fetched.records)[position : position + header.size_bytes]
            following = max(following, header.next_offset)
            while aborted and aborted[0][1] <= header.last_offset:
                ending.add(aborted.pop(0)[0])
            if header.is_control:
                marker = read_control_record(batch, max_bytes=RECORD_BYTES_MAX)
                if marker is not None:
                    ending.discard(header.producer_id)
                if wanted.control and offset <= header.base_offset < wanted.end:
                    position_of = {"offset": header.base_offset, "timestamp": header.max_timestamp}
                    kind = marker_name(marker)
                    rows.append({**position_of, "control": kind, "producer_id": header.producer_id})
            elif not (header.is_transactional and header.producer_id in ending):
                records = iterate_records(batch, max_bytes=RECORD_BYTES_MAX)
                rows += [record for record in records if offset <= record.offset < wanted.end]
            if len(rows) >= wanted.count:
                break
    except ProtocolError as error:
        raise CommandError(
            f"{wanted.partition}: a batch at offset {following} or later can't be read: {error}."
        ) from error
    return rows, following


def _print(output: Output, row: Record | dict[str, Any], wanted: ShowRequest) -> None:
    number = wanted.partition.partition
    where = f"{number}:" if wanted.named else ""
    if isinstance(row, dict):
        if output is Output.JSON:
            print_json_line({"partition": number} | row)
        else:
            text = f"{row['control'] or 'control'} marker of producer {row['producer_id']}"
            print(f"{where}{row['offset']}  {moment(row['timestamp'])}  {text}")
        return
    said = decoded(wanted.partition.topic, row.key, row.value)
    if output is Output.JSON:
        extra = {} if said is None else {"decoded": said}
        print_json_line({"partition": number} | record_value(row, wanted.form) | extra)
    else:
        text = record_text(row, wanted.form) if said is None else in_words(said)
        print(f"{where}{row.offset}  {moment(row.timestamp)}  {text}")
