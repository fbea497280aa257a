"""What a request about configurations may ask for: kinds of resources, and what is wrong with a request before any of them is looked at.

Decisions only. Guards: the order of checks, and their codes, are Kafka's. Source: Kafka's `ConfigAdminManager`, `RuntimeLoggerManager`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId
from lowtide.replication.config_changes import KeyChange, Operation
from lowtide.replication.refusal import Refusal

_NODE_ID: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


class ResourceType(IntEnum):
    """What can be configured; the wire's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(msgspec.Struct, frozen=True, gc=False):
    """One thing that can be configured. An empty name of a broker stands for all of them."""

    type: ResourceType
    name: str


RESOURCES_AT_ONCE: Final = 5
"""After so many resources of one request others are served: describing a whole broker, the longest, takes two milliseconds."""

REPEATED: Final = Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def repeated_resources(named: Iterable[tuple[int, str]]) -> frozenset[tuple[int, str]]:
    """The resources, by type and name, that a request has more than once: each of their rows is refused."""
    return frozenset(each for each, count in Counter(named).items() if count > 1)


def check_keys(names: Sequence[str], without_value: Sequence[str]) -> Refusal | None:
    """Whether a resource's keys can be changed at once. Refusals: INVALID_REQUEST for a key that is there twice, or lacks its value."""
    if len(set(names)) != len(names):
        return Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if without_value:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without_value)}")
    return None


def resource_of(resource_type: int, name: str, *, without: ResourceType | None = None) -> Resource | Refusal:
    """The resource that is meant. Refusals: INVALID_REQUEST for a type that isn't one, or is `without`."""
    known = resource_type in ResourceType.__members__.values() and resource_type != without
    return Resource(ResourceType(resource_type), name) if known else unknown_type(resource_type)


def unknown_type(resource_type: int) -> Refusal:
    """Why a type that isn't one is refused."""
    return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


def check_node_id(name: str, node_id: BrokerId) -> Refusal | None:
    """Whether a resource named by a broker's id is this broker. Refusals: INVALID_REQUEST."""
    if not _NODE_ID.fullmatch(name):
        return Refusal(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if int(name) != node_id:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {name}")
    return None


def check_logger_changes(name: str, node_id: BrokerId, changes: Sequence[KeyChange]) -> Refusal | None:
    """Why levels of loggers can't be changed: there are none.

    Refusals: INVALID_REQUEST for another broker and for operations on lists, INVALID_CONFIG for every logger.
    """
    refusal = check_node_id(name, node_id)
    if refusal is not None or not changes:
        return refusal
    first = changes[0]
    if first.operation in (Operation.APPEND, Operation.SUBTRACT):
        return Refusal(ErrorCode.INVALID_REQUEST, f"{first.operation.name} operation is not allowed for the BROKER_LOGGER resource")
    return Refusal(ErrorCode.INVALID_CONFIG, f"Logger {first.name} does not exist!")


def check_client_metrics_configs(name: str, wanted: Mapping[str, str]) -> Refusal | None:
    """Why clients' metrics can't be subscribed to. Refusals: INVALID_REQUEST without a name, and for every key."""
    if not name:
        return Refusal(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    if wanted:
        message = f"Unknown client metrics configuration: {next(iter(wanted))}. This broker takes no metrics of clients."
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    return None
