"""`lowtide users`: who may log in by SCRAM.

On a running cluster, or on the metadata of brokers that are stopped or were never started. A password comes from a
prompt, from standard input or from a file, never from the command line, which everybody on the machine can read.
"""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from lowtide.admin.users import ScramUpsertion
from lowtide.broker.config.sources import BOOTSTRAP_SERVER, COMMAND_CONFIG
from lowtide.broker.lifecycle.first_users import UserRefusedError, change_user, new_credential, new_salt, scram_users
from lowtide.cli.call import TIMEOUT_S, Call, NetworkCall, client_settings, connected, local, network_error
from lowtide.cli.metadata_stores import Ca, Cert, Key, LogDirs, Metadata, Place, open_store, run_on_store, store_file
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, print_json, print_table
from lowtide.metadata.store import MetadataStore
from lowtide.protocol.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_MECHANISMS, ScramMechanism
from lowtide.replication.scram_changes import ScramChange
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.random import system_random

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Add, list and remove users that log in by SCRAM.")

Row = tuple[str, str, int]
T = TypeVar("T")

Mechanism = Annotated[
    str, typer.Option("--mechanism", metavar="MECHANISM", help=f"one of {', '.join(SCRAM_MECHANISMS)}")
]
Server = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server", "-b", metavar="HOST:PORT,…", envvar=BOOTSTRAP_SERVER, help="brokers of a running cluster"
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--command-config", metavar="FILE", envvar=COMMAND_CONFIG, help="client properties: how to log in there"
    ),
]
User = Annotated[str, typer.Argument(metavar="NAME")]
PASSWORD_CHARACTERS_MAX: Final = 1024
"""Of a password in a file."""

DEFAULT_MECHANISM: Final = ScramMechanism.SHA_512.text


@app.command()
@local
def add(
    call: Call,
    name: User,
    *,
    mechanism: Mechanism = DEFAULT_MECHANISM,
    iterations: Annotated[int, typer.Option("--iterations", min=ITERATIONS_MIN, max=ITERATIONS_MAX)] = ITERATIONS_MIN,
    bootstrap_server: Server = None,
    command_config: Config = None,
    log_dirs: LogDirs = None,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="the password is its first line")
    ] = None,
) -> ExitCode:
    """Add a user, or give it another password. The password is asked for, or read from a file or from standard input.

    With --log-dirs or --metadata the change is made in the metadata of brokers that are stopped, or before the first
    start.
    """
    wanted = _mechanism(mechanism)
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    password = _password(name) if password_file is None else _password_in(password_file)
    if _is_offline(place, log_dirs):
        _change_store(place, log_dirs, new_credential(name, wanted, password, system_random(), iterations))
    else:
        change = ScramUpsertion(
            mechanism=wanted, password=password, salt=new_salt(system_random()), iterations=iterations
        )
        _change_cluster(call, bootstrap_server, command_config, name, change)
    return _done(call, name, wanted, "added")


@app.command()
@local
def remove(
    call: Call,
    name: User,
    *,
    mechanism: Mechanism = DEFAULT_MECHANISM,
    bootstrap_server: Server = None,
    command_config: Config = None,
    log_dirs: LogDirs = None,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
) -> ExitCode:
    """Remove the credential of a user for a mechanism. Connections that are open stay."""
    wanted = _mechanism(mechanism)
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    if _is_offline(place, log_dirs):
        _change_store(place, log_dirs, ScramChange(name, wanted))
    else:
        _change_cluster(call, bootstrap_server, command_config, name, wanted)
    return _done(call, name, wanted, "removed")


@app.command("list")
@local
def list_users(
    call: Call,
    *,
    bootstrap_server: Server = None,
    command_config: Config = None,
    log_dirs: LogDirs = None,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
) -> ExitCode:
    """List the users and their mechanisms."""
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    if _is_offline(place, log_dirs):
        rows = run_on_store(_with_store(place, log_dirs, _listed))
    else:
        rows = _cluster_rows(call, bootstrap_server, command_config)
    if call.output is Output.JSON:
        print_json({"users": [dict(zip(("user", "mechanism", "iterations"), row, strict=True)) for row in rows]})
    else:
        print_table(("user", "mechanism", "iterations"), rows)
    return ExitCode.DONE


