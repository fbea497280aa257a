"""DescribeQuorum: v0-v2.

Behaviour: Lowtide has no quorum: its metadata are in etcd, or in the first broker. The response describes a partition
`__cluster_metadata-0` as Kafka's tools expect it: the controller is the leader and the only voter, and the other live
brokers are observers. The high watermark is the metadata revision that this broker acts on, and the leader epoch is the
revision of the controller's election (its lower 31 bits). The other brokers have at most `ASK_MS` to confirm that they
act on that revision. It is the log end offset of those that do; of the others, the offset and the times are unknown
(-1).

Version notes: v1 has times (KIP-836). v2 has error messages, and the addresses of the brokers for the client's listener
(KIP-853); directory ids are zero.

Errors: CLUSTER_AUTHORIZATION_FAILED; NOT_LEADER_OR_FOLLOWER while there is no controller; UNKNOWN_TOPIC_OR_PARTITION
for each partition of a request for anything but `__cluster_metadata-0`.

KIPs: 595, 836, 853.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.administration.spread import Spread
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.endpoints import endpoints_for, local_endpoint, with_local
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import NO_LEADER
from lowtide.metadata.store import Revision
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_quorum import (
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumReplica,
)
from lowtide.protocol.types import BrokerId
from lowtide.replication.refusal import Refusal
from lowtide.replication.topic_names import CLUSTER_METADATA_TOPIC

ASK_MS: Final = 500
"""How long other brokers may take to answer which revision they have."""

NO_CONTROLLER: Final = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "There is no controller at the moment.")

_EPOCH_MASK: Final = 2**31 - 1


def handler(broker: BrokerContext, spread: Spread) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        if not _asks_for_metadata(request):
            return _unknown(request)
        image = broker.metadata.image
        if image.controller_id == NO_LEADER:
            return DescribeQuorumResponse(**outcome_fields(NO_CONTROLLER))
        reached = {broker.metadata.broker_id, *await spread.which_reach(image, ASK_MS)}
        client = context.connection
        endpoints = endpoints_for(image, client.listener_name)
        seen = with_local(endpoints, broker.replicas.broker_id, local_endpoint(broker.config, client))
        nodes = [
            QuorumNode(node_id=broker_id, listeners=[QuorumListener(name=each.name, host=each.host, port=each.port)])
            for broker_id, each in seen.items()
        ]
        partition = describe(image, reached, broker.clock.wall_ms())
        return DescribeQuorumResponse(
            topics=[DescribedQuorumTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])], nodes=nodes
        )

    return HandlerSpec(key=ApiKey.DESCRIBE_QUORUM, guard=on_cluster(Operation.DESCRIBE, refused), handle_later=handle)


def refused(_request: DescribeQuorumRequest, _version: int, refusal: Refusal) -> DescribeQuorumResponse:
    """Returns the answer to a request that is refused as a whole."""
    return DescribeQuorumResponse(**outcome_fields(refusal))


def describe(image: MetadataImage, reached: Collection[BrokerId], now_ms: int) -> DescribedQuorumPartition:
    """Returns the metadata as one partition. `reached`: the brokers with the image's revision or a later one."""

    def replica(broker_id: BrokerId, revision: Revision) -> QuorumReplica:
        return QuorumReplica(
            replica_id=broker_id, log_end_offset=revision, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
        )

    return DescribedQuorumPartition(
        partition_index=0,
        leader_id=image.controller_id,
        leader_epoch=image.controller_revision & _EPOCH_MASK,
        high_watermark=image.revision,
        current_voters=[replica(image.controller_id, image.revision)],
        observers=[
            replica(broker_id, image.revision) if broker_id in reached else QuorumReplica(replica_id=broker_id)
            for broker_id in sorted(image.brokers)
            if broker_id != image.controller_id
        ],
    )


def _asks_for_metadata(request: DescribeQuorumRequest) -> bool:
    """Returns whether a request names the only partition, and nothing else. Kafka allows nothing else either."""
    rows = [(topic.topic_name, row.partition_index) for topic in request.topics for row in topic.partitions]
    return len(request.topics) == 1 and rows == [(CLUSTER_METADATA_TOPIC, 0)]


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = [
        DescribedQuorumTopic(
            topic_name=topic.topic_name,
            partitions=[
                DescribedQuorumPartition(partition_index=row.partition_index, error_code=error)
                for row in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(topics=topics)
