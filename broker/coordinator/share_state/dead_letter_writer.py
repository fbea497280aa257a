"""Writes dead letters to the topics of share groups, on this broker or others (KIP-1191).

The topic is created if it is missing and the brokers allow that. The records are written with acks=all and without
idempotence, so a repeated request may write them twice. The broker writes in its own name: another broker asks its
authorizer whether the sender may write to the topic.

Guards: dead letters that fail for a reason that may pass are not given up, unlike in Kafka, which tries five times. A
record that is erased before its dead letter is sent isn't copied.
Memory: at most `WRITES_MAX` batches at a time.

Source: Kafka's `ShareGroupDLQStateManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.config.key import value_text
from lowtide.broker.config.topic_config import log_config
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.broker.partitions.share.dead_letters import (
    AUTO_CREATE,
    BATCH_BYTES,
    GROUP_ENABLE,
    PREFIX,
    LetterOutcome,
    fault_of,
    make_letters,
)
from lowtide.broker.partitions.share.given_up_records import GivenUpContents, read_contents
from lowtide.broker.promises import future_of
from lowtide.metadata.image import TopicImage
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.replication.new_topics import TopicSpec
from lowtide.replication.refusal import Refusal
from lowtide.storage.errors import StorageError
from lowtide.storage.log.validation.rejections import Rejection
from lowtide.storage.log.validation.validator import validate_produce

if TYPE_CHECKING:
    from lowtide.broker.partitions.share.share_rules import ShareRules
    from lowtide.broker.partitions.share.share_values import GivenUpRange, ShareCounts
    from lowtide.protocol.share_state_records import SharePlace
    from lowtide.protocol.types import BrokerId, Offset
    from lowtide.replication.partition import Partition
    from lowtide.storage.log.log import Log

LETTERS_PURPOSE: Final = "dead letters"
"""The purpose of connections to the leaders of dead-letter topics."""

TIMEOUT_MS: Final = 10_000
"""For one request."""

WRITES_MAX: Final = 32
"""The most batches that are read or written at a time: some 32 MiB."""

_MAY_PASS: Final = frozenset(
    {
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors that may pass, besides the retriable ones."""


