"""Leader elections, reassignments of replicas (KIP-455), and the removal of brokers (KIP-631)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import (
    UNKNOWN_IS_FINAL,
    AdminClientBase,
    by_topic,
    failure,
    numbers_by_topic,
    outcome,
    partition_rows,
)
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.elect_leaders import PREFERRED, UNCLEAN, ElectLeadersRequest, ElectLeadersTopicPartitions
from lowtide.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from lowtide.protocol.messages.unregister_broker import UnregisterBrokerRequest
from lowtide.protocol.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.errors import AdminError

_NO_LEADER_TO_ELECT: Final = (
    *UNKNOWN_IS_FINAL,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ErrorCode.ELECTION_NOT_NEEDED,
)
"""Errors that a retry does not change."""

_UNCLEAN_SINCE: Final = 1
"""The first version of ElectLeaders with types of election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """A reassignment in progress. `replicas` are the target; those in `removing` still exist."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]


async def elect_leaders(
    client: AdminClientBase,
    partitions: Collection[TopicPartition],
    *,
    unclean: bool = False,
    timeout: float | None = None,
) -> dict[TopicPartition, AdminError | None]:
    """Elects the preferred leader of each partition, if it is in sync (KIP-183); None means that it leads.

    With `unclean`, a partition without a leader gets one that is not in sync. The records that this replica lacks are
    lost (KIP-460).
    """
    call = client.call(timeout)

    async def send(broker_id: BrokerId, keys: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
        rows = [
            ElectLeadersTopicPartitions(topic=name, partitions=numbers)
            for name, numbers in numbers_by_topic(keys).items()
        ]
        kind = UNCLEAN if unclean else PREFERRED
        request = ElectLeadersRequest(election_type=kind, topic_partitions=rows, timeout_ms=call.wait_ms())
        answer = await call.ask(broker_id, request, waits=True, at_least=_UNCLEAN_SINCE if unclean else 0)
        if answer.error_code:
            return dict.fromkeys(keys, failure("the election", answer.error_code))
        found: dict[TopicPartition, Outcome[None]] = {}
        for topic in answer.replica_election_results:
            for row in topic.partition_result:
                key = TopicPartition(topic.topic, row.partition_id)
                done = row.error_code == ErrorCode.ELECTION_NOT_NEEDED
                found[key] = Done(None) if done else outcome(key, row, final=_NO_LEADER_TO_ELECT)
        return found

    return await call.each(partitions, call.to_controller, send)


async def alter_reassignments(
    client: AdminClientBase,
    wanted: Mapping[TopicPartition, Sequence[BrokerId] | None],
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, AdminError | None]:
    """Begins to move partitions to these replicas, the preferred leader first; None cancels a reassignment (KIP-455).

    An outcome of None means that the reassignment has begun.
    """
    call = client.call(timeout)

    async def send(broker_id: BrokerId, keys: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
        rows = {}
        for key in keys:
            replicas = wanted[key]
            rows[key] = ReassignablePartition(
                partition_index=key.partition, replicas=None if replicas is None else list(replicas)
            )
        topics = [ReassignableTopic(name=name, partitions=some) for name, some in by_topic(rows).items()]
        request = AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=call.wait_ms())
        answer = await call.ask(broker_id, request, waits=True)
        if answer.error_code:
            return dict.fromkeys(keys, failure("the reassignment", answer.error_code, answer.error_message))
        return {key: outcome(key, row, final=UNKNOWN_IS_FINAL) for key, row in partition_rows(answer.responses)}

    return await call.each(wanted, call.to_controller, send)


async def list_reassignments(
    client: AdminClientBase, *, timeout: float | None = None
) -> dict[TopicPartition, PartitionReassignment]:
    """Returns the reassignments in progress."""
    call = client.call(timeout)

    async def send(
        broker_id: BrokerId, asked: list[str]
    ) -> Mapping[str, Outcome[dict[TopicPartition, PartitionReassignment]]]:
        request = ListPartitionReassignmentsRequest(timeout_ms=call.wait_ms())
        answer = await call.ask(broker_id, request, waits=True)
        if answer.error_code:
            return {what: failure(what, answer.error_code, answer.error_message) for what in asked}
        return dict.fromkeys(asked, Done({key: _reassignment(row) for key, row in partition_rows(answer.topics)}))

    return await call.single("the reassignments", call.to_controller, send)


def _reassignment(row: Any) -> PartitionReassignment:
    removing = tuple(row.removing_replicas)
    replicas = tuple(each for each in row.replicas if each not in removing)
    return PartitionReassignment(replicas=replicas, adding=tuple(row.adding_replicas), removing=removing)


async def unregister_broker(client: AdminClientBase, broker_id: BrokerId, *, timeout: float | None = None) -> None:
    """Removes a broker that will not return from the cluster (KIP-631).

    Errors: BrokerAnsweredError; INVALID_REQUEST while the broker is live.
    """
    call = client.call(timeout)

    async def send(controller: BrokerId, _: list[BrokerId]) -> Mapping[BrokerId, Outcome[None]]:
        answer = await call.ask(controller, UnregisterBrokerRequest(broker_id=broker_id), waits=True)
        return {broker_id: outcome(f"broker {broker_id}", answer)}

    await call.single(broker_id, call.to_controller, send, lambda _: f"broker {broker_id}")
