"""Asks every coordinator what all groups of the cluster have consumed, for retention by consumption (KIP-68).

A coordinator is a broker that leads partitions of `__consumer_offsets`. A *round* asks each of them once, in order, for
the same partitions, and combines the responses. It starts only if something could be deleted by it.

**Why no record is deleted that a group still needs.** A round has a result only if its responses cover every partition
of `__consumer_offsets`, each in the leader epoch that the image of this broker shows before and after the round. A
coordinator answers for a partition only while it leads it, when all its groups are loaded, and when all that it reports
is committed (`groups/survey.py`). So every group that existed at the start of the round is in exactly one response,
with its durably committed offset, or as one that consumes without a commit. A missing, late or failed response leaves
the round without a result (a *doubt*), and nothing is deleted for being consumed. Between response and deletion
committed offsets normally only rise. There are four exceptions; the last one is the price of unclean elections:

- A group commits for the first time, or begins to consume, after it was asked about. It finds the log start offset as
  after any other deletion, and `auto.offset.reset` applies.
- An administrator resets a group to an earlier offset. A reset before the round counts; after it the records may be
  deleted, as if the pass had run a moment earlier.
- A group is deleted, or its offsets expire: then it needs nothing.
- An unclean election of a coordinator's partition (`unclean.leader.election.enable`) loses commits, and the group
  requests records again that it had reported as consumed.

A coordinator that was deposed without knowing it is soon fenced like any leader (`broker/lifecycle/fencing.py`), and
then answers for no partition. The image of this broker is recent, or the broker is fenced and deletes nothing.

Bounded: a round holds one entry per partition, sends one request at a time of at most `PARTITIONS_PER_REQUEST`
partitions, and ends after `ROUND_MS`.

Sources: KIP-68 ("whenever encounter commit offset querying exception, we will set the min commit offset to -1").
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.consumed import NOT_CONSUMED, ConsumedEnd, Release
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.survey import survey
from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_consumed_offsets import (
    ConsumedOffsetsTopic,
    ConsumedPartition,
    DescribeConsumedOffsetsRequest,
    DescribeConsumedOffsetsResponse,
)
from lowtide.protocol.types import BrokerId, LeaderEpoch, TopicId, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.log.log_values import LogConfig

PURPOSE: Final = "consumption"
PARTITIONS_PER_REQUEST: Final = 1_000
"""About fifty kilobytes each way, and a few milliseconds for the coordinator."""

REQUEST_MS: Final = 10_000
"""The timeout of a request: more than a coordinator waits for the replication of its commits
(`offsets.commit.timeout.ms`)."""

ROUND_MS: Final = 30_000
"""The timeout of a round. The other rules of a pass wait for it."""

_VERSION: Final = 1


class Doubt(NamedTuple):
    """Why a round has no result."""

    reason: str


class ConsumptionQuery(NamedTuple):
    """A partition whose consumed offset is requested."""

    key: TopicPartition
    topic_id: TopicId
    groups: tuple[str, ...] = ()
    """The groups that the topic names; empty means all."""


def consumption_query(partition: Partition, rules: LogConfig | None = None) -> ConsumptionQuery:
    """Returns the query for a partition with its current topic id, and the groups of `rules`, by default its own."""
    groups = (rules or partition.log.config).lowtide_retention_commitoffset_groups
    return ConsumptionQuery(partition.topic_partition, partition.topic_id, groups)


Outcome = Mapping[ConsumptionQuery, ConsumedEnd]

_Coordinators = dict[int, tuple[BrokerId, LeaderEpoch]]


class Consumption:
    """Asks all coordinators what their groups have consumed."""

    def __init__(self, broker: BrokerContext, groups: GroupCoordinator, peers: PeerClients) -> None:
        self._broker = broker
        self._groups = groups
        self._peers = peers

    async def ask(self, asked: Iterable[ConsumptionQuery]) -> Outcome | Doubt:
        """Returns the consumed offset of each partition, over all groups."""
        outcome = dict.fromkeys(asked, NOT_CONSUMED)
        batches = _batches(list(outcome))
        metadata = self._broker.metadata
        coordinators = _coordinators(metadata.image)
        if isinstance(coordinators, Doubt):
            return coordinators
        try:
            async with asyncio.timeout(ROUND_MS / 1000):
                for broker_id in sorted({leader for leader, _epoch in coordinators.values()}):
                    expected = {
                        number: epoch for number, (leader, epoch) in coordinators.items() if leader == broker_id
                    }
                    for batch in batches:
                        doubt = _take(outcome, batch, await self._ask_broker(broker_id, batch), expected)
                        if doubt is not None:
                            return Doubt(f"broker {broker_id}: {doubt}")
        except TimeoutError:
            return Doubt(f"not all coordinators answered within {ROUND_MS} ms")
        if _coordinators(metadata.image) != coordinators:
            return Doubt("coordinators changed during the round")
        return outcome

    async def _ask_broker(
        self, broker_id: BrokerId, batch: list[ConsumedOffsetsTopic]
    ) -> DescribeConsumedOffsetsResponse | str:
        if broker_id == self._broker.metadata.broker_id:
            return await survey(self._groups, batch)
        node = self._broker.metadata.image.brokers.get(broker_id)
        if node is None:
            return "it is not registered"
        request = DescribeConsumedOffsetsRequest(topics=batch)
        client = self._peers.client_of(node, PURPOSE)
        try:
            answer: DescribeConsumedOffsetsResponse = await client.request(
                ApiKey.DESCRIBE_CONSUMED_OFFSETS, _VERSION, request, REQUEST_MS
            )
        except PeerError as error:
            return str(error)
        return answer


def _coordinators(image: MetadataImage) -> _Coordinators | Doubt:
    """Returns the leader and leader epoch of each partition of the offsets topic."""
    topic = image.topics.get(GROUP_TOPIC)
    if topic is None:
        return Doubt("no group has committed offsets")
    found = {number: (state.leader, state.leader_epoch) for number, state in enumerate(topic.partitions)}
    without = [number for number, (leader, _epoch) in found.items() if leader == NO_LEADER]
    return Doubt(f"partition {without[0]} of {GROUP_TOPIC} has no leader") if without else found


def _batches(asked: Sequence[ConsumptionQuery]) -> list[list[ConsumedOffsetsTopic]]:
    batches = []
    for start in range(0, len(asked), PARTITIONS_PER_REQUEST):
        topics: dict[str, ConsumedOffsetsTopic] = {}
        for key, topic_id, groups in asked[start : start + PARTITIONS_PER_REQUEST]:
            asked_topic = ConsumedOffsetsTopic(name=key.topic, topic_id=topic_id, partitions=[], groups=list(groups))
            topics.setdefault(key.topic, asked_topic).partitions.append(key.partition)
        batches.append(list(topics.values()))
    return batches


def _take(
    outcome: dict[ConsumptionQuery, ConsumedEnd],
    batch: Sequence[ConsumedOffsetsTopic],
    answer: DescribeConsumedOffsetsResponse | str,
    expected: Mapping[int, LeaderEpoch],
) -> str | None:
    """Merges a response into the outcome. Returns why it may be incomplete or outdated; None if it is neither.

    `expected` has the partitions of the offsets topic that the broker must answer for.
    """
    if isinstance(answer, str):
        return answer
    if answer.error_code != ErrorCode.NONE:
        return ErrorCode(answer.error_code).name
    answered = {row.partition_index: row.leader_epoch for row in answer.coordinators}
    if any(answered.get(number) != epoch for number, epoch in expected.items()):
        return f"it does not answer for all partitions of {GROUP_TOPIC} that it leads"
    rows = {
        TopicPartition(topic.name, row.partition_index): _consumed(row)
        for topic in answer.topics
        for row in topic.partitions
    }
    for topic in batch:
        for number in topic.partitions:
            key = TopicPartition(topic.name, number)
            row = rows.get(key)
            if row is None:
                return f"it does not answer for {key}"
            asked = ConsumptionQuery(key, topic.topic_id, tuple(topic.groups))
            if asked not in outcome:
                return f"the groups of {topic.name} changed"
            outcome[asked] &= row
    return None


def _consumed(row: ConsumedPartition) -> ConsumedEnd:
    release = (
        None if row.releasing_group_id is None else Release(row.releasing_offset, row.releasing_group_id, row.committer)
    )
    return ConsumedEnd(row.consumed_offset, row.group_id, release)
