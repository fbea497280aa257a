"""The moves of replicas in progress: to other brokers, and between log directories, with what is left of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.console.answers import sentence_of
from lowtide.console.cluster import log_directories

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.log_dirs import LogDir, ReplicaSize
    from lowtide.admin.replicas import PartitionReassignment
    from lowtide.protocol.types import TopicPartition

MOVES_MAX: Final = 1_000

Directories = Mapping[int, Mapping[str, "LogDir"] | AdminError]
Replicas = Mapping[tuple[int, "TopicPartition", bool], tuple[str, "ReplicaSize"]]
"""The replicas of all brokers that answered, by broker, partition, and whether it is one that moves in."""


async def moves_page(client: AdminClient) -> dict[str, Any]:
    """Returns the moves, those with the most bytes left first. Errors: AdminError."""
    reassignments, directories = await asyncio.gather(_reassignments(client), log_directories(client))
    errors = [sentence_of(reassignments)] if isinstance(reassignments, AdminError) else []
    found = _replicas(directories)
    to_brokers = {} if isinstance(reassignments, AdminError) else reassignments
    rows = [*_to_brokers(to_brokers, found), *_between_directories(found)]
    rows.sort(key=lambda row: (-(row["left_bytes"] or 0), row["topic"], row["partition"], row["broker"]))
    return {"moves": rows[:MOVES_MAX], "left_out": max(0, len(rows) - MOVES_MAX), "errors": errors}


async def _reassignments(client: AdminClient) -> Mapping[TopicPartition, PartitionReassignment] | AdminError:
    try:
        return await client.list_reassignments()
    except AdminError as error:
        return error


def _replicas(directories: Directories) -> Replicas:
    return {
        (broker_id, key, replica.is_future): (path, replica)
        for broker_id, answer in directories.items()
        if not isinstance(answer, AdminError)
        for path, directory in answer.items()
        for key, replica in directory.replicas.items()
    }


def _to_brokers(
    reassignments: Mapping[TopicPartition, PartitionReassignment], found: Replicas
) -> Iterator[dict[str, Any]]:
    """Yields a row for each replica that is added. The largest replica of the others is what it becomes."""
    for key, move in reassignments.items():
        others = {*move.replicas, *move.removing} - set(move.adding)
        sizes = [found[each, key, False][1].size_bytes for each in others if (each, key, False) in found]
        whole = max(sizes, default=None)
        for broker_id in move.adding:
            _, replica = found.get((broker_id, key, False), (None, None))
            has = None if replica is None else replica.size_bytes
            yield {
                **key._asdict(),
                "broker": broker_id,
                "from": list(move.removing),
                "to": "another broker",
                **progress(has, whole, None if replica is None else replica.offset_lag),
            }
        if not move.adding:
            yield {**key._asdict(), "broker": None, "from": list(move.removing), "to": "fewer replicas"} | progress(
                whole, whole, None
            )


def _between_directories(found: Replicas) -> Iterator[dict[str, Any]]:
    for (broker_id, key, is_future), (path, replica) in found.items():
        if is_future:
            source, whole = found.get((broker_id, key, False), (None, None))
            yield {
                **key._asdict(),
                "broker": broker_id,
                "from": [] if source is None else [source],
                "to": path,
                **progress(replica.size_bytes, None if whole is None else whole.size_bytes, replica.offset_lag),
            }


def progress(has: int | None, whole: int | None, lag: int | None) -> dict[str, Any]:
    """Returns how far a replica is: its bytes, those that are left, and the share; unknown values are null."""
    left = None if has is None or whole is None else max(0, whole - has)
    share = None if left is None or not whole else 1 - left / whole
    return {"bytes": has, "whole_bytes": whole, "left_bytes": left, "share": share, "records_left": lag}
