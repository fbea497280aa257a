"""`lowtide records sweep`: deletes the oldest records of many partitions, at a limited rate, and can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import typer

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.delete_plan import DeletePlan, make_plan
from lowtide.admin.deletion import DeletedRecords, DeleteTarget
from lowtide.cli.call import NetworkCall, Yes, network
from lowtide.cli.confirmation import confirm
from lowtide.cli.delete_plan import (
    DryRun,
    LeaderOnly,
    TargetOptions,
    in_words,
    matching_topics,
    summary,
    target_of,
)
from lowtide.cli.offset_file import OffsetFileError, read_offset_file
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table, progress, remark
from lowtide.cli.sweeping import (
    DONE,
    PENDING,
    STATE_BYTES_MAX,
    StateError,
    Sweep,
    SweepPace,
    SweptPartition,
    check_same,
    decode_sweep,
    describe_request,
)
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import OsFileSystem

FAILURES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """The partitions to sweep with their targets, and the same in words."""

    targets: Mapping[TopicPartition, DeleteTarget]
    view: ClusterView
    request: str
    in_words: str


@network
async def sweep(
    call: NetworkCall,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN…", help="topic names, with the wildcards * and ?")
    ] = None,
    *,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="offsets in the form of lowtide-delete-records")
    ] = None,
    target: TargetOptions,
    leader_only: LeaderOnly = False,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.1, metavar="N", help="partitions a second, at most")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="FILE", help="keep the progress in a file, and resume from it")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="write the outcome of each partition, as JSON")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> ExitCode:
    """Delete the oldest records of many partitions: of topics by pattern, or of the partitions in a file.

    Offsets are looked up once, at the beginning. With --state, a sweep that was stopped or killed continues when the
    same command is given again, and failed partitions are retried. Topics that were created again meanwhile are left
    alone, and with --committed-by also partitions without a commit of a group.
    """
    wanted = _wanted(topics or [], file, target)
    found = None if state is None else _read_state(state)
    begun = SystemClock().monotonic_ms()
    if found is None:
        wish = await _wish(call, wanted, topics or [], leader_only=leader_only)
        plan = await make_plan(call.client, wish.targets, wish.view, with_bytes=dry_run)
        swept = _begun(plan, wish)
        if dry_run:
            return _rehearsed(call, plan)
        if not yes:
            confirm(f"Sweep {', '.join(topics or [file or ''])}: {wish.in_words}: {summary(plan)}?")
    else:
        swept = found
        view = await call.client.call().view([])
        request = describe_request(topics or ["--file"], _words(wanted), leader_only=leader_only)
        try:
            check_same(swept, request, view.cluster_id, state or "")
        except StateError as error:
            raise misused(str(error)) from None
        swept.retry_failed()
        if not swept.pending():
            remark(f"the sweep of {state} is done already: nothing to do.")
        if dry_run:
            return _show_rest(call, swept)
        if not yes and swept.pending():
            confirm(f"Continue with {plural(len(swept.pending()), 'partition')} of {len(swept.partitions):,}?")
    _keep(report, _report(swept, 0))  # Fails before anything is deleted if the file can't be written.
    await _carry_out(call, swept, SweepPace(rate, begun), state, leader_only=leader_only)
    return _reported(call, swept, report, SystemClock().monotonic_ms() - begun)


def _wanted(
    topics: list[str], file: str | None, target: TargetOptions
) -> DeleteTarget | Mapping[TopicPartition, DeleteTarget]:
    """Returns the target of all partitions, or of each partition in a file. Errors: CommandError."""
    if file is None:
        if not topics:
            raise misused("give patterns of topics, or --file.")
        return target_of(target.offset, target.before, target.committed_by or [])
    if topics or target.offset or target.before or target.committed_by:
        raise misused(
            "--file contains the partitions and offsets: it excludes patterns, --offset, --before and --committed-by."
        )
    try:
        return dict(read_offset_file(file, OsFileSystem()))
    except OffsetFileError as error:
        raise misused(str(error)) from None


def _words(wanted: DeleteTarget | Mapping[TopicPartition, DeleteTarget]) -> str:
    """Describes the target; a file by a checksum of its offsets, to recognize another file."""
    if not isinstance(wanted, Mapping):
        return in_words(wanted)
    return f"offsets of a file ({crc32c(repr(sorted(wanted.items())).encode()):08x})"


async def _wish(
    call: NetworkCall,
    wanted: DeleteTarget | Mapping[TopicPartition, DeleteTarget],
    patterns: list[str],
    *,
    leader_only: bool,
) -> SweepRequest:
    """Returns the partitions to sweep. Errors: CommandError."""
    words = _words(wanted)
    if isinstance(wanted, Mapping):
        view = await call.client.call().view(partition.topic for partition in wanted)
        return SweepRequest(
            targets=wanted,
            view=view,
            request=describe_request(["--file"], words, leader_only=leader_only),
            in_words=words,
        )
    view = await call.client.call().view(None)
    topics = matching_topics(patterns, view)
    targets = {TopicPartition(topic, number): wanted for topic in topics for number in view.topics[topic].partitions}
    return SweepRequest(
        targets=targets, view=view, request=describe_request(patterns, words, leader_only=leader_only), in_words=words
    )


def _begun(plan: DeletePlan, wish: SweepRequest) -> Sweep:
    """Begins a sweep; partitions whose target is in doubt have failed."""
    swept = Sweep(request=wish.request, cluster_id=wish.view.cluster_id, topic_ids=dict(plan.topic_ids))
    for each in plan.deletes:
        outcome = PENDING if each.reason is None else each.reason
        swept.partitions[each.partition] = SweptPartition(each.log_start, max(0, each.delete_to or 0), outcome)
    return swept


def _read_state(path: str) -> Sweep | None:
    """Reads the sweep in a file, if it exists. Errors: CommandError."""
    files = OsFileSystem()
    try:
        if not files.exists(path):
            return None
        if files.file_size(path) > STATE_BYTES_MAX:
            raise misused(f"{path} is too large for the state of a sweep.")
        return decode_sweep(files.read_bytes(path), path)
    except OSError as error:
        raise misused(f"{path} can't be read: {error.strerror}.") from None
    except StateError as error:
        raise misused(str(error)) from None


def _keep(path: str | None, content: bytes) -> None:
    """Replaces a file atomically. Errors: CommandError."""
    if path is None:
        return
    try:
        OsFileSystem().replace_file(path, content)
    except OSError as error:
        raise CommandError(f"{path} can't be written: {error.strerror}.") from error


async def _carry_out(call: NetworkCall, swept: Sweep, pace: SweepPace, state: str | None, *, leader_only: bool) -> None:
    """Deletes pending partitions in chunks, and writes the state before the first and after each chunk."""
    clock = SystemClock()
    _keep(state, swept.encode())
    pending = swept.pending()
    try:
        with progress("sweeping", len(pending)) as shown:
            for start in range(0, len(pending), pace.chunk()):
                some = pending[start : start + pace.chunk()]
                await asyncio.sleep(pace.wait_ms(len(some), clock.monotonic_ms()) / 1000)
                offsets = {partition: swept.partitions[partition].offset for partition in some}
                swept.note(await _delete(call.client, offsets, swept, leader_only=leader_only))
                _keep(state, swept.encode())
                shown.advance(len(some))
    except asyncio.CancelledError:  # Ctrl-C
        resume = "" if state is None else f"; the same command resumes from {state}"
        total = plural(len(swept.partitions), "partition")
        remark(f"interrupted: {swept.count(DONE):,} of {total} are known to be done{resume}.")
        raise


async def _delete(
    client: AdminClient, offsets: dict[TopicPartition, int], swept: Sweep, *, leader_only: bool
) -> dict[TopicPartition, str | None]:
    """Deletes from some partitions; returns their errors, or None for done."""
    topic_ids = {
        topic: topic_id
        for topic in {each.topic for each in offsets}
        if (topic_id := swept.topic_ids.get(topic)) is not None
    }
    results = await client.delete_records(offsets, leader_only=leader_only, topic_ids=topic_ids)
    return {
        partition: None if isinstance(result, DeletedRecords) else str(result).removeprefix(f"{partition}: ")
        for partition, result in results.items()
    }


def _rehearsed(call: NetworkCall, plan: DeletePlan) -> ExitCode:
    """Shows the plan."""
    failed = [each for each in plan.deletes if each.reason is not None]
    topics: dict[str, list[int]] = {}
    for each in plan.deletes:
        sums = topics.setdefault(each.partition.topic, [0, 0, 0])
        sums[0] += 1
        sums[1] += each.records or 0
        sums[2] += each.reason is not None
    if call.output is Output.JSON:
        rows = [
            {"topic": topic, "partitions": sums[0], "records": sums[1], "left_alone": sums[2]}
            for topic, sums in topics.items()
        ]
        totals = {"partitions": len(plan.deletes), "records": plan.records, "bytes_estimated": plan.bytes}
        print_json({"dry_run": True, **totals, "topics": rows})
    else:
        print_table(
            ("topic", "partitions", "records", "left alone"), [(topic, *sums) for topic, sums in topics.items()]
        )
        _print_failures({each.partition: each.reason or "" for each in failed})
        print(f"{summary(plan)} would be deleted. Nothing was deleted.")
    return ExitCode.FAILED if failed else ExitCode.DONE


def _show_rest(call: NetworkCall, swept: Sweep) -> ExitCode:
    """Shows the rest of a resumed sweep."""
    left = [swept.partitions[partition] for partition in swept.pending()]
    records = sum(each.records for each in left)
    if call.output is Output.JSON:
        print_json(
            {"dry_run": True, "partitions": len(left), "records": records, "bytes_estimated": None, "topics": []}
        )
    else:
        print(
            f"Left of this sweep: {plural(records, 'record')} of {plural(len(left), 'partition')}. Nothing was deleted."
        )
    return ExitCode.DONE


def _reported(call: NetworkCall, swept: Sweep, report: str | None, took_ms: int) -> ExitCode:
    """Shows the outcome; returns the exit code."""
    failures, value = swept.failures(), _summary(swept, took_ms)
    code = ExitCode.FAILED if failures else ExitCode.DONE
    try:
        _keep(report, _report(swept, took_ms))
    except CommandError as error:
        remark(f"{error}")
        code = ExitCode.FAILED
    if call.output is Output.JSON:
        print_json(value)
    else:
        _print_failures(failures)
        records, partitions = plural(value["records"], "record"), plural(value["done"], "partition")
        done = f"{records} of {partitions} deleted in {took_ms / 1000:.1f} s"
        print(f"{done}; {len(failures):,} failed.")
    return code


def _summary(swept: Sweep, took_ms: int) -> dict[str, Any]:
    """Returns the outcome for JSON."""
    return {
        "dry_run": False,
        "partitions": len(swept.partitions),
        "done": swept.count(DONE),
        "failed": len(swept.failures()),
        "records": sum(each.records for each in swept.partitions.values() if each.outcome == DONE),
        "took_ms": took_ms,
        "failures": [{**key._asdict(), "reason": why} for key, why in swept.failures().items()],
    }


def _report(swept: Sweep, took_ms: int) -> bytes:
    """Returns the contents of the report."""
    rows = [
        {
            **key._asdict(),
            "log_start_offset": each.log_start,
            "delete_to": each.offset,
            "outcome": each.outcome,
        }
        for key, each in swept.partitions.items()
    ]
    return msgspec.json.format(msgspec.json.encode(_summary(swept, took_ms) | {"outcomes": rows}), indent=1) + b"\n"


def _print_failures(failures: Mapping[TopicPartition, str]) -> None:
    """Prints the first failures; the report has all."""
    if failures:
        rows = [(*key, why) for key, why in list(failures.items())[:FAILURES_SHOWN]]
        print_table(("topic", "partition", "reason"), rows)
    if len(failures) > FAILURES_SHOWN:
        print(f"… and {len(failures) - FAILURES_SHOWN:,} more; --report has all.")
