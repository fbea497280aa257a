"""Bugs planted on purpose in the rules of replication and deletion: the simulator of clusters must find each.

Each was found within 2,000 seeds; PLANT_SEEDS=2000 searches so far, in tests it is less.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from lowtide.broker.partitions import replica_manager
from lowtide.broker.partitions.delayed import delete_records, fetch_reader
from lowtide.broker.partitions.leader_partitions import LedPartitions
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.replication import in_sync_replicas
from lowtide.replication.follower_reads import FollowerReads
from lowtide.replication.leadership import Leadership
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.directory import log_starts
from lowtide.storage.log.log import Log

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "100"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass searches them")


def visible_before_durable(patch: Patch) -> None:
    """Rule DR1: a log start is shown and reported when it is received; a power cut takes it back."""
    original = log_starts.DirectoryLogStarts.request_log_starts

    def request(self: Any, increments: Any, on_durable: Any) -> None:
        original(self, increments, on_durable)
        for log, offset in increments:
            self._make_log_start_visible(log, offset)

    patch.setattr(log_starts.DirectoryLogStarts, "request_log_starts", request)


def joins_without_the_deletes(patch: Patch) -> None:
    """Rule DR2: a replica that has the records joins the ISR."""
    original = in_sync_replicas.may_join

    def may_join(led: Any, *arguments: Any) -> bool:
        floor, led.floor = led.floor, -1
        try:
            return original(led, *arguments)
        finally:
            led.floor = floor

    patch.setattr(in_sync_replicas, "may_join", may_join)


def asks_the_isr_only(patch: Patch) -> None:
    """Rule DR3: live replicas outside the ISR aren't asked."""
    patch.setattr(Leadership, "is_live", lambda *_: False)


def asks_the_live_only(patch: Patch) -> None:
    """Rule DR3: members of the ISR that haven't been heard aren't asked, as in Kafka."""
    original = Leadership.low_watermark

    def low_watermark(self: Any, image: Any, now_ms: int) -> int:
        members, self.maximal_isr = self.maximal_isr, frozenset()
        try:
            return original(self, image, now_ms)
        finally:
            self.maximal_isr = members

    patch.setattr(Leadership, "low_watermark", low_watermark)


def asks_nobody(patch: Patch) -> None:
    """Rule DR3: the leader's own log start is enough."""
    patch.setattr(Leadership, "low_watermark", lambda led, *_: led.log.log_start_offset)


def not_looked_at_again(patch: Patch) -> None:
    """Rule DR4: only fetches wake deletes."""
    original = LedPartitions.look_at

    def look_at(self: Any, partition: Any) -> None:
        deletes, self._replicas.deletes = self._replicas.deletes, type("Nobody", (), {"watched": ()})()
        try:
            original(self, partition)
        finally:
            self._replicas.deletes = deletes

    patch.setattr(LedPartitions, "look_at", look_at)


def not_told_at_once(patch: Patch) -> None:
    """Rule DR5: a fetch waits though there is a log start to tell."""
    patch.setattr(fetch_reader, "_has_log_start_to_tell", lambda *_: False)


def any_leader_epoch(patch: Patch) -> None:
    """Rule DR6: a delete isn't bound to the leadership that accepted it."""
    original = delete_records.DelayedDeleteRecords._settle

    def settle(self: Any, row: Any) -> None:
        current = self._replicas.find(*row.key)
        if isinstance(current, ErrorCode):
            original(self, row)
            return
        row.partition, row.leader_epoch = current, current.leader_epoch
        if current.is_leader:
            original(self, row)
        elif current.log.log_start_offset >= row.offset:
            row.done, row.low_watermark, row.log_start_offset = True, row.offset, current.log.log_start_offset

    patch.setattr(delete_records.DelayedDeleteRecords, "_settle", settle)


def every_follower_answers(patch: Patch) -> None:
    """Rule DR7: a follower serves consumers, whatever it has heard of its leader's log start."""
    patch.setattr(FollowerReads, "may_serve", lambda *_: True)


def leads_on_after_a_restart(patch: Patch) -> None:
    """Rule DR8: a leadership that was won under an earlier registration is gone on with."""
    patch.setattr(replica_manager.ReplicaManager, "_leads_by_this_registration", lambda *_: True)


def stale_directories_are_elected(patch: Patch) -> None:
    """Rule DR8: the mark of a directory that lost something is overlooked."""
    patch.setattr(MetadataImage, "is_stale", lambda *_: False)


def acknowledged_before_the_flush(patch: Patch) -> None:
    """Records count before they are on the disk, though flush.messages is 1."""
    patch.setattr(Log, "flush_is_due", property(lambda _: False))


def committed_by_the_leader_alone(patch: Patch) -> None:
    """The high watermark is the leader's log end."""
    patch.setattr(in_sync_replicas, "high_watermark", lambda led, *_: led.log.log_end_offset)


def committed_without_the_proposed(patch: Patch) -> None:
    """The high watermark waits for those only who have fetched lately, not for the whole maximal ISR."""

    def high_watermark(led: Any, _image: Any, now_ms: int) -> int:
        quick = [one.log_end_offset for one in led.followers.values() if one.has_fetched_within(300, now_ms)]
        return min([led.log.log_end_offset, *[end for end in quick if end >= 0]])

    patch.setattr(in_sync_replicas, "high_watermark", high_watermark)


def joins_without_the_records(patch: Patch) -> None:
    """A follower joins the ISR wherever its log ends."""

    def may_join(led: Any, broker_id: int, follower: Any, image: Any, _now_ms: int) -> bool:
        return in_sync_replicas.is_eligible(led, broker_id, follower, image) and follower.log_start_offset >= led.floor

    patch.setattr(in_sync_replicas, "may_join", may_join)


PLANTS = [
    visible_before_durable,
    joins_without_the_deletes,
    asks_the_isr_only,
    asks_the_live_only,
    asks_nobody,
    not_looked_at_again,
    not_told_at_once,
    any_leader_epoch,
    every_follower_answers,
    leads_on_after_a_restart,
    stale_directories_are_elected,
    acknowledged_before_the_flush,
    committed_by_the_leader_alone,
    committed_without_the_proposed,
    joins_without_the_records,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(MAXIMUM_SEEDS):
        try:
            simulate_cluster(seed, kinds=("partitions",))
        except Exception as error:
            print(f"{plant.__name__}: seed {seed}: {str(error)[:200]}")
            return
    pytest.fail(f"{MAXIMUM_SEEDS} seeds found nothing")
