"""Bugs planted on purpose in rule DR9, on eligible leader replicas (KIP-966): the simulator of clusters must find each.

Each was found within 60 seeds from the first one on; PLANT_SEEDS=n searches that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from lowtide.metadata.image import MetadataImage
from lowtide.replication import in_sync_replicas
from lowtide.replication.leadership import Leadership
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.simulation.cluster_simulation import simulate_cluster

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "120"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slowest


@contextmanager
def no_eligible_leaders(leadership: Any) -> Iterator[None]:
    """The leader doesn't see them."""
    state, leadership.state = leadership.state, msgspec.structs.replace(leadership.state, elr=(), elr_epochs=())
    try:
        yield
    finally:
        leadership.state = state


def deletes_do_not_wait_for_eligible_leaders(patch: Patch) -> None:
    """A delete is acknowledged that an eligible leader has not: it returns with that leader."""
    original = Leadership.low_watermark

    def low_watermark(self: Any, *arguments: Any) -> int:
        with no_eligible_leaders(self):
            return original(self, *arguments)

    patch.setattr(Leadership, "low_watermark", low_watermark)


def a_power_cut_makes_no_difference(patch: Patch) -> None:
    """A replica that lost unsynced records leads, though others have all."""
    patch.setattr(MetadataImage, "may_lack_records", lambda *_arguments: False)


def a_power_cut_is_not_noticed(patch: Patch) -> None:
    """The memory that files are written through counts as the same one."""
    patch.setattr(MemoryFileSystem, "page_cache_id", lambda _self: "always the same")


def too_few_members_commit(patch: Patch) -> None:
    """The high watermark rises below `min.insync.replicas`: eligible leaders lack committed records."""
    original = in_sync_replicas.high_watermark

    def high_watermark(leadership: Any, *arguments: Any) -> int:
        with no_eligible_leaders(leadership), pytest.MonkeyPatch.context() as inner:
            inner.setattr(Leadership, "min_insync_replicas", property(lambda _self: 1))
            return original(leadership, *arguments)

    patch.setattr(in_sync_replicas, "high_watermark", high_watermark)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (deletes_do_not_wait_for_eligible_leaders, "D8:"),
        (a_power_cut_makes_no_difference, "rule DR8"),
        (a_power_cut_is_not_noticed, "rule DR8"),
        (too_few_members_commit, "P2:"),
    ],
)
def test_is_found(monkeypatch: Patch, plant: Callable[[Patch], None], promise: str) -> None:
    plant(monkeypatch)
    find(promise, simulate_cluster, range(MAXIMUM_SEEDS))
