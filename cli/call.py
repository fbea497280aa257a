"""The options, the execution and the errors that all commands share.

A command is a function whose first argument is a `Call`. `local` marks commands without a cluster, `network` coroutines
that use a client, `unhurried` commands that wait for their user. Each adds its options, and turns errors into one
sentence on standard error and an exit code. Options that several commands share are an `OptionGroup`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from lowtide.broker.config.sources import BOOTSTRAP_SERVER, COMMAND_CONFIG
from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.cli.printing import Output, print_json, print_json_line, print_table, printable, remark
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
    """The call of a command."""

    output: Output

    def show(self, document: Any, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Prints a JSON document for programs, or a table for people."""
        if self.output is Output.JSON:
            print_json(document)
        else:
            print_table(columns, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCall(Call):
    """The call of a command that uses a cluster. `--timeout` is the client's default timeout."""

    client: AdminClient


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsCall(Call):
    """The call of a command that creates its own client."""

    settings: ClientSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """The base of groups of options: a command takes a group as one parameter, and has its fields as options."""


Yes = Annotated[bool, typer.Option("--yes", "-y", help="don't ask for confirmation")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text is for people, json for programs")]
_OUTPUT: Final = {"output": (OutputOption, Output.TEXT)}
BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,…",
        envvar=BOOTSTRAP_SERVER,
        help=f"brokers to ask first; default: bootstrap.servers of --command-config, or {DEFAULT_ADDRESS}",
    ),
]
CommandConfig = Annotated[
    str | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar=COMMAND_CONFIG,
        help="client settings with Kafka's names: TLS, SASL, timeouts",
    ),
]
_NETWORK_OPTIONS: Final[Mapping[str, tuple[Any, Any]]] = {
    "bootstrap_server": (BootstrapServer, None),
    "command_config": (CommandConfig, None),
    "timeout": (
        Annotated[
            float,
            typer.Option(
                "--timeout",
                metavar="SECONDS",
                min=0.1,
                max=HOUR_S,
                help="how long a call may take, with its retries",
            ),
        ],
        TIMEOUT_S,
    ),
    **_OUTPUT,
}


def local(function: Callable[..., ExitCode]) -> Callable[..., int]:
    """Makes a command that needs no cluster."""
    return _command(function, _OUTPUT, lambda common, given: function(Call(output=common["output"]), **given))


def network(function: Callable[..., Awaitable[ExitCode]]) -> Callable[..., int]:
    """Makes a command that asks a cluster."""

    def run(common: Mapping[str, Any], given: Mapping[str, Any]) -> ExitCode:
        return asyncio.run(connected(_settings(common), common["output"], lambda call: function(call, **given)))

    return _command(function, _NETWORK_OPTIONS, run)


def unhurried(function: Callable[..., ExitCode]) -> Callable[..., int]:
    """Makes a command that may wait for its user. It has no event loop, so Ctrl-C ends it at once."""

    def run(common: Mapping[str, Any], given: Mapping[str, Any]) -> ExitCode:
        return function(SettingsCall(output=common["output"], settings=_settings(common)), **given)

    return _command(function, _NETWORK_OPTIONS, run)


def _settings(common: Mapping[str, Any]) -> ClientSettings:
    """Returns the client settings that the common options give. Errors: CommandError."""
    settings = client_settings(common["bootstrap_server"], common["command_config"])
    return replace(settings, default_api_timeout_ms=round(common["timeout"] * 1000))


def client_settings(
    bootstrap_server: str | None, command_config: str | None, overrides: Mapping[str, object] = MappingProxyType({})
) -> ClientSettings:
    """Returns the settings of the options and the file, and then `overrides`. Errors: CommandError."""
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
    """Returns whether a file of settings has bootstrap servers. Errors: SettingsError."""
    from lowtide.admin.settings import read_properties_file  # noqa: PLC0415
    from lowtide.runtime.filesystem import OsFileSystem  # noqa: PLC0415

    return not {"bootstrap.servers", "metadata.broker.list"}.isdisjoint(read_properties_file(path, OsFileSystem()))


def network_error(error: AdminError) -> CommandError:
    """Returns the error of a command for an error of the whole call."""
    from lowtide.admin.errors import AuthenticationFailedError, ConnectionFailedError, DeadlineExceededError  # noqa: PLC0415

    away = isinstance(error, AuthenticationFailedError | ConnectionFailedError | DeadlineExceededError)
    sentence = str(error)
    return CommandError(
        sentence if sentence.endswith(".") else f"{sentence}.", ExitCode.UNREACHABLE if away else ExitCode.FAILED
    )


async def connected(
    settings: ClientSettings, output: Output, command: Callable[[NetworkCall], Awaitable[ExitCode]]
) -> ExitCode:
    """Runs a command with a client. Errors: CommandError."""
    from lowtide.admin.client import AdminClient  # noqa: PLC0415
    from lowtide.admin.errors import AdminError  # noqa: PLC0415
    from lowtide.admin.settings import SettingsError  # noqa: PLC0415

    if sys.stderr.isatty():
        _log_long_waits()
    try:
        async with AdminClient(settings) as client:
            return await command(NetworkCall(output=output, client=client))
    except AdminError as error:
        raise network_error(error) from error
    except SettingsError as error:  # The first connection reads the files that settings name.
        raise CommandError(str(error), ExitCode.MISUSED) from error


def _log_long_waits() -> None:
    """Lets the client log on the terminal why a call takes long."""
    log = logging.getLogger("lowtide.admin")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def ended(context: typer.Context, command: Callable[[], ExitCode], output: Output = Output.TEXT) -> int:
    """Runs a command; returns its exit code. Prints an error for people, and as a JSON document for programs."""
    try:
        return int(command())
    except CommandError as error:
        if output is Output.JSON:
            print_json_line({"error": {"message": str(error), "exit_code": int(error.code)}})
        remark(f"{context.command_path}: {printable(str(error))}")
        return int(error.code)


def _command(
    function: Callable[..., Any],
    options: Mapping[str, tuple[Any, Any]],
    run: Callable[[Mapping[str, Any], Mapping[str, Any]], ExitCode],
) -> Callable[..., int]:
    """Returns a command for Typer with the parameters of `function`, except the first, and with `options`.

    `run` gets the values of `options` and those of the other parameters.
    """
    hints, keyword = get_type_hints(function, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    groups: dict[str, type[OptionGroup]] = {}
    for each in list(inspect.signature(function).parameters.values())[1:]:
        hint = hints[each.name]
        if not (isinstance(hint, type) and issubclass(hint, OptionGroup)):
            parameters.append(each.replace(kind=keyword, annotation=hint))
            continue
        groups[each.name] = hint
        kinds = get_type_hints(hint, include_extras=True)
        parameters += [
            inspect.Parameter(field.name, keyword, default=field.default, annotation=kinds[field.name])
            for field in fields(hint)
        ]
    parameters += [
        inspect.Parameter(name, keyword, default=default, annotation=kind) for name, (kind, default) in options.items()
    ]

    @wraps(function)
    def command(context: typer.Context, **given: Any) -> int:
        common = {name: given.pop(name) for name in options}
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return ended(context, lambda: run(common, given), common["output"])

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
