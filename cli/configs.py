"""`lowtide configs`: shows and changes the configuration of topics, brokers and groups."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from lowtide.admin.configs import ConfigEntry, ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.config_changes import SetOption, UnsetOption, ValidateOnlyOption, alter
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.printing import Output, print_json, print_table, printable
from lowtide.cli.results import error_value, errors_of, report_each
from lowtide.protocol.config_values import ConfigResourceType, ConfigSource

app = typer.Typer(add_completion=False, no_args_is_help=True)

ALL_BROKERS: Final = "all"
"""Stands for the defaults of all brokers."""

Topic = Annotated[
    list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="may be repeated, like the other two")
]
Broker = Annotated[
    list[str] | None,
    typer.Option("--broker", metavar="ID", help=f"a broker, or `{ALL_BROKERS}` for what is set on all of them"),
]
Logger = Annotated[
    list[str] | None,
    typer.Option("--broker-logger", metavar="ID", help="the log levels of a broker, by parts of its code (KIP-412)"),
]
Group = Annotated[list[str] | None, typer.Option("--group", "-g", metavar="GROUP")]

_SOURCES: Final = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.DYNAMIC_BROKER: "broker, while running",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "all brokers, while running",
    ConfigSource.STATIC_BROKER: "broker, at its start",
    ConfigSource.DEFAULT: "default",
    ConfigSource.DYNAMIC_BROKER_LOGGER: "broker, while running",
    ConfigSource.GROUP: "group",
}


def resources_of(
    topics: list[str] | None, brokers: list[str] | None, groups: list[str] | None, loggers: list[str] | None = None
) -> list[ConfigResource]:
    """Returns the named resources. Errors: CommandError for none, and for an invalid broker id."""
    found = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics or []]
    for broker in brokers or []:
        if broker != ALL_BROKERS and not (broker.isascii() and broker.isdigit()):
            raise misused(f"{broker!r} is not a broker: write an id or `{ALL_BROKERS}`.")
        found.append(ConfigResource(ConfigResourceType.BROKER, "" if broker == ALL_BROKERS else str(int(broker))))
    for broker in loggers or []:
        if not (broker.isascii() and broker.isdigit()):
            raise misused(f"{broker!r} is not a broker: write an id.")
        found.append(ConfigResource(ConfigResourceType.BROKER_LOGGER, str(int(broker))))
    found += [ConfigResource(ConfigResourceType.GROUP, name) for name in groups or []]
    if not found:
        raise misused("give --topic, --broker, --broker-logger or --group.")
    return list(dict.fromkeys(found))


@app.command()
@network
async def describe(
    call: NetworkCall,
    *,
    topic: Topic = None,
    broker: Broker = None,
    broker_logger: Logger = None,
    group: Group = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="defaults too, not only keys that are set")] = False,
) -> ExitCode:
    """Show the keys that are set, and where they are set."""
    resources = resources_of(topic, broker, group, broker_logger)
    described = await call.client.describe_configs(resources)
    values: list[dict[str, Any]] = []
    for resource, found in described.items():
        entries = (
            []
            if isinstance(found, AdminError)
            else [entry for entry in found.values() if every or not entry.is_default]
        )
        if call.output is Output.JSON:
            error = error_value(found) if isinstance(found, AdminError) else None
            kind = resource.type.name.lower()
            values.append(
                {"type": kind, "name": resource.name, "configs": [_value(entry) for entry in entries], "error": error}
            )
        elif not isinstance(found, AdminError):
            print(printable(str(resource)))
            print_table(("key", "value", "set by"), [(entry.key, _shown(entry), _source(entry)) for entry in entries])
    if call.output is Output.JSON:
        print_json({"resources": values})
    return report_each(errors_of(described), call.output, quiet=True)


@app.command("alter")
@network
async def alter_configs(
    call: NetworkCall,
    *,
    topic: Topic = None,
    broker: Broker = None,
    broker_logger: Logger = None,
    group: Group = None,
    settings: SetOption = None,
    unset: UnsetOption = None,
    validate_only: ValidateOnlyOption = False,
) -> ExitCode:
    """Change keys; other keys stay as they are."""
    return await alter(
        call,
        resources_of(topic, broker, group, broker_logger),
        settings or [],
        unset or [],
        validate_only=validate_only,
    )


def _shown(entry: ConfigEntry) -> str | None:
    return "(secret)" if entry.is_sensitive else entry.value


def _source(entry: ConfigEntry) -> str:
    return (
        _SOURCES.get(entry.source, str(entry.source))
        if isinstance(entry.source, ConfigSource)
        else f"source {entry.source}"
    )


def _value(entry: ConfigEntry) -> dict[str, Any]:
    source = entry.source.name.lower() if isinstance(entry.source, ConfigSource) else entry.source
    return {
        "key": entry.key,
        "value": entry.value,
        "source": source,
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
    }
