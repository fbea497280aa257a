"""Opens the metadata of stopped brokers: a file in the first log directory, or an etcd."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lowtide.broker.config.broker_config import ConfigError
from lowtide.cli.call import OptionGroup
from lowtide.cli.metadata_options import given_metadata
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.metadata.broker_facts import RecoveryError
from lowtide.metadata.embedded import METADATA_FILE, EmbeddedStore
from lowtide.metadata.errors import InconsistentClusterError
from lowtide.metadata.etcd_address import DEFAULT_PREFIX, SCHEME, parse_address
from lowtide.metadata.store import MetadataStoreError, OwnedStore
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import AlreadyLockedError, OsFileSystem
from lowtide.runtime.process import environment
from lowtide.storage.errors import StorageError

T = TypeVar("T")

LogDirs = Annotated[
    list[str] | None,
    typer.Option(
        "--log-dirs",
        metavar="DIR,DIR",
        help="the log directories of one broker, as in log.dirs; repeat it for each broker of this machine",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(OptionGroup):
    """Where the metadata are."""

    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="etcd://HOST:PORT,…/PREFIX",
            help=f"an etcd, as brokers have it, or the path of a {METADATA_FILE}; default: the one in the first log "
            "directory",
        ),
    ] = None
    metadata_ca: Annotated[
        str | None,
        typer.Option("--metadata-ca", metavar="FILE", help="the authority that signed etcd's certificates, in PEM"),
    ] = None
    metadata_cert: Annotated[
        str | None,
        typer.Option("--metadata-cert", metavar="FILE", help="the client certificate for etcd, in PEM"),
    ] = None
    metadata_key: Annotated[
        str | None, typer.Option("--metadata-key", metavar="FILE", help="the key of the client certificate, in PEM")
    ] = None


def run_on_store(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that uses a store. Errors: CommandError."""
    try:
        return asyncio.run(coroutine)
    except (RecoveryError, StorageError) as error:
        raise CommandError(f"{error}.") from error
    except (MetadataStoreError, InconsistentClusterError) as error:
        raise CommandError(f"{error}.", ExitCode.UNREACHABLE) from error
    except OSError as error:
        raise CommandError(f"{error.filename or 'the metadata store'}: {error.strerror or error}.") from error


async def open_store(options: StoreOptions, path: str) -> tuple[OwnedStore, bytes]:
    """Opens a store; returns it with the prefix of its keys. `path` is empty for an etcd."""
    if not path:
        return await _opened_etcd(options)
    try:
        return await EmbeddedStore.open(path, filesystem=OsFileSystem(), clock=SystemClock()), DEFAULT_PREFIX
    except AlreadyLockedError as error:
        raise CommandError(f"a broker uses {path}: stop it first.") from error


def store_file(options: StoreOptions, first_log_dir: str | None, *, several: bool) -> str:
    """Returns the path of the store's file; empty for an etcd.

    With `several` brokers it must be given. Errors: CommandError.
    """
    if options.metadata is not None and options.metadata.startswith(SCHEME):
        return ""
    if options.metadata_ca or options.metadata_cert or options.metadata_key:
        raise misused("--metadata-ca, --metadata-cert and --metadata-key require --metadata etcd://….")
    first = Path(first_log_dir or "")
    if options.metadata is None and not first_log_dir:
        raise misused(
            "give the metadata: --log-dirs of their broker, or --metadata with etcd://… or the path of the file."
        )
    if options.metadata is None and (several or not first.is_dir()):
        raise misused("give the metadata: --metadata with etcd://… or the path of the file.")
    path = options.metadata or f"{first}/{METADATA_FILE}"
    if not Path(path).parent.is_dir() or Path(path).is_dir():
        raise misused(f"--metadata {path} is neither etcd://… nor a file in an existing folder.")
    return path


async def _opened_etcd(options: StoreOptions) -> tuple[OwnedStore, bytes]:
    try:
        address = parse_address(options.metadata or "")
        given = argparse.Namespace(
            metadata=address,
            metadata_ca=options.metadata_ca,
            metadata_cert=options.metadata_cert,
            metadata_key=options.metadata_key,
        )
        etcd = given_metadata(given, environment(), OsFileSystem().read_bytes)
    except (ValueError, ConfigError) as error:
        raise misused(str(error)) from error
    try:
        from lowtide.metadata.etcd import EtcdStore  # noqa: PLC0415 - its packages are an extra
    except ImportError as error:
        raise CommandError(
            f"etcd needs packages that are not installed ({error}): install Lowtide with its extra `etcd`."
        ) from error
    assert etcd is not None
    return await EtcdStore.open(etcd.endpoints, access=etcd.access, prefix=etcd.prefix), etcd.prefix
