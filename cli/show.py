"""`lowtide records show`: records of a partition, as they are."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import msgspec
import typer

from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
from lowtide.admin.records import FetchedRecords
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.coordinator_records import decoded, in_words
from lowtide.cli.one_partition import one_partition
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, print_json_line, remark
from lowtide.cli.record_format import Form, record_text, record_value
from lowtide.protocol.control_records import ControlRecordType, read_control_record
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import Record, check_crc, iterate_batches, iterate_records
from lowtide.protocol.types import Offset, TopicPartition

RECORD_BYTES_MAX: Final = 256 << 20
"""Of a batch's records behind their compression."""

COUNT: Final = 100
"""Records, where the user gives no number and doesn't follow."""

FOLLOW_WAIT_MS: Final = 1_000
"""How long the broker may wait for a record that comes; then it is asked again."""

ENDLESS: Final = 1 << 63
"""More than any offset, and any number of records."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be shown. `end` is exclusive."""

    partition: TopicPartition
    end: Offset
    count: int
    form: Form
    control: bool
    read_committed: bool


@network
async def show(
    call: NetworkCall,
    partition: Annotated[str, typer.Argument(metavar="TOPIC[:PARTITION]", help="flights, which is flights:0, or flights:3")],
    *,
    first: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help="an offset or a time; without it where the log starts")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="WHERE", help="an offset or a time, exclusive; without it where the log ends")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help=f"at most so many; {COUNT}, or with --follow without end")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on with what comes, until Ctrl-C; without --from only with that")
    ] = False,
    form: Annotated[Form, typer.Option("--format", help="how keys and values are written")] = Form.TEXT,
    control: Annotated[bool, typer.Option("--control", help="also the markers that end transactions")] = False,
    read_committed: Annotated[bool, typer.Option("--read-committed", help="leave out what was aborted, or isn't committed so far")] = False,
) -> ExitCode:
    """Show records of a partition: offset, time, key, value, headers.

    With --output json each record is an object in a line of its own. Records of __consumer_offsets and __transaction_state are decoded.
    """
    key = one_partition(partition, otherwise=0)
    if follow and end is not None:
        raise misused("--follow and --to are not possible together.")
    start = await _place(call, key, first, OffsetSpec.LATEST if follow else OffsetSpec.EARLIEST)
    stop = ENDLESS if follow else await _place(call, key, end, OffsetSpec.LATEST)
    at_most = count or (ENDLESS if follow else COUNT)
    wanted = Wanted(partition=key, end=stop, count=at_most, form=form, control=control, read_committed=read_committed)
    if first is not None and start >= stop:
        remark(f"{key}: nothing is between {start} and {stop}, where it ends.")
    await _show(call, wanted, start, follow=follow)
    return ExitCode.DONE


async def _show(call: NetworkCall, wanted: Wanted, offset: Offset, *, follow: bool) -> None:
    """Print what is wanted, from `offset` on; with `follow` also what comes. Errors: CommandError, AdminError."""
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


async def _fetched(call: NetworkCall, wanted: Wanted, offset: Offset, *, follow: bool) -> FetchedRecords | Offset:
    """Records from an offset on; with `follow` the first offset that is there, where the records are deleted that would be next.

    Errors: CommandError for an offset that isn't in the log, AdminError.
    """
    timeout_s, partition = call.timeout_ms / 1000, wanted.partition
    wait_ms = FOLLOW_WAIT_MS if follow else 0
    try:
        return await call.client.fetch_records(partition, offset, wait_ms=wait_ms, read_committed=wanted.read_committed, timeout=timeout_s)
    except BrokerAnsweredError as error:
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
    begins = (await call.client.list_offsets({partition: OffsetSpec.EARLIEST}, timeout=timeout_s))[partition]
    if follow and isinstance(begins, ListedOffset) and offset < begins.offset:
        return begins.offset
    where = f"its log starts at {begins.offset}" if isinstance(begins, ListedOffset) else "where its log starts is not known"
    message = f"{partition} has no offset {offset}: {where}."
    raise CommandError(message)


