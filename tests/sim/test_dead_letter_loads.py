"""Members of a share group fail and brokers are killed: each record that is given up gets a dead letter, and no other.

Bugs planted on purpose: the checker must find each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lowtide.broker.coordinator.share_state.dead_letter_writer import DeadLetterWriter
from lowtide.broker.partitions.share import share_partition
from lowtide.broker.partitions.share.share_partition import SharePartition
from lowtide.broker.partitions.share.share_runs import RecordState
from lowtide.broker.partitions.share.share_values import AcknowledgeType
from lowtide.runtime.random import Random
from lowtide.simulation.client import WireClient
from lowtide.simulation.history import HistoryError
from lowtide.simulation.share_history import Record

from .dead_letter_world import headers, letters, make_letters_topic
from .planting import find
from .share_cluster import ShareCluster
from .share_member import REJECT
from .test_share_deliveries import Consumer, Load, unpacked

SEEDS = int(os.environ.get("SHARE_SEEDS", "8"))
PLANT_SEEDS = int(os.environ.get("PLANT_SEEDS", "20"))

Patch = pytest.MonkeyPatch


class Rejecting(Consumer):
    """A member that sometimes rejects a record that it can't process."""

    async def process(self, client: WireClient, got: set[Record]) -> bool:
        load = self.load
        if not got <= load.bad or load.random.random() < 0.5:
            return await super().process(client, got)
        load.ways["reject"] += 1
        load.history.on_end_asked(got)
        await self.acknowledge(client, got, REJECT)
        return True


class LetterLoad(Load):
    """Records that can't be processed are given up, and their dead letters are read."""

    consumer = Rejecting

    def __init__(self, cluster: ShareCluster, random: Random) -> None:
        super().__init__(cluster, random)
        self.letters: set[Record] = set()

    async def prepare(self) -> None:
        """The topic takes no dead letters while a broker is down, so that decided ones wait when another one dies."""
        await make_letters_topic(self.cluster, min_insync_replicas="3")

    async def kill_a_broker(self) -> None:
        brokers = [1, 2, 3]
        brokers.remove(self.random.choice(brokers))
        self.random.shuffle(brokers)
        for broker_id in brokers:
            await asyncio.sleep(self.random.uniform(1, 8))
            self.history.on_leader_lost()
            self.cluster.kill(broker_id)
        await asyncio.sleep(self.random.uniform(1, 5))
        for broker_id in brokers:
            self.cluster.machines[broker_id - 1].start()
        await self.cluster.up()
        self.ways["killed broker"] += 1

    async def is_busy(self) -> bool:
        """Returns whether records are left to process, or have no dead letter."""
        found = [headers(letter) for each in (await letters(self.cluster)).values() for letter in each]
        self.letters = {(int(each["partition"]), int(each["offset"])) for each in found}
        return bool(self.history.lacking(self.good)) or bool(self.without_letter())

    def without_letter(self) -> set[Record]:
        """Returns the records that nobody can have accepted, and that have no dead letter."""
        return self.bad - self.history.accepted - self.history.unknown - self.letters

    def check(self) -> None:
        """Errors: HistoryError for a record that is given up without a dead letter, or that has one and is accepted."""
        if self.without_letter():
            raise HistoryError(f"G9: {sorted(self.without_letter())} are given up without a dead letter")
        if self.letters & self.history.accepted:
            raise HistoryError(
                f"G9: {sorted(self.letters & self.history.accepted)} are accepted and have a dead letter"
            )


def run(seed: int, *, kills: bool) -> LetterLoad:
    """Errors: HistoryError."""
    load = unpacked(seed, LetterLoad, kills=kills)
    load.check()
    return load


@pytest.mark.seeds
@pytest.mark.slow
def test_each_record_that_is_given_up_gets_a_dead_letter() -> None:
    loads = [run(seed, kills=seed % 2 == 0) for seed in range(SEEDS)]
    ways = {way for load in loads for way in load.ways}
    assert {"release", "die", "close", "stall", "reject", "killed broker"} <= ways
    assert sum(len(load.bad) for load in loads) > SEEDS


# ---------------------------------------------------------------------- planted bugs
def spent_records_get_none(patch: Patch) -> None:
    original = SharePartition._state_after

    def after(self: SharePartition, kind: AcknowledgeType, run: Any) -> RecordState:
        state = original(self, kind, run)
        return RecordState.ARCHIVED if kind is not AcknowledgeType.REJECT and state is RecordState.ARCHIVING else state

    patch.setattr(SharePartition, "_state_after", after)


def a_leader_forgets_what_it_must_write(patch: Patch) -> None:
    """It is stored as if the dead letters were written already."""
    original = share_partition._stored_as

    def stored_as(run: Any, number: int) -> tuple[RecordState, int]:
        state, count = original(run, number)
        return (RecordState.ARCHIVED if state is RecordState.ARCHIVING else state), count

    patch.setattr(share_partition, "_stored_as", stored_as)


def a_failed_write_counts_as_done(patch: Patch) -> None:
    original = DeadLetterWriter.write

    async def write(self: Any, place: Any, partition: Any, rules: Any, given_up: Any) -> Any:
        outcome = await original(self, place, partition, rules, given_up)
        done = outcome.done_offset if outcome.done_offset is not None else given_up[-1].last_offset
        return msgspec.structs.replace(outcome, done_offset=done)

    patch.setattr(DeadLetterWriter, "write", write)


@pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass searches them")
@pytest.mark.parametrize(
    ("plant", "kills"),
    [
        (spent_records_get_none, False),
        (a_leader_forgets_what_it_must_write, True),
        (a_failed_write_counts_as_done, True),
    ],
)
@pytest.mark.slow
def test_is_found(monkeypatch: Patch, plant: Callable[[Patch], None], kills: bool) -> None:
    plant(monkeypatch)
    find("G9:", lambda seed: run(seed, kills=kills), range(PLANT_SEEDS))
