"""`lowtide metadata`: whether the metadata are as the log directories remember them, and bringing them forward where they aren't.

Works on log directories that no broker uses, on files that `export` made of them on other machines, and on the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final, TypeVar

import typer

from lowtide.broker.lifecycle.metadata_copies import COPY_FILE
from lowtide.cli.call import Call, local
from lowtide.cli.confirmation import confirm
from lowtide.cli.metadata_stores import Ca, Cert, Key, LogDirs, Metadata, Place, open_store, run_on_store, store_file
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table, remark
from lowtide.metadata.embedded import read_embedded
from lowtide.metadata.etcd_address import DEFAULT_PREFIX
from lowtide.metadata.metadata_copy import Row, rows_of
from lowtide.metadata.recovery import (
    BrokerFacts,
    RecoveryError,
    RecoveryPlan,
    decode_facts,
    encode_facts,
    facts_of,
    is_needed,
    plan_recovery,
)
from lowtide.metadata.recovery_writer import bring_forward, read_rows, until_nobody_is_registered
from lowtide.metadata.store import MetadataStoreError, Revision
from lowtide.metadata.store_guard import least_surplus
from lowtide.protocol.types import topic_id_text
from lowtide.runtime.filesystem import AlreadyLockedError, OsFileSystem
from lowtide.runtime.random import system_random
from lowtide.storage.directory.directory_survey import survey
from lowtide.storage.errors import StorageError

T = TypeVar("T")

app = typer.Typer(add_completion=False, no_args_is_help=True)

ROWS_SHOWN: Final = 50
"""Of partitions, for people; --output json has all."""

FILE_MODE: Final = 0o600

Files = Annotated[list[str] | None, typer.Argument(metavar="FILE…", help="what `lowtide metadata export` has written on other machines")]


@app.callback()
def metadata() -> None:
    """Compare the metadata with what log directories remember of them, and bring them forward after a backup was restored."""


@app.command()
@local
def status(
    call: Call,
    files: Files = None,
    *,
    log_dirs: LogDirs = None,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
) -> ExitCode:
    """Show what log directories and the store know, and whether the store may be acted upon. Changes nothing; brokers must be stopped.

    Ends with 0 if the store is as the directories know it, with 1 if it has to be brought forward.
    """
    facts = _facts(files, log_dirs)
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    rows, revision, surplus = _look(place, facts)
    reason = _planned(lambda: is_needed(facts, rows, revision, surplus))
    table = [_known(each) for each in facts]
    if call.output is Output.JSON:
        brokers = [dict(zip(("broker", "history", "revision", "log_directories"), row, strict=True)) for row in table]
        print_json({"store": {"revision": revision, "raft_surplus": surplus, "behind": reason}, "brokers": brokers})
    else:
        print_table(("broker", "history", "revision", "log directories"), table)
        print(f"The metadata store is at revision {revision}." if rows else "The metadata store is empty.")
        print("It is as the log directories know it." if reason is None else f"It must be brought forward: {reason}.")
    return ExitCode.DONE if reason is None else ExitCode.FAILED


@app.command()
@local
def export(
    call: Call,
    file: Annotated[str, typer.Argument(metavar="FILE", help="is written; it holds the configurations, not the records")],
    *,
    log_dirs: Annotated[str, typer.Option("--log-dirs", metavar="DIR,DIR", help="all log directories of the broker, as in log.dirs")],
) -> ExitCode:
    """Write to a file what the log directories of one broker know, for `recover` on another machine. The broker must be stopped."""
    facts = _surveyed(log_dirs)
    try:
        OsFileSystem().replace_file(file, encode_facts(facts), mode=FILE_MODE)
    except OSError as error:
        raise CommandError(f"{file} can't be written: {error.strerror}.") from error
    copy = _planned(facts.read_copy)
    count = sum(len(directory.replicas) for directory in facts.directories)
    if call.output is Output.JSON:
        print_json({"broker": facts.broker_id, "revision": copy.revision, "history": copy.history_id, "replicas": count})
    else:
        print(f"Broker {facts.broker_id} knows the metadata up to revision {copy.revision}, and has {plural(count, 'replica')}: {file}")
    return ExitCode.DONE


@app.command()
@local
def recover(
    call: Call,
    files: Files = None,
    *,
    log_dirs: LogDirs = None,
    without: Annotated[
        list[int] | None, typer.Option("--without", metavar="ID", help="a broker whose log directories are gone for good; may be repeated")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="say what would be done, and do nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="don't ask")] = False,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
) -> ExitCode:
    """Bring the metadata forward to what all brokers know, after a backup was restored or everything was lost. All brokers must be stopped.

    Topics, configurations and deletes are as the broker knows them that has seen the most. A partition is led by a replica that has all
    acknowledged records and deletes; the others follow it. If it is interrupted, run it again.
    """
    facts = _facts(files, log_dirs)
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    rows, revision, surplus = _look(place, facts)
    if _planned(lambda: is_needed(facts, rows, revision, surplus)) is None:
        print("Nothing has to be done: the metadata store is as the log directories know it.")
        return ExitCode.DONE
    history_id = topic_id_text(system_random().randbytes(16))
    plan = _planned(lambda: plan_recovery(facts, rows, without=without or (), history_id=history_id, raft_surplus=least_surplus(surplus)))
    _print_plan(call, plan, dry_run=dry_run)
    if dry_run:
        return ExitCode.DONE
    if not yes:
        confirm("Are all brokers of the cluster stopped, and shall the metadata be brought forward?")
    run_on_store(_written(place, store_file(place, facts[0].directories[0].path, several=len(facts) > 1), plan))
    remark("The metadata are brought forward. Start the brokers.")
    return ExitCode.DONE


def _facts(files: Sequence[str] | None, log_dirs: Sequence[str] | None) -> list[BrokerFacts]:
    """What brokers know, by files and by directories that are here."""
    if not files and not log_dirs:
        raise misused("Neither files of `lowtide metadata export` nor --log-dirs are given.")
    found = []
    for path in files or ():
        try:
            content = OsFileSystem().read_bytes(path)
        except OSError as error:
            raise misused(f"{path} can't be read: {error.strerror}.") from error
        found.append(_planned(partial(decode_facts, content, path)))
    return found + [_surveyed(each) for each in log_dirs or ()]


def _surveyed(log_dirs: str) -> BrokerFacts:
    filesystem = OsFileSystem()
    paths = [path.strip().rstrip("/") or "/" for path in log_dirs.split(",") if path.strip()]
    if not paths:
        raise misused(f"--log-dirs {log_dirs!r} names no directory.")
    try:
        directories = [survey(filesystem, path) for path in paths]
        places = [f"{path}/{COPY_FILE}" for path in paths]
        copies = [filesystem.read_bytes(place) for place in places if filesystem.exists(place)]
    except StorageError as error:
        raise CommandError(f"{error}.") from error
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}.") from error
    return _planned(lambda: facts_of(directories, copies))


def _known(facts: BrokerFacts) -> tuple[int, str, int, str]:
    copy = _planned(facts.read_copy)
    return facts.broker_id, copy.history_id, copy.revision, ", ".join(each.path for each in facts.directories)


def _planned(decide: Callable[[], T]) -> T:
    """What is decided of the facts. Errors: CommandError."""
    try:
        return decide()
    except RecoveryError as error:
        raise CommandError(f"{error}.") from error


def _look(place: Place, facts: Sequence[BrokerFacts]) -> tuple[dict[bytes, Row], Revision, int | None]:
    """What the store has; a file isn't opened by it as a broker opens it, which would change it."""
    path = store_file(place, facts[0].directories[0].path, several=len(facts) > 1)
    if not path:
        return run_on_store(_looked(place))
    try:
        pairs, revision = read_embedded(path, OsFileSystem())
    except AlreadyLockedError as error:
        raise CommandError(f"{path} is used by a broker; stop it first.") from error
    except MetadataStoreError as error:
        raise CommandError(f"{error}.") from error
    return {row[0]: row for row in rows_of(pairs, DEFAULT_PREFIX)}, revision, None