async def _place(call: NetworkCall, partition: TopicPartition, text: str | None, otherwise: OffsetSpec) -> Offset:
    """The offset that is meant. Errors: CommandError, AdminError."""
    place: OffsetSpec | Timestamp = otherwise
    if text is not None:
        try:
            if text == "end" or (text.isascii() and text.isdigit() and len(text) < len("1600000000000")):
                offset = parse_offset(text)
                if offset >= 0:
                    return offset
                place = OffsetSpec.LATEST
            else:
                place = Timestamp(parse_time(text))
        except ValueError as error:
            raise misused(f"{error}.") from None
    found = (await call.client.list_offsets({partition: place}, timeout=call.timeout_ms / 1000))[partition]
    if isinstance(found, AdminError):
        raise CommandError(f"{found}.")
    if found.offset >= 0:
        return found.offset
    end = (await call.client.list_offsets({partition: OffsetSpec.LATEST}, timeout=call.timeout_ms / 1000))[partition]
    if not isinstance(end, ListedOffset):
        raise CommandError(f"{end}.")
    return end.offset


def readable(fetched: FetchedRecords, offset: Offset, wanted: Wanted) -> tuple[list[Record | dict[str, Any]], Offset]:
    """Records and markers from `offset` on, and the offset behind them. Errors: CommandError for batches that can't be read."""
    rows: list[Record | dict[str, Any]] = []
    following = offset
    aborted = sorted(fetched.aborted, key=lambda each: each[1])
    ending: set[int] = set()
    try:
        for position, header in iterate_batches(fetched.records):
            if not check_crc(fetched.records, position, header):
                message = f"{wanted.partition}: the CRC of the batch at offset {header.base_offset} is wrong."
                raise CommandError(message)
            batch = memoryview(fetched.records)[position : position + header.size_bytes]
            following = max(following, header.next_offset)
            while aborted and aborted[0][1] <= header.last_offset:
                ending.add(aborted.pop(0)[0])
            if header.is_control:
                marker = read_control_record(batch, max_bytes=RECORD_BYTES_MAX)
                if marker is not None:
                    ending.discard(header.producer_id)
                if wanted.control and offset <= header.base_offset < wanted.end:
                    kind = None if marker is None else "commit" if marker.type is ControlRecordType.COMMIT else "abort"
                    rows.append(_marker(header.base_offset, header.max_timestamp, header.producer_id, kind))
            elif not (header.is_transactional and header.producer_id in ending):
                records = iterate_records(batch, max_bytes=RECORD_BYTES_MAX)
                rows += [record for record in records if offset <= record.offset < wanted.end]
            if len(rows) >= wanted.count:
                break
    except ProtocolError as error:
        message = f"{wanted.partition}: a batch at offset {following} or behind can't be read: {error}."
        raise CommandError(message) from error
    return rows, following


def _marker(offset: Offset, timestamp: int, producer_id: int, kind: str | None) -> dict[str, Any]:
    return {"offset": offset, "timestamp": timestamp, "control": kind, "producer_id": producer_id}


def _print(output: Output, row: Record | dict[str, Any], wanted: Wanted) -> None:
    if isinstance(row, dict):
        if output is Output.JSON:
            print_json_line(row)
        else:
            print(f"{row['offset']}  {moment(row['timestamp'])}  {row['control'] or 'control'} marker of producer {row['producer_id']}")
        return
    said = decoded(wanted.partition.topic, row.key, row.value)
    if output is Output.JSON:
        print_json_line(record_value(row, wanted.form) | ({} if said is None else {"decoded": said}))
    else:
        text = record_text(row, wanted.form) if said is None else in_words(said)
        print(f"{row.offset}  {moment(row.timestamp)}  {text}")
