"""What a request about configurations may ask for: kinds of resources, and what is wrong with a request before any of them is looked at.

Decisions only. Guards: the order of checks, and their codes, are Kafka's. Source: Kafka's `ConfigAdminManager`, `RuntimeLoggerManager`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId
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
    """Whether a resource's keys can be changed at once.

    Refusals: INVALID_REQUEST for a key that is there twice, or lacks its value.
    """
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
