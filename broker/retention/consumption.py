"""What all groups of the cluster have consumed: every coordinator is asked, for retention by consumption (KIP-68).

A coordinator is a broker that leads partitions of `__consumer_offsets`. A *round* asks each of them once, in their
order, for the same partitions, and puts the answers together. It is only begun where something could go by it.

**Why nothing goes that a group may still need.** A round has an outcome only if its answers speak for every partition of
`__consumer_offsets`, each in the leader epoch that our image shows before and after the round. A coordinator answers for a partition only
while it leads it, when all its groups are loaded, and when all that it tells is committed (`groups/survey.py`). So
every group that there was when the round began is in exactly one of the answers, with what it has durably committed, or
as one that consumes and has committed nothing. Whatever is missing, late or in error leaves the whole round without an
outcome, and then nothing goes for being consumed: that is what *doubt* means here. Between answer and deletion
committed offsets can only rise, for a consumer goes forward. Four things happen otherwise; the first three break no
promise, the last one is what such elections cost:

- A group commits for the first time, or begins to consume, after it was asked about. It finds the log start where it is then, as one does
  that comes after any other deletion: its consumers go by `auto.offset.reset`.
- An administrator resets a group to an earlier offset. Until then the group had said that it needs nothing below; if the reset comes before
  the round it counts, if it comes later the records may be gone, as they would be had the pass been a moment earlier.
- A group is deleted, or its offsets expire: it says itself, or the administrator does, that it needs nothing.
- A coordinator's partition comes to be led by a replica that isn't in sync (`unclean.leader.election.enable`): commits that were
acknowledged are
  lost, and the group asks again for what it had said it doesn't need.

A coordinator that was deposed and doesn't know it yet can't answer for long: it is fenced as any leader is
(`broker/lifecycle/fencing.py`), and then answers for no partition. Our own image is young, or we are fenced and delete
nothing.

Bounded: a round holds one entry for each partition asked about, sends one request at a time of at most
`PARTITIONS_PER_REQUEST` partitions, and ends after `ROUND_MS`, with an outcome or without.

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

PURPOSE: Final = "consumption"
PARTITIONS_PER_REQUEST: Final = 1_000
"""Some fifty kilobytes each way, and a few milliseconds for who answers."""

REQUEST_MS: Final = 10_000
"""How long one answer may take: more than a coordinator waits until its commits are replicated (`offsets.commit.timeout.ms`)."""

ROUND_MS: Final = 30_000
"""How long a round may take. The other rules of a pass wait for it."""

_VERSION: Final = 1


class Doubt(NamedTuple):
    """Why a round has no outcome, in a few words."""

    reason: str


class Asked(NamedTuple):
    """A partition that is asked about."""

    key: TopicPartition
    topic_id: TopicId
    groups: tuple[str, ...] = ()
    """The groups that count, as the topic names them; empty: all."""


def asked_about(partition: Partition) -> Asked:
    """A partition as it is asked about now; what is known of it otherwise, such as for other groups, is not known of this."""
    return Asked(
        partition.topic_partition, partition.topic_id, partition.log.config.lowtide_retention_commitoffset_groups
    )


Outcome = Mapping[Asked, ConsumedEnd]

_Coordinators = dict[int, tuple[BrokerId, LeaderEpoch]]


class Consumption:
    """Asks the coordinators of a cluster what its groups have consumed."""

    def __init__(self, broker: BrokerContext, groups: GroupCoordinator, peers: PeerClients) -> None:
        self._broker = broker
        self._groups = groups
        self._peers = peers

    async def ask(self, asked: Iterable[Asked]) -> Outcome | Doubt:
        """How far all groups have consumed these partitions: each is in the outcome."""
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
            return Doubt("coordinators changed meanwhile")
        return outcome

    async def _ask_broker(
        self, broker_id: BrokerId, batch: list[ConsumedOffsetsTopic]
    ) -> DescribeConsumedOffsetsResponse | str:
        if broker_id == self._broker.metadata.broker_id:
            return await survey(self._groups, batch)
        node = self._broker.metadata.image.brokers.get(broker_id)
        if node is None:
            return "it is away"
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
    """Who coordinates which partition of the groups' topic."""
    topic = image.topics.get(GROUP_TOPIC)
    if topic is None:
        return Doubt("no group has committed anything")
    found = {number: (state.leader, state.leader_epoch) for number, state in enumerate(topic.partitions)}
    without = [number for number, (leader, _epoch) in found.items() if leader == NO_LEADER]
    return Doubt(f"partition {without[0]} of {GROUP_TOPIC} has no leader") if without else found


def _batches(asked: Sequence[Asked]) -> list[list[ConsumedOffsetsTopic]]:
    batches = []
    for start in range(0, len(asked), PARTITIONS_PER_REQUEST):
        topics: dict[str, ConsumedOffsetsTopic] = {}
        for key, topic_id, groups in asked[start : start + PARTITIONS_PER_REQUEST]:
            asked_topic = ConsumedOffsetsTopic(name=key.topic, topic_id=topic_id, partitions=[], groups=list(groups))
            topics.setdefault(key.topic, asked_topic).partitions.append(key.partition)
        batches.append(list(topics.values()))
    return batches


def _take(
    outcome: dict[Asked, ConsumedEnd],
    batch: Sequence[ConsumedOffsetsTopic],
    answer: DescribeConsumedOffsetsResponse | str,
    expected: Mapping[int, LeaderEpoch],
) -> str | None:
    """Put an answer to the others; returns what is doubtful about it.

    `expected` are the partitions that it must speak for.
    """
    if isinstance(answer, str):
        return answer
    if answer.error_code != ErrorCode.NONE:
        return ErrorCode(answer.error_code).name
    answered = {row.partition_index: row.leader_epoch for row in answer.coordinators}
    if any(answered.get(number) != epoch for number, epoch in expected.items()):
        return f"it doesn't answer for all that it leads of {GROUP_TOPIC}"
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
                return f"it says nothing of {key}"
            asked = Asked(key, topic.topic_id, tuple(topic.groups))
            if asked not in outcome:
                return f"the groups that count for {topic.name} change"
            outcome[asked] &= row
    return None


def _consumed(row: ConsumedPartition) -> ConsumedEnd:
    release = (
        None if row.releasing_group_id is None else Release(row.releasing_offset, row.releasing_group_id, row.committer)
    )
    return ConsumedEnd(row.consumed_offset, row.group_id, release)
