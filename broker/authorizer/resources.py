"""Operations and resources with Kafka's numbers, which are on the wire (KIP-430).

Sources: Kafka's `AclOperation`, `ResourceType`, `AclEntry.supportedOperations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lowtide.protocol.acl_values import AclOperation, AclResourceType

Operation = AclOperation
"""The operation that a client wants. Only filters use ANY, only rules use ALL."""

ResourceType = AclResourceType
"""The type of a resource. Only filters use ANY."""


class Resource(msgspec.Struct, frozen=True, gc=False):
    """A resource, by type and name."""

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
"""The operations on each type of resource. The bits of KIP-430 are among these."""

ALL_TOPIC_OPERATIONS: Final = _bits(SUPPORTED_OPERATIONS[ResourceType.TOPIC])
ALL_GROUP_OPERATIONS: Final = _bits(SUPPORTED_OPERATIONS[ResourceType.GROUP])
ALL_CLUSTER_OPERATIONS: Final = _bits(SUPPORTED_OPERATIONS[ResourceType.CLUSTER])
"""The bits of all operations, for clients that may do everything (KIP-430)."""

CLUSTER_NAME: Final = "kafka-cluster"
CLUSTER: Final = Resource(ResourceType.CLUSTER, CLUSTER_NAME)


def topic(name: str) -> Resource:
    """Returns the topic of this name."""
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    """Returns the group of this id."""
    return Resource(ResourceType.GROUP, name)


def transactional_id(name: str) -> Resource:
    """Returns the transactional id as a resource."""
    return Resource(ResourceType.TRANSACTIONAL_ID, name)
