"""Under which registration followers answer consumers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.guards.fetching import FetchReaders
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.follower_reads import FollowerReads


class Follower:
    """A partition that this broker follows, in contact with its leader."""

    is_leader, leader_epoch, lag_time_max_ms = False, 3, 10_000

    def check_leadership(self, _epoch: int) -> ErrorCode:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def may_serve_as_follower(self, broker_epoch: int, now_ms: int, limit_ms: int) -> bool:
        reads = FollowerReads()
        reads.note_answer(leader_epoch=3, broker_epoch=17, leader_log_start_offset=5, sent_ms=900)
        offsets: Any = SimpleNamespace(log_start_offset=5, log_start_pending=5)
        return reads.may_serve(offsets, self.leader_epoch, broker_epoch, now_ms, limit_ms)


@pytest.mark.parametrize(
    ("wants_to_stop", "answer"),
    [(False, ErrorCode.NONE), (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
    ids=["serves", "stops"],
)
def test_a_broker_that_wants_to_stop_refuses_consumers_of_its_followers(wants_to_stop: bool, answer: ErrorCode) -> None:
    """DR7: no delete waits for it any more, whatever its own image shows."""
    metadata = SimpleNamespace(broker_epoch=17, reports=SimpleNamespace(stops=wants_to_stop))
    broker: Any = SimpleNamespace(metadata=metadata, replicas=None, clock=SimpleNamespace(monotonic_ms=lambda: 1000))
    reader = FetchReaders(broker).of_listener["PLAINTEXT"]
    target: Any = SimpleNamespace(current_leader_epoch=3)
    rules: Any = SimpleNamespace(is_follower=False, api_version=12)
    assert reader.check(Follower(), target, rules) == answer
