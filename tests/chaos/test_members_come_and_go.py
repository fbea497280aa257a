"""Groups of three clients, and of KIP-848, whose members join, leave and are killed, while their coordinator is killed
and frozen.

The reports of members (`group_programs.py`) and the coordinator's responses form one history: in a generation a
partition has one owner, a committed offset that was acknowledged or returned never goes back, and at the end everything
is read and committed.

`SECONDS_OF_GROUPS=600` for a long run, `SEED=n` for other faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.etcd import missing

from .broker_faults import GROUP_KEY, BrokerFaults
from .client_processes import ClientProcess, Keeper
from .cluster_processes import ClusterProcesses
from .group_programs import GROUP, PARTITIONS, TOPIC

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

SECONDS = float(os.environ.get("SECONDS_OF_GROUPS", "6"))
SEED = int(os.environ.get("SEED", "7"))
CASTS = {
    "classic": ("confluent-kafka 1", "kafka-python", "aiokafka", "confluent-kafka 2"),
    "next generation": ("next-generation 1", "next-generation 2", "next-generation 3"),
    "both": ("confluent-kafka 1", "next-generation 1", "confluent-kafka 2", "next-generation 2"),
}
"""Members by the protocol of their group; if there are both, the group changes its type with its members."""

SHORT = ("classic", "both")

SETTLE_S = 90.0
ASK_EACH_S = 0.02
FIND_VERSION, OFFSET_FETCH_VERSION = 4, 9
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "group.consumer.min.session.timeout.ms=1000",
    "group.consumer.session.timeout.ms=3000",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=300",
    "offsets.topic.num.partitions=1",
)


class GroupHistory:
    """Assignments, commits and returned offsets of one group."""

    def __init__(self) -> None:
        self.owners: dict[tuple[int, int], str] = {}
        """Generation and partition → member id."""
        self.generations: set[int] = set()
        self.committed: list[tuple[float, int, int]] = []
        """Time of the answer, partition, offset."""
        self.told: list[tuple[float, float, int, int]] = []
        """Time of the request, time of the answer, partition, offset."""
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def on_told(self, what: dict[str, Any]) -> None:
        """Records a report of a member."""
        if "assigned" in what:
            self.on_assigned(what["assigned"], what["generation"], what["member"])
        elif "committed" in what:
            self.counts["commits"] += 1
            self.committed += [(what["at"], partition, offset) for partition, offset in what["committed"]]
        elif "resumed" in what:
            self.counts["resumed"] += 1
            self.told.append((what["since"], time.monotonic(), what["resumed"], what["offset"]))
        else:
            self.counts["refused"] += 1

    def on_assigned(self, partitions: list[int], generation: int, member_id: str) -> None:
        """A client whose session has just ended has no generation; then nothing is recorded."""
        self.counts["assigned"] += 1
        if generation <= 0:
            return
        self.generations.add(generation)
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), member_id)
            if owner != member_id:
                self.faults.append(f"in generation {generation} partition {partition} is {owner}'s and {member_id}'s")

    def check_offsets(self) -> None:
        """No returned offset is below one that was acknowledged or returned before the request."""
        for partition in range(PARTITIONS):
            known = [(at, offset, "acknowledged") for at, number, offset in self.committed if number == partition]
            known += [(ended, offset, "returned") for _, ended, number, offset in self.told if number == partition]
            known.sort()
            highest, which, place = -1, "", 0
            for began, _, _, offset in sorted(row for row in self.told if row[2] == partition):
                while place < len(known) and known[place][0] < began:
                    if known[place][1] > highest:
                        highest, which = known[place][1:]
                    place += 1
                assert offset >= highest, (
                    f"partition {partition}: {highest} was {which}, and {offset} is returned at {began:.3f}"
                )


def test_the_history_detects_two_owners_and_offsets_that_go_back() -> None:
    history = GroupHistory()
    history.on_assigned([0, 1], 3, "a")
    history.on_assigned([2], 3, "b")
    history.on_assigned([0, 1, 2], 4, "b")
    assert history.faults == []
    history.on_assigned([1], 4, "a")
    assert len(history.faults) == 1
    history.committed = [(1.0, 0, 5), (2.0, 0, 7)]
    history.told = [(0.5, 2.5, 0, 4), (1.5, 1.6, 0, 5), (2.1, 2.2, 0, 7)]
    history.check_offsets()
    history.told.append((2.05, 2.3, 0, 6))
    with pytest.raises(AssertionError, match="7 was acknowledged"):
        history.check_offsets()
    history.told[-1] = (2.3, 2.4, 0, 6)
    history.committed.pop()
    with pytest.raises(AssertionError, match="7 was returned"):
        history.check_offsets()


class Stage:
    """The members, the observer, and the faults."""

    def __init__(self, cluster: ClusterProcesses, members: tuple[str, ...]) -> None:
        self.cluster = cluster
        self.members = members
        self.history = GroupHistory()
        self.random = random.Random(SEED)
        self.faults = BrokerFaults(cluster, self.random)
        self.clients = Keeper(self._program)
        self.committed: dict[int, int] = {}
        self._asking = asyncio.create_task(self._ask_on())

    def _program(self, name: str) -> ClientProcess:
        given = {"program": name.partition(" ")[0], "bootstrap": self.cluster.bootstrap}
        return ClientProcess("tests.chaos.group_programs", given, self.history.on_told)

    async def _ask_on(self) -> None:
        """Request the group's offsets from the coordinator repeatedly."""
        while True:
            with contextlib.suppress(OSError):
                await self._ask()
            await asyncio.sleep(ASK_EACH_S)

    async def _ask(self) -> None:
        for broker_id in self.cluster.awake:
            with contextlib.suppress(OSError):
                found = await self.cluster.ask(
                    broker_id, FindCoordinatorRequest(coordinator_keys=[GROUP]), FIND_VERSION
                )
                if found.coordinators[0].node_id in self.cluster.awake:
                    break
        else:
            return
        began = time.monotonic()
        wanted = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
        answer = (await self.cluster.ask(found.coordinators[0].node_id, wanted, OFFSET_FETCH_VERSION)).groups[0]
        if answer.error_code != ErrorCode.NONE:
            self.history.counts[ErrorCode(answer.error_code).name] += 1
            return
        self.history.counts["asked"] += 1
        told = {row.partition_index: row.committed_offset for topic in answer.topics for row in topic.partitions}
        for partition in range(PARTITIONS):
            # Without a commit members start at 0, and report that.
            self.history.told.append((began, time.monotonic(), partition, told.get(partition, 0)))
        self.committed = told

    async def strike(self, what: str) -> None:
        """A fault, or a member that leaves."""
        if what in self.members:
            await self.clients.kill(what)
        elif what.startswith("leave "):
            await self.clients.terminate(what.removeprefix("leave "))
        elif what == "kill":
            await self.faults.kill_coordinator(GROUP_KEY, GROUP)
        elif what == "freeze":
            await self.faults.freeze_coordinator(GROUP_KEY, GROUP)
        else:
            await self.faults.kill_all()

    async def until(self, what: str, condition: Callable[..., bool]) -> None:
        """Waits for the condition."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while not condition():
                    assert self.history.faults == []
                    assert not self._asking.done(), self._asking.exception()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            told = f"{what} did not happen: {self.committed} {dict(self.history.counts)} {dict(self.clients.returns)}"
            raise AssertionError(f"{told}\n{self.clients.noise}\n{self.cluster.tail()}") from None

    async def settle(self) -> None:
        """Injects no more faults, and waits until everything is read and committed."""
        await self.faults.all_back()
        await self.clients.rest()
        assert await self.clients.terminate("writer") == 0, self.clients.noise
        self.clients.keep(*self.members)
        ends = {}
        for number in range(PARTITIONS):
            row = await self.cluster.until_in_sync(TOPIC, number)
            bounds = await self.cluster.bounds(row.leader_id, TOPIC, partition=number)
            assert isinstance(bounds, tuple), bounds
            ends[number] = bounds[1]
        assert min(ends.values()) > 0
        await self.until(f"all is committed, {ends}", lambda: self.committed == ends)

    async def close(self) -> None:
        self.faults.close()
        self._asking.cancel()
        await self.clients.close()


@pytest.mark.parametrize("cast", CASTS if "SECONDS_OF_GROUPS" in os.environ else SHORT)
@pytest.mark.slow
async def test_a_partition_has_one_owner_and_its_offset_never_goes_back(tmp_path: Path, cast: str) -> None:
    members = CASTS[cast]
    first = ("kill", members[1], f"leave {members[2]}", members[0], "freeze", f"leave {members[-1]}")
    faults = (*first, *members, *(f"leave {member}" for member in members), "all")
    async with ClusterProcesses(tmp_path, *SETTINGS) as cluster:
        await cluster.create_topic(TOPIC, partitions=PARTITIONS)
        stage = Stage(cluster, members)
        try:
            stage.clients.keep("writer", *members)
            await stage.until("the first commit", lambda: stage.history.counts["commits"] > 0)
            end, due = time.monotonic() + SECONDS, [*first]
            while time.monotonic() < end or due:
                await stage.strike(due.pop(0) if due else stage.random.choice(faults))
                await asyncio.sleep(
                    stage.random.uniform(0, 2) * min(SECONDS, 12) / len(first) * (time.monotonic() < end)
                )
                assert stage.history.faults == []
            await stage.settle()
        finally:
            await stage.close()
        stage.history.check_offsets()
        assert stage.history.faults == []
        assert len(stage.history.generations) > 1
        cluster.check_no_faults()
    counts = f"{dict(stage.history.counts)}; {dict(stage.clients.returns)}; {dict(stage.faults.counts)}"
    print(f"{sum(stage.committed.values())} records, {len(stage.history.generations)} generations; {counts}")
