"""What all commands have in common: their options, how they are run, and how their errors end them.

A command is a function whose first argument is a `Call`. `local` is for those that need no cluster, `network` for
coroutines that get a client in theirs; both add the options and turn errors into one sentence on standard error and an
exit code.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from lowtide.broker.config.sources import BOOTSTRAP_SERVER, COMMAND_CONFIG
from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.cli.printing import Output, print_json_line, printable, remark
from lowtide.runtime.process import environment

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.errors import AdminError
    from lowtide.admin.settings import ClientSettings

DEFAULT_ADDRESS: Final = "127.0.0.1:9092"
TIMEOUT_S: Final = 60.0
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How a command was called."""

    output: Output


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCall(Call):
    """How a command was called that asks a cluster."""

    client: AdminClient
    timeout_ms: int
    """How long each question to the cluster may take, with what is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsCall(Call):
    """How a command was called that reaches a cluster by a client of its own, and waits by itself."""

    settings: ClientSettings
    timeout_ms: int


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text is for people, json for programs")]
_OWN_OUTPUT: Final = {"output": (OutputOption, Output.TEXT)}
_NETWORK: Final[Mapping[str, tuple[Any, Any]]] = {
    "bootstrap_server": (
        Annotated[
            str | None,
            typer.Option(
                "--bootstrap-server",
                "-b",
                metavar="HOST:PORT,…",
                envvar=BOOTSTRAP_SERVER,
                help=f"brokers to ask first; without it bootstrap.servers of --command-config, or {DEFAULT_ADDRESS}",
            ),
        ],
        None,
    ),
    "command_config": (
        Annotated[
            str | None,
            typer.Option(
                "--command-config",
                metavar="FILE",
                envvar=COMMAND_CONFIG,
                help="settings of a client, in Kafka's names: TLS, SASL, times",
            ),
        ],
        None,
    ),
    "timeout": (
        Annotated[
            float,
            typer.Option(
                "--timeout",
                metavar="SECONDS",
                min=0.1,
                max=HOUR_S,
                help="how long a request may take, retries included",
            ),
        ],
        TIMEOUT_S,
    ),
    **_OWN_OUTPUT,
}


def local(function: Callable[..., ExitCode]) -> Callable[..., int]:
    """A command that needs no cluster."""

    @wraps(function)
    def run(context: typer.Context, **given: Any) -> int:
        call = Call(output=given.pop("output"))
        return _ended(context, call.output, lambda: function(call, **given))

    return _with_options(run, function, _OWN_OUTPUT)


def network(function: Callable[..., Awaitable[ExitCode]]) -> Callable[..., int]:
    """A command that asks a cluster."""

    @wraps(function)
    def run(context: typer.Context, **given: Any) -> int:
        common = {name: given.pop(name) for name in _NETWORK}

        def whole() -> ExitCode:
            settings = client_settings(common["bootstrap_server"], common["command_config"])
            return asyncio.run(
                connected(settings, common["timeout"], common["output"], lambda call: function(call, **given))
            )

        return _ended(context, common["output"], whole)

    return _with_options(run, function, _NETWORK)


def unhurried(function: Callable[..., ExitCode]) -> Callable[..., int]:
    """A command that may wait for its user: Ctrl-C ends it where it waits, for no event loop is around it."""

    @wraps(function)
    def run(context: typer.Context, **given: Any) -> int:
        common = {name: given.pop(name) for name in _NETWORK}

        def whole() -> ExitCode:
            settings = client_settings(common["bootstrap_server"], common["command_config"])
            call = SettingsCall(output=common["output"], settings=settings, timeout_ms=round(common["timeout"] * 1000))
            return function(call, **given)

        return _ended(context, common["output"], whole)

    return _with_options(run, function, _NETWORK)


def client_settings(
    bootstrap_server: str | None, command_config: str | None, overrides: Mapping[str, object] = MappingProxyType({})
) -> ClientSettings:
    """What the options and the file say, and over them `overrides`. Errors: CommandError."""
    from lowtide.admin.settings import ClientSettings, SettingsError  # noqa: PLC0415 - commands without a cluster don't need it

    source = BOOTSTRAP_SERVER if environment().get(BOOTSTRAP_SERVER) == bootstrap_server else "--bootstrap-server"
    try:
        if bootstrap_server is not None:
            return ClientSettings.read(command_config, {"bootstrap.servers": bootstrap_server, **overrides}, source)
        if command_config is not None and names_brokers(command_config):
            return ClientSettings.read(command_config, overrides)
        return ClientSettings.read(command_config, {"bootstrap.servers": DEFAULT_ADDRESS, **overrides}, "the default")
    except SettingsError as error:
        raise CommandError(str(error), ExitCode.MISUSED) from None


def names_brokers(path: str) -> bool:
    """Whether a file of settings says where brokers are. Errors: SettingsError."""
    from lowtide.admin.settings import read_properties_file  # noqa: PLC0415
    from lowtide.runtime.filesystem import OsFileSystem  # noqa: PLC0415

    return not {"bootstrap.servers", "metadata.broker.list"}.isdisjoint(read_properties_file(path, OsFileSystem()))


def network_error(error: AdminError) -> CommandError:
    """How a command ends by an error that concerns all of it."""
    from lowtide.admin.errors import AuthenticationFailedError, ConnectionFailedError, DeadlineExceededError  # noqa: PLC0415

    away = isinstance(error, AuthenticationFailedError | ConnectionFailedError | DeadlineExceededError)
    sentence = str(error)
    return CommandError(
        sentence if sentence.endswith(".") else f"{sentence}.", ExitCode.UNREACHABLE if away else ExitCode.FAILED
    )


async def connected(
    settings: ClientSettings, timeout_s: float, output: Output, command: Callable[[NetworkCall], Awaitable[ExitCode]]
) -> ExitCode:
    """Runs a command with a client. Errors: CommandError."""
    from lowtide.admin.client import AdminClient  # noqa: PLC0415
    from lowtide.admin.errors import AdminError  # noqa: PLC0415
    from lowtide.admin.settings import SettingsError  # noqa: PLC0415

    if sys.stderr.isatty():
        _tell_of_waiting()
    try:
        async with AdminClient(settings) as client:
            return await command(NetworkCall(output=output, client=client, timeout_ms=round(timeout_s * 1000)))
    except AdminError as error:
        raise network_error(error) from error
    except SettingsError as error:  # Of files that are read when the first connection is opened.
        raise CommandError(str(error), ExitCode.MISUSED) from error


def _tell_of_waiting() -> None:
    """Have the client say on the terminal what it waits for, when that takes long."""
    log = logging.getLogger("lowtide.admin")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def ended(context: typer.Context, command: Callable[[], ExitCode]) -> int:
    """Runs a command that prints for people alone; its exit code."""
    return _ended(context, Output.TEXT, command)


def _ended(context: typer.Context, output: Output, command: Callable[[], ExitCode]) -> int:
    """Runs a command; its exit code.

    An error that ends it is printed for people, and as a document where programs read.
    """
    try:
        return int(command())
    except CommandError as error:
        if output is Output.JSON:
            print_json_line({"error": {"message": str(error), "exit_code": int(error.code)}})
        remark(f"{context.command_path}: {printable(str(error))}")
        return int(error.code)


def _with_options(
    run: Callable[..., int], function: Callable[..., Any], options: Mapping[str, tuple[Any, Any]]
) -> Callable[..., int]:
    """`run`, which shows the parameters of `function` without the first, and those of `options` behind them."""
    hints = get_type_hints(function, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += [each.replace(kind=keyword, annotation=hints[each.name]) for each in own]
    parameters += [
        inspect.Parameter(name, keyword, default=default, annotation=kind) for name, (kind, default) in options.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
