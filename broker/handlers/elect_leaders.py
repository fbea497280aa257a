"""ElectLeaders: v0-v2.

Behaviour: elects the preferred leaders of partitions, or (unclean) any live replica for partitions without a leader:
records that it lacks are lost, whatever the topic's configuration is. Null topics request all partitions; those that
needed no election are then left out of the response. It is sent when the change is in the metadata.

Version notes: v0 has preferred elections only. v1 has the type of the election and a top-level error. v2 is flexible.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST (an unknown type), UNKNOWN_TOPIC_OR_PARTITION,
ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 183, 460.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.administration.partition_administrator import PartitionAdministrator
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.request_context import RequestContext
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

PARTITIONS_AT_ONCE: Final = 200
"""The number of partitions whose elections are decided and committed together: some milliseconds' work."""

CUT: Final = Cut(
    levels=(("topic_partitions", "replica_election_results"), ("partitions", "partition_result")),
    changes=True,
    sequential=True,
)


def handler(administrator: PartitionAdministrator) -> HandlerSpec:
    """Returns the handler."""
    broker = administrator.broker

    async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        election = _ELECTIONS.get(request.election_type)
        if election is None:
            unknown = Refusal(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
            return refused(request, context.api_version, unknown)
        if request.topic_partitions is None:
            topics = broker.metadata.image.topics
            rows: list[tuple[str, Sequence[int]]] = [(name, range(len(topics[name].partitions))) for name in topics]
        else:
            rows = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
        wanted = ((name, number) for name, numbers in rows for number in numbers)
        elected: list[Refusal | None] = []
        while now := list(itertools.islice(wanted, PARTITIONS_AT_ONCE)):
            elected += await administrator.elect(now, election, request.timeout_ms)
            await asyncio.sleep(0)  # Where there is nothing to commit, nothing else waits.
        response = ElectLeadersResponse(replica_election_results=[])
        await broker.turns.walk(_add_rows(response, rows, iter(elected), has_all=request.topic_partitions is not None))
        return response

    return HandlerSpec(
        key=ApiKey.ELECT_LEADERS,
        guard=on_cluster(Operation.ALTER, refused),
        handle_later=handle,
        cut=CUT,
        forwarding=Forwarding(refused),
    )


def _add_rows(
    response: ElectLeadersResponse,
    asked: Sequence[tuple[str, Sequence[int]]],
    outcomes: Iterator[Refusal | None],
    *,
    has_all: bool,
) -> Iterator[None]:
    """Adds the rows of partitions, in steps; those that needed no election only if `has_all`."""
    for name, numbers in asked:
        result = ElectLeadersTopicResult(topic=name, partition_result=[])
        response.replica_election_results.append(result)
        for count, number in enumerate(numbers, 1):
            row = _row(number, next(outcomes))
            if has_all or row.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                result.partition_result.append(row)
            if count % PARTITIONS_AT_ONCE == 0:
                yield
        yield


def refused(request: ElectLeadersRequest, _version: int, refusal: Refusal) -> ElectLeadersResponse:
    """Returns the answer to a request that is refused as a whole: in each row too, as in Kafka."""
    return ElectLeadersResponse(
        error_code=refusal.error_code,
        replica_election_results=[
            ElectLeadersTopicResult(
                topic=topic.topic, partition_result=[_row(number, refusal) for number in topic.partitions]
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _row(number: int, refusal: Refusal | None) -> ElectLeadersPartitionResult:
    return ElectLeadersPartitionResult(partition_id=number, **outcome_fields(refusal))
