"""The quick paths of AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and EndTxn, of one topic and without metadata.

Most requests of most transactions are that. The compiled module reads a request, writes the answer where there is no error, and makes the
records of offsets; what is decided is decided here, in the order of the handlers, which are the definition. Whatever isn't usual is left to
them before anything is changed: an error, records that may have to wait, partitions that don't exist, a coordinator that isn't ready or
has to be asked over the network, more offsets than there is room for, offsets that are kept with who committed them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.coordinator.groups.committers import keeps_committers
from lowtide.broker.coordinator.runtime.effects import plain_commits
from lowtide.broker.coordinator.runtime.in_transaction import InTransaction
from lowtide.broker.network.routes import QuickPath
from lowtide.broker.partitions.produce.transaction_question import AskedTransaction, Question
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.types import TopicPartition
from lowtide.replication.topic_names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
    from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
    from lowtide.broker.coordinator.transactions.transaction_verifier import TransactionVerifier
    from lowtide.protocol.native import AddedOffsets, AddedPartitions, EndOfTransaction, TransactionalCommit

_ADDS_SINCE: Final = 5
"""The version of TxnOffsetCommit that adds its partition to the transaction."""


def small_added_partitions(transactions: TransactionCoordinator) -> QuickPath | None:
    """The quick path of AddPartitionsToTxn over the transactions of a broker; None without the compiled module."""
    compiled = native.compiled

    def handle(asked: AddedPartitions, _buffer: memoryview, _client: Any) -> bytes | None:
        transactional_id, producer_id, producer_epoch, topic, largest, numbers, answer = asked
        found = transactions.broker.metadata.image.topics.get(topic)
        if found is None or largest >= len(found.partitions) or topic in INTERNAL_TOPICS:
            return None
        shard = transactions.find(transactional_id)
        if isinstance(shard, ErrorCode):
            return None
        partitions = frozenset([TopicPartition(topic, number) for number in numbers])
        error = transactions.at_once.add(shard, transactional_id, (producer_id, producer_epoch), partitions, 0)
        return answer if error == ErrorCode.NONE else None

    return None if compiled is None else QuickPath(compiled.read_added_partitions, handle)


def small_added_offsets(groups: GroupCoordinator, transactions: TransactionCoordinator) -> QuickPath | None:
    """As `small_added_partitions`, of AddOffsetsToTxn."""
    compiled = native.compiled

    def handle(asked: AddedOffsets, _buffer: memoryview, _client: Any) -> bytes | None:
        transactional_id, producer_id, producer_epoch, group_id, answer = asked
        shard = transactions.find(transactional_id)
        if isinstance(shard, ErrorCode):
            return None
        partitions = frozenset((groups.partition_of(group_id),))
        error = transactions.at_once.add(shard, transactional_id, (producer_id, producer_epoch), partitions, 0)
        return answer if error == ErrorCode.NONE else None

    return None if compiled is None else QuickPath(compiled.read_added_offsets, handle)


def small_end(transactions: TransactionCoordinator) -> QuickPath | None:
    """As `small_added_partitions`, of EndTxn, of producers whose transactions have no epochs of their own."""
    compiled = native.compiled

    def handle(asked: EndOfTransaction, _buffer: memoryview, _client: Any) -> bytes | None:
        transactional_id, producer_id, producer_epoch, is_commit, answer = asked
        shard = transactions.find(transactional_id)
        if isinstance(shard, ErrorCode):
            return None
        outcome = transactions.at_once.end(
            shard, transactional_id, (producer_id, producer_epoch), is_commit=is_commit, client_version=0
        )
        return answer if outcome is not None and outcome[0] == ErrorCode.NONE else None

    return None if compiled is None else QuickPath(compiled.read_end, handle)


def small_transactional_commit(groups: GroupCoordinator, verifier: TransactionVerifier) -> QuickPath | None:
    """As `small_added_partitions`, of TxnOffsetCommit over the groups of a broker."""
    compiled = native.compiled
    if compiled is None:
        return None
    encode = compiled.offset_records

    def handle(asked: TransactionalCommit, _buffer: memoryview, _client: Any) -> bytes | None:
        (name, producer_id, producer_epoch, group_id, generation, member_id, instance_id,
         version, wanted, largest, rows, answer) = asked  # fmt: skip
        image = groups.broker.metadata.image
        topic = image.topics.get(wanted) if isinstance(wanted, str) else image.topic_by_id(wanted)
        if topic is None or largest >= len(topic.partitions) or not group_id or keeps_committers(groups.broker, topic):
            return None
        shard = groups.find(group_id)
        if isinstance(shard, ErrorCode) or not shard.commits_at_once or group_id not in shard.state.by_id:
            return None
        state = shard.state
        if not (state.admission.has_room_for(len(rows)) and state.committed.pending.has_room(producer_id, len(rows))):
            return None
        known = shard.partition.log.producer_state
        if not known.is_in_transaction(producer_id, producer_epoch):
            asked_about = AskedTransaction(name, producer_id, producer_epoch, adds=version >= _ADDS_SINCE)
            if known.is_fenced(producer_id, producer_epoch) or not _may_begin(
                verifier, asked_about, shard.partition.topic_partition
            ):
                return None
        member = TxnOffsetCommitRequest(
            transactional_id=name, group_id=group_id, producer_id=producer_id, producer_epoch=producer_epoch,
            generation_id_or_member_epoch=generation, member_id=member_id, group_instance_id=instance_id, topics=[],
        )  # fmt: skip
        if state.check_transactional_member(member, groups.broker.clock.monotonic_ms()) != ErrorCode.NONE:
            return None
        wall_ms = groups.broker.clock.wall_ms()
        records, change = plain_commits(
            group_id, topic.name, rows, wall_ms=wall_ms, topic_id=topic.topic_id, encode=encode
        )
        offset = groups.keep(shard, records, wall_ms, (producer_id, producer_epoch))
        if offset is not None:
            state.note(InTransaction(producer_id, change), offset)
        return answer if offset is not None else None

    return QuickPath(compiled.read_transactional_commit, handle)


def _may_begin(verifier: TransactionVerifier, transaction: AskedTransaction, partition: TopicPartition) -> bool:
    """Whether a transaction is known at once to have a partition, or needn't be."""
    if transaction.adds:
        return False
    return not verifier.is_wanted or verifier.answer_now(Question(transaction, partition)) == ErrorCode.NONE
