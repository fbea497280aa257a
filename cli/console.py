"""`lowtide console`: serves the console on this machine, for any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lowtide import __version__
from lowtide.cli.call import BootstrapServer, CommandConfig, client_settings, ended
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.runtime.filesystem import OsFileSystem

if TYPE_CHECKING:
    from lowtide.console.settings import ConsoleSettings

app = typer.Typer(add_completion=False)

DEFAULT_PORT: Final = 9645
TOKEN_BITS: Final = 192

_CREDENTIALS: Final = ("sasl.jaas.config", "sasl.username", "sasl.oauthbearer.token.endpoint.url")
_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")


@app.command()
def console(
    context: typer.Context,
    *,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65_535,
            help=f"the port on 127.0.0.1; default: {DEFAULT_PORT} if it is free; 0: any free port",
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="let visitors make the changes that the cluster allows; by default the console is read-only"
        ),
    ] = False,
    signing_key: Annotated[
        str | None,
        typer.Option(
            "--signing-key", metavar="FILE", help="the private key (PEM) that signs receipts of erasures for visitors"
        ),
    ] = None,
) -> int:
    """Show a cluster in a browser on this machine: topics, retention, deletes and groups.

    If the client settings use SASL but have no credentials, each visitor logs in with their own.
    """

    def run() -> ExitCode:
        from lowtide.admin.settings import SettingsError  # noqa: PLC0415 - slow

        try:
            settings = console_settings(bootstrap_server, command_config, write=write)
            settings = replace(settings, signing_key=None if signing_key is None else usable_key(signing_key))
        except SettingsError as error:
            raise misused(str(error)) from None
        return asyncio.run(_serve(settings, port))

    return ended(context, run)


def console_settings(bootstrap_server: str | None, command_config: str | None, *, write: bool) -> ConsoleSettings:
    """Returns the settings of the console. Errors: CommandError, SettingsError."""
    from lowtide.admin.settings import read_properties_file  # noqa: PLC0415 - slow
    from lowtide.console.settings import PASSWORD_MECHANISMS, ConsoleSettings, LoginKind, console_client  # noqa: PLC0415
    from lowtide.runtime.random import system_random  # noqa: PLC0415

    given = {} if command_config is None else read_properties_file(command_config, OsFileSystem())
    protocol = given.get("security.protocol", ("PLAINTEXT", ""))[0].strip().upper()
    asks = protocol.startswith("SASL") and not any(key in given for key in _CREDENTIALS)
    overrides: dict[str, object] = (
        {"security.protocol": "SSL" if protocol == "SASL_SSL" else "PLAINTEXT"} if asks else {}
    )
    client = console_client(client_settings(bootstrap_server, command_config, overrides))
    named = next((given[key][0].strip().upper() for key in _MECHANISM if key in given), None) if asks else None
    if named is not None and named not in PASSWORD_MECHANISMS:
        raise misused(
            f"{given[_MECHANISM[0]][1]}: sasl.mechanism is {named}: visitors can log in with "
            f"{', '.join(PASSWORD_MECHANISMS)} only."
        )
    settings = ConsoleSettings(
        client=replace(client, unused_keys=()),
        login=LoginKind.PASSWORD if asks else LoginKind.TOKEN,
        mechanisms=PASSWORD_MECHANISMS if named is None else (named,),
        write=write,
        version=__version__,
    )
    if settings.login is not LoginKind.TOKEN:
        return settings
    return replace(settings, token=f"{system_random().getrandbits(TOKEN_BITS):048x}")


def usable_key(path: str) -> str:
    """Returns the path of a signing key that can sign. Errors: CommandError."""
    from lowtide.admin.receipts.signing_keys import SigningKeyError, signing_key  # noqa: PLC0415 - slow

    try:
        with signing_key(OsFileSystem(), path) as key:
            key.last()
    except SigningKeyError as error:
        raise misused(str(error)) from None
    except OSError as error:
        raise misused(f"{error.filename}: {error.strerror}.") from None
    return path


async def _serve(settings: ConsoleSettings, port: int | None) -> ExitCode:
    """Serves until a signal. Errors: CommandError."""
    from lowtide.cli.console_server import ConsoleServer  # noqa: PLC0415 - slow

    server = ConsoleServer(settings)
    try:
        try:
            address = await server.listen(DEFAULT_PORT if port is None else port)
        except OSError as error:
            if port is not None:
                raise CommandError(
                    f"the console can't listen on 127.0.0.1:{port}: {error.strerror or error}.", ExitCode.FAILED
                ) from None
            address = await server.listen(0)
        print(f"The console is at {address}", flush=True)
        if not settings.write:
            print("It is read-only; --write allows changes.", file=sys.stderr)
        await server.until_stopped()
    finally:
        await server.close()
    return ExitCode.DONE