def _mechanism(text: str) -> ScramMechanism:
    """Errors: CommandError."""
    found = SCRAM_MECHANISMS.get(text.upper())
    if found is not None:
        return found
    if text.upper() == "PLAIN":
        raise misused(
            "The users of PLAIN are in a broker's configuration: listener.name.<listener>.plain.sasl.jaas.config."
        )
    raise misused(f"--mechanism {text} is not possible: allowed are {', '.join(SCRAM_MECHANISMS)}.")


def _password(name: str) -> str:
    """From the terminal, or the first line of standard input. Errors: CommandError."""
    if sys.stdin is not None and sys.stdin.isatty():
        password = getpass.getpass(f"Password of {name}: ")
        if getpass.getpass("Once more: ") != password:
            raise CommandError("the two passwords differ, nothing was done.")
    else:
        password = "" if sys.stdin is None else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandError("the password is empty, nothing was done.")
    return password


def _password_in(path: str) -> str:
    """The first line of a file, which isn't shown. Errors: CommandError."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            password = file.readline(PASSWORD_CHARACTERS_MAX + 2).rstrip("\r\n")
    except OSError as error:
        raise misused(f"--password-file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise misused(f"--password-file {path} is not a text in UTF-8.") from error
    if not 0 < len(password) <= PASSWORD_CHARACTERS_MAX:
        raise misused(
            f"--password-file {path}: the password is the first line, of 1 to {PASSWORD_CHARACTERS_MAX} characters."
        )
    return password


def _done(call: Call, name: str, mechanism: ScramMechanism, what: str) -> ExitCode:
    if call.output is Output.JSON:
        print_json({"user": name, "mechanism": mechanism.text, "outcome": what})
    else:
        print(f"{what} {name} ({mechanism.text})")
    return ExitCode.DONE


# ------------------------------------------------------------------ brokers that are stopped
def _is_offline(place: Place, log_dirs: list[str] | None) -> bool:
    return bool(log_dirs) or place.metadata is not None


async def _with_store(
    place: Place, log_dirs: list[str] | None, work: Callable[[MetadataStore, bytes], Awaitable[list[Row]]]
) -> list[Row]:
    store, prefix = await open_store(
        place, store_file(place, log_dirs[0].split(",")[0] if log_dirs else None, several=False)
    )
    try:
        return await work(store, prefix)
    finally:
        await store.close()


async def _listed(store: MetadataStore, prefix: bytes) -> list[Row]:
    image = await scram_users(store, prefix)
    return sorted(
        (user, mechanism.text, each.credential.iterations)
        for mechanism, users in image.users.items()
        for user, each in users.items()
    )


def _change_store(place: Place, log_dirs: list[str] | None, change: ScramChange) -> None:
    """The log directory of a broker that was never started is created, as the broker does. Errors: CommandError."""
    if log_dirs and place.metadata is None:
        try:
            OsFileSystem().make_directories(log_dirs[0].split(",")[0])
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}.") from error

    async def work(store: MetadataStore, prefix: bytes) -> list[Row]:
        try:
            await change_user(store, prefix, change, system_random())
        except UserRefusedError as error:
            raise CommandError(f"{change.user}: {error}.") from error
        return []

    run_on_store(_with_store(place, log_dirs, work))


# ------------------------------------------------------------------ a running cluster
def _on_cluster(call: Call, server: Server, config: Config, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Errors: CommandError."""
    found: list[T] = []

    async def ask(asked: NetworkCall) -> ExitCode:
        found.append(await work(asked.client))
        return ExitCode.DONE

    asyncio.run(connected(client_settings(server, config), TIMEOUT_S, call.output, ask))
    return found[0]


def _change_cluster(
    call: Call, server: Server, config: Config, name: str, change: ScramUpsertion | ScramMechanism
) -> None:
    """Errors: CommandError."""
    outcomes = _on_cluster(call, server, config, lambda client: client.alter_scram_users({name: change}))
    error = outcomes[name]
    if error is not None:
        raise network_error(error)


def _cluster_rows(call: Call, server: Server, config: Config) -> list[Row]:
    """Errors: CommandError."""
    users = _on_cluster(call, server, config, lambda client: client.describe_scram_users())
    found = ((user, each) for user, each in users.items() if isinstance(each, dict))
    return sorted((user, mechanism.text, iterations) for user, each in found for mechanism, iterations in each.items())
