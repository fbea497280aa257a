"""Consumed records are deleted up to the slowest group of the whole cluster (D14), while leaders and coordinators are
killed and frozen.

Three groups with three coordinators commit rising offsets. Each commit is recorded before it is sent; the log start is
checked all the time, and is never above what the slowest group may have committed. At the end it follows that group to
the segment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import pytest

from lowtide.broker.coordinator.runtime.offsets_topic import java_hash
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

from .cluster_processes import LIMIT_S, ClusterProcesses

pytestmark = pytest.mark.slow

TOPIC = "consumed"
COORDINATORS = 3
LAGS = {"fast": 0, "middling": 7, "slow": 15}
"""How many records behind the log's end each group commits."""

SETTINGS = (
    "log.retention.commitoffset.enable=true",
    "log.retention.check.interval.ms=100",
    "log.initial.task.delay.ms=50",
    f"offsets.topic.num.partitions={COORDINATORS}",
    "offsets.topic.replication.factor=3",
)
CONFIGS = {
    "retention.commitoffset.ms": "0",
    "retention.ms": "-1",
    "internal.segment.bytes": "150",
    "file.delete.delay.ms": "0",
}
A_RECORD = b"v" * 50
SILENT_LOOKS = 40
COMMIT_VERSION, FIND_VERSION = 8, 4


def group_of(name: str, coordinator: int) -> str:
    """Returns a group id of that name in a given partition of the groups' topic."""
    return next(
        f"{name}-{number}" for number in range(100) if java_hash(f"{name}-{number}") % COORDINATORS == coordinator
    )


GROUPS = {group_of(name, number): lag for number, (name, lag) in enumerate(LAGS.items())}
SLOW = next(group for group in GROUPS if group.startswith("slow"))


class Groups:
    """The offsets that the groups have committed, and those that they may have committed."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self.sent = dict.fromkeys(GROUPS, 0)
        self.acknowledged = dict.fromkeys(GROUPS, -1)
        self.end = 0
        self.looks = 0

    async def coordinator_of(self, group: str) -> int | None:
        for broker_id in self.cluster.awake:
            with contextlib.suppress(OSError):
                answer = await self.cluster.ask(
                    broker_id, FindCoordinatorRequest(coordinator_keys=[group]), FIND_VERSION
                )
                if answer.coordinators[0].error_code == ErrorCode.NONE:
                    return int(answer.coordinators[0].node_id)
        return None

    async def commit(self, group: str, offset: int) -> bool:
        """Tries once; returns whether it was acknowledged."""
        coordinator = await self.coordinator_of(group)
        if coordinator not in self.cluster.awake:
            return False
        assert coordinator is not None
        row = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=group, member_id="", topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[row])]
        )
        self.sent[group] = max(self.sent[group], offset)
        answer = await self.cluster.ask(coordinator, request, COMMIT_VERSION, limit_s=LIMIT_S)
        if answer.topics[0].partitions[0].error_code != ErrorCode.NONE:
            return False
        self.acknowledged[group] = max(self.acknowledged[group], offset)
        return True

    async def go_on(self) -> None:
        """Appends records and commits; requests that fail are repeated the next time."""
        with contextlib.suppress(OSError):
            row = await self.cluster.partition(TOPIC)
            if row is not None and row.leader_id in self.cluster.awake:
                for _ in range(5):
                    answer = await self.cluster.produce(row.leader_id, TOPIC, [A_RECORD])
                    if answer.error_code == ErrorCode.NONE:
                        self.end = max(self.end, answer.base_offset + 1)
        for group, lag in GROUPS.items():
            with contextlib.suppress(OSError):
                await self.commit(group, max(self.end - lag, 0))

    async def look(self) -> int:
        """Reads the log start from the leader, and checks it."""
        start = -1
        for broker_id in self.cluster.awake:
            with contextlib.suppress(OSError):
                bounds = await self.cluster.bounds(broker_id, TOPIC)
                if not isinstance(bounds, ErrorCode):
                    may_have = min(self.sent.values())
                    assert bounds[0] <= may_have, (
                        f"the log starts at {bounds[0]}, the slowest group has committed {may_have} at most"
                    )
                    start = max(start, bounds[0])
                    self.looks += 1
        return start

    async def keep_looking(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.02)


async def explained(cluster: ClusterProcesses) -> dict[str, object]:
    """Returns the output of `lowtide topics explain`."""
    words = [
        sys.executable,
        "-m",
        "lowtide.cli.main",
        "topics",
        "explain",
        TOPIC,
        "--bootstrap-server",
        cluster.bootstrap,
        "--output",
        "json",
    ]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    assert process.returncode == 0, told
    row: dict[str, object] = json.loads(told)["partitions"][0]
    return row


async def test_nothing_is_deleted_that_the_slowest_group_has_not_consumed(tmp_path: Path) -> None:
    async with ClusterProcesses(tmp_path, *SETTINGS) as cluster:
        groups = Groups(cluster)

        async def has_coordinator() -> bool:
            return await groups.coordinator_of(SLOW) is not None

        await cluster.until(f"coordinator of {SLOW}", has_coordinator)
        coordinator = await groups.coordinator_of(SLOW)
        # The leader of the topic must ask another broker about the slow group.
        replicas = sorted(cluster.ids, key=lambda broker_id: broker_id == coordinator)
        await cluster.create_topic(TOPIC, [replicas], configs=CONFIGS)
        for group in GROUPS:

            async def has_committed(group: str = group) -> bool:
                return await groups.commit(group, 0)

            await cluster.until(f"first commit of {group}", has_committed)
        looking = asyncio.ensure_future(groups.keep_looking())
        for harm in ("coordinator", "leader", "frozen coordinator"):
            for _ in range(6):
                await groups.go_on()
            row = await cluster.until_partition(TOPIC, lambda row: row.leader_id in cluster.awake)
            victim = row.leader_id if harm == "leader" else await groups.coordinator_of(SLOW)
            assert victim is not None
            if harm == "frozen coordinator":
                cluster.freeze(victim)
            else:
                await cluster.kill(victim)
            # No group commits for some passes: without the slow group, a pass would delete what the others have
            # consumed.
            for _ in range(SILENT_LOOKS):
                await groups.look()
                await asyncio.sleep(0.02)
            begun = groups.acknowledged[SLOW]

            async def slow_goes_on(begun: int = begun) -> bool:
                await groups.go_on()
                return groups.acknowledged[SLOW] > begun

            await cluster.until(f"commits of {SLOW} after a {harm}", slow_goes_on)
            if harm == "frozen coordinator":
                cluster.thaw(victim)
            else:
                await cluster.start(victim)
            assert not looking.done(), looking.exception()

        async def has_followed() -> bool:
            await groups.go_on()
            return await groups.look() > max(groups.acknowledged[SLOW] - 20, 1)

        await cluster.until(f"the log start follows {SLOW}", has_followed)
        row_told = await explained(cluster)
        rule = row_told["rules"][0]
        assert rule["group"] is not None
        assert rule["group"] == SLOW
        assert rule["consumed_offset"] >= groups.acknowledged[SLOW]
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
        assert groups.looks > 10
        cluster.check_no_faults()
