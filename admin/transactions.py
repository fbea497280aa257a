"""Transactions (KIP-664): lists and describes those of transactional ids, and the producers of partitions.

A transaction that its coordinator knows ends at its timeout. One that only a partition knows, never ends by itself:
consumers that read committed records stop at its first offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.admin.arguments import named
from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminClientBase, failure, numbers_by_topic, partition_rows
from lowtide.admin.errors import AdminError
from lowtide.admin.leaders import LeaderFinder
from lowtide.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from lowtide.protocol.messages.describe_transactions import DescribeTransactionsRequest
from lowtide.protocol.messages.list_transactions import ListTransactionsRequest
from lowtide.protocol.types import BrokerId, Offset, ProducerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.protocol.messages.list_transactions import ListTransactionsResponse

_DURATIONS_SINCE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    producer_id: ProducerId
    state: str
    """`Empty`, `Ongoing`, `PrepareCommit`, `PrepareAbort`, `CompleteCommit`, `CompleteAbort`, or a later one."""
    coordinator: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransactions:
    """The transactional ids of the brokers that answered, by name, and the errors of the others."""

    transactions: Mapping[str, TransactionListing]
    errors: Mapping[BrokerId, AdminError]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id with its transaction. Times are milliseconds since 1970."""

    transactional_id: str
    coordinator: BrokerId
    state: str
    producer_id: ProducerId
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """None without an open transaction."""
    partitions: tuple[TopicPartition, ...]


class ProducerDescription(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A producer of a partition. Unknown values are -1."""

    producer_id: ProducerId
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start: Offset
    """The first offset of its open transaction."""


async def list_transactions(
    client: AdminClientBase,
    *,
    states: Iterable[str] = (),
    older_than_ms: int | None = None,
    timeout: float | None = None,
) -> ListedTransactions:
    """Returns all transactional ids, or those in some states and with a transaction that is open for so long.

    `older_than_ms` needs Kafka 3.8 (KIP-994).
    """
    call = client.call(timeout)
    request = ListTransactionsRequest(
        state_filters=named(states),
        producer_id_filters=[],
        duration_filter=-1 if older_than_ms is None else older_than_ms,
    )
    needed = 0 if older_than_ms is None else _DURATIONS_SINCE

    def what(broker_id: BrokerId) -> str:
        return f"the transactions of broker {broker_id}"

    async def send(
        broker_id: BrokerId, asked: list[BrokerId]
    ) -> Mapping[BrokerId, Outcome[dict[str, TransactionListing]]]:
        response = await call.ask(broker_id, request, at_least=needed)
        if response.error_code:
            return dict.fromkeys(asked, failure(what(broker_id), response.error_code))
        return {broker_id: Done(_listed(broker_id, response))}

    answers, errors = await call.of_all_brokers(send, what)
    found = {name: listing for answer in answers for name, listing in answer.items()}
    return ListedTransactions(transactions=dict(sorted(found.items())), errors=errors)


def _listed(broker_id: BrokerId, response: ListTransactionsResponse) -> dict[str, TransactionListing]:
    return {
        row.transactional_id: TransactionListing(
            transactional_id=row.transactional_id,
            producer_id=row.producer_id,
            state=row.transaction_state,
            coordinator=broker_id,
        )
        for row in response.transaction_states
    }


async def describe_transactions(
    client: AdminClientBase, transactional_ids: Iterable[str], *, timeout: float | None = None
) -> dict[str, TransactionDescription | AdminError]:
    """Returns transactional ids with their transactions; TRANSACTIONAL_ID_NOT_FOUND for unknown ones."""
    call = client.call(timeout)

    async def send(broker_id: BrokerId, asked: list[str]) -> Mapping[str, Outcome[TransactionDescription]]:
        response = await call.ask(broker_id, DescribeTransactionsRequest(transactional_ids=asked))
        return {
            row.transactional_id: failure(f"transactional id {row.transactional_id}", row.error_code)
            if row.error_code
            else Done(_described(broker_id, row))
            for row in response.transaction_states
        }

    return await call.each(
        named(transactional_ids), call.to_transaction_coordinators, send, lambda name: f"transactional id {name}"
    )


def _described(broker_id: BrokerId, row: Any) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=row.transactional_id,
        coordinator=broker_id,
        state=row.transaction_state,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        timeout_ms=row.transaction_timeout_ms,
        started_ms=row.transaction_start_time_ms if row.transaction_start_time_ms >= 0 else None,
        partitions=tuple(
            sorted(TopicPartition(topic.topic, number) for topic in row.topics for number in topic.partitions)
        ),
    )


async def describe_producers(
    client: AdminClientBase, partitions: Iterable[TopicPartition], *, timeout: float | None = None
) -> dict[TopicPartition, tuple[ProducerDescription, ...] | AdminError]:
    """Returns the idempotent and transactional producers of partitions, as their leaders know them."""
    call = client.call(timeout)
    leaders = LeaderFinder(call)

    async def send(
        broker_id: BrokerId, asked: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[tuple[ProducerDescription, ...]]]:
        rows = [
            DescribeProducersTopicRequest(name=name, partition_indexes=numbers)
            for name, numbers in numbers_by_topic(asked).items()
        ]
        response = await call.ask(broker_id, DescribeProducersRequest(topics=rows))
        return {
            key: leaders.on_error(key, row.error_code, "its leader did not describe its producers")
            if row.error_code
            else Done(tuple(map(_producer, row.active_producers)))
            for key, row in partition_rows(response.topics)
        }

    return await call.each(partitions, leaders.locate, send, lambda key: f"the producers of {key}")


def _producer(row: Any) -> ProducerDescription:
    return ProducerDescription(
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        coordinator_epoch=row.coordinator_epoch,
        last_sequence=row.last_sequence,
        last_timestamp=row.last_timestamp,
        transaction_start=row.current_txn_start_offset,
    )
