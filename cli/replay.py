"""`lowtide erasures replay`: repeats the erasures of an export on a cluster that was restored from before them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from lowtide.admin.deletion import EraseUnsupportedError
from lowtide.admin.errors import AdminError
from lowtide.admin.receipts.ledger import Ledger
from lowtide.admin.replay_plan import ReplayPlan, replay_plan
from lowtide.admin.replaying import Replay, ReplayedBeginning, ReplayedPartition, replay_erasures
from lowtide.cli.call import NetworkCall, Yes, network
from lowtide.cli.confirmation import check_terminal, confirm
from lowtide.cli.delete_plan import brokers_with_reasons
from lowtide.cli.ledger_reading import entries_of, read_export
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, progress, remark
from lowtide.protocol.types import topic_id_text

FOUND_COLUMNS: Final = ("erasure", "topic", "partition", "named", "found", "absent", "others", "error")
COLUMNS: Final = (*FOUND_COLUMNS[:4], "erased", *FOUND_COLUMNS[5:-1], "erased by", "not yet by", "error")


@network
async def replay(
    call: NetworkCall,
    *,
    from_file: Annotated[
        str, typer.Option("--from", metavar="FILE", help="the output of `lowtide erasures export`, from before")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="look for the records, and erase nothing")] = False,
    without_gone: Annotated[
        bool, typer.Option("--without-gone", help="topics that the cluster doesn't have any more are no failure")
    ] = False,
    yes: Yes = False,
) -> ExitCode:
    """Erase again what an export of the ledger names, on a cluster that was restored from before.

    A record is erased only if it has the offset, the leader epoch and the timestamp of the erased one. The exit code is
    0 only if every replica is clean of all of them. Needs DELETE on the topics, and READ for a dry run or a question.
    """
    ledger = read_export(from_file)
    plan = _plan(from_file, ledger)
    if not (yes or dry_run):
        check_terminal()
        found = await _replayed(call, plan, dry_run=True)
        count = sum(each.found for each in found.partitions)
        confirm(
            f"Erase {plural(count, 'record')} of {plural(len(found.partitions), 'partition')} from the files of all "
            "brokers?",
            None if call.output is Output.JSON else (FOUND_COLUMNS, _rows(found, dry_run=True)),
        )
    replayed = await _replayed(call, plan, dry_run=dry_run)
    if replayed.cluster_id != ledger.cluster_id:
        remark(f"The export is of another cluster: {ledger.cluster_id}, not {replayed.cluster_id}.")
    columns = FOUND_COLUMNS if dry_run else COLUMNS
    call.show(replay_value(plan, replayed, dry_run=dry_run), columns, _rows(replayed, dry_run=dry_run))
    if dry_run and call.output is Output.TEXT:
        print(
            f"{plural(sum(each.found for each in replayed.partitions), 'record')} would be erased. Nothing was erased."
        )
    unclean, lost = missing(replayed), gone(plan, replayed)
    for sentence in (*unclean, *lost, *notes(plan, replayed)):
        remark(sentence)
    failed = sum(each.error is not None for each in replayed.partitions)
    if failed:
        again = "" if dry_run else ": run the same command again when the cause is gone"
        raise CommandError(f"{plural(failed, 'partition')} failed{again}.")
    is_done = dry_run or not (unclean or (lost and not without_gone))
    return ExitCode.DONE if is_done else ExitCode.FAILED


def _plan(path: str, ledger: Ledger) -> ReplayPlan:
    """Errors: CommandError."""
    try:
        plan = replay_plan(entries_of(ledger))
    except ValueError as error:
        raise misused(f"{path} has an invalid record of the ledger: {error}.") from None
    except CommandError as error:
        raise misused(f"{path}: {error}") from None
    return plan


async def _replayed(call: NetworkCall, plan: ReplayPlan, *, dry_run: bool) -> Replay:
    """Errors: AdminError; CommandError if a broker can't erase."""
    with progress("searching" if dry_run else "erasing", max(len(plan.steps), 1)) as bar:
        try:
            return await replay_erasures(call.client, plan, dry_run=dry_run, on_replayed=bar.advance)
        except EraseUnsupportedError as error:
            raise CommandError(f"{error.reason}.") from None


