"""`lowtide console-users`: adds, lists and removes the users in a file of `lowtide console --login users:FILE`.

A password comes from a prompt, from standard input or from a file, never from the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from lowtide.cli.call import Call, local
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, print_json
from lowtide.cli.users import password_of
from lowtide.console.own_users import OwnUsersError, Role, is_name, new_user, parse_users, read_text, text_with
from lowtide.runtime.filesystem import AlreadyLockedError, OsFileSystem
from lowtide.runtime.random import system_random

app = typer.Typer(add_completion=False, no_args_is_help=True)

LOCK_SUFFIX: Final = ".lock"

User = Annotated[str, typer.Argument(metavar="NAME")]
UsersFile = Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="the file of users")]


@app.command()
@local
def add(
    call: Call,
    name: User,
    *,
    file: UsersFile,
    role: Annotated[
        Role, typer.Option("--role", help="read, or write for changes too; both have the rights of the console's login")
    ] = Role.READ,
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="the password is its first line")
    ] = None,
) -> ExitCode:
    """Add a user, or change its password and role. The file is created with the mode 0600.

    The command reads the password from a prompt, a file or standard input. A running console uses the change at once.
    """
    if not is_name(name):
        raise misused(f"the name {name} is invalid: it may have no colon and no control character.")
    password = password_of(name, password_file)
    with _changed(file) as text:
        user = new_user(role, password, system_random())
        _replace(file, text_with(text, name, user))
    return _done(call, name, f"added {name} ({role.value})", "added")


@app.command()
@local
def remove(call: Call, name: User, *, file: UsersFile) -> ExitCode:
    """Remove a user. Its sessions end at once."""
    with _changed(file) as text:
        if name not in parse_users(text, file):
            raise CommandError(f"{file} has no user {name}: nothing was done.")
        _replace(file, text_with(text, name, None))
    return _done(call, name, f"removed {name}", "removed")


@app.command("list")
@local
def list_users(call: Call, *, file: UsersFile) -> ExitCode:
    """List the users and their roles."""
    try:
        users = parse_users(read_text(OsFileSystem(), file), file)
    except OwnUsersError as error:
        raise CommandError(str(error)) from None
    rows = [(name, user.role.value) for name, user in sorted(users.items())]
    columns = ("user", "role")
    call.show({"users": [dict(zip(columns, row, strict=True)) for row in rows]}, columns, rows)
    return ExitCode.DONE


@contextmanager
def _changed(path: str) -> Iterator[str]:
    """Gives the text of a file that no other command changes meanwhile; empty if missing. Errors: CommandError."""
    files = OsFileSystem()
    try:
        lock = files.lock(path + LOCK_SUFFIX)
    except AlreadyLockedError:
        raise CommandError(f"another command is changing {path}: try again when it has ended.") from None
    except OSError as error:
        raise CommandError(f"{path} can't be changed: {error.strerror or error}.") from None
    try:
        text = read_text(files, path) if files.exists(path) else ""
        parse_users(text, path)
        yield text
    except OwnUsersError as error:
        raise CommandError(str(error)) from None
    finally:
        lock.release()


def _replace(path: str, text: str) -> None:
    """Replaces the file. Errors: CommandError."""
    try:
        OsFileSystem().replace_file(path, text.encode())
    except OSError as error:
        raise CommandError(f"{path} can't be written: {error.strerror or error}.") from None


def _done(call: Call, name: str, sentence: str, outcome: str) -> ExitCode:
    if call.output is Output.JSON:
        print_json({"user": name, "outcome": outcome})
    else:
        print(sentence)
    return ExitCode.DONE
