"""The options of commands that read values by a schema registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.call import OptionGroup
from lowtide.cli.outcome import misused

if TYPE_CHECKING:
    from lowtide.admin.schemas.values import SchemaValues

RegistryProperties = Annotated[
    list[str] | None,
    typer.Option(
        "--registry-property",
        metavar="KEY=VALUE",
        help="basic.auth.user.info, bearer.auth.token, ssl.ca.location, ...; may be repeated",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions(OptionGroup):
    """The schema registry."""

    registry: Annotated[
        str | None,
        typer.Option(
            "--registry", metavar="URL", help="read Avro, Protobuf and JSON by this schema registry (Confluent's REST)"
        ),
    ] = None
    registry_property: RegistryProperties = None

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Returns the settings of the registry, by name; none without a registry. Errors: CommandError."""
        found = registry_settings(self.registry, self.registry_property)
        if found:
            from lowtide.admin.schemas.registry import Registry  # noqa: PLC0415 - slow

            try:
                Registry(found)
            except ValueError as error:
                raise misused(f"--registry: {error}.") from error
        return found

    def values(self) -> SchemaValues | None:
        """Returns what reads values by the registry; None without one. Errors: CommandError."""
        settings = self.settings()
        if not settings:
            return None
        from lowtide.admin.schemas.values import SchemaValues  # noqa: PLC0415 - slow
        from lowtide.runtime.clock import SystemClock  # noqa: PLC0415

        return SchemaValues(settings, SystemClock())


def registry_settings(url: str | None, properties: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Returns the settings that options give. Errors: CommandError."""
    found = pairs("--registry-property", properties)
    if url is not None:
        found["url"] = url
    return tuple(sorted(found.items()))


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Reads `KEY=VALUE`. Errors: CommandError."""
    found = dict(text.partition("=")[::2] for text in texts or ())
    for text in texts or ():
        if text.find("=") < 1:
            raise misused(f"{option} {text!r} must be KEY=VALUE.")
    return found
