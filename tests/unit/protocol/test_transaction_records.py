"""The records of transactions: the hand-written encoder writes the same bytes as the codec."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.protocol.transaction_records import REMEMBERED_PARTITIONS_MAX, decode_transaction, encode_transaction
from lowtide.protocol.types import TopicPartition

INT64 = st.integers(-(2**63), 2**63 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
PARTITIONS = st.builds(
    TopicPartition, st.sampled_from(["t", "Länge", "x" * 126, "x" * 127, "x" * 249]), st.integers(0, 2**31 - 1)
)
TRANSACTIONS = st.builds(
    Transaction,
    transactional_id=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    producer_id=INT64,
    previous_producer_id=st.just(-1) | INT64,
    next_producer_id=st.just(-1) | INT64,
    producer_epoch=INT16,
    last_producer_epoch=st.just(-1) | INT16,
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    state=st.sampled_from(TransactionState),
    partitions=st.frozensets(PARTITIONS, max_size=2 * REMEMBERED_PARTITIONS_MAX),
    started_ms=INT64,
    updated_ms=INT64,
    client_version=st.sampled_from([0, 1, 2]) | INT16,
)
MANY = Transaction(
    transactional_id="t",
    producer_id=1,
    producer_epoch=2,
    timeout_ms=3,
    state=TransactionState.ONGOING,
    partitions=frozenset(TopicPartition(f"topic-{number % 150}", number) for number in range(1000)),
)


@given(TRANSACTIONS)
@example(MANY)
@example(msgspec.structs.replace(MANY, partitions=frozenset(), client_version=2))
@example(msgspec.structs.replace(MANY, partitions=frozenset(), last_producer_epoch=1))
@example(msgspec.structs.replace(MANY, partitions=frozenset(), client_version=2, last_producer_epoch=1))
def test_the_bytes_are_those_of_the_codec(transaction: Transaction) -> None:
    """Protects the format: Kafka's brokers and tools read these records, and so does the next coordinator."""
    assert transaction.as_record() == encode_transaction(transaction.transactional_id, transaction.as_value())
    read = decode_transaction(*transaction.as_record())
    assert read is not None
    assert read.value is not None
    assert read.value.producer_id == transaction.producer_id
