"""A transactional id: its producer, and the state of its transaction.

A value that each of its records replaces. `next_transaction` decides what may follow.

Guards: the state changes by the table of `transaction_state` alone; a decided end isn't decided again.

Source: KIP-98, KIP-360, KIP-890; Kafka's `TransactionMetadata`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.transaction_records import (
    PartitionsSchema,
    TransactionLogValue,
    encode_plain_transaction,
    encode_transaction,
)
from lowtide.protocol.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)

EPOCH_MAX: Final = 2**15 - 1
"""No producer gets this epoch, so that each can be fenced by a higher one."""

EPOCH_BUMPS_SINCE: Final = 2
"""The first version of transactions that each have a new epoch (KIP-890)."""


class Transaction(msgspec.Struct, kw_only=True):
    """The transaction of one transactional id. Times are wall clock; `started_ms` is -1 without a transaction."""

    transactional_id: str
    producer_id: ProducerId
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """The id after the end is complete, if this one has no epoch left."""
    producer_epoch: ProducerEpoch
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The previous epoch, which identifies a producer that missed the answer. Kafka up to 4.4 does not record it."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP
    updated_ms: int = NO_TIMESTAMP
    client_version: int = 0

    @property
    def bumps_epochs(self) -> bool:
        """Whether each transaction of its client has a new epoch."""
        return self.client_version >= EPOCH_BUMPS_SINCE

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer has no epoch left and needs another id."""
        return self.producer_epoch >= EPOCH_MAX - 1

    def was_bumped_from(self, producer_epoch: ProducerEpoch) -> bool:
        """Returns whether the end of that epoch's transaction led to the current epoch."""
        return self.bumps_epochs and self.producer_epoch == producer_epoch + 1

    def as_record(self) -> CoordinatorRecord:
        """Returns its record."""
        if self.previous_producer_id == NO_PRODUCER_ID == self.next_producer_id:
            return encode_plain_transaction(self)
        return encode_transaction(self.transactional_id, self.as_value())

    def as_value(self) -> TransactionLogValue:
        """Returns the value of its record."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            topics.setdefault(topic, []).append(partition)
        return TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=int(self.state),
            transaction_partitions=[
                PartitionsSchema(topic=topic, partition_ids=numbers) for topic, numbers in topics.items()
            ]
            or None,
            transaction_last_update_timestamp_ms=self.updated_ms,
            transaction_start_timestamp_ms=self.started_ms,
            client_transaction_version=self.client_version,
            last_producer_epoch=self.last_producer_epoch,
        )


def from_value(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """Returns the state in a record. Errors: ValueError for an unknown state."""
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=TransactionState(value.transaction_status),
        partitions=_partitions(value.transaction_partitions or ()),
        started_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
        last_producer_epoch=value.last_producer_epoch,
    )


def _partitions(topics: Iterable[PartitionsSchema]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.topic, number) for topic in topics for number in topic.partition_ids)
