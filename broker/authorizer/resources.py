"""What can be done, and to what: operations and resources with Kafka's numbers, which are on the wire (KIP-430).

Sources: Kafka's `AclOperation`, `ResourceType`, `AclEntry.supportedOperations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lowtide.protocol.acl_values import AclOperation, AclResourceType

Operation = AclOperation
"""What a client wants to do. ANY is only in filters, ALL only in rules."""

ResourceType = AclResourceType
"""What the client wants to do it to. ANY is only in filters."""


class Resource(msgspec.Struct, frozen=True, gc=False):
    """One thing of a type, by name."""

    type: ResourceType
    name: str


def _bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)


SUPPORTED_OPERATIONS: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}
"""What can be done to a resource of each type: the bits that KIP-430 tells are among these."""

ALL_TOPIC_OPERATIONS: Final = _bits(SUPPORTED_OPERATIONS[ResourceType.TOPIC])
ALL_GROUP_OPERATIONS: Final = _bits(SUPPORTED_OPERATIONS[ResourceType.GROUP])
ALL_CLUSTER_OPERATIONS: Final = _bits(SUPPORTED_OPERATIONS[ResourceType.CLUSTER])
"""Bit fields of what a client may do with each where nothing is forbidden (KIP-430)."""

CLUSTER_NAME: Final = "kafka-cluster"
CLUSTER: Final = Resource(ResourceType.CLUSTER, CLUSTER_NAME)
"""The cluster as a whole."""


def topic(name: str) -> Resource:
    """A topic by its name."""
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    """A group by its id."""
    return Resource(ResourceType.GROUP, name)


def transactional_id(name: str) -> Resource:
    """A transactional id."""
    return Resource(ResourceType.TRANSACTIONAL_ID, name)
