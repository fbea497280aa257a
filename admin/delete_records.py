"""`delete_records` and `resolve_delete_targets`: checks the arguments, then deletes, erases or resolves."""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.admin.call import AdminClientBase
from lowtide.admin.delete_attempts import delete_below
from lowtide.admin.deletion import (
    DeleteRecordsError,
    DeleteResult,
    DeleteTarget,
    check_topic_ids,
    checked_targets,
)
from lowtide.admin.erasing import erase_below
from lowtide.admin.resolution import resolve
from lowtide.protocol.types import Offset, TopicId, TopicPartition


async def delete_records(
    client: AdminClientBase,
    targets: Mapping[TopicPartition, DeleteTarget],
    *,
    leader_only: bool = False,
    erase: bool = False,
    timeout: float | None = None,
    topic_ids: Mapping[str, TopicId] | None = None,
) -> dict[TopicPartition, DeleteResult]:
    """Deletes the records below an offset of each partition: `{TopicPartition("t", 0): 42}`.

    A target is an offset (the first one that stays; -1 for the high watermark), a `Timestamp` (records before the first
    one with this timestamp or a later one), or `Committed(groups)` (records that all of these groups have consumed).
    Targets are resolved to offsets once, before anything is deleted. Nothing of a partition is deleted if its target is
    in doubt. All attempts send the same offset, so a retry never deletes more.

    A delete is done when every live replica has made it. With `leader_only` it is done when the leader has (KIP-1343);
    for a broker without this option the result is `LeaderOnlyUnsupportedError`, and nothing is deleted there.

    With `erase`, all brokers with a replica then remove the records from their files (docs/erasure.md). The result is
    `ErasedRecords`, which names the brokers that have erased them and the others. If a broker does not support erasing,
    the result is `EraseUnsupportedError`, and nothing is deleted.

    `topic_ids` protects topics of the same name but another id. By default the ids are those at the call's beginning.
    The client checks the id at the leader right before each attempt. Brokers before Kafka 2.8 return no ids, so there
    is no check.

    Partitions with one leader share a request. Returns for each partition `DeletedRecords`, or a `DeleteRecordsError`
    with the stage that failed and, if the time ended, whether the leader has deleted.
    Errors: ValueError for invalid targets, and for `erase` with `leader_only`, before anything is sent; those of the
    class.
    """
    if erase and leader_only:
        raise ValueError("erase and leader_only exclude each other: erasing concerns all replicas")
    call, checked = client.call(timeout), checked_targets(targets)
    check_topic_ids(topic_ids or {})
    if not checked:
        return {}
    if erase:
        return await erase_below(call, checked, topic_ids)
    return await delete_below(call, checked, leader_only=leader_only, topic_ids=topic_ids)


async def resolve_delete_targets(
    client: AdminClientBase, targets: Mapping[TopicPartition, DeleteTarget], *, timeout: float | None = None
) -> dict[TopicPartition, Offset | DeleteRecordsError]:
    """Returns the offsets to which `delete_records` would delete now. Nothing is deleted."""
    call, checked = client.call(timeout), checked_targets(targets)
    if not checked:
        return {}
    return await resolve(call, checked, await call.view(topic for topic, _ in checked))
