"""Resources of configuration requests, and the checks that come before a resource is looked up.

Decisions only. Guards: the order of checks and the error codes are Kafka's. Source: Kafka's `ConfigAdminManager`,
`RuntimeLoggerManager`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId
from lowtide.replication.refusal import Refusal

_NODE_ID: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


class ConfiguredResource(msgspec.Struct, frozen=True, gc=False):
    """A resource with a configuration. A broker with an empty name stands for all brokers."""

    type: ConfigResourceType
    name: str


RESOURCES_AT_ONCE: Final = 5
"""The number of resources of a request after which other requests get a turn: describing a broker takes two
milliseconds."""

REPEATED: Final = Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def repeated_resources(named: Iterable[tuple[int, str]]) -> frozenset[tuple[int, str]]:
    """Returns the resources, by type and name, that a request names more than once: each of them is refused."""
    return frozenset(each for each, count in Counter(named).items() if count > 1)


def check_keys(names: Sequence[str], without_value: Sequence[str]) -> Refusal | None:
    """Checks the keys of a resource that are to be changed.

    Refusals: INVALID_REQUEST for a duplicate key or a key without a value.
    """
    if len(set(names)) != len(names):
        return Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if without_value:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without_value)}")
    return None


def resource_of(
    resource_type: int, name: str, *, without: ConfigResourceType | None = None
) -> ConfiguredResource | Refusal:
    """Returns the resource. Refusals: INVALID_REQUEST for an unknown type, or for the type `without`."""
    known = resource_type in ConfigResourceType.__members__.values() and resource_type != without
    return ConfiguredResource(ConfigResourceType(resource_type), name) if known else unknown_type(resource_type)


def unknown_type(resource_type: int) -> Refusal:
    """Returns the refusal of an unknown type."""
    return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


def check_node_id(name: str, node_id: BrokerId) -> Refusal | None:
    """Checks that a broker resource names this broker. Refusals: INVALID_REQUEST."""
    if not _NODE_ID.fullmatch(name):
        return Refusal(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if int(name) != node_id:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {name}")
    return None
