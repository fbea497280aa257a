"""The only member of a streams group (KIP-1071), by single heartbeats: no Python client speaks the protocol."""

from __future__ import annotations

import asyncio

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.streams_group_heartbeat import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsEndpoint,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsTopicInfo,
)
from lowtide.simulation.client import WireClient

ATTEMPTS = 100
PAUSE_S = 0.1


def internal(name: str) -> StreamsTopicInfo:
    return StreamsTopicInfo(name=name, partitions=0, replication_factor=1, topic_configs=[])


def word_count(topic: str, application: str) -> HeartbeatTopology:
    """A topology that reads a topic, groups its records again, and counts them."""

    def part(
        name: str, sources: list[str], reads: list[str], writes: list[str], state: list[str]
    ) -> HeartbeatSubtopology:
        return HeartbeatSubtopology(
            subtopology_id=name,
            source_topics=sources,
            source_topic_regex=[],
            state_changelog_topics=[internal(each) for each in state],
            repartition_sink_topics=writes,
            repartition_source_topics=[internal(each) for each in reads],
            copartition_groups=[],
        )

    again, counts = f"{application}-again-repartition", f"{application}-counts-changelog"
    return HeartbeatTopology(
        epoch=3, subtopologies=[part("0", [topic], [], [again], []), part("1", [], [again], [], [counts])]
    )


def heartbeat(group: str, epoch: int, topology: HeartbeatTopology | None = None) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id="member",
        member_epoch=epoch,
        endpoint_information_epoch=0,
        rebalance_timeout_ms=60_000,
        topology=topology,
        active_tasks=[] if topology else None,
        standby_tasks=[] if topology else None,
        warmup_tasks=[] if topology else None,
        process_id="process",
        user_endpoint=StreamsEndpoint(host="app", port=8080),
        client_tags=[],
    )


LOADING = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def heartbeats(bootstrap: str, first: StreamsGroupHeartbeatRequest, tasks: int = 0) -> None:
    """Sends a heartbeat of the only member, and more of them until it has so many active tasks. There is one broker."""

    async def send() -> None:
        host, _, port = bootstrap.partition(":")
        client = await WireClient.connect(host, int(port))
        try:
            request = first
            for _ in range(ATTEMPTS):
                await client.request(FindCoordinatorRequest(key_type=0, coordinator_keys=[first.group_id]), 4)
                answered = await client.request(request, 1)
                error = ErrorCode(answered.error_code)
                if error == ErrorCode.NONE and _count(answered) == tasks:
                    return
                if error == ErrorCode.NONE:
                    request = heartbeat(first.group_id, answered.member_epoch)
                assert error == ErrorCode.NONE or error in LOADING, (error, answered.error_message)
                await asyncio.sleep(PAUSE_S)
            raise AssertionError(answered)
        finally:
            client.close()

    asyncio.run(send())


def _count(answered: StreamsGroupHeartbeatResponse) -> int:
    return sum(len(row.partitions) for row in answered.active_tasks or ())
