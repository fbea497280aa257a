"""Where commands find the metadata of brokers that are stopped: a file in the first log directory, or an etcd."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from lowtide.broker.config.broker_config import ConfigError
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
        help="the log directories of one broker, as in log.dirs; once for each broker that is here",
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
Ca = Annotated[
    str | None,
    typer.Option("--metadata-ca", metavar="FILE", help="the authority that signed etcd's certificates, in PEM"),
]
Cert = Annotated[
    str | None,
    typer.Option("--metadata-cert", metavar="FILE", help="the certificate that is shown to the etcd, in PEM"),
]
Key = Annotated[str | None, typer.Option("--metadata-key", metavar="FILE", help="its key, in PEM")]


class Place(NamedTuple):
    """Where the store is, as it was given."""

    metadata: str | None
    ca: str | None
    cert: str | None
    key: str | None


def run_on_store(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs what works on a store. Errors: CommandError."""
    try:
        return asyncio.run(coroutine)
    except (RecoveryError, StorageError) as error:
        raise CommandError(f"{error}.") from error
    except (MetadataStoreError, InconsistentClusterError) as error:
        raise CommandError(f"{error}.", ExitCode.UNREACHABLE) from error
    except OSError as error:
        raise CommandError(f"{error.filename or 'the metadata store'}: {error.strerror or error}.") from error


async def open_store(place: Place, path: str) -> tuple[OwnedStore, bytes]:
    """The store, and what its keys begin with. `path` is empty for an etcd."""
    if not path:
        return await _opened_etcd(place)
    try:
        return await EmbeddedStore.open(path, filesystem=OsFileSystem(), clock=SystemClock()), DEFAULT_PREFIX
    except AlreadyLockedError as error:
        raise CommandError(f"{path} is used by a broker; stop it first.") from error


def store_file(place: Place, first_log_dir: str | None, *, several: bool) -> str:
    """The path of the store's file; empty for an etcd. `several` brokers have several files. Errors: CommandError."""
    if place.metadata is not None and place.metadata.startswith(SCHEME):
        return ""
    if place.ca or place.cert or place.key:
        raise misused("--metadata-ca, --metadata-cert and --metadata-key are of no use without --metadata etcd://….")
    first = Path(first_log_dir or "")
    if place.metadata is None and not first_log_dir:
        raise misused(
            "It isn't given where the metadata are: --log-dirs of their broker, or --metadata with etcd://… or the path of the file."
        )
    if place.metadata is None and (several or not first.is_dir()):
        raise misused("It isn't given where the metadata are: --metadata etcd://…, or the path of the file.")
    path = place.metadata or f"{first}/{METADATA_FILE}"
    if not Path(path).parent.is_dir() or Path(path).is_dir():
        raise misused(f"{path} is neither etcd://… nor a file in a folder that is there.")
    return path


async def _opened_etcd(place: Place) -> tuple[OwnedStore, bytes]:
    try:
        address = parse_address(place.metadata or "")
        options = argparse.Namespace(
            metadata=address, metadata_ca=place.ca, metadata_cert=place.cert, metadata_key=place.key
        )
        etcd = given_metadata(options, environment(), OsFileSystem().read_bytes)
    except (ValueError, ConfigError) as error:
        raise misused(str(error)) from error
    try:
        from lowtide.metadata.etcd import EtcdStore  # noqa: PLC0415 - its packages are an extra
    except ImportError as error:
        raise CommandError(
            f"etcd needs packages that aren't installed ({error}): install Lowtide with its extra `etcd`."
        ) from error
    assert etcd is not None
    return await EtcdStore.open(etcd.endpoints, access=etcd.access, prefix=etcd.prefix), etcd.prefix
