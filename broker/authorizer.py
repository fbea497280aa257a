"""Who may do what: the question that every handler asks before it acts, and the answer while nothing is forbidden.

Handlers ask where Kafka asks, so that a request that is refused for several reasons is refused for the same one. Numbers are Kafka's, for
they are on the wire (KIP-430).

Does not do: who a client is (there is no authentication yet, so all are anonymous), which rules there are.
Sources: Kafka's `Authorizer`, `AuthHelper`, `AclOperation`, `ResourceType`; the table of operations in Kafka's security manual.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Protocol

import msgspec

ANONYMOUS: Final = "User:ANONYMOUS"
"""Who a client is that hasn't said."""


class Operation(IntEnum):
    """What a client wants to do."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """What the client wants to do it to."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Resource(msgspec.Struct, frozen=True, gc=False):
    """One thing of a type, by name."""

    type: ResourceType
    name: str


ALL_TOPIC_OPERATIONS: Final = 3576
ALL_GROUP_OPERATIONS: Final = 3400
ALL_CLUSTER_OPERATIONS: Final = 8096
"""Bit fields of what a client may do with each where nothing is forbidden (KIP-430)."""

CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")
"""The cluster as a whole."""


def topic(name: str) -> Resource:
    """A topic by its name."""
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    """A group by its id."""
    return Resource(ResourceType.GROUP, name)


class Authorizer(Protocol):
    """The port. `allows_all` spares those who ask a thousand times a second."""

    allows_all: bool

    def authorize(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether `principal` may do that."""
        ...


class AllowAll:
    """Nothing is forbidden."""

    allows_all: bool = True

    def authorize(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Yes."""
        return True


ALLOW_ALL: Final = AllowAll()


def allowed_topics(authorizer: Authorizer, principal: str, operation: Operation, names: Iterable[str]) -> frozenset[str]:
    """Of these topics those that `principal` may do that to."""
    wanted = frozenset(names)
    if authorizer.allows_all:
        return wanted
    return frozenset(name for name in wanted if authorizer.authorize(principal, operation, topic(name)))
