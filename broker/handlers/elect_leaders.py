"""ElectLeaders: v0-v2.

Behaviour: has partitions elect their preferred leaders, or, where they have none, any replica that is alive (unclean: what it lacks is
lost, whatever the topic's configuration says). Null topics mean all partitions; those that needed no election aren't answered then.
Answered when the change is in the metadata.

Version notes: v0 knows preferred elections only. v1 has the type of the election, and an error for the request as a whole. v2 is flexible.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST (an unknown type), UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED,
PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 183, 460.
"""

from __future__ import annotations

from lowtide.broker.administration.partition_administrator import PartitionAdministrator
from lowtide.broker.authorizer import CLUSTER, Operation
from lowtide.broker.network.connection import RequestContext
from lowtide.broker.network.dispatcher import HandlerSpec
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopicResult,
)
from lowtide.replication.elections import Election
from lowtide.replication.refusal import Refusal

_ELECTIONS = {PREFERRED: Election.PREFERRED, UNCLEAN: Election.UNCLEAN}


def handler(administrator: PartitionAdministrator) -> HandlerSpec:
    """The handler over a broker's partitions."""
    broker = administrator.broker

    async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        if not broker.authorizer.authorize(context.principal, Operation.ALTER, CLUSTER):
            return refused(request, context.api_version, Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."))
        election = _ELECTIONS.get(request.election_type)
        if election is None:
            unknown = Refusal(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
            return refused(request, context.api_version, unknown)
        if request.topic_partitions is None:
            topics = broker.metadata.image.topics
            rows = [(name, list(range(len(topics[name].partitions)))) for name in topics]
        else:
            rows = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
        wanted = [(name, number) for name, numbers in rows for number in numbers]
        outcomes = iter(await administrator.elect(wanted, election, request.timeout_ms))
        results = [
            ElectLeadersTopicResult(topic=name, partition_result=[_row(number, next(outcomes)) for number in numbers])
            for name, numbers in rows
        ]
        for result in results if request.topic_partitions is None else ():
            result.partition_result = [row for row in result.partition_result if row.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        return ElectLeadersResponse(replica_election_results=results)

    return HandlerSpec(key=ApiKey.ELECT_LEADERS, handle_later=handle)


def refused(request: ElectLeadersRequest, _version: int, refusal: Refusal) -> ElectLeadersResponse:
    """The answer to a request that is refused as a whole: in each row too, as in Kafka."""
    return ElectLeadersResponse(
        error_code=refusal.error_code,
        replica_election_results=[
            ElectLeadersTopicResult(topic=topic.topic, partition_result=[_row(number, refusal) for number in topic.partitions])
            for topic in request.topic_partitions or ()
        ],
    )


def _row(number: int, refusal: Refusal | None) -> ElectLeadersPartitionResult:
    if refusal is None:
        return ElectLeadersPartitionResult(partition_id=number, error_code=ErrorCode.NONE)
    return ElectLeadersPartitionResult(partition_id=number, error_code=refusal.error_code, error_message=refusal.message)
