"""The bits of KIP-430, as Kafka 4.3.1 has them."""

from __future__ import annotations

from lowtide.broker.authorizer.resources import (
    ALL_CLUSTER_OPERATIONS,
    ALL_GROUP_OPERATIONS,
    ALL_TOPIC_OPERATIONS,
    SUPPORTED_OPERATIONS,
    ResourceType,
)


def test_the_operations_of_each_type() -> None:
    assert ALL_TOPIC_OPERATIONS == sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11)) == 3576
    assert ALL_GROUP_OPERATIONS == sum(1 << code for code in (3, 6, 8, 10, 11)) == 3400
    assert ALL_CLUSTER_OPERATIONS == sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12)) == 8096
    assert SUPPORTED_OPERATIONS[ResourceType.TRANSACTIONAL_ID] == {4, 8, 15}
    assert SUPPORTED_OPERATIONS[ResourceType.DELEGATION_TOKEN] == {8}
    assert SUPPORTED_OPERATIONS[ResourceType.USER] == {13, 14}
    assert set(SUPPORTED_OPERATIONS) == set(ResourceType) - {ResourceType.ANY}
