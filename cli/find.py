"""`lowtide records find`: finds the records of a person, by key or header."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.errors import AdminError
from lowtide.admin.finding import KEY_BYTES_MAX, KEY_READERS, OnProgress, RecordQuery, SearchedPartition
from lowtide.cli.call import NetworkCall, OptionGroup, network
from lowtide.cli.cluster_questions import chosen_partitions, parsed_partitions
from lowtide.cli.delete_plan import matching_topics
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import plural, progress
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.types import TopicId, TopicPartition
from lowtide.runtime.filesystem import OsFileSystem

COLUMNS: Final = ("topic", "partition", "searched from", "searched to", "records found", "offsets", "error")

RANGES_SHOWN: Final = 4
"""The most ranges of offsets in a row of the table."""

_FILE_BYTES_MAX: Final = 4 * KEY_BYTES_MAX
"""The largest file of keys: hexadecimal digits take two bytes for each."""


class KeyFormat(StrEnum):
    """How keys are written."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorOptions(OptionGroup):
    """A person, by key or header, and topics by pattern."""

    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="KEY", help="may be repeated; all users of this machine can see it, --keys-from hides it"
        ),
    ] = None
    keys_from: Annotated[
        str | None,
        typer.Option("--keys-from", metavar="FILE", help="a file with a key in each line; - reads standard input"),
    ] = None
    header: Annotated[
        str | None, typer.Option("--header", metavar="NAME=VALUE", help="records with this header and value")
    ] = None
    key_format: Annotated[KeyFormat, typer.Option("--key-format", help="how keys are written")] = KeyFormat.TEXT
    topics_matching: Annotated[
        list[str] | None,
        typer.Option("--topics-matching", metavar="PATTERN", help="topics by name, with the wildcards * and ?"),
    ] = None


def check_selectors(given: Mapping[str, object]) -> str:
    """Returns the name of the option that has a value. Errors: CommandError unless exactly one has."""
    names = [name for name, value in given.items() if value]
    if len(names) != 1:
        conflict = f"{' and '.join(names)} exclude each other: " if names else ""
        *first, last = given
        raise misused(f"{conflict}give one of {', '.join(first)} and {last}.")
    return names[0]


def selector_of(keys: Sequence[str], keys_from: str | None, header: str | None, key_format: KeyFormat) -> RecordQuery:
    """Returns the selector that exactly one option gives. Errors: CommandError, without its content."""
    given = check_selectors({"--key": keys, "--keys-from": keys_from, "--header": header})
    try:
        if header is not None:
            name, separator, value = header.partition("=")
            if not separator:
                raise misused("--header must have the form NAME=VALUE.")
            return RecordQuery(header=(name, value.encode()))
        lines = _lines(keys_from) if keys_from is not None else enumerate(keys, 1)
        return RecordQuery(keys=frozenset(_key(text, key_format, given, number) for number, text in lines))
    except ValueError as error:
        raise misused(f"{given}: {error}.") from None


def check_erasure_id(erasure_id: UUID | None) -> None:
    """Refuses the id that means none: the ledger keeps no confirmations of such an erasure. Errors: CommandError."""
    if erasure_id is not None and not erasure_id.int:
        raise misused("an erasure can't have the id of zeros only.")


def _lines(path: str) -> list[tuple[int, str]]:
    """Returns the lines of a file, or of standard input for `-`, with their numbers, without empty ones."""
    what = "standard input" if path == "-" else path
    try:
        content = sys.stdin.buffer.read(_FILE_BYTES_MAX + 1) if path == "-" else OsFileSystem().read_bytes(path)
    except OSError as error:
        raise misused(f"--keys-from: {what} can't be read: {error.strerror or error}.") from None
    if len(content) > _FILE_BYTES_MAX:
        raise misused(f"--keys-from: {what} has more than {_FILE_BYTES_MAX} bytes.")
    try:
        text = content.decode("utf-8-sig")  # Editors put a byte order mark before the first key.
    except UnicodeDecodeError:
        raise misused(f"--keys-from: {what} is not UTF-8: give such keys with --key-format hex or base64.") from None
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise misused(f"--keys-from: {what} has no key.")
    return lines


def _key(text: str, key_format: KeyFormat, option: str, number: int) -> bytes:
    try:
        return KEY_READERS[key_format](text)
    except ValueError:
        place = f"line {number}" if option == "--keys-from" else "the key"
        raise misused(f"{option}: {place} is not {key_format}.") from None


