"""What the commands share that plan what a metadata store is to hold: what brokers know, what the store has, the plan and its writing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final, TypeVar

import typer

from lowtide.broker.lifecycle.metadata_copies import COPY_FILE
from lowtide.cli.call import Call
from lowtide.cli.metadata_stores import Place, open_store, run_on_store
from lowtide.cli.outcome import CommandError, misused
from lowtide.cli.printing import Output, plural, print_json, print_table
from lowtide.metadata.broker_facts import BrokerFacts, RecoveryError, decode_facts, facts_of
from lowtide.metadata.embedded import read_embedded
from lowtide.metadata.etcd_address import DEFAULT_PREFIX
from lowtide.metadata.metadata_copy import Row, rows_of
from lowtide.metadata.prefixes import nesting
from lowtide.metadata.records import MetadataCorruptError
from lowtide.metadata.recovery import RecoveryPlan
from lowtide.metadata.recovery_writer import RECOVERY, Beginning, bring_forward, read_rows, until_nobody_is_registered
from lowtide.metadata.store import MetadataStore, MetadataStoreError, Revision
from lowtide.runtime.filesystem import AlreadyLockedError, OsFileSystem
from lowtide.storage.directory.directory_survey import survey
from lowtide.storage.errors import StorageError

T = TypeVar("T")

ROWS_SHOWN: Final = 50
"""Of partitions, for people; --output json has all."""

Without = Annotated[
    list[int] | None,
    typer.Option("--without", metavar="ID", help="a broker whose log directories are gone for good; may be repeated"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="say what would be done, and do nothing")]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="go on although acknowledged records are lost, as the LOSS lines of the plan say"
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="don't ask")]


def given_facts(files: Sequence[str] | None, log_dirs: Sequence[str] | None) -> list[BrokerFacts]:
    """What brokers know, by files and by directories that are here; perhaps nothing. Errors: CommandError."""
    found = []
    for path in files or ():
        try:
            content = OsFileSystem().read_bytes(path)
        except OSError as error:
            raise misused(f"{path} can't be read: {error.strerror}.") from error
        found.append(planned(partial(decode_facts, content, path)))
    return found + [surveyed(each) for each in log_dirs or ()]


def surveyed(log_dirs: str) -> BrokerFacts:
    """What the log directories of one broker hold. Errors: CommandError."""
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
    return planned(lambda: facts_of(directories, copies))


def planned(decide: Callable[[], T]) -> T:
    """What is decided of the facts. Errors: CommandError."""
    try:
        return decide()
    except (RecoveryError, MetadataCorruptError) as error:
        raise CommandError(f"{error}.") from error


def look(place: Place, path: str) -> tuple[dict[bytes, Row], Revision, int | None]:
    """What the store has, its revision and its raft surplus. `path` is empty for an etcd. Errors: CommandError.

    A file isn't opened by it as a broker opens it, which would change it.
    """
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
        rows, revision = await read_apart(store, prefix)
        return rows, revision, await store.raft_surplus()
    finally:
        await store.close()


async def read_apart(store: MetadataStore, prefix: bytes) -> tuple[dict[bytes, Row], Revision]:
    """All that a store has of one cluster.

    Errors: RecoveryError where another cluster's keys lie among its, or around them.
    """
    rows, revision = await read_rows(store, prefix)
    reason = await nesting(store, prefix, ((row[0], row[1]) for row in rows.values()))
    if reason is not None:
        raise RecoveryError(reason)
    return rows, revision


async def written(place: Place, path: str, plan: RecoveryPlan, beginning: Beginning = RECOVERY) -> None:
    """Write a plan, when no broker is registered any more.

    `path` is empty for an etcd. Errors: those of `bring_forward`.
    """
    store, prefix = await open_store(place, path)
    try:
        await until_nobody_is_registered(store, prefix)
        await bring_forward(store, prefix, plan, beginning)
    finally:
        await store.close()


def print_plan(call: Call, plan: RecoveryPlan, *, dry_run: bool) -> None:
    """Show what a plan does, for people or for programs."""
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
                "losses": plan.losses,
                "partitions": partitions,
            }
        )
        return
    if plan.source is None:
        print(f"The metadata are taken from the backup, which has them up to revision {plan.revision}.")
    else:
        print(f"The metadata are taken from broker {plan.source}, which knows them up to revision {plan.revision}.")
    for name in plan.topics_back:
        print(f"topic {name}: the store lacks it, it comes back")
    columns = ("topic", "partition", "start", "end", "in sync", "were in sync", "were eligible")
    rows = [
        (
            *(each.topic, each.partition, _offset(each.log_start_offset), _offset(each.log_end_offset)),
            *(_ids(each.in_sync), _ids(each.in_sync_before), _ids(each.eligible_before)),
        )
        for each in plan.partitions
    ]
    print_table(columns, rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        print(f"… and {plural(len(rows) - ROWS_SHOWN, 'partition')} more (--output json has all)")
    for problem in plan.problems:
        print(f"PROBLEM: {problem}")
    for loss in plan.losses:
        print(f"LOSS: {loss}")
    if dry_run:
        print("Nothing was changed (--dry-run).")


def check_losses(plan: RecoveryPlan, *, accepted: bool) -> None:
    """Stops where acknowledged records would be lost and the operator has not accepted that. Errors: CommandError."""
    if plan.losses and not accepted:
        raise CommandError(
            f"Acknowledged records of {plural(len(plan.losses), 'partition')} would be lost, see LOSS above; nothing was changed. Give the "
            "log directories that have them, or --accept-loss to go on without them."
        )


def _offset(offset: int | None) -> str:
    return "?" if offset is None else str(offset)


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))
