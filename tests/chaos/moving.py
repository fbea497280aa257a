"""Leadership and replicas moved on request, as an operator moves them."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.elect_leaders import PREFERRED, ElectLeadersRequest, ElectLeadersTopicPartitions

from .cluster_processes import LIMIT_S, ClusterProcesses

ELECT_LEADERS_VERSION, REASSIGN_VERSION = 2, 0


async def elect_preferred(cluster: ClusterProcesses, topic: str) -> None:
    """Elect the first replica of the topic's first partition, if it is in sync."""
    wanted = ElectLeadersTopicPartitions(topic=topic, partitions=[0])
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=[wanted], timeout_ms=10_000)
    answer = await cluster.ask(cluster.awake[0], request, ELECT_LEADERS_VERSION, limit_s=LIMIT_S)
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
    for row in answer.replica_election_results[0].partition_result:
        assert row.error_code == ErrorCode.NONE, (ErrorCode(row.error_code), row.error_message)


async def reassign(cluster: ClusterProcesses, topic: str, replicas: Sequence[int]) -> None:
    """Reassigns the first partition to other replicas, or another order; returns when that has started."""
    row = ReassignableTopic(name=topic, partitions=[ReassignablePartition(partition_index=0, replicas=list(replicas))])
    answer = await cluster.ask(
        cluster.awake[0], AlterPartitionReassignmentsRequest(topics=[row]), REASSIGN_VERSION, limit_s=LIMIT_S
    )
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
    for partition in answer.responses[0].partitions:
        assert partition.error_code == ErrorCode.NONE, (ErrorCode(partition.error_code), partition.error_message)
