"""DescribeTransactions: v0-v0.

Behaviour: returns the state and producer of transactional ids, and the partitions of an open transaction. An id that is
listed twice is answered once.

Errors: of single ids: INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.

KIPs: 664.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_state import STATE_NAMES
from lowtide.broker.guards import transactions as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

PARTITIONS_A_STEP: Final = 500
"""A tenth of a millisecond's work."""

CUT: Final = Cut(levels=(("transactional_ids", "transaction_states"),))


def handler(transactions: TransactionCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def describe(name: str) -> Generator[None, None, TransactionState]:
        if not name:
            return TransactionState(error_code=ErrorCode.INVALID_REQUEST, transactional_id=name)
        shard = transactions.find(name)
        if isinstance(shard, ErrorCode):
            return TransactionState(error_code=shard, transactional_id=name)
        found = shard.state.transactions.get(name)
        if found is None:
            return TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name)
        partitions = sorted(found.partitions)  # Of one moment: a transaction has few, or ten thousand.
        topics: dict[str, list[int]] = {}
        for number, (topic, partition) in enumerate(partitions, 1):
            topics.setdefault(topic, []).append(partition)
            if number % PARTITIONS_A_STEP == 0:
                yield
        return TransactionState(
            error_code=ErrorCode.NONE,
            transactional_id=name,
            transaction_state=STATE_NAMES[found.state],
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.started_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=[TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
        )

    def steps(names: Iterable[str]) -> Generator[None, None, DescribeTransactionsResponse]:
        rows = []
        for name in names:
            rows.append((yield from describe(name)))
            yield
        return DescribeTransactionsResponse(transaction_states=rows)

    def handle(request: DescribeTransactionsRequest, _context: RequestContext) -> Answer[DescribeTransactionsResponse]:
        broker = transactions.broker
        return broker.turns.answer(steps(dict.fromkeys(request.transactional_ids)))

    return HandlerSpec(key=ApiKey.DESCRIBE_TRANSACTIONS, guard=guards.describe_transactions, handle=handle, cut=CUT)