def missing(replayed: Replay) -> list[str]:
    """Returns what is not clean, in sentences."""
    sentences = []
    brokers = brokers_with_reasons(each.not_erased_by for each in replayed.partitions)
    if brokers:
        sentences.append(f"Not erased yet at {brokers}: run the same command again when the cause is gone.")
    for each in replayed.beginnings:
        start = each.log_start_offset
        if isinstance(start, AdminError):
            sentences.append(f"{each.partition}: its log start is unknown: {start}.")
        elif not each.is_deleted:
            sentences.append(
                f"{each.partition}: everything below {each.offset} was erased, but the log begins at {start} now, and "
                f"the ledger can't tell which records are below. If they are the same: {_command(each)}"
            )
    return sentences


def gone(plan: ReplayPlan, replayed: Replay) -> list[str]:
    """Returns which topics are gone, in sentences."""
    partitions: dict[bytes, list[int]] = {}
    for place in replayed.gone:
        partitions.setdefault(place.topic_id, []).append(place.partition)
    return [
        f"{plan.topics[topic_id]} (id {topic_id_text(topic_id)}): the cluster doesn't have "
        f"{'partition' if len(numbers) == 1 else 'partitions'} {', '.join(map(str, sorted(numbers)))}. Folders that "
        "were set aside may have the records."
        for topic_id, numbers in partitions.items()
    ]


def notes(plan: ReplayPlan, replayed: Replay) -> list[str]:
    """Returns what the user should know although it is no failure."""
    sentences = [
        f"{name}: no topic has the id {topic_id_text(topic_id)}, so this one was searched."
        for topic_id, name in replayed.renamed.items()
    ]
    if plan.uncommitted:
        sentences.append(
            f"Not repeated, because they have no commit in the export: {plural(plan.uncommitted, 'part')}."
        )
    return sentences


def _command(each: ReplayedBeginning) -> str:
    return f"lowtide records delete {each.partition.topic}:{each.partition.partition} --offset {each.offset} --erase"


def _rows(replayed: Replay, *, dry_run: bool) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for each in replayed.partitions:
        brokers = (
            ", ".join(map(str, each.erased_by)),
            ", ".join(f"{broker} ({reason})" for broker, reason in sorted(each.not_erased_by.items())),
        )
        counts: tuple[int | None, ...] = (each.found, each.absent, each.others)
        error = ""
        if each.error is not None:
            counts, error = (None, None, None), str(each.error).removeprefix(f"{each.partition}: ")
        rows.append((str(each.erasure_id), *each.partition, each.named, *counts, *(() if dry_run else brokers), error))
    return rows


def replay_value(plan: ReplayPlan, replayed: Replay, *, dry_run: bool) -> dict[str, Any]:
    """Returns the document for programs."""
    return {
        "dry_run": dry_run,
        "partitions": [_value(each) for each in replayed.partitions],
        "beginnings": [_beginning_value(each) for each in replayed.beginnings],
        "gone": [
            {
                "topic": plan.topics[place.topic_id],
                "topic_id": topic_id_text(place.topic_id),
                "partition": place.partition,
            }
            for place in replayed.gone
        ],
        "not_committed": plan.uncommitted,
    }


def _value(each: ReplayedPartition) -> dict[str, Any]:
    value = {"erasure_id": str(each.erasure_id), **each.partition._asdict(), "named": each.named}
    if each.error is not None:
        return {**value, "error": {"message": str(each.error)}}
    return {
        **value,
        "found": each.found,
        "absent": each.absent,
        "others": each.others,
        "erased_by": list(each.erased_by),
        "not_erased_by": [
            {"broker": broker, "message": reason} for broker, reason in sorted(each.not_erased_by.items())
        ],
        "error": None,
    }


def _beginning_value(each: ReplayedBeginning) -> dict[str, Any]:
    start = each.log_start_offset
    return {
        "erasure_id": str(each.erasure_id),
        **each.partition._asdict(),
        "offset": each.offset,
        "log_start_offset": None if isinstance(start, AdminError) else start,
        "deleted": each.is_deleted,
        "command": None if each.is_deleted else _command(each),
    }
