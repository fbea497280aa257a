"""States of share partitions in a cluster: a new coordinator has all that was answered, and cuts the log."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.broker.coordinator.share_state.share_coordinator import SHARE_TOPIC, coordinator_key
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
)
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
)
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadStatePartition,
    ReadStateTopic,
    ShareStateBatch,
)
from lowtide.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    SummaryStatePartition,
    SummaryStateTopic,
)
from lowtide.protocol.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)
from lowtide.protocol.share_state_records import SharePlace

from .share_cluster import SHARE, ShareCluster, simulate

NONE = ErrorCode.NONE


class Leader:
    """The requests of the leader of partition 0."""

    def __init__(self, cluster: ShareCluster) -> None:
        self.cluster = cluster
        self.key = coordinator_key(SharePlace("g", cluster.topic_id, 0))

    async def ask(self, request: Any, version: int = 0) -> Any:
        answer = await self.cluster.settled(
            self.key, SHARE, request, version, lambda found: found.results[0].partitions[0].error_code
        )
        return answer.results[0].partitions[0]

    async def initialize(self, state_epoch: int = 1) -> Any:
        row = InitializeStatePartition(partition=0, state_epoch=state_epoch, start_offset=-1)
        topics = [InitializeStateTopic(topic_id=self.cluster.topic_id, partitions=[row])]
        return await self.ask(InitializeShareGroupStateRequest(group_id="g", topics=topics))

    async def read(self, leader_epoch: int) -> Any:
        topics = [
            ReadStateTopic(
                topic_id=self.cluster.topic_id, partitions=[ReadStatePartition(partition=0, leader_epoch=leader_epoch)]
            )
        ]
        return await self.ask(ReadShareGroupStateRequest(group_id="g", topics=topics))

    async def write_in(self, state_epoch: int, first: int, last: int) -> Any:
        return await self.write(first, last, 0, state_epoch)

    async def write(self, first: int, last: int, leader_epoch: int, state_epoch: int = 1) -> Any:
        batch = ShareStateBatch(first_offset=first, last_offset=last, delivery_state=2, delivery_count=1)
        row = WriteStatePartition(
            partition=0,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=0,
            delivery_complete_count=last + 1,
            state_batches=[batch],
        )
        topics = [WriteStateTopic(topic_id=self.cluster.topic_id, partitions=[row])]
        return await self.ask(WriteShareGroupStateRequest(group_id="g", topics=topics), 1)

    async def summarize(self) -> Any:
        topics = [
            SummaryStateTopic(
                topic_id=self.cluster.topic_id, partitions=[SummaryStatePartition(partition=0, leader_epoch=-1)]
            )
        ]
        return await self.ask(ReadShareGroupStateSummaryRequest(group_id="g", topics=topics), 1)

    async def delete(self) -> Any:
        topics = [DeleteStateTopic(topic_id=self.cluster.topic_id, partitions=[DeleteStatePartition(partition=0)])]
        return await self.ask(DeleteShareGroupStateRequest(group_id="g", topics=topics))


async def log_start(cluster: ShareCluster, broker_id: int) -> int:
    row = ListOffsetsPartition(partition_index=0, timestamp=-2, current_leader_epoch=-1)
    topics = [ListOffsetsTopic(name=SHARE_TOPIC, partitions=[row])]
    answer = await cluster.clients[broker_id].request(
        ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics), 7
    )
    found: int = answer.topics[0].partitions[0].offset
    return found


def test_a_coordinator_that_takes_over_has_all_that_was_answered() -> None:
    async def run(cluster: ShareCluster) -> None:
        leader = Leader(cluster)
        assert (await leader.initialize()).error_code == NONE
        assert (await leader.read(3)).error_code == NONE
        for number in range(12):
            assert (await leader.write(number, number, 3)).error_code == NONE
        first = await cluster.coordinator(leader.key, SHARE)
        while await log_start(cluster, first) == 0:
            await asyncio.sleep(0.5)
        cluster.kill(first)
        await cluster.coordinator(leader.key, SHARE, but=first)
        assert (await leader.read(2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        found = await leader.read(4)
        assert (found.error_code, found.state_epoch, found.start_offset) == (NONE, 1, 0)
        assert [(each.first_offset, each.last_offset, each.delivery_state) for each in found.state_batches] == [
            (0, 11, 2)
        ]
        assert (await leader.write(12, 12, 3)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await leader.write(12, 12, 4)).error_code == NONE
        summary = await leader.summarize()
        assert (summary.leader_epoch, summary.start_offset, summary.delivery_complete_count) == (4, 0, 13)
        assert (await leader.delete()).error_code == NONE
        assert (await leader.summarize()).start_offset == -1

    simulate(run)


def test_a_key_that_is_none_has_no_coordinator() -> None:
    async def run(cluster: ShareCluster) -> None:
        for key in ("g", "g:t:0", f"{Leader(cluster).key}x", ":AAAAAAAAAAAAAAAAAAAAAA:0"):
            answer = await cluster.clients[1].request(FindCoordinatorRequest(key_type=SHARE, coordinator_keys=[key]), 6)
            assert answer.coordinators[0].error_code == ErrorCode.INVALID_REQUEST, key

    simulate(run)


def test_nothing_of_it_is_shown_while_the_gate_is_closed() -> None:
    """Share groups aren't whole yet: no client may take a part of them for the whole."""

    async def run(cluster: ShareCluster) -> None:
        answer = await cluster.clients[1].request(
            ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4
        )
        assert not {row.api_key for row in answer.api_keys} & {*range(76, 80), *range(83, 88), *range(90, 93)}
        assert "share.version" not in {row.name for row in answer.supported_features}
        found = await cluster.clients[1].request(FindCoordinatorRequest(key_type=SHARE, coordinator_keys=["g"]), 6)
        assert found.coordinators[0].error_code == ErrorCode.UNSUPPORTED_VERSION

    simulate(run, group_share_enable="false")
