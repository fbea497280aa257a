"""`lowtide console`: a site on this machine that shows a cluster, over the client alone: any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lowtide import __version__
from lowtide.broker.config.sources import BOOTSTRAP_SERVER, COMMAND_CONFIG
from lowtide.cli.call import client_settings, ended
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
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", "-b", metavar="HOST:PORT,…", envvar=BOOTSTRAP_SERVER, help="brokers to ask first"
        ),
    ] = None,
    command_config: Annotated[
        str | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            envvar=COMMAND_CONFIG,
            help="settings of a client, in Kafka's names. With SASL but without a name and a password, visitors log in with theirs",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help=f"where to listen on 127.0.0.1; {DEFAULT_PORT} if it is free, 0 for any"
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="let visitors change what the cluster allows them; else it is read-only")
    ] = False,
) -> int:
    """Show a cluster in a browser on this machine: what is kept, why, when it goes, and what waits."""

    def run() -> ExitCode:
        from lowtide.admin.settings import SettingsError  # noqa: PLC0415 - imported only where it is needed

        try:
            settings = console_settings(bootstrap_server, command_config, write=write)
        except SettingsError as error:
            raise misused(str(error)) from None
        return asyncio.run(_serve(settings, port))

    return ended(context, run)


def console_settings(bootstrap_server: str | None, command_config: str | None, *, write: bool) -> ConsoleSettings:
    """How the console reaches the cluster, and what visitors have to show. Errors: CommandError, SettingsError."""
    from lowtide.admin.settings import read_properties_file  # noqa: PLC0415 - imported only where it is needed
    from lowtide.console.settings import PASSWORD_MECHANISMS, ConsoleSettings, Login, console_client  # noqa: PLC0415
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
        message = f"{given[_MECHANISM[0]][1]}: visitors can log in by {', '.join(PASSWORD_MECHANISMS)}, not by {named}."
        raise misused(message)
    settings = ConsoleSettings(
        client=replace(client, unused_keys=()),
        login=Login.PASSWORD if asks else Login.TOKEN,
        mechanisms=PASSWORD_MECHANISMS if named is None else (named,),
        write=write,
        version=__version__,
    )
    if settings.login is not Login.TOKEN:
        return settings
    return replace(settings, token=f"{system_random().getrandbits(TOKEN_BITS):048x}")


async def _serve(settings: ConsoleSettings, port: int | None) -> ExitCode:
    """Until a signal ends it. Errors: CommandError."""
    from lowtide.cli.console_server import ConsoleServer  # noqa: PLC0415 - imported only where it is needed

    server = ConsoleServer(settings)
    try:
        try:
            address = await server.listen(DEFAULT_PORT if port is None else port)
        except OSError as error:
            if port is not None:
                message = f"127.0.0.1:{port} is not possible: {error.strerror or error}."
                raise CommandError(message, ExitCode.FAILED) from None
            address = await server.listen(0)
        print(f"The console is at {address}", flush=True)
        if not settings.write:
            print("It is read-only; --write lets it change what the cluster allows.", file=sys.stderr)
        await server.until_stopped()
    finally:
        await server.close()
    return ExitCode.DONE
