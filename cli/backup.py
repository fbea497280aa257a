"""`lowtide backup`: writes the metadata at one revision to a file, also while brokers run, and checks such files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lowtide import __version__
from lowtide.cli.call import Call, local
from lowtide.cli.metadata_stores import StoreOptions, open_store, run_on_store, store_file
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, plural, print_json, print_table, remark
from lowtide.cli.recovering import read_apart
from lowtide.metadata.backup import Backup, BackupError, backup_of, counted, decode_backup, encode_backup
from lowtide.metadata.embedded import MetadataFileError, read_embedded_in_use
from lowtide.metadata.etcd_address import DEFAULT_PREFIX
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.metadata_copy import Row, rows_of
from lowtide.metadata.store import KeyValue, Revision
from lowtide.protocol.types import topic_id_text
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import OsFileSystem

app = typer.Typer(add_completion=False)


ROWS_SHOWN: Final = 50
"""Topics in the table; --output json has all."""

SECRETS: Final = (
    "It contains password hashes, tokens and secret configurations: only operators of brokers should read it."
)


@app.command()
@local
def backup(
    call: Call,
    *,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FILE", help="write the metadata to this file, which only you can read"),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option("--verify", metavar="FILE", help="check a file, and show its contents without secrets"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    log_dirs: Annotated[
        str | None,
        typer.Option("--log-dirs", metavar="DIR,DIR", help="the log directories of the broker, as in log.dirs"),
    ] = None,
    store: StoreOptions,
) -> ExitCode:
    """Write the metadata at one revision to a file, or check such a file (--verify). Brokers may run.

    The file has topics, configurations, users, ACLs and quotas, but no records and no committed offsets. It contains
    credentials: keep it safe.
    """
    if (to is None) == (verify is None):
        raise misused("give either --to or --verify.")
    if to is None:
        given = [
            name
            for name, value in (("--force", force), ("--log-dirs", log_dirs), ("--metadata", store.metadata))
            if value
        ]
        if given:
            raise misused(f"{given[0]} and --verify exclude each other.")
        _print(call, read_backup(str(verify)), str(verify))
        return ExitCode.DONE
    if not force and OsFileSystem().exists(to):
        raise misused(f"{to} exists already: --force replaces it.")
    rows, revision = _read(store, log_dirs)
    try:
        made = backup_of(rows, revision, made_ms=SystemClock().wall_ms(), version=__version__)
    except BackupError as error:
        raise CommandError(f"{error}.") from error
    try:
        OsFileSystem().replace_file(to, encode_backup(made))
    except OSError as error:
        raise CommandError(f"{to} can't be written: {error.strerror}.") from error
    if call.output is Output.JSON:
        print_json(_head(made, to))
    else:
        counts = counted(made)
        topics, partitions = plural(counts["topics"], "topic"), plural(counts["partitions"], "partition")
        print(
            f"The metadata of cluster {made.copy.cluster_id} at revision {revision}, {topics} with {partitions}: {to}"
        )
        remark(SECRETS)
    return ExitCode.DONE


def read_backup(path: str) -> Backup:
    """Reads a backup. Errors: CommandError."""
    try:
        return decode_backup(OsFileSystem().read_bytes(path))
    except OSError as error:
        raise misused(f"{path} can't be read: {error.strerror}.") from error
    except BackupError as error:
        raise CommandError(f"{path}: {error}.") from error


def _read(store: StoreOptions, log_dirs: str | None) -> tuple[dict[bytes, Row], Revision]:
    """Reads the store at one revision. Errors: CommandError."""
    first = (log_dirs or "").split(",")[0].strip()
    path = store_file(store, first or None, several=False)
    if not path:
        return run_on_store(_read_etcd(store))
    if not Path(path).is_file():
        raise misused(f"there is no {path}: --metadata gives another file, or an etcd.")
    try:
        pairs, revision = read_embedded_in_use(path)
    except MetadataFileError as error:
        raise CommandError(f"{error}.") from error
    return {row[0]: row for row in rows_of(pairs, DEFAULT_PREFIX)}, revision


async def _read_etcd(options: StoreOptions) -> tuple[dict[bytes, Row], Revision]:
    store, prefix = await open_store(options, "")
    try:
        return await read_apart(store, prefix)
    finally:
        await store.close()


def _print(call: Call, found: Backup, path: str) -> None:
    image = load_image(
        (KeyValue(*row) for row in found.copy.rows.values()), found.copy.revision, prefix=b"", known=MetadataImage()
    )
    topics = sorted(image.topics.values(), key=lambda topic: topic.name)
    if call.output is Output.JSON:
        listed = [
            {
                "topic": topic.name,
                "id": topic_id_text(topic.topic_id),
                "replicas": [partition.replicas for partition in topic.partitions],
                "configs": topic.configs,
            }
            for topic in topics
        ]
        print_json({**_head(found, path), "topics_listed": listed})
        return
    head = _head(found, path)
    print_table(
        ("what", "value"), [(name.replace("_", " "), value) for name, value in head.items() if name != "made_ms"]
    )
    print(f"made at {moment(found.made_ms)}")
    rows = [
        (topic.name, len(topic.partitions), max((len(each.replicas) for each in topic.partitions), default=0))
        for topic in topics
    ]
    print_table(("topic", "partitions", "replicas"), rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        print(f"… and {plural(len(rows) - ROWS_SHOWN, 'topic')} more (--output json has all)")


def _head(found: Backup, path: str) -> dict[str, Any]:
    return {
        "file": path,
        "cluster_id": found.copy.cluster_id,
        "history": found.copy.history_id,
        "revision": found.copy.revision,
        "made_ms": found.made_ms,
        "version": found.version,
        "metadata_level": found.metadata_level,
        **counted(found),
    }