class DeadLetterWriter:
    """Writes the dead letters of all share partitions that this broker leads."""

    def __init__(
        self, broker: BrokerContext, administrator: TopicAdministrator, peers: PeerClients, counts: ShareCounts
    ) -> None:
        self._broker = broker
        self._administrator = administrator
        self._peers = peers
        self._counts = counts
        self._places = asyncio.Semaphore(WRITES_MAX)

    async def write(
        self, place: SharePlace, partition: Partition, rules: ShareRules, given_up: Sequence[GivenUpRange]
    ) -> LetterOutcome:
        """Writes a batch of letters for as many of the first offsets as fit. A caller may repeat it."""
        topic = await self._topic(rules.dead_letter_topic)
        if isinstance(topic, Refusal):
            return self._failed(place, given_up, topic, given_up[-1].last_offset)
        number = place.partition % len(topic.partitions)
        leader = topic.partitions[number].leader
        if leader == NO_LEADER:
            return LetterOutcome(None, f"{topic.name}-{number} has no leader")
        async with self._places:
            max_bytes = log_config(self._broker.config, topic.configs).max_message_bytes
            contents: GivenUpContents | None = GivenUpContents(given_up[-1].last_offset)
            log = partition.log
            if rules.copies_records:
                contents = await self._read(partition, given_up, min(max_bytes, BATCH_BYTES))
            if contents is None:
                return LetterOutcome(None, "the records can't be read now")
            letters = make_letters(
                partition.topic_partition, place.group_id, given_up, contents, self._broker.clock.wall_ms(), max_bytes
            )
            count = self._counts.of_group(place.group_id)
            count.requests += 1
            if leader == self._broker.metadata.broker_id:
                refusal = await self._append(topic.name, number, letters.batch)
            else:
                refusal = await self._send(
                    leader, topic, number, letters.batch, partial(_is_current, partition, log, contents)
                )
        if refusal is not None:
            count.failed_requests += 1
            return self._failed(place, given_up, refusal, letters.last_offset)
        count.written += letters.count
        return LetterOutcome(letters.last_offset)

    def _failed(
        self, place: SharePlace, given_up: Sequence[GivenUpRange], refusal: Refusal, last_offset: Offset
    ) -> LetterOutcome:
        """Returns whether dead letters up to `last_offset` (inclusive) are to be written later, or never."""
        if refusal.error_code.retriable or refusal.error_code in _MAY_PASS:
            return LetterOutcome(None, refusal.message)
        lost = sum(max(min(each.last_offset, last_offset) - each.first_offset + 1, 0) for each in given_up)
        self._counts.of_group(place.group_id).unwritten += lost
        return LetterOutcome(last_offset, refusal.message)

    async def _topic(self, name: str) -> TopicImage | Refusal:
        """Returns the topic, after creating it if needed."""
        values, metadata = self._broker.config.values, self._broker.metadata
        topic = metadata.image.topics.get(name)
        fault = fault_of(name, topic, creates=values[AUTO_CREATE] is True, prefix=value_text(values[PREFIX]))
        if fault:
            return Refusal(ErrorCode.INVALID_CONFIG, fault)
        if topic is None:
            configs = ((GROUP_ENABLE, "true"), ("message.timestamp.type", "CreateTime"))
            created = await self._administrator.create(TopicSpec(name), configs, TIMEOUT_MS)
            if isinstance(created, Refusal):
                return created
            topic = metadata.image.topics.get(name)
        return topic or Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {name} is not known here yet")

    async def _read(
        self, partition: Partition, given_up: Sequence[GivenUpRange], bytes_max: int
    ) -> GivenUpContents | None:
        try:
            return await read_contents(partition.log, given_up, bytes_max, self._broker.batch_lane)
        except StorageError as error:
            self._broker.replicas.on_read_failed(partition, error)
            return None

    async def _append(self, topic: str, number: int, batch: bytes) -> Refusal | None:
        """Writes to a partition that this broker leads. Returns why it failed."""
        replicas, now_ms = self._broker.replicas, self._broker.clock.wall_ms()
        partition = replicas.find(topic, number)
        if isinstance(partition, ErrorCode):
            return _refusal(topic, number, partition)
        if not partition.is_leader:
            return _refusal(topic, number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not partition.has_enough_in_sync:
            return _refusal(topic, number, ErrorCode.NOT_ENOUGH_REPLICAS)
        checked = validate_produce(batch, partition.rules.without_haste(), now_ms)
        assert checked is not None, "nothing is left to a worker"
        if isinstance(checked, Rejection):
            return Refusal(checked.error_code, f"{topic}-{number}: {checked.error_message}")
        appended = replicas.append(partition, checked, now_ms)
        if isinstance(appended, ErrorCode):
            return _refusal(topic, number, appended)
        end_offset = appended.last_offset + 1
        error = await future_of(partial(replicas.when_committed, partition, end_offset, timeout_ms=TIMEOUT_MS))
        return _refusal(topic, number, error)

    async def _send(
        self, leader: BrokerId, topic: TopicImage, number: int, batch: bytes, is_current: Callable[[], bool]
    ) -> Refusal | None:
        """Writes to a partition that another broker leads, if `is_current`. Returns why it failed."""
        broker = self._broker.metadata.image.brokers.get(leader)
        if broker is None:
            return _refusal(topic.name, number, ErrorCode.LEADER_NOT_AVAILABLE)
        row = PartitionProduceData(index=number, records=batch)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(topic_id=topic.topic_id, partition_data=[row])],
        )
        client, version = self._peers.client_of(broker, LETTERS_PURPOSE), API[ApiKey.PRODUCE].max_version
        try:
            answer = await client.request(ApiKey.PRODUCE, version, request, TIMEOUT_MS + TIMEOUT_MS, is_current)
        except PeerError as error:
            return Refusal(ErrorCode.NETWORK_EXCEPTION, f"broker {leader} did not answer: {error}")
        rows = [row for each in answer.responses for row in each.partition_responses]
        return _refusal(topic.name, number, ErrorCode(rows[0].error_code) if rows else ErrorCode.UNKNOWN_SERVER_ERROR)


def _is_current(partition: Partition, log: Log, contents: GivenUpContents) -> bool:
    """Returns whether contents that were read from a log may be copied: it may have been moved, and erased there."""
    return partition.log is log and contents.is_current()


def _refusal(topic: str, number: int, error: ErrorCode) -> Refusal | None:
    return None if error == ErrorCode.NONE else Refusal(error, f"{topic}-{number}: {error.name}")
