"""Bugs planted on purpose in the rules of replication and deletion: the simulator of clusters must find each.

Each was found within 2,000 seeds; PLANT_SEEDS=2000 searches that many, tests search fewer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from lowtide.broker.partitions import assigned_partitions
from lowtide.broker.partitions.deletes import delayed_delete
from lowtide.broker.partitions.fetch import fetch_in_slices, fetch_reader
from lowtide.broker.partitions.leader_partitions import LedPartitions
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.replication import in_sync_replicas
from lowtide.replication.leadership import Leadership
from lowtide.replication.partition import Partition
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.directory import log_starts
from lowtide.storage.log.log import Log

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "100"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slow


def visible_before_durable(patch: Patch) -> None:
    """Rule DR1: a log start is visible and reported when it is received; a power cut undoes it."""
    original = log_starts.DirectoryLogStarts.request_log_starts

    def request(self: Any, increments: Any, on_durable: Any) -> None:
        original(self, increments, on_durable)
        for log, offset in increments:
            self._make_log_start_visible(log, offset, [])

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
    """Rule DR3: live replicas outside the ISR are not asked."""
    patch.setattr(Leadership, "is_live", lambda *_: False)


def asks_the_live_only(patch: Patch) -> None:
    """Rule DR3: members of the ISR that have not fetched are not asked, as in Kafka."""
    original = Leadership.low_watermark

    def low_watermark(self: Any, image: Any, now_ms: int) -> int:
        members, self.maximal_isr = self.maximal_isr, frozenset()
        try:
            return original(self, image, now_ms)
        finally:
            self.maximal_isr = members

    patch.setattr(Leadership, "low_watermark", low_watermark)


def asks_no_leader_that_stops(patch: Patch) -> None:
    """Rule DR3: a broker that is about to stop isn't asked, though it may not see yet that its leadership was moved."""
    original = Leadership.is_live

    def is_live(self: Any, broker_id: int, follower: Any, image: Any, now_ms: int) -> bool:
        broker = image.brokers.get(broker_id)
        return original(self, broker_id, follower, image, now_ms) and not (
            broker is not None and broker.in_controlled_shutdown
        )

    patch.setattr(Leadership, "is_live", is_live)


def asks_nobody(patch: Patch) -> None:
    """Rule DR3: the leader's own log start is enough."""
    patch.setattr(Leadership, "low_watermark", lambda led, *_: led.log.log_start_offset)


def not_looked_at_again(patch: Patch) -> None:
    """Rule DR4: only fetches wake deletes."""
    original = LedPartitions.look_at

    def look_at(self: Any, partition: Any) -> None:
        deletes, self._waiting.deletes = self._waiting.deletes, type("Nobody", (), {"watched": ()})()
        try:
            original(self, partition)
        finally:
            self._waiting.deletes = deletes

    patch.setattr(LedPartitions, "look_at", look_at)


def not_told_at_once(patch: Patch) -> None:
    """Rule DR5: a fetch waits though there is a log start to report."""
    for module in (fetch_reader, fetch_in_slices):
        patch.setattr(module, "has_log_start_to_tell", lambda *_: False)


def any_leader_epoch(patch: Patch) -> None:
    """Rule DR6: a delete is not bound to the leadership that accepted it."""
    original = delayed_delete.DelayedDeleteRecords._settle

    def settle(self: Any, row: Any, now_ms: int, *, may_act: bool) -> None:
        current = self._replicas.find(*row.key)
        if isinstance(current, ErrorCode):
            original(self, row, now_ms, may_act=may_act)
            return
        row.partition, row.leader_epoch = current, current.leader_epoch
        if current.is_leader:
            original(self, row, now_ms, may_act=may_act)
        elif current.log.log_start_offset >= row.offset:
            row.done, row.low_watermark, row.log_start_offset = True, row.offset, current.log.log_start_offset

    patch.setattr(delayed_delete.DelayedDeleteRecords, "_settle", settle)


def every_follower_answers(patch: Patch) -> None:
    """Rule DR7: a follower serves consumers out of sync and without the log start of its leader."""
    patch.setattr(Partition, "may_serve_as_follower", lambda *_: True)


def leads_on_after_a_restart(patch: Patch) -> None:
    """Rule DR8: a leadership from an earlier registration continues."""
    patch.setattr(assigned_partitions.AssignedPartitions, "_leads_by_this_registration", lambda *_: True)


def stale_directories_are_elected(patch: Patch) -> None:
    """Rule DR8: the mark of a directory that lost records is ignored."""
    patch.setattr(MetadataImage, "is_stale", lambda *_: False)


def acknowledged_before_the_flush(patch: Patch) -> None:
    """Records count before they are durable, though flush.messages is 1."""
    patch.setattr(Log, "flush_is_due", property(lambda _: False))


def committed_by_the_leader_alone(patch: Patch) -> None:
    """The high watermark is the leader's log end."""
    patch.setattr(in_sync_replicas, "high_watermark", lambda led, *_: led.log.log_end_offset)


def committed_without_the_proposed(patch: Patch) -> None:
    """The high watermark waits only for replicas that have fetched lately, not for the whole maximal ISR."""

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
    (visible_before_durable, "D5:"),
    (joins_without_the_deletes, "D8:"),
    (asks_the_isr_only, "DR3:"),
    (asks_the_live_only, "D8:"),
    (asks_nobody, "DR3:"),
    (not_looked_at_again, "DR4:"),
    (not_told_at_once, "DR5:"),
    (any_leader_epoch, "D8:"),
    (every_follower_answers, "D1:"),
    (leads_on_after_a_restart, "P3:"),
    (stale_directories_are_elected, "DR8:"),
    (acknowledged_before_the_flush, "R2:"),
    (committed_by_the_leader_alone, "P2:"),
    (committed_without_the_proposed, "P2:"),
    (joins_without_the_records, "P2:"),
]


FIRST_SEED = {visible_before_durable: 150}
"""First seeds that soon find bugs which the default seeds don't find."""


@pytest.mark.parametrize(("plant", "expected"), PLANTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_is_found(plant: Callable[[Patch], None], expected: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    first = FIRST_SEED.get(plant, 0)
    find(expected, lambda seed: simulate_cluster(seed, kinds=("partitions",)), range(first, first + MAXIMUM_SEEDS))


def test_a_leader_that_stops_is_found(monkeypatch: Patch) -> None:
    """Rare among all faults: by those two that it takes."""
    asks_no_leader_that_stops(monkeypatch)
    faults = ("old image", "controlled shutdown")
    find("D1:", lambda seed: simulate_cluster(seed, kinds=("partitions",), faults=faults, strikes=8), range(258, 262))


def test_no_leader_that_stops_shows_what_was_deleted() -> None:
    """Runs that did, until it was asked."""
    for seed in (163, 259):
        simulate_cluster(seed, kinds=("partitions",), faults=("old image", "controlled shutdown"), strikes=8)
