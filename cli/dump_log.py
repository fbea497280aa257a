"""`lowtide dump-log`: shows the files of a log: batches, indexes, snapshots, checkpoints, the log start journal.

It needs no broker, and only reads; a broker may be running. It prints where a file is damaged, continues after the
damage, and exits with 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Final

import typer

from lowtide.cli.call import Call, local
from lowtide.cli.coordinator_records import decoded, in_words
from lowtide.cli.dumped_batches import RECORD_BYTES_MAX, Damage, DumpedBatch, dump_batches
from lowtide.cli.dumped_files import Row, base_offset_of, dumper_of
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, plural, print_json_line, printable
from lowtide.cli.record_format import Form, marker_name, record_text, record_value
from lowtide.protocol.control_records import read_control_record
from lowtide.protocol.erasure_record import read_erasure
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import CURRENT_MAGIC, RECORD_BATCH_OVERHEAD, Record, iterate_records, read_batch_header
from lowtide.runtime.filesystem import FileSystem, OsFileSystem
from lowtide.storage.log.segments.segment_names import DELETED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX

app = typer.Typer(add_completion=False)

ERASED_SHOWN: Final = 8
"""The most ranges of erased offsets in a line."""

SMALL_FILE_BYTES_MAX: Final = 1 << 30
"""The largest file that is read whole; the log start journal is the largest of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest:
    """What to print of a segment: offsets from `first` to `end` (exclusive)."""

    records: bool
    form: Form
    first: int
    end: int | None


@app.command()
@local
def dump_log(
    call: Call,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH…", help="files; folders of partitions; log directories"),
    ],
    *,
    records: Annotated[bool, typer.Option("--records", "-r", help="show the records of each batch too")] = False,
    form: Annotated[Form, typer.Option("--format", help="the format of keys and values")] = Form.TEXT,
    first: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="leave out batches below this offset")
    ] = 0,
    end: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", min=0, help="leave out batches from this offset on")
    ] = None,
) -> ExitCode:
    """Show the files of a log, also damaged ones. Only reads; a broker may be running.

    Records of __consumer_offsets and __transaction_state are decoded. With --output json each line is an object with
    "file" and "kind".
    """
    wanted = DumpRequest(records=records, form=form, first=first, end=end)
    files = OsFileSystem()
    faults = 0
    for path in _files(files, paths):
        if call.output is Output.TEXT:
            print(printable(path))
        for row in dump_file(files, path, wanted):
            faults += row.fault is not None
            if call.output is Output.JSON:
                print_json_line({"file": path, "kind": row.kind, **row.values, "fault": row.fault})
            else:
                print(f"  {in_line(row)}")
    if call.output is Output.TEXT and faults:
        print(f"{plural(faults, 'fault')} found.")
    return ExitCode.FAILED if faults else ExitCode.DONE


def _files(files: FileSystem, paths: Iterable[str]) -> Iterator[str]:
    """Yields the files that paths name; those of a folder in order. Errors: CommandError."""
    for path in paths:
        if not files.exists(path):
            raise misused(f"there is no file {path}.")
        if not files.is_directory(path):
            if dumper_of(PurePath(path).name) is None and not _is_segment(path):
                raise misused(f"{path} is not a known file of a log.")
            yield path
            continue
        found = [f"{path.rstrip('/')}/{name}" for name in sorted(files.listdir(path))]
        known = [
            each
            for each in found
            if not files.is_directory(each) and (_is_segment(each) or dumper_of(PurePath(each).name) is not None)
        ]
        if not known:
            raise misused(f"{path} contains no file of a log.")
        yield from known


def _is_segment(path: str) -> bool:
    return path.removesuffix(DELETED_SUFFIX).endswith(LOG_SUFFIX)


def dump_file(files: FileSystem, path: str, wanted: DumpRequest) -> Iterator[Row]:
    """Yields the contents of one file. Errors: CommandError if it can't be read."""
    try:
        if _is_segment(path):
            yield from _segment(files, path, wanted)
            return
        size = files.file_size(path)
        if size > SMALL_FILE_BYTES_MAX:
            yield Row("damage", {}, f"it has {size} bytes; the limit for this kind of file is {SMALL_FILE_BYTES_MAX}")
            return
        name = PurePath(path).name
        dumper = dumper_of(name)
        assert dumper is not None, path
        rows = dumper(files.read_bytes(path), name)
        yield from _compared(files, path, rows) if name.endswith(INDEX_SUFFIX) else rows
    except OSError as error:
        raise CommandError(f"{path} can't be read: {error.strerror}.") from error


