"""DescribeCluster: v0-v2.

Behaviour: returns the cluster id, the controller and the live brokers, with their addresses for the client's listener.
The controller is -1 if it has no such address. This is a broker's endpoint: requests for controllers are refused.

Version notes: v0 always requests brokers; v1 has the type of the endpoint (KIP-919). v2 may also request fenced brokers
(KIP-1073): brokers that are known but not alive, with the addresses of their last registration.

Errors: MISMATCHED_ENDPOINT_TYPE for controllers, UNSUPPORTED_ENDPOINT_TYPE for unknown types.

KIPs: 430, 700, 919, 1073.
"""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.broker.authorizer.resources import ALL_CLUSTER_OPERATIONS
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import cluster as guards
from lowtide.broker.network.endpoints import controller_for, endpoint_of, endpoints_for, local_endpoint, with_local
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import Listener
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
from lowtide.protocol.types import BrokerId


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        if request.endpoint_type == ENDPOINT_BROKERS:
            image, client = broker.metadata.image, context.connection
            endpoints = endpoints_for(image, client.listener_name)
            seen = with_local(endpoints, broker.replicas.broker_id, local_endpoint(broker.config, client))
            return _describe(image, client.listener_name, seen, request)
        if request.endpoint_type == ENDPOINT_CONTROLLERS:
            text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            return DescribeClusterResponse(error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, error_message=text)
        text = f"Unsupported endpoint type {request.endpoint_type}"
        return DescribeClusterResponse(error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=text)

    return HandlerSpec(key=ApiKey.DESCRIBE_CLUSTER, guard=guards.describe_cluster, handle=handle)


def _describe(
    image: MetadataImage, listener_name: str, endpoints: Mapping[BrokerId, Listener], request: DescribeClusterRequest
) -> DescribeClusterResponse:
    brokers = [
        DescribeClusterBroker(
            broker_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
        )
        for broker_id, endpoint in endpoints.items()
    ]
    for broker in image.fenced_brokers.values() if request.include_fenced_brokers else ():
        endpoint = endpoint_of(broker, listener_name)
        if endpoint is not None:
            row = DescribeClusterBroker(
                broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack, is_fenced=True
            )
            brokers.append(row)
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=controller_for(image, endpoints),
        brokers=brokers,
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )
