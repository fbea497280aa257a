"""`lowtide metadata`: whether the metadata are as the log directories remember them, and bringing them forward where they aren't.

Works on log directories that no broker uses, on files that `export` made of them on other machines, and on the store.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from lowtide.broker.config.broker_config import ConfigError
from lowtide.broker.lifecycle.metadata_copies import COPY_FILE
from lowtide.cli.call import Call, local
from lowtide.cli.confirmation import confirm
from lowtide.cli.metadata_options import given_metadata
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table, remark
from lowtide.metadata.embedded import METADATA_FILE, EmbeddedStore, read_embedded
from lowtide.metadata.errors import InconsistentClusterError
from lowtide.metadata.etcd_address import DEFAULT_PREFIX, SCHEME, parse_address
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
from lowtide.metadata.store import MetadataStoreError, OwnedStore, Revision
from lowtide.metadata.store_guard import least_surplus
from lowtide.protocol.types import topic_id_text
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import AlreadyLockedError, OsFileSystem
from lowtide.runtime.process import environment
from lowtide.runtime.random import system_random
from lowtide.storage.directory.directory_survey import survey
from lowtide.storage.errors import StorageError

T = TypeVar("T")

app = typer.Typer(add_completion=False, no_args_is_help=True)

ROWS_SHOWN: Final = 50
"""Of partitions, for people; --output json has all."""

FILE_MODE: Final = 0o600

LogDirs = Annotated[
    list[str] | None,
    typer.Option(
        "--log-dirs", metavar="DIR,DIR", help="the log directories of one broker, as in log.dirs; once for each broker that is here"
    ),
]
Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="etcd://HOST:PORT,…/PREFIX",
        help=f"where the metadata are: an etcd, as brokers are given it, or the path of a {METADATA_FILE}; without it the one in the first "
        "log directory",
    ),
]
Ca = Annotated[str | None, typer.Option("--metadata-ca", metavar="FILE", help="the authority that signed etcd's certificates, in PEM")]
Cert = Annotated[str | None, typer.Option("--metadata-cert", metavar="FILE", help="the certificate that is shown to the etcd, in PEM")]
Key = Annotated[str | None, typer.Option("--metadata-key", metavar="FILE", help="its key, in PEM")]
Files = Annotated[list[str] | None, typer.Argument(metavar="FILE…", help="what `lowtide metadata export` has written on other machines")]


@app.callback()
def metadata() -> None:
    """Compare the metadata with what log directories remember of them, and bring them forward after a backup was restored."""


class Place(NamedTuple):
    """Where the store is, as it was given."""

    metadata: str | None
    ca: str | None
    cert: str | None
    key: str | None


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
    _run(_written(place, _file(place, facts), plan))
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


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(coroutine)
    except (RecoveryError, StorageError) as error:
        raise CommandError(f"{error}.") from error
    except (MetadataStoreError, InconsistentClusterError) as error:
        raise CommandError(f"{error}.", ExitCode.UNREACHABLE) from error
    except OSError as error:
        raise CommandError(f"{error.filename or 'the metadata store'}: {error.strerror or error}.") from error


def _look(place: Place, facts: Sequence[BrokerFacts]) -> tuple[dict[bytes, Row], Revision, int | None]:
    """What the store has; a file isn't opened by it as a broker opens it, which would change it."""
    path = _file(place, facts)
    if not path:
        return _run(_looked(place))
    try:
        pairs, revision = read_embedded(path, OsFileSystem())
    except AlreadyLockedError as error:
        raise CommandError(f"{path} is used by a broker; stop it first.") from error
    except MetadataStoreError as error:
        raise CommandError(f"{error}.") from error
    return {row[0]: row for row in rows_of(pairs, DEFAULT_PREFIX)}, revision, None


async def _looked(place: Place) -> tuple[dict[bytes, Row], Revision, int | None]:
    store, prefix = await _opened(place, "")
    try:
        rows, revision = await read_rows(store, prefix)
        return rows, revision, await store.raft_surplus()
    finally:
        await store.close()


async def _written(place: Place, path: str, plan: RecoveryPlan) -> None:
    store, prefix = await _opened(place, path)
    try:
        await until_nobody_is_registered(store, prefix)
        await bring_forward(store, prefix, plan)
    finally:
        await store.close()


async def _opened(place: Place, path: str) -> tuple[OwnedStore, bytes]:
    """The store, and what its keys begin with. `path` is empty for an etcd."""
    if not path:
        return await _opened_etcd(place)
    try:
        return await EmbeddedStore.open(path, filesystem=OsFileSystem(), clock=SystemClock()), DEFAULT_PREFIX
    except AlreadyLockedError as error:
        raise CommandError(f"{path} is used by a broker; stop it first.") from error


def _file(place: Place, facts: Sequence[BrokerFacts]) -> str:
    """The path of the store's file; empty for an etcd."""
    if place.metadata is not None and place.metadata.startswith(SCHEME):
        return ""
    if place.ca or place.cert or place.key:
        raise misused("--metadata-ca, --metadata-cert and --metadata-key are of no use without --metadata etcd://….")
    first = Path(facts[0].directories[0].path)
    if place.metadata is None and (len(facts) > 1 or not first.is_dir()):
        raise misused("It isn't given where the metadata are: --metadata etcd://…, or the path of the file.")
    path = place.metadata or f"{first}/{METADATA_FILE}"
    if not Path(path).parent.is_dir() or Path(path).is_dir():
        raise misused(f"{path} is neither etcd://… nor a file in a folder that is there.")
    return path


async def _opened_etcd(place: Place) -> tuple[OwnedStore, bytes]:
    try:
        address = parse_address(place.metadata or "")
        options = argparse.Namespace(metadata=address, metadata_ca=place.ca, metadata_cert=place.cert, metadata_key=place.key)
        etcd = given_metadata(options, environment(), OsFileSystem().read_bytes)
    except (ValueError, ConfigError) as error:
        raise misused(str(error)) from error
    try:
        from lowtide.metadata.etcd import EtcdStore  # noqa: PLC0415 - its packages are an extra
    except ImportError as error:
        raise CommandError(f"etcd needs packages that aren't installed ({error}): pip install 'lowtide[etcd]'.") from error
    assert etcd is not None
    return await EtcdStore.open(etcd.endpoints, access=etcd.access, prefix=etcd.prefix), etcd.prefix


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
