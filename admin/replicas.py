"""Where replicas are, and who leads: elections, reassignments (KIP-455), brokers that won't come back (KIP-631)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.anywhere import UNKNOWN_IS_FINAL, outcome_of_error, to_the_controller, wait_ms
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.errors import AdminError
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
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.patience import Deadline

_NO_LEADER_TO_ELECT: Final = (
    *UNKNOWN_IS_FINAL,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ErrorCode.ELECTION_NOT_NEEDED,
)
"""What another attempt a moment later doesn't change."""

_UNCLEAN_SINCE: Final = 1
"""The version of ElectLeaders that knows the types of election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition that is being given other replicas.

    `replicas` are those that it will have; `removing` are still there.
    """

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]


async def elect_leaders(
    cluster: Cluster, partitions: Collection[TopicPartition], deadline: Deadline, *, unclean: bool
) -> dict[TopicPartition, AdminError | None]:
    """See `AdminClient.elect_leaders`."""

    async def ask(handle: BrokerHandle, keys: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
        rows = [
            ElectLeadersTopicPartitions(topic=name, partitions=numbers) for name, numbers in _by_topic(keys).items()
        ]
        kind = UNCLEAN if unclean else PREFERRED
        request = ElectLeadersRequest(election_type=kind, topic_partitions=rows, timeout_ms=wait_ms(cluster, deadline))
        answer = await handle.ask(request, at_least=_UNCLEAN_SINCE if unclean else 0)
        if answer.error_code:
            return dict.fromkeys(keys, outcome_of_error("the election", answer.error_code, None))
        return {
            TopicPartition(topic.topic, row.partition_id): _elected(TopicPartition(topic.topic, row.partition_id), row)
            for topic in answer.replica_election_results
            for row in topic.partition_result
        }

    return await _of_each(cluster, deadline, partitions, ask)


def _elected(key: TopicPartition, row: Any) -> Outcome[None]:
    if row.error_code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
        return Done(None)
    return outcome_of_error(key, row.error_code, row.error_message, final=_NO_LEADER_TO_ELECT)


async def alter_reassignments(
    cluster: Cluster, wanted: Mapping[TopicPartition, Sequence[BrokerId] | None], deadline: Deadline
) -> dict[TopicPartition, AdminError | None]:
    """See `AdminClient.alter_reassignments`."""

    async def ask(handle: BrokerHandle, keys: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
        topics = []
        for name, numbers in _by_topic(keys).items():
            rows = []
            for number in numbers:
                replicas = wanted[TopicPartition(name, number)]
                rows.append(
                    ReassignablePartition(partition_index=number, replicas=None if replicas is None else list(replicas))
                )
            topics.append(ReassignableTopic(name=name, partitions=rows))
        answer = await handle.ask(
            AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=wait_ms(cluster, deadline))
        )
        if answer.error_code:
            return dict.fromkeys(keys, outcome_of_error("the reassignment", answer.error_code, answer.error_message))
        found: dict[TopicPartition, Outcome[None]] = {}
        for topic in answer.responses:
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                found[key] = (
                    outcome_of_error(key, row.error_code, row.error_message, final=UNKNOWN_IS_FINAL)
                    if row.error_code
                    else Done(None)
                )
        return found

    return await _of_each(cluster, deadline, list(wanted), ask)


async def list_reassignments(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, Reassignment]:
    """See `AdminClient.list_reassignments`."""

    async def send(
        broker_id: BrokerId, _: list[str], __: int
    ) -> Mapping[str, Outcome[dict[TopicPartition, Reassignment]]]:
        async with cluster.broker(broker_id, deadline, waits=True) as handle:
            answer = await handle.ask(ListPartitionReassignmentsRequest(timeout_ms=wait_ms(cluster, deadline)))
        if answer.error_code:
            return {_ALL: outcome_of_error(_ALL, answer.error_code, answer.error_message)}
        found = {
            TopicPartition(topic.name, row.partition_index): _reassignment(row)
            for topic in answer.topics
            for row in topic.partitions
        }
        return {_ALL: Done(found)}

    attempts = Attempts[str, dict[TopicPartition, Reassignment]](
        cluster, deadline, to_the_controller(cluster, deadline), send
    )
    await attempts.run([_ALL])
    outcome = attempts.results(str)[_ALL]
    if isinstance(outcome, AdminError):
        raise outcome
    return outcome


_ALL: Final = "the reassignments"


def _reassignment(row: Any) -> Reassignment:
    going = tuple(row.removing_replicas)
    staying = tuple(each for each in row.replicas if each not in going)
    return Reassignment(replicas=staying, adding=tuple(row.adding_replicas), removing=going)


async def unregister_broker(cluster: Cluster, broker_id: BrokerId, deadline: Deadline) -> None:
    """See `AdminClient.unregister_broker`."""

    async def ask(handle: BrokerHandle, keys: list[BrokerId]) -> Mapping[BrokerId, Outcome[None]]:
        answer = await handle.ask(UnregisterBrokerRequest(broker_id=keys[0]))
        if answer.error_code:
            return {keys[0]: outcome_of_error(f"broker {keys[0]}", answer.error_code, answer.error_message)}
        return {keys[0]: Done(None)}

    outcome = (await _of_each(cluster, deadline, [broker_id], ask))[broker_id]
    if outcome is not None:
        raise outcome


async def _of_each(
    cluster: Cluster, deadline: Deadline, keys: Collection[Any], ask: Callable[..., Any]
) -> dict[Any, AdminError | None]:
    """What the controller answers for each key: None, or an error.

    Errors: AuthenticationFailedError, DeadlineExceededError.
    """

    async def send(broker_id: BrokerId, items: list[Any], _: int) -> Mapping[Any, Outcome[None]]:
        async with cluster.broker(broker_id, deadline, waits=True) as handle:
            answered: Mapping[Any, Outcome[None]] = await ask(handle, items)
            return answered

    attempts = Attempts[Any, None](cluster, deadline, to_the_controller(cluster, deadline), send)
    await attempts.run(keys)
    return attempts.results(str)


def _by_topic(keys: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for key in keys:
        found[key.topic].append(key.partition)
    return found
