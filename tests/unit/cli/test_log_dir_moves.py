"""Moves between log directories as the command plans and follows them, by what brokers answer."""

from __future__ import annotations

import pytest

from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.log_dirs import LogDir, ReplicaSize
from lowtide.cli.log_dir_moves import UNSEEN_MAX, Moving, PlannedMove, Replica, plan_moves
from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.protocol.types import TopicPartition

KEY, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
HERE = Replica(1, KEY)


def directory(path: str, **replicas: tuple[int, bool]) -> LogDir:
    """With replicas of `t` by number (`_0`): bytes, and whether it is a copy."""
    found = {
        TopicPartition("t", int(name[1:])): ReplicaSize(size_bytes=size, offset_lag=0, is_future=is_future)
        for name, (size, is_future) in replicas.items()
    }
    return LogDir(path=path, error=None, replicas=found, total_bytes=-1, usable_bytes=-1)


def broker(*directories: LogDir) -> dict[str, LogDir]:
    return {each.path: each for each in directories}


def test_each_broker_that_has_the_directory_moves_its_replica() -> None:
    answers = {
        1: broker(directory("/a", _0=(10, False)), directory("/b", _0=(4, True), _1=(7, False))),
        2: broker(directory("/a", _0=(11, False)), directory("/c")),
        3: AdminError("no answer"),
    }
    assert plan_moves(answers, [KEY, OTHER], "/b") == {
        HERE: PlannedMove("/a", 10),
        Replica(1, OTHER): PlannedMove("/b", 7),
    }
    assert plan_moves(answers, [KEY], "/a").keys() == {HERE, Replica(2, KEY)}


def test_what_cannot_be_planned_is_one_sentence() -> None:
    answers = {1: broker(directory("/a", _0=(10, False)), directory("/b")), 2: AdminError("no answer")}
    with pytest.raises(
        CommandError, match=r"--to /c is invalid for t-0: it must be .* broker 1 has /a, /b\.$"
    ) as caught:
        plan_moves(answers, [KEY], "/c")
    assert caught.value.code == ExitCode.MISUSED
    with pytest.raises(CommandError, match=r"of broker 1, broker 2 has a replica of t-1; broker 2: no answer\.$"):
        plan_moves(answers, [OTHER], "/b")


def test_bytes_to_go_fall_and_a_move_ends_where_the_replica_is() -> None:
    moving = Moving({HERE: PlannedMove("/a", 10), Replica(1, OTHER): PlannedMove("/b", 5)}, "/b")
    assert moving.left == {HERE: 10}
    for size, copied, fewer, left in ((10, 4, 4, 6), (20, 5, 0, 15), (20, 20, 15, 0)):
        assert (
            moving.observe({1: broker(directory("/a", _0=(size, False)), directory("/b", _0=(copied, True)))}) == fewer
        )
        assert moving.left == {HERE: left}
    moving.observe({1: broker(directory("/a"), directory("/b", _0=(20, False)))})
    assert (moving.left, moving.failed) == ({}, {})


def test_a_copy_may_begin_late_and_a_move_that_another_request_ended_is_reported() -> None:
    moving = Moving({HERE: PlannedMove("/a", 10)}, "/b")
    nothing = {1: broker(directory("/a", _0=(10, False)), directory("/b"))}
    for _ in range(UNSEEN_MAX):
        moving.observe(nothing)
    moving.observe({1: broker(directory("/a", _0=(10, False)), directory("/b", _0=(0, True)))})
    for _ in range(UNSEEN_MAX):
        moving.observe(nothing)
    assert moving.left == {HERE: 10}
    moving.observe(nothing)
    assert moving.left == {}
    assert str(moving.failed[HERE]) == "t-0 of broker 1: its move was cancelled or failed: it is in /a"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (AdminError("no answer"), "no answer; the move continues if the broker runs"),
        (
            broker(
                directory("/a", _0=(10, False)),
                LogDir(
                    path="/b",
                    error=BrokerAnsweredError(56, "/b of broker 1"),
                    replicas={},
                    total_bytes=-1,
                    usable_bytes=-1,
                ),
            ),
            "its move was cancelled or failed: /b of broker 1: KAFKA_STORAGE_ERROR",
        ),
    ],
)
def test_a_broker_or_a_directory_that_fails_ends_the_wait(answer: dict[str, LogDir] | AdminError, reason: str) -> None:
    moving = Moving({HERE: PlannedMove("/a", 10)}, "/b")
    moving.observe({1: answer})
    assert str(moving.failed[HERE]) == f"t-0 of broker 1: {reason}"
