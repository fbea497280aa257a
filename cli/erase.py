"""`lowtide records erase`: erases the records of a person, and keeps all others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID, uuid4

import typer

from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.deletion import EraseUnsupportedError
from lowtide.admin.erasing import PartitionErasure
from lowtide.admin.errors import AdminError
from lowtide.admin.finding import RecordQuery
from lowtide.admin.receipts.statement import rfc3339
from lowtide.admin.settings import ClientSettings
from lowtide.admin.standing import StandingTerms
from lowtide.cli.call import NetworkCall, Yes, network
from lowtide.cli.confirmation import check_terminal, confirm
from lowtide.cli.delete_plan import brokers_with_reasons
from lowtide.cli.erase_table import (
    ErasedTables,
    TableReachOptions,
    erased_from_tables,
    opened_for_erasure,
    query_without_topic,
)
from lowtide.cli.find import (
    SelectorOptions,
    check_erasure_id,
    check_selectors,
    named_partitions,
    search_progress,
    selector_of,
    shortened,
    topic_ids_of,
)
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, remark
from lowtide.cli.tokens import duration_ms_of
from lowtide.pipeline.outbox import Limits
from lowtide.pipeline.partition_batches import ProduceError
from lowtide.pipeline.producer import Producer
from lowtide.pipeline.producer_settings import ProducerSettings
from lowtide.protocol.batch_building import UnplacedRecord, build_batch
from lowtide.protocol.key_hash import partition_of_key
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.clock import SystemClock

Results = Mapping[TopicPartition, PartitionErasure | AdminError]

FOUND_COLUMNS: Final = ("topic", "partition", "searched from", "searched to", "records found", "error")
COLUMNS: Final = (*FOUND_COLUMNS[:-1], "erased by", "not yet by", "error")

_OFFSETS: Final = re.compile(r"(\d{1,10}):(\d{1,19}(?:-\d{1,19})?(?:,\d{1,19}(?:-\d{1,19})?)*)")

STANDING_NEEDS: Final = (
    "--standing needs --key or --keys-from, without --dry-run and --tombstone: it would erase the tombstone."
)
STANDING_HELP: Final = (
    "erase the keys again if they return, for so long: 12h, 90d; also in topics that match the patterns later"
)


class ErasureOptions(NamedTuple):
    """How records are erased."""

    erasure_id: UUID | None = None
    standing: StandingTerms | None = None
    force: bool = False


NO_OPTIONS: Final = ErasureOptions()

_PATTERN_HELP: Final = "exact records: 0:17,90410-90411 are three of partition 0; may be repeated"


Force = Annotated[
    bool, typer.Option("--force", help="in a compacted topic, --offsets may name the newest version of a key")
]
Tombstone = Annotated[
    bool,
    typer.Option(
        "--tombstone",
        help="then write a record with each key and no value, so that tables that were made of the topic forget it "
        "too; such a record contains the key",
    ),
]
Standing = Annotated[str | None, typer.Option("--standing", metavar="DURATION", help=STANDING_HELP)]


@network
async def erase(
    call: NetworkCall,
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC[:PARTITIONS]…", help="flights, or flights:0,2-4")
    ] = None,
    *,
    selector: SelectorOptions,
    offsets: Annotated[list[str] | None, typer.Option("--offsets", metavar="P:O,O-O,…", help=_PATTERN_HELP)] = None,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="find the records, and erase nothing")] = False,
    erasure_id: Annotated[
        UUID | None,
        typer.Option("--erasure-id", metavar="UUID", help="continues an erasure whose outcome is unknown"),
    ] = None,
    tombstone: Tombstone = False,
    standing: Standing = None,
    reach: TableReachOptions,
    yes: Yes = False,
) -> ExitCode:
    """Erase a person's records: all that have a key, one of many keys, or a header; or records at offsets.

    The leaders search their logs up to the current end. Then nobody can read the records any more, and all brokers with
    a replica remove them from their files. Offsets do not change, and all other records stay. The exit code is 0 only
    if every replica is clean; otherwise run the command again when the brokers that it names are back. Give keys with
    --keys-from: --key shows them in the list of processes.

    With --table, the rows in an Iceberg table and its history are erased after the records; without a topic, only they.
    """
    texts, patterns = partitions or [], selector.topics_matching or []
    only_table = reach.table is not None and not texts and not patterns
    by_offset = _offsets_of(offsets or [], selector, None if only_table else texts)
    query = (
        None if by_offset else selector_of(selector.key or [], selector.keys_from, selector.header, selector.key_format)
    )
    terms = _standing_of(standing, texts, patterns)
    _check_combination(terms, has_keys=query is not None and bool(query.keys) and not dry_run, tombstone=tombstone)
    check_erasure_id(erasure_id)
    if force and not by_offset:
        raise misused("--force needs --offsets.")
    if only_table and (tombstone or terms is not None or force):
        raise misused("--tombstone, --standing and --force need a topic.")
    if not (yes or dry_run):
        check_terminal()
    opened = opened_for_erasure(reach, texts)
    if reach.table is not None and not dry_run:
        erasure_id = erasure_id or uuid4()
    if only_table:
        tables = ErasedTables(opened, query or query_without_topic(by_offset))
        return await asyncio.to_thread(erased_from_tables, call, tables, erasure_id, asks=not yes)
    if by_offset:
        texts = [f"{texts[0]}:{number}" for number in by_offset]
    chosen, view = await named_partitions(call, texts, patterns)
    if query is None:
        query = RecordQuery(offsets={key: by_offset[key.partition] for key in chosen})
    refused, tables = bool(by_offset) and not force, ErasedTables(opened, query)
    tables.check_topics({key.topic for key in chosen})
    if not dry_run and not yes:
        found = await _erased(call, query, chosen, view, dry_run=True)
        _ask(call, chosen, found, await asyncio.to_thread(tables.question), refused=refused)
    options = ErasureOptions(erasure_id=erasure_id, standing=terms, force=force)
    results = await _erased(call, query, chosen, view, dry_run=dry_run, options=options)
    await asyncio.to_thread(tables.run, erasure_id if not dry_run else None)
    if dry_run:
        return _rehearsed(call, chosen, results, tables, refused=refused)
    exit_code = _shown(call, chosen, results, tables)
    if tombstone:
        written = await asyncio.to_thread(_write_tombstones, call.client.settings, query.keys, chosen, view)
        remark(f"{plural(written, 'tombstone')} written.")
    return exit_code


def _check_combination(terms: StandingTerms | None, *, has_keys: bool, tombstone: bool) -> None:
    """Errors: CommandError for options that exclude each other."""
    if tombstone and not has_keys:
        raise misused("--tombstone needs --key or --keys-from, and no --dry-run.")
    if terms is not None and (tombstone or not has_keys):
        raise misused(STANDING_NEEDS)


def _write_tombstones(
    settings: ClientSettings, keys: Collection[bytes], chosen: Collection[TopicPartition], view: ClusterView
) -> int:
    """Writes a record without a value for each key, where Java's clients put the key, if that partition is chosen.

    Returns the number of records. Errors: CommandError.
    """
    producer, now_ms = Producer(ProducerSettings(client=settings, limits=Limits())), SystemClock().wall_ms()
    try:
        for topic in sorted({each.topic for each in chosen}):
            placed: dict[TopicPartition, list[UnplacedRecord]] = {}
            for key in sorted(keys):
                place = TopicPartition(topic, partition_of_key(key, len(view.topics[topic].partitions)))
                if place in chosen:
                    placed.setdefault(place, []).append((now_ms, key, None, ()))
            producer.learn_topic(topic)
            for place, records in placed.items():
                producer.add(place, bytearray(build_batch(records)), len(records))
            producer.flush()
    except (AdminError, ProduceError) as error:
        written = plural(producer.acknowledged_records, "tombstone")
        raise CommandError(f"Not all tombstones could be written, only {written}: {error}.") from None
    finally:
        producer.close()
    return producer.acknowledged_records


def _offsets_of(
    texts: Sequence[str], selector: SelectorOptions, topics: Sequence[str] | None
) -> dict[int, OffsetRanges]:
    """Returns the offsets by partition; none if another option says what to erase. Without topics: of a table.

    Errors: CommandError.
    """
    given = check_selectors(
        {"--key": selector.key, "--keys-from": selector.keys_from, "--header": selector.header, "--offsets": texts}
    )
    if given != "--offsets":
        return {}
    if topics is not None and (len(topics) != 1 or ":" in topics[0] or selector.topics_matching):
        raise misused("--offsets needs exactly one topic, without partitions: it names them itself.")
    found: dict[int, list[tuple[int, int]]] = {}
    for text in texts:
        match = _OFFSETS.fullmatch(text.strip())
        if match is None:
            raise misused(f"--offsets {text!r} is invalid: write a partition and its offsets, as in 0:17,90410-90411.")
        pairs = [part.partition("-") for part in match[2].split(",")]
        found.setdefault(int(match[1]), []).extend((int(first), int(last or first)) for first, _, last in pairs)
    try:
        return {partition: OffsetRanges(ranges) for partition, ranges in sorted(found.items())}
    except ValueError as error:
        raise misused(f"--offsets: {error}.") from None


def _standing_of(standing: str | None, texts: Sequence[str], patterns: Sequence[str]) -> StandingTerms | None:
    """Returns how long an erasure stands, and where. Errors: CommandError."""
    if standing is None:
        return None
    if any(":" in text for text in texts):
        raise misused("--standing covers whole topics: give them without partitions.")
    lasts_ms = duration_ms_of(standing)
    if not lasts_ms:
        raise misused("--standing must be longer than 0; lowtide erasures standing end ends an erasure.")
    return StandingTerms(lasts_ms=lasts_ms, topics=sorted(set(texts)), patterns=sorted(set(patterns)))


async def _erased(
    call: NetworkCall,
    query: RecordQuery,
    chosen: list[TopicPartition],
    view: ClusterView,
    *,
    dry_run: bool,
    options: ErasureOptions = NO_OPTIONS,
) -> Results:
    """Erases or only searches, with a progress bar on a terminal. Errors: AdminError; CommandError if no broker can."""
    offsets = None if query.offsets is None else {key: each.ranges() for key, each in query.offsets.items()}
    with search_progress() as on_progress:
        results = await call.client.erase_records(
            chosen,
            keys=query.keys,
            header=query.header,
            offsets=offsets,
            force=options.force,
            erasure_id=options.erasure_id,
            standing=options.standing,
            dry_run=dry_run,
            topic_ids=topic_ids_of(view),
            on_progress=on_progress,
        )
    for result in results.values():
        if isinstance(result, EraseUnsupportedError):
            raise CommandError(f"{result.reason}.")
    return results


def _ask(call: NetworkCall, chosen: list[TopicPartition], found: Results, also: str, *, refused: bool) -> None:
    """Shows what was found, and asks. Errors: CommandError if a search failed, or the answer is no."""
    rows = _rows(chosen, found, dry_run=True)
    failed = [each for each in found.values() if isinstance(each, AdminError)]
    if failed:
        call.show(_document(chosen, found, dry_run=True), FOUND_COLUMNS, rows)
        raise CommandError(f"{plural(len(failed), 'partition')} could not be searched. Nothing was erased.")
    for line in _newest_lines(chosen, found, refused=refused):
        remark(line)
    records = plural(_count(found, refused=refused), "record")
    confirm(
        f"Erase {records} of {plural(len(chosen), 'partition')} from the files of all brokers{also}?",
        None if call.output is Output.JSON else (FOUND_COLUMNS, rows),
    )


def _rehearsed(
    call: NetworkCall, chosen: list[TopicPartition], found: Results, tables: ErasedTables, *, refused: bool
) -> ExitCode:
    """Prints what would be erased. Returns the exit code. Errors: CommandError if a search failed."""
    call.show(
        _document(chosen, found, dry_run=True) | tables.document(), FOUND_COLUMNS, _rows(chosen, found, dry_run=True)
    )
    tables.shown(call.output)
    if call.output is Output.TEXT:
        for line in _newest_lines(chosen, found, refused=refused):
            print(line)
        print(f"{plural(_count(found, refused=refused), 'record')} would be erased. Nothing was erased.")
    failed = sum(isinstance(each, AdminError) for each in found.values())
    if failed:
        raise CommandError(f"{plural(failed, 'partition')} could not be searched.")
    return ExitCode.DONE


def _count(found: Results, *, refused: bool) -> int:
    """Returns how many records would be erased; none of a partition with newest versions if these are refused."""
    done = [each for each in found.values() if isinstance(each, PartitionErasure)]
    return sum(each.count for each in done if not (refused and each.newest))


def _shown(call: NetworkCall, chosen: list[TopicPartition], results: Results, tables: ErasedTables) -> ExitCode:
    """Prints the results, and on standard error what is missing. Returns the exit code."""
    call.show(
        _document(chosen, results, dry_run=False) | tables.document(), COLUMNS, _rows(chosen, results, dry_run=False)
    )
    tables_left = tables.shown(call.output)
    failed = sum(isinstance(each, AdminError) for each in results.values())
    done = [each for each in results.values() if isinstance(each, PartitionErasure)]
    if done and done[0].standing_until_ms is not None and call.output is Output.TEXT:
        remark(f"It stands until {rfc3339(done[0].standing_until_ms)} (lowtide erasures standing).")
    if done and done[0].nonce and call.output is Output.TEXT:
        remark(f"Keep for a receipt (lowtide erasures receipt): {done[0].erasure_id} --nonce {done[0].nonce.hex()}")
    missing = brokers_with_reasons(each.not_erased_by for each in done)
    if missing:
        remark(f"Not erased yet at {missing}: run the same command again when the cause is gone.")
    if failed:
        raise CommandError(f"{plural(failed, 'partition')} failed: run the same command again when the cause is gone.")
    return ExitCode.FAILED if missing or tables_left else ExitCode.DONE


def _newest_lines(chosen: list[TopicPartition], results: Results, *, refused: bool) -> list[str]:
    """Returns a line for each partition with records that are the newest versions of their keys."""
    lines = []
    for key in chosen:
        result = results[key]
        if isinstance(result, PartitionErasure) and result.newest:
            is_one = sum(last - first + 1 for first, last in result.newest) == 1
            are = "is the newest version of its key" if is_one else "are the newest versions of their keys"
            whose = "This key has" if is_one else "These keys have"
            then = "Without --force, nothing is erased there." if refused else f"{whose} no value afterwards."
            lines.append(f"{key.topic}:{key.partition}: {shortened(result.newest)} {are}. {then}")
    return lines


def _rows(chosen: list[TopicPartition], results: Results, *, dry_run: bool) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for key in chosen:
        result = results[key]
        if isinstance(result, AdminError):
            values: tuple[object, ...] = (None,) * (3 if dry_run else 5)
            rows.append((*key, *values, str(result).removeprefix(f"{key}: ")))
            continue
        brokers = (
            ", ".join(map(str, result.erased_by)),
            ", ".join(f"{broker} ({reason})" for broker, reason in sorted(result.not_erased_by.items())),
        )
        found = (*key, result.searched_from, result.searched_to, result.count)
        rows.append((*found, *(() if dry_run else brokers), ""))
    return rows


def _document(chosen: list[TopicPartition], results: Results, *, dry_run: bool) -> dict[str, Any]:
    done = [each for each in results.values() if isinstance(each, PartitionErasure)]
    return {
        "dry_run": dry_run,
        "erasure_id": str(done[0].erasure_id) if done and not dry_run else None,
        "nonce": (done[0].nonce.hex() or None) if done else None,
        "standing_until": _until(done),
        "partitions": [_value(key, results[key]) for key in chosen],
    }


def _until(done: Sequence[PartitionErasure]) -> str | None:
    until_ms = done[0].standing_until_ms if done else None
    return None if until_ms is None else rfc3339(until_ms)


def _value(key: TopicPartition, result: PartitionErasure | AdminError) -> dict[str, Any]:
    if isinstance(result, AdminError):
        return {**key._asdict(), "error": {"message": str(result)}}
    return {
        **key._asdict(),
        "searched_from": result.searched_from,
        "searched_to": result.searched_to,
        "records": result.count,
        "newest_versions": [[first, last] for first, last in result.newest],
        "erasures_end": None if result.erasures_end < 0 else result.erasures_end,
        "erased_by": list(result.erased_by),
        "not_erased_by": [
            {"broker": broker, "message": reason} for broker, reason in sorted(result.not_erased_by.items())
        ],
        "error": None,
    }
