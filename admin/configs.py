"""Configurations of topics, brokers, groups and client metrics: describes them, and changes single keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.arguments import each_of, named
from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import UNKNOWN_IS_FINAL, AdminClientBase, failure, outcome
from lowtide.protocol.config_values import ConfigResourceType, ConfigSource
from lowtide.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.runtime.properties import property_text

if TYPE_CHECKING:
    from lowtide.admin.errors import AdminError
    from lowtide.protocol.types import BrokerId


class ConfigResource(NamedTuple):
    """A configured thing. A broker's name is its id as text; the empty name stands for the defaults of all brokers."""

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', ' ')} {self.name or '(all)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One key. `value` is None for secrets and for keys without a value."""

    key: str
    value: str | None
    source: ConfigSource | int
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None = None
    type: str | None = None
    """The type of its value in Kafka's words, such as `boolean`; None if the broker does not say it (KIP-569)."""
    synonyms: tuple[tuple[str, str | None, ConfigSource | int], ...] = ()
    """The values that this one overrides, the strongest first, if they were asked for."""

    @property
    def is_default(self) -> bool:
        """Whether the key is not set anywhere."""
        return self.source == ConfigSource.DEFAULT


class ConfigOperation(IntEnum):
    """Changes of a key; the last two are for lists. Source: AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change of one key. DELETE takes no value: the default applies again."""

    key: str
    value: str | float | bool | None = None
    operation: ConfigOperation = ConfigOperation.SET

    @property
    def text(self) -> str | None:
        """The value as brokers read it."""
        return None if self.value is None else property_text(self.key, self.value)


def _own_broker(resource: ConfigResource) -> BrokerId | None:
    """Returns the broker that a request must go to: only a broker itself knows its own values."""
    of_broker = resource.type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
    return int(resource.name) if of_broker and resource.name.isdecimal() else None


def _what(resource: ConfigResource) -> str:
    return f"the configuration of {resource}"


def _resource(row: Any) -> ConfigResource:
    return ConfigResource(ConfigResourceType(row.resource_type), row.resource_name)


async def describe_configs(
    client: AdminClientBase,
    resources: Iterable[ConfigResource],
    *,
    keys: Iterable[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
    timeout: float | None = None,
) -> dict[ConfigResource, dict[str, ConfigEntry] | AdminError]:
    """Returns the keys of each resource (all, or those in `keys`) with their values and origins."""
    call, wanted = client.call(timeout), None if keys is None else named(keys)

    async def send(
        broker_id: BrokerId, asked: list[ConfigResource]
    ) -> Mapping[ConfigResource, Outcome[dict[str, ConfigEntry]]]:
        rows = [
            DescribeConfigsResource(resource_type=resource.type, resource_name=resource.name, configuration_keys=wanted)
            for resource in asked
        ]
        request = DescribeConfigsRequest(resources=rows, include_synonyms=synonyms, include_documentation=documentation)
        response = await call.ask(broker_id, request)
        return {
            _resource(row): failure(_resource(row), row.error_code, row.error_message, final=UNKNOWN_IS_FINAL)
            if row.error_code
            else Done({entry.name: _entry(entry) for entry in row.configs})
            for row in response.results
        }

    found = each_of(ConfigResource, resources, 'ConfigResource(ConfigResourceType.TOPIC, "flights")')
    return await call.each(found, call.to_broker(_own_broker), send, _what)


async def alter_configs(
    client: AdminClientBase,
    changes: Mapping[ConfigResource, Iterable[ConfigChange]],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> dict[ConfigResource, AdminError | None]:
    """Changes keys; other keys stay as they are (KIP-339). All changes of a resource are applied, or none."""
    call = client.call(timeout)
    wanted = {
        resource: each_of(ConfigChange, some, 'ConfigChange("retention.ms", "86400000")')
        for resource, some in changes.items()
    }

    async def send(broker_id: BrokerId, asked: list[ConfigResource]) -> Mapping[ConfigResource, Outcome[None]]:
        rows = [
            AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[
                    AlterableConfig(
                        name=change.key,
                        config_operation=change.operation,
                        value=change.text,
                    )
                    for change in wanted[resource]
                ],
            )
            for resource in asked
        ]
        request = IncrementalAlterConfigsRequest(resources=rows, validate_only=validate_only)
        response = await call.ask(broker_id, request)
        return {_resource(row): outcome(_resource(row), row, final=UNKNOWN_IS_FINAL) for row in response.responses}

    return await call.each(wanted, call.to_broker(_own_broker), send, _what)


def _source(number: int) -> ConfigSource | int:
    """Returns the source, or its number if Kafka has added it since."""
    return ConfigSource(number) if number in _SOURCES else number


_SOURCES = frozenset(ConfigSource)


_TYPES: Final = dict(
    enumerate(("boolean", "string", "int", "short", "long", "double", "list", "class", "password"), start=1)
)
"""Types by their numbers. Source: Kafka's DescribeConfigsResponse.ConfigType."""


def _entry(row: Any) -> ConfigEntry:
    return ConfigEntry(
        key=row.name,
        value=row.value,
        source=_source(row.config_source),
        is_read_only=row.read_only,
        is_sensitive=row.is_sensitive,
        documentation=row.documentation,
        type=_TYPES.get(row.config_type),
        synonyms=tuple((synonym.name, synonym.value, _source(synonym.source)) for synonym in row.synonyms),
    )