def _compared(files: FileSystem, path: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Checks that each entry of an offset index points to a batch from which its offset is found. Errors: OSError.

    The batch may end before the offset: Kafka's followers wrote one entry for all batches of a fetch.
    """
    log = path.removesuffix(INDEX_SUFFIX) + LOG_SUFFIX
    if not files.exists(log):
        yield from rows
        return
    file = files.open(log)
    try:
        for row in rows:
            if row.kind == "offset-index" and row.fault is None:
                head = file.pread(RECORD_BATCH_OVERHEAD, row.values["position"])
                header = read_batch_header(head) if len(head) == RECORD_BATCH_OVERHEAD else None
                known = header is not None and header.magic == CURRENT_MAGIC
                if header is None or not known or header.base_offset > row.values["offset"]:
                    there = (
                        f"a batch that begins at {header.base_offset}" if header is not None and known else "no batch"
                    )
                    yield row._replace(fault=f"at byte {row.values['position']} the segment has {there}")
                    continue
            yield row
    finally:
        file.close()


def _segment(files: FileSystem, path: str, wanted: DumpRequest) -> Iterator[Row]:
    """Yields the batches and records of a segment. Errors: OSError."""
    try:
        base_offset = base_offset_of(PurePath(path).name)
    except ValueError as error:
        yield Row("damage", {}, str(error))
        base_offset = 0
    topic = PurePath(path).parent.name.rpartition("-")[0]
    file = files.open(path)
    try:
        for found in dump_batches(file, file.size(), base_offset, check_records=wanted.records):
            if isinstance(found, DumpedBatch):
                yield from _batch(found, topic, wanted)
            elif isinstance(found, Damage):
                values = {"position": found.position, "bytes": found.end - found.position}
                yield Row("damage", values, f"bytes {found.position} to {found.end - 1}: {found.reason}")
            else:
                yield Row("unwritten", {"position": found.position, "bytes": found.end - found.position})
    finally:
        file.close()


def _batch(found: DumpedBatch, topic: str, wanted: DumpRequest) -> Iterator[Row]:
    header = found.header
    outside = header.last_offset < wanted.first or (wanted.end is not None and header.base_offset >= wanted.end)
    if outside and found.fault is None:
        return
    try:
        codec = header.compression.name.lower()
    except ProtocolError:
        codec = "unknown"
    values: dict[str, Any] = {
        "position": found.position,
        "bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.partition_leader_epoch,
        "timestamp_type": header.timestamp_type.name.lower(),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "compression": codec,
        "producer_id": None if header.producer_id < 0 else header.producer_id,
        "producer_epoch": None if header.producer_id < 0 else header.producer_epoch,
        "base_sequence": None if header.base_sequence < 0 else header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "marker": _marker(found) if header.is_control and found.fault is None else None,
        "erasure": _erasure(found) if header.is_control and header.producer_id < 0 and found.fault is None else None,
        "crc": header.crc,
    }
    fault = None if found.fault is None else f"byte {found.position}: {found.fault}"
    yield Row("batch", values, fault)
    if wanted.records and found.fault is None and not header.is_control:
        for record in iterate_records(found.content, max_bytes=RECORD_BYTES_MAX):
            if record.offset >= wanted.first and (wanted.end is None or record.offset < wanted.end):
                yield _record(record, topic, wanted.form)


def _record(record: Record, topic: str, form: Form) -> Row:
    said = decoded(topic, record.key, record.value)
    values = record_value(record, form)
    values["text"] = record_text(record, form)
    if said is not None:
        values |= {"decoded": said, "text": in_words(said)}
    fault = f"offset {record.offset}: {said['reason']}" if said is not None and said["type"] == "unreadable" else None
    return Row("record", values, fault)


def _marker(batch: DumpedBatch) -> str | None:
    """Returns how a control batch ends its transaction."""
    try:
        return marker_name(read_control_record(batch.content, max_bytes=RECORD_BYTES_MAX))
    except ProtocolError:
        return None


def _erasure(batch: DumpedBatch) -> dict[str, Any] | None:
    """Returns what a control batch erases; None if it is no erasure that can be read."""
    try:
        found = read_erasure(batch.content, max_bytes=RECORD_BYTES_MAX)
    except ProtocolError:
        return None
    return None if found is None else {"id": str(found.erasure_id), "offsets": [list(each) for each in found.ranges]}


def in_line(row: Row) -> str:
    """Formats a row in one line."""
    values = row.values
    if row.kind == "batch":
        text = _batch_line(values)
    elif row.kind == "record":
        text = f"  {values['offset']}  {moment(values['timestamp'])}  {values['text']}"
    elif row.kind == "unwritten":
        text = f"byte {values['position']}: zeros to the end of the file, {values['bytes']:,} bytes not written yet"
    elif row.kind == "damage":
        return f"DAMAGE  {printable(row.fault or '')}"
    else:
        text = f"{row.kind}  " + "  ".join(
            f"{name} {'-' if value is None else value}" for name, value in values.items()
        )
    return text if row.fault is None else f"{text}  FAULT: {row.fault}"


def shown_offsets(ranges: list[list[int]]) -> str:
    """Returns ranges of offsets as text, the first eight of them."""
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:ERASED_SHOWN]]
    return f"offsets {', '.join([*shown, '…'] if len(ranges) > ERASED_SHOWN else shown)}"


def _batch_line(values: dict[str, Any]) -> str:
    kind = plural(values["record_count"], "record")
    if values["erasure"] is not None:
        kind = f"erasure {values['erasure']['id']} of {shown_offsets(values['erasure']['offsets'])}"
    elif values["is_control"]:
        kind = f"{values['marker'] or 'control'} marker"
    parts = [
        f"byte {values['position']}",
        f"offsets {values['base_offset']} to {values['last_offset']}",
        kind,
        f"{values['bytes']:,} bytes",
    ]
    parts += [f"leader epoch {values['leader_epoch']}", f"up to {moment(values['max_timestamp'])}"]
    if values["compression"] != "none":
        parts.append(values["compression"])
    if values["producer_id"] is not None:
        sequence = "" if values["base_sequence"] is None else f" from sequence {values['base_sequence']}"
        parts.append(f"producer {values['producer_id']} epoch {values['producer_epoch']}{sequence}")
    if values["is_transactional"] and not values["is_control"]:
        parts.append("transactional")
    return ", ".join(parts)
