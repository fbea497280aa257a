"""ListPartitionReassignments: v0-v0.

Behaviour: the partitions that are being given other replicas, of those asked for or of all. `replicas` has those that
come and those that go too. What doesn't exist is left out. The controller is asked, because others may know of a
reassignment a little later.

Errors: CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 455.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import administration as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import TopicImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from lowtide.replication.refusal import Refusal

PARTITIONS_A_STEP: Final = 100
"""Some two tenths of a millisecond's work."""

CUT: Final = Cut(levels=(("topics", "topics"), ("partition_indexes", "partitions")), sequential=True)


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's image."""

    async def handle(
        request: ListPartitionReassignmentsRequest, _context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        topics = broker.metadata.image.topics
        asked: list[tuple[TopicImage, Iterable[int]]]
        if request.topics is None:
            asked = [(topic, range(len(topic.partitions))) for topic in topics.values()]
        else:
            asked = [(topics[each.name], each.partition_indexes) for each in request.topics if each.name in topics]
        response = ListPartitionReassignmentsResponse(topics=[])
        await broker.turns.walk(_add_moving(response, asked))
        return response

    return HandlerSpec(
        key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
        guard=guards.list_partition_reassignments,
        handle_later=handle,
        cut=CUT,
        forwarding=Forwarding(refused),
    )


def refused(
    _request: ListPartitionReassignmentsRequest, _version: int, refusal: Refusal
) -> ListPartitionReassignmentsResponse:
    """The answer to a request that is refused."""
    return ListPartitionReassignmentsResponse(error_code=refusal.error_code, error_message=refusal.message, topics=[])


def _add_moving(
    response: ListPartitionReassignmentsResponse, asked: Sequence[tuple[TopicImage, Iterable[int]]]
) -> Iterator[None]:
    """Add the rows of those partitions that are being given other replicas, in steps."""
    step = 0
    for topic, numbers in asked:
        rows = []
        for number in numbers:
            step += 1
            if step % PARTITIONS_A_STEP == 0:
                yield
            partition = topic.partitions[number] if 0 <= number < len(topic.partitions) else None
            if partition is not None and (partition.adding or partition.removing):
                rows.append(
                    OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=list(partition.replicas),
                        adding_replicas=list(partition.adding),
                        removing_replicas=list(partition.removing),
                    )
                )
        if rows:
            response.topics.append(OngoingTopicReassignment(name=topic.name, partitions=rows))
