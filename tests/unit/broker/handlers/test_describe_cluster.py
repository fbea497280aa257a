"""DescribeCluster: its rows, and the response of the wrong endpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.handlers.describe_cluster import handler
from lowtide.metadata.image import BrokerImage, MetadataImage
from lowtide.metadata.records import Listener
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_cluster import (
    OPERATIONS_NOT_ASKED,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

CONTEXT: Any = SimpleNamespace(connection=SimpleNamespace(listener_name="PLAINTEXT", local_address=("10.0.0.9", 19092)))
HERE = 2


def ask(image: MetadataImage, *, local: bool = False, **wanted: Any) -> DescribeClusterResponse:
    config = SimpleNamespace(advertises_local_address=local)
    broker: Any = SimpleNamespace(
        metadata=SimpleNamespace(image=image), replicas=SimpleNamespace(broker_id=HERE), config=config
    )
    handle = handler(broker).handle
    assert handle is not None
    answer = handle(DescribeClusterRequest(**{"include_cluster_authorized_operations": False, **wanted}), CONTEXT)
    assert isinstance(answer, DescribeClusterResponse)
    return answer


def cluster(controller_id: int = 2) -> MetadataImage:
    brokers = {
        number: BrokerImage(number, number, (Listener("PLAINTEXT", f"host-{number}", 9092),), f"rack-{number}")
        for number in (1, 2)
    }
    return MetadataImage(9, "the-cluster", controller_id, 3, brokers)


def test_the_live_brokers_and_the_controller() -> None:
    answer = ask(cluster(), include_fenced_brokers=True)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert (answer.cluster_id, answer.controller_id, answer.endpoint_type) == ("the-cluster", 2, 1)
    assert answer.brokers == [
        DescribeClusterBroker(broker_id=number, host=f"host-{number}", port=9092, rack=f"rack-{number}")
        for number in (1, 2)
    ]


@pytest.mark.parametrize("controller_id", [-1, 7])
def test_a_controller_that_clients_cannot_reach_is_left_out(controller_id: int) -> None:
    assert ask(cluster(controller_id)).controller_id == -1


def test_operations_are_returned_on_request() -> None:
    """Eight kinds of them, as a bit field (KIP-430)."""
    assert ask(cluster()).cluster_authorized_operations == OPERATIONS_NOT_ASKED
    assert (
        ask(cluster(), include_cluster_authorized_operations=True).cluster_authorized_operations == 0b1_1111_1010_0000
    )


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (-1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_other_endpoints_are_refused(endpoint_type: int, code: ErrorCode) -> None:
    """The error has nothing of the cluster; the response has the kind of this endpoint."""
    answer = ask(cluster(), endpoint_type=endpoint_type, include_cluster_authorized_operations=True)
    assert answer.error_code == code
    assert answer.error_message
    assert answer == DescribeClusterResponse(error_code=code, error_message=answer.error_message, endpoint_type=1)


def test_a_client_may_get_the_address_by_which_it_came() -> None:
    """For the broker that it asks; the others are where they have registered."""
    registered = {row.broker_id: (row.host, row.port) for row in ask(cluster()).brokers}
    seen = {row.broker_id: (row.host, row.port) for row in ask(cluster(), local=True).brokers}
    assert seen == registered | {HERE: ("10.0.0.9", 19092)}
    assert len(seen) > 1
