"""Guards of offsets in transactions: which requests reach the handler, and what is returned instead."""

from __future__ import annotations

import pytest

from lowtide.broker.authorizer.resources import Operation, Resource, ResourceType, group, topic
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

from .asking import GROUP, ID, SECRET_ID, TOPIC, Only, ask

WRITES_X = (Operation.WRITE, Resource(ResourceType.TRANSACTIONAL_ID, "x"))


def test_offsets_are_added_to_transactions_by_clients_that_may_write_them_and_read_the_group() -> None:
    request = AddOffsetsToTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, group_id="g")
    for allowed, error in (
        (Only((Operation.READ, group("g"))), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (Only(WRITES_X), GROUP),
        (Only(WRITES_X, (Operation.READ, group("g"))), ErrorCode.NONE),
    ):
        passed, told, _ = ask(allowed, request, AddOffsetsToTxnResponse(error_code=0))
        assert (passed is not None, told.error_code) == (error == ErrorCode.NONE, error)


@pytest.mark.parametrize("version", [0, 5, 6])
def test_offsets_in_transactions(version: int) -> None:
    rows = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)]
    topics = [
        TxnOffsetCommitRequestTopic(name=name if version < 6 else "", topic_id=identity, partitions=rows)
        for name, identity in (("t", ID), ("secret", SECRET_ID))
    ]
    request = TxnOffsetCommitRequest(transactional_id="x", group_id="g", producer_id=1, producer_epoch=0, topics=topics)
    empty = TxnOffsetCommitResponse(topics=[])
    reads = (Operation.READ, group("g"))
    for allowed, error in ((Only(reads), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), (Only(WRITES_X), GROUP)):
        passed, told, _ = ask(allowed, request, empty, version)
        assert passed is None
        assert [row.partitions[0].error_code for row in told.topics] == [error, error]
    passed, told, _ = ask(Only(WRITES_X, reads, (Operation.READ, topic("t"))), request, empty, version)
    assert len(passed.topics) == 1
    assert [(row.name, row.partitions[0].error_code) for row in told.topics] == [
        ("secret" if version < 6 else "", TOPIC)
    ]