async def named_partitions(
    call: NetworkCall, texts: Sequence[str], patterns: Sequence[str]
) -> tuple[list[TopicPartition], ClusterView]:
    """Returns the partitions that the arguments and `--topics-matching` name. Errors: CommandError, AdminError."""
    if not texts and not patterns:
        raise misused("give a topic, or --topics-matching.")
    view = await call.client.call().view(None if patterns else [parsed_partitions(text)[0] for text in texts])
    matching = matching_topics(patterns, view) if patterns else []
    chosen = chosen_partitions([*texts, *(name for name in matching if name not in texts)], view.topics)
    internal = sorted({key.topic for key in chosen if view.topics[key.topic].is_internal})
    if internal:
        raise misused(f"{internal[0]} is an internal topic: its records belong to the brokers.")
    return chosen, view


@network
async def find(
    call: NetworkCall,
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC[:PARTITIONS]…", help="flights, or flights:0,2-4")
    ] = None,
    *,
    selector: SelectorOptions,
) -> ExitCode:
    """Find a person's records: all that have a key, one of many keys, or a header.

    The leaders search their logs up to the current end. Records of aborted transactions are found too, and deleted
    records that are still in a file. The exit code is 0 if every partition was searched, whether or not records were
    found. Give keys with --keys-from: --key shows them in the list of processes.
    """
    query = selector_of(selector.key or [], selector.keys_from, selector.header, selector.key_format)
    chosen, view = await named_partitions(call, partitions or [], selector.topics_matching or [])
    results = await searched(call, query, chosen, view)
    rows = [_row(each, results[each]) for each in chosen]
    call.show({"partitions": [found_value(each, results[each]) for each in chosen]}, COLUMNS, rows)
    failed = [result for result in results.values() if isinstance(result, AdminError)]
    if failed:
        raise CommandError(f"{plural(len(failed), 'partition')} could not be searched.", ExitCode.FAILED)
    return ExitCode.DONE


async def searched(
    call: NetworkCall, query: RecordQuery, chosen: list[TopicPartition], view: ClusterView
) -> dict[TopicPartition, SearchedPartition | AdminError]:
    """Searches partitions, with a progress bar on a terminal. Errors: AdminError."""
    with search_progress() as on_progress:
        return await call.client.find_records(
            chosen, keys=query.keys, header=query.header, topic_ids=topic_ids_of(view), on_progress=on_progress
        )


def topic_ids_of(view: ClusterView) -> dict[str, TopicId]:
    """Returns the ids of topics: those that are created again under the same name are refused."""
    return {name: topic.topic_id for name, topic in view.topics.items() if topic.topic_id is not None}


@contextmanager
def search_progress() -> Iterator[OnProgress]:
    """Shows the progress of a search on a terminal."""
    with progress("searching", 100) as bar:
        shown = 0

        def on_progress(searched_bytes: int, total_bytes: int) -> None:
            nonlocal shown
            percent = searched_bytes * 100 // total_bytes if total_bytes else 0
            bar.advance(max(percent - shown, 0))
            shown = max(shown, percent)

        yield on_progress


def shortened(offsets: Sequence[OffsetRange], *, has_more: bool = False) -> str:
    """Returns some offsets for a table: `3, 7-9, …`."""
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in offsets[:RANGES_SHOWN]]
    if has_more or len(offsets) > RANGES_SHOWN:
        texts.append("…")
    return ", ".join(texts)


def _row(key: TopicPartition, result: SearchedPartition | AdminError) -> tuple[object, ...]:
    if isinstance(result, AdminError):
        return (*key, None, None, None, None, str(result).removeprefix(f"{key}: "))
    offsets = shortened(result.offsets, has_more=result.has_more)
    return (*key, result.searched_from, result.searched_to, result.count, offsets, "")


def found_value(key: TopicPartition, result: SearchedPartition | AdminError) -> dict[str, Any]:
    """Returns the result for a partition, for JSON."""
    if isinstance(result, AdminError):
        return {**key._asdict(), "error": {"message": str(result)}}
    return {
        **key._asdict(),
        "leader": result.leader,
        "leader_epoch": result.leader_epoch,
        "searched_from": result.searched_from,
        "searched_to": result.searched_to,
        "records": result.count,
        "offsets": [[first, last] for first, last in result.offsets],
        "has_more_offsets": result.has_more,
        "error": None,
    }
