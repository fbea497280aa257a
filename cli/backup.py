"""`lowtide backup`: the metadata in one file, as of one revision, from a store that brokers may be using; and what is in such a file."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lowtide.cli.call import Call, local
from lowtide.cli.metadata_stores import Ca, Cert, Key, Metadata, Place, open_store, run_on_store, store_file
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
"""Of topics, for people; --output json has all."""

SECRETS: Final = "It holds hashes of passwords, tokens and secret configurations: keep it where only those who may run brokers can read it."


@app.command()
@local
def backup(
    call: Call,
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FILE", help="write the metadata to this file, readable for you alone")
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option("--verify", metavar="FILE", help="check a file, and show what is in it, without secrets"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the file if it is there")] = False,
    log_dirs: Annotated[
        str | None,
        typer.Option("--log-dirs", metavar="DIR,DIR", help="the log directories of the broker, as in log.dirs"),
    ] = None,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
) -> ExitCode:
    """Write the metadata to one file, as they stand at one revision, while brokers run or are stopped; or check such a file (--verify).

    Topics, configurations, users, rules and quotas are in it, no records and no committed offsets. It holds credentials: keep it safe.
    """
    if (to is None) == (verify is None):
        raise misused("Either --to or --verify is to be given.")
    if to is None:
        given = [
            name for name, value in (("--force", force), ("--log-dirs", log_dirs), ("--metadata", metadata)) if value
        ]
        if given:
            raise misused(f"{given[0]} is of no use with --verify.")
        _print(call, read_backup(str(verify)), str(verify))
        return ExitCode.DONE
    if not force and OsFileSystem().exists(to):
        raise misused(f"{to} is there already; --force replaces it.")
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    rows, revision = _read(place, log_dirs)
    try:
        made = backup_of(rows, revision, made_ms=SystemClock().wall_ms(), version=version("lowtide"))
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
    """What is in a file. Errors: CommandError, a sentence that names the file."""
    try:
        return decode_backup(OsFileSystem().read_bytes(path))
    except OSError as error:
        raise misused(f"{path} can't be read: {error.strerror}.") from error
    except BackupError as error:
        raise CommandError(f"{path}: {error}.") from error


def _read(place: Place, log_dirs: str | None) -> tuple[dict[bytes, Row], Revision]:
    """What the store has, at one revision. Errors: CommandError."""
    first = (log_dirs or "").split(",")[0].strip()
    path = store_file(place, first or None, several=False)
    if not path:
        return run_on_store(_read_etcd(place))
    if not Path(path).is_file():
        raise misused(f"There is no {path}. --metadata names another file, or an etcd.")
    try:
        pairs, revision = read_embedded_in_use(path)
    except MetadataFileError as error:
        raise CommandError(f"{error}.") from error
    return {row[0]: row for row in rows_of(pairs, DEFAULT_PREFIX)}, revision


async def _read_etcd(place: Place) -> tuple[dict[bytes, Row], Revision]:
    store, prefix = await open_store(place, "")
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
