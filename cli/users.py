"""`lowtide users`: lists, adds and removes users that log in by SCRAM.

It works on a running cluster, or on the metadata of brokers that are stopped or were never started. A password comes
from a prompt, from standard input or from a file, never from the command line, which all users of the machine can read.
"""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from lowtide.admin.users import ScramUpsertion
from lowtide.broker.lifecycle.first_users import UserRefusedError, change_user, new_credential, new_salt, scram_users
from lowtide.cli.call import (
    BootstrapServer,
    Call,
    CommandConfig,
    NetworkCall,
    client_settings,
    connected,
    local,
    network_error,
)
from lowtide.cli.metadata_stores import LogDirs, StoreOptions, open_store, run_on_store, store_file
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, print_json
from lowtide.metadata.store import MetadataStore
from lowtide.protocol.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_MECHANISMS, ScramMechanism
from lowtide.replication.scram_changes import ScramChange
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.random import system_random

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

app = typer.Typer(add_completion=False, no_args_is_help=True)

Row = tuple[str, str, int]
T = TypeVar("T")

Mechanism = Annotated[
    str, typer.Option("--mechanism", metavar="MECHANISM", help=f"one of {', '.join(SCRAM_MECHANISMS)}")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStore(StoreOptions):
    """Where the users are: on a running cluster, or in the metadata of stopped brokers."""

    bootstrap_server: BootstrapServer = None
    command_config: CommandConfig = None
    log_dirs: LogDirs = None

    @property
    def is_offline(self) -> bool:
        """Whether the brokers are stopped."""
        return bool(self.log_dirs) or self.metadata is not None

    @property
    def first_log_dir(self) -> str | None:
        """The first log directory of the broker, if one is given."""
        return self.log_dirs[0].split(",")[0] if self.log_dirs else None


User = Annotated[str, typer.Argument(metavar="NAME")]
PASSWORD_CHARACTERS_MAX: Final = 1024
"""The longest password in a file."""

DEFAULT_MECHANISM: Final = ScramMechanism.SHA_512.text


@app.command()
@local
def add(
    call: Call,
    name: User,
    *,
    mechanism: Mechanism = DEFAULT_MECHANISM,
    iterations: Annotated[int, typer.Option("--iterations", min=ITERATIONS_MIN, max=ITERATIONS_MAX)] = ITERATIONS_MIN,
    store: UserStore,
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="the password is its first line")
    ] = None,
) -> ExitCode:
    """Add a user, or change its password. The command reads the password from a prompt, a file or standard input.

    With --log-dirs or --metadata it changes the metadata of brokers that are stopped or were never started.
    """
    wanted = _mechanism(mechanism)
    password = password_of(name, password_file)
    if store.is_offline:
        _change_store(store, new_credential(name, wanted, password, system_random(), iterations))
    else:
        change = ScramUpsertion(
            mechanism=wanted, password=password, salt=new_salt(system_random()), iterations=iterations
        )
        _change_cluster(call, store, name, change)
    return _done(call, name, wanted, "added")


@app.command()
@local
def remove(
    call: Call,
    name: User,
    *,
    mechanism: Mechanism = DEFAULT_MECHANISM,
    store: UserStore,
) -> ExitCode:
    """Remove the credential of a user for a mechanism. Open connections stay."""
    wanted = _mechanism(mechanism)
    if store.is_offline:
        _change_store(store, ScramChange(name, wanted))
    else:
        _change_cluster(call, store, name, wanted)
    return _done(call, name, wanted, "removed")


@app.command("list")
@local
def list_users(
    call: Call,
    *,
    store: UserStore,
) -> ExitCode:
    """List the users and their mechanisms."""
    rows = run_on_store(_with_store(store, _listed)) if store.is_offline else _cluster_rows(call, store)
    columns = ("user", "mechanism", "iterations")
    call.show({"users": [dict(zip(columns, row, strict=True)) for row in rows]}, columns, rows)
    return ExitCode.DONE


def _mechanism(text: str) -> ScramMechanism:
    """Returns the mechanism. Errors: CommandError."""
    found = SCRAM_MECHANISMS.get(text.upper())
    if found is not None:
        return found
    if text.upper() == "PLAIN":
        raise misused(
            "users of PLAIN are in the configuration of brokers: listener.name.<listener>.plain.sasl.jaas.config."
        )
    raise misused(f"--mechanism {text} is invalid: it must be one of {', '.join(SCRAM_MECHANISMS)}.")


def password_of(name: str, path: str | None) -> str:
    """Reads a password from a file; without one from the terminal or from standard input. Errors: CommandError."""
    return _password(name) if path is None else _password_in(path)


def _password(name: str) -> str:
    """Reads a password from the terminal, or from the first line of standard input. Errors: CommandError."""
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
    """Reads a password from the first line of a file. Errors: CommandError."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            password = file.readline(PASSWORD_CHARACTERS_MAX + 2).rstrip("\r\n")
    except OSError as error:
        raise misused(f"--password-file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise misused(f"--password-file {path} is not UTF-8 text.") from error
    if not 0 < len(password) <= PASSWORD_CHARACTERS_MAX:
        raise misused(
            f"--password-file {path}: the first line must be a password of 1 to {PASSWORD_CHARACTERS_MAX} characters."
        )
    return password


def _done(call: Call, name: str, mechanism: ScramMechanism, what: str) -> ExitCode:
    if call.output is Output.JSON:
        print_json({"user": name, "mechanism": mechanism.text, "outcome": what})
    else:
        print(f"{what} {name} ({mechanism.text})")
    return ExitCode.DONE


# ------------------------------------------------------------------ stopped brokers
async def _with_store(options: UserStore, work: Callable[[MetadataStore, bytes], Awaitable[list[Row]]]) -> list[Row]:
    store, prefix = await open_store(options, store_file(options, options.first_log_dir, several=False))
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


def _change_store(options: UserStore, change: ScramChange) -> None:
    """Changes a user in a store. Creates the log directory of a broker that was never started. Errors: CommandError."""
    if options.first_log_dir is not None and options.metadata is None:
        try:
            OsFileSystem().make_directories(options.first_log_dir)
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}.") from error

    async def work(store: MetadataStore, prefix: bytes) -> list[Row]:
        try:
            await change_user(store, prefix, change, system_random())
        except UserRefusedError as error:
            raise CommandError(f"{change.user}: {error}.") from error
        return []

    run_on_store(_with_store(options, work))


# ------------------------------------------------------------------ a running cluster
def _on_cluster(call: Call, options: UserStore, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Runs `work` with a client of the cluster, and returns its result. Errors: CommandError."""
    found: list[T] = []

    async def ask(asked: NetworkCall) -> ExitCode:
        found.append(await work(asked.client))
        return ExitCode.DONE

    settings = client_settings(options.bootstrap_server, options.command_config)
    asyncio.run(connected(settings, call.output, ask))
    return found[0]


def _change_cluster(call: Call, options: UserStore, name: str, change: ScramUpsertion | ScramMechanism) -> None:
    """Changes a user of a cluster. Errors: CommandError."""
    error = _on_cluster(call, options, lambda client: client.alter_scram_users({name: change}))[name]
    if error is not None:
        raise network_error(error)


def _cluster_rows(call: Call, options: UserStore) -> list[Row]:
    """Returns the rows of a cluster. Errors: CommandError."""
    users = _on_cluster(call, options, lambda client: client.describe_scram_users())
    found = ((user, each) for user, each in users.items() if isinstance(each, dict))
    return sorted((user, mechanism.text, iterations) for user, each in found for mechanism, iterations in each.items())
