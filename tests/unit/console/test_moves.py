"""Moves in progress, and what is left of each."""

from __future__ import annotations

from typing import Any, cast

from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import LogDir, ReplicaSize
from lowtide.admin.replicas import PartitionReassignment
from lowtide.console.moves import moves_page, progress
from lowtide.protocol.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


def directory(path: str, size_bytes: int, *, is_future: bool = False) -> LogDir:
    replica = ReplicaSize(size_bytes=size_bytes, offset_lag=3, is_future=is_future)
    return LogDir(path=path, error=None, replicas={ORDERS: replica}, total_bytes=1, usable_bytes=1)


class MovingCluster:
    """Partition 0 moves from broker 1 to broker 2, and from one disk of broker 3 to another."""

    def __init__(self, *, may_list: bool = True) -> None:
        self._may_list = may_list

    async def list_reassignments(self) -> Any:
        if not self._may_list:
            raise AdminError("CLUSTER_AUTHORIZATION_FAILED")
        return {ORDERS: PartitionReassignment(replicas=(2, 3), adding=(2,), removing=(1,))}

    async def describe_log_dirs(self) -> Any:
        return {
            1: {"/d": directory("/d", 1000)},
            2: {"/d": directory("/d", 250)},
            3: {"/a": directory("/a", 800), "/b": directory("/b", 600, is_future=True)},
            4: AdminError("away"),
        }


async def test_what_is_left_of_each_move():
    found = await moves_page(cast("Any", MovingCluster()))
    assert [
        (row["broker"], row["from"], row["to"], row["bytes"], row["left_bytes"], row["share"]) for row in found["moves"]
    ] == [(2, [1], "another broker", 250, 750, 0.25), (3, ["/a"], "/b", 600, 200, 0.75)]
    assert (found["left_out"], found["errors"]) == (0, [])


async def test_without_the_right_to_list_reassignments_the_others_are_shown():
    found = await moves_page(cast("Any", MovingCluster(may_list=False)))
    assert [row["broker"] for row in found["moves"]] == [3]
    assert found["errors"] == ["CLUSTER_AUTHORIZATION_FAILED."]


def test_unknown_sizes_are_no_progress():
    assert progress(None, 10, 4) == {
        "bytes": None,
        "whole_bytes": 10,
        "left_bytes": None,
        "share": None,
        "records_left": 4,
    }
    assert progress(0, 0, 0)["share"] is None
