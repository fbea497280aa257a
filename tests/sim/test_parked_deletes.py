"""Which followers the checker of deletes counts as having reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.simulation.parked_deletes import ParkedDeletes

LEADER, FOLLOWER, TOPIC_ID = 1, 3, b"t" * 16
TOPIC: Any = SimpleNamespace(
    topic_id=TOPIC_ID, partitions=[SimpleNamespace(replicas=(LEADER, FOLLOWER), leader_epoch=0)]
)


def leader_of(followers: dict[int, Any]) -> Any:
    """Returns a broker that leads one partition and has just received fetches of these followers."""
    leadership = SimpleNamespace(followers=followers, lag_time_max_ms=1000)
    partition = SimpleNamespace(leadership=leadership, topic_id=TOPIC_ID, leader_epoch=0)
    image = SimpleNamespace(broker_epoch=lambda _: 5, may_be_in_sync=lambda *_: True)
    clock = SimpleNamespace(monotonic_ms=lambda: 0)
    empty = SimpleNamespace(_purgatory=SimpleNamespace(_buckets={}))
    return SimpleNamespace(
        replicas=SimpleNamespace(
            image=image, partitions={("t", 0): partition}, waiting=SimpleNamespace(deletes=empty, log_starts=empty)
        ),
        _ports=SimpleNamespace(clock=clock),
    )


def test_a_replica_that_was_removed_and_added_again_has_to_report_again() -> None:
    """It begins with an empty log, and its leader may not know yet that it returned: no delete has to wait for it."""
    heard = SimpleNamespace(broker_epoch=5, unseen_epoch=7, has_fetched_within=lambda *_: True)
    machine: Any = SimpleNamespace(broker_id=LEADER, broker=leader_of({FOLLOWER: heard}), is_running=True)
    parked = ParkedDeletes({LEADER: machine}, Chronicle(lambda: 0.0))
    parked.now_s = 1.0
    parked.check()
    assert list(parked.live_since(LEADER, TOPIC, 0, 1.5)) == [(FOLLOWER, 7, 1.0)]
    machine.broker = leader_of({})
    assert list(parked.live_since(LEADER, TOPIC, 0, 1.5)) == []


def test_an_empty_disk_that_has_not_fetched_yet_does_not_count() -> None:
    """The leader is cut off from the store, and knows only the broker's earlier registration, which had reported."""
    simulate_cluster(25132)
