"""Plans and writes the contents of a metadata store, for `lowtide metadata` and `lowtide restore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, TypeVar

import typer

from lowtide.broker.lifecycle.metadata_copies import COPY_FILE
from lowtide.cli.call import Call, OptionGroup, Yes
from lowtide.cli.metadata_stores import StoreOptions, open_store, run_on_store
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
"""Partitions in the table; --output json has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions(OptionGroup):
    """The options of a plan and its execution."""

    without: Annotated[
        list[int] | None,
        typer.Option("--without", metavar="ID", help="a broker whose log directories are lost; may be repeated"),
    ] = None
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="continue although acknowledged records are lost (LOSS lines of the plan)"),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="show the plan, and change nothing")] = False
    yes: Yes = False


def given_facts(files: Sequence[str] | None, log_dirs: Sequence[str] | None) -> list[BrokerFacts]:
    """Returns what brokers know, from exported files and from log directories. Errors: CommandError."""
    found = []
    for path in files or ():
        try:
            content = OsFileSystem().read_bytes(path)
        except OSError as error:
            raise misused(f"{path} can't be read: {error.strerror}.") from error
        found.append(planned(partial(decode_facts, content, path)))
    return found + [surveyed(each) for each in log_dirs or ()]


def surveyed(log_dirs: str) -> BrokerFacts:
    """Returns what the log directories of one broker know. Errors: CommandError."""
    filesystem = OsFileSystem()
    paths = [path.strip().rstrip("/") or "/" for path in log_dirs.split(",") if path.strip()]
    if not paths:
        raise misused(f"--log-dirs {log_dirs!r} contains no directory.")
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
    """Returns the result of a decision. Errors: CommandError."""
    try:
        return decide()
    except (RecoveryError, MetadataCorruptError) as error:
        raise CommandError(f"{error}.") from error


def look(store_options: StoreOptions, path: str) -> tuple[dict[bytes, Row], Revision, int | None]:
    """Reads a store: its rows, its revision and its raft surplus. `path` is empty for an etcd. Errors: CommandError.

    It does not change a file, as opening it like a broker would.
    """
    if not path:
        return run_on_store(_looked(store_options))
    try:
        pairs, revision = read_embedded(path, OsFileSystem())
    except AlreadyLockedError as error:
        raise CommandError(f"a broker uses {path}: stop it first.") from error
    except MetadataStoreError as error:
        raise CommandError(f"{error}.") from error
    return {row[0]: row for row in rows_of(pairs, DEFAULT_PREFIX)}, revision, None


async def _looked(store_options: StoreOptions) -> tuple[dict[bytes, Row], Revision, int | None]:
    store, prefix = await open_store(store_options, "")
    try:
        rows, revision = await read_apart(store, prefix)
        return rows, revision, await store.raft_surplus()
    finally:
        await store.close()


async def read_apart(store: MetadataStore, prefix: bytes) -> tuple[dict[bytes, Row], Revision]:
    """Reads all rows of one cluster.

    Errors: RecoveryError if the keys of another cluster are among them or around them.
    """
    rows, revision = await read_rows(store, prefix)
    reason = await nesting(store, prefix, ((row[0], row[1]) for row in rows.values()))
    if reason is not None:
        raise RecoveryError(reason)
    return rows, revision


async def written(store_options: StoreOptions, path: str, plan: RecoveryPlan, beginning: Beginning = RECOVERY) -> None:
    """Writes a plan once no broker is registered. `path` is empty for an etcd. Errors: those of `bring_forward`."""
    store, prefix = await open_store(store_options, path)
    try:
        await until_nobody_is_registered(store, prefix)
        await bring_forward(store, prefix, plan, beginning)
    finally:
        await store.close()


def print_plan(call: Call, plan: RecoveryPlan, *, dry_run: bool) -> None:
    """Prints a plan."""
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
        print(f"The metadata are taken from the backup, up to revision {plan.revision}.")
    else:
        print(f"The metadata are taken from broker {plan.source}, up to revision {plan.revision}.")
    for name in plan.topics_back:
        print(f"topic {name}: missing in the store, will be restored")
    columns = ("topic", "partition", "start", "end", "in sync", "were in sync", "were eligible")
    rows = [
        (
            *(each.topic, each.partition),
            *("?" if offset is None else offset for offset in (each.log_start_offset, each.log_end_offset)),
            *(",".join(map(str, ids)) for ids in (each.in_sync, each.in_sync_before, each.eligible_before)),
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
    """Checks that losses of acknowledged records are accepted, if there are any. Errors: CommandError."""
    if plan.losses and not accepted:
        raise CommandError(
            f"acknowledged records of {plural(len(plan.losses), 'partition')} would be lost, see LOSS above; nothing "
            "was changed. Give the log directories that have them, or --accept-loss to continue without them."
        )