async def _looked(place: Place) -> tuple[dict[bytes, Row], Revision, int | None]:
    store, prefix = await open_store(place, "")
    try:
        rows, revision = await read_rows(store, prefix)
        return rows, revision, await store.raft_surplus()
    finally:
        await store.close()


async def _written(place: Place, path: str, plan: RecoveryPlan) -> None:
    store, prefix = await open_store(place, path)
    try:
        await until_nobody_is_registered(store, prefix)
        await bring_forward(store, prefix, plan)
    finally:
        await store.close()


def _print_plan(call: Call, plan: RecoveryPlan, *, dry_run: bool) -> None:
    if call.output is Output.JSON:
        partitions = [{name: getattr(each, name) for name in each.__struct_fields__} for each in plan.partitions]
        print_json(
            {
                "dry_run": dry_run,
                "from_broker": plan.source,
                "revision": plan.revision,
                "topics_back": plan.topics_back,
                "topics_gone": plan.topics_gone,
                "problems": plan.problems,
                "partitions": partitions,
            }
        )
        return
    print(f"The metadata are taken from broker {plan.source}, which knows them up to revision {plan.revision}.")
    for name in plan.topics_back:
        print(f"topic {name}: the store lacks it, it comes back")
    columns = ("topic", "partition", "start", "end", "in sync", "were in sync")
    rows = [
        (
            *(each.topic, each.partition, _offset(each.log_start_offset), _offset(each.log_end_offset)),
            *(_ids(each.in_sync), _ids(each.in_sync_before)),
        )
        for each in plan.partitions
    ]
    print_table(columns, rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        print(f"… and {plural(len(rows) - ROWS_SHOWN, 'partition')} more (--output json has all)")
    for problem in plan.problems:
        print(f"PROBLEM: {problem}")
    if dry_run:
        print("Nothing was changed (--dry-run).")


def _offset(offset: int | None) -> str:
    return "?" if offset is None else str(offset)


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))
