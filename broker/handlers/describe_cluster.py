"""DescribeCluster: v0-v2.

Behaviour: the cluster's id, its controller and its live brokers. A controller that isn't among these is told as -1. This is a broker's
endpoint: whoever asks for controllers is told so, and so is whoever asks for something unknown.

Version notes: v0 always means brokers; v1 says which kind of endpoint is meant (KIP-919). v2 may ask for fenced brokers too (KIP-1073):
there are none, for a broker that loses its lease leaves the cluster.

Errors: MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE.

KIPs: 430, 700, 919, 1073.
"""

from __future__ import annotations

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.broker.handlers.metadata import ALL_CLUSTER_OPERATIONS
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_cluster import (
    ENDPOINT_BROKERS,
    ENDPOINT_CONTROLLERS,
    OPERATIONS_NOT_ASKED,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""

    def handle(request: DescribeClusterRequest, _context: RequestContext) -> DescribeClusterResponse:
        if request.endpoint_type == ENDPOINT_BROKERS:
            return _describe(broker.metadata.image, with_operations=request.include_cluster_authorized_operations)
        if request.endpoint_type == ENDPOINT_CONTROLLERS:
            text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            return DescribeClusterResponse(error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, error_message=text)
        text = f"Unsupported endpoint type {request.endpoint_type}"
        return DescribeClusterResponse(error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=text)

    return HandlerSpec(key=ApiKey.DESCRIBE_CLUSTER, handle=handle)


def _describe(image: MetadataImage, *, with_operations: bool) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id if image.controller_id in image.brokers else -1,
        brokers=[
            DescribeClusterBroker(broker_id=node.broker_id, host=node.listeners[0].host, port=node.listeners[0].port, rack=node.rack)
            for node in image.brokers.values()
        ],
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if with_operations else OPERATIONS_NOT_ASKED,
    )
