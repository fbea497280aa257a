"""Configurations of topics, brokers and groups: read, and changed key by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from lowtide.admin.anywhere import UNKNOWN_IS_FINAL, outcome_of_error, to_a_broker
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.runtime.properties import property_text

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.errors import AdminError
    from lowtide.admin.patience import Deadline
    from lowtide.protocol.types import BrokerId


class ResourceType(IntEnum):
    """What can be configured. Source: ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A topic, a broker (by its id as text; an empty name is what is set on all brokers), or a group."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', ' ')} {self.name or '(all)'}"


class ConfigSource(IntEnum):
    """Where a value comes from. Source: DescribeConfigsResponse.ConfigSource."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One key. `value` is None for a secret, and for what has no value."""

    key: str
    value: str | None
    source: ConfigSource | int
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None = None
    synonyms: tuple[tuple[str, str | None, ConfigSource | int], ...] = ()
    """The keys and values that stand behind this one, the strongest first, where they were asked for."""

    @property
    def is_default(self) -> bool:
        """Whether it is not set anywhere."""
        return self.source == ConfigSource.DEFAULT


class ConfigOperation(IntEnum):
    """What is done to a key; the last two are for lists. Source: AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One change. DELETE takes no value: the default holds again."""

    key: str
    value: str | float | bool | None = None
    operation: ConfigOperation = ConfigOperation.SET


def _text(change: ConfigChange) -> str | None:
    return None if change.value is None else property_text(change.key, change.value)


def _own_broker(resource: ConfigResource) -> BrokerId | None:
    """The broker that has to be asked: a broker's own values are known by it alone."""
    of_broker = resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
    return int(resource.name) if of_broker and resource.name.isdecimal() else None


async def describe_configs(
    cluster: Cluster,
    resources: Iterable[ConfigResource],
    deadline: Deadline,
    *,
    keys: Iterable[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> dict[ConfigResource, dict[str, ConfigEntry] | AdminError]:
    """See `AdminClient.describe_configs`."""
    wanted = None if keys is None else list(keys)

    async def send(
        broker_id: BrokerId, asked: list[ConfigResource], _: int
    ) -> Mapping[ConfigResource, Outcome[dict[str, ConfigEntry]]]:
        async with cluster.broker(broker_id, deadline) as handle:
            rows = [
                DescribeConfigsResource(
                    resource_type=resource.type, resource_name=resource.name, configuration_keys=wanted
                )
                for resource in asked
            ]
            request = DescribeConfigsRequest(
                resources=rows, include_synonyms=synonyms, include_documentation=documentation
            )
            response = await handle.ask(request)
        found: dict[ConfigResource, Outcome[dict[str, ConfigEntry]]] = {}
        for row in response.results:
            resource = ConfigResource(ResourceType(row.resource_type), row.resource_name)
            if row.error_code:
                found[resource] = outcome_of_error(resource, row.error_code, row.error_message, final=UNKNOWN_IS_FINAL)
            else:
                found[resource] = Done({entry.name: _entry(entry) for entry in row.configs})
        return found

    attempts = Attempts[ConfigResource, dict[str, ConfigEntry]](
        cluster, deadline, to_a_broker(cluster, deadline, _own_broker), send
    )
    await attempts.run(list(dict.fromkeys(resources)))
    return attempts.results(lambda resource: f"the configuration of {resource}")


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Iterable[ConfigChange]],
    deadline: Deadline,
    *,
    validate_only: bool = False,
) -> dict[ConfigResource, AdminError | None]:
    """See `AdminClient.alter_configs`."""
    given = {resource: list(of_resource) for resource, of_resource in changes.items()}

    async def send(broker_id: BrokerId, asked: list[ConfigResource], _: int) -> Mapping[ConfigResource, Outcome[None]]:
        async with cluster.broker(broker_id, deadline) as handle:
            rows = [
                AlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(name=change.key, config_operation=change.operation, value=_text(change))
                        for change in given[resource]
                    ],
                )
                for resource in asked
            ]
            response = await handle.ask(IncrementalAlterConfigsRequest(resources=rows, validate_only=validate_only))
        found: dict[ConfigResource, Outcome[None]] = {}
        for row in response.responses:
            resource = ConfigResource(ResourceType(row.resource_type), row.resource_name)
            if row.error_code:
                found[resource] = outcome_of_error(resource, row.error_code, row.error_message, final=UNKNOWN_IS_FINAL)
            else:
                found[resource] = Done(None)
        return found

    attempts = Attempts[ConfigResource, None](cluster, deadline, to_a_broker(cluster, deadline, _own_broker), send)
    await attempts.run(list(given))
    return attempts.results(lambda resource: f"the configuration of {resource}")


def _source(number: int) -> ConfigSource | int:
    """A source, or its number where it came after our table."""
    return ConfigSource(number) if number in _SOURCES else number


_SOURCES = frozenset(ConfigSource)


def _entry(row: Any) -> ConfigEntry:
    return ConfigEntry(
        key=row.name,
        value=row.value,
        source=_source(row.config_source),
        is_read_only=row.read_only,
        is_sensitive=row.is_sensitive,
        documentation=row.documentation,
        synonyms=tuple((synonym.name, synonym.value, _source(synonym.source)) for synonym in row.synonyms),
    )
