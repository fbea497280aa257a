"""What a soak does to brokers all the time: a checked history, restarts, members of a group that come and go."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from tests.campaign.machine import marked
from tests.chaos.asking import DELETE_TOPICS_VERSION
from tests.chaos.client_processes import Keeper
from tests.chaos.cluster_load import PartitionWork
from tests.chaos.cluster_processes import LIMIT_S

from . import programs
from .history import KeptHistory
from .kept import add_line
from .measured import CpuShare, measure
from .run import SMALL, Run
from .samples import Sample, span_of

PROBE, PARTITIONS = "probe", 6
PROBE_EACH_S = 0.2
CHECKED_PAUSE_S = 0.8
"""The longest pause of a client of the checked topic."""

MEMBERS = ("read retained 1", "read retained 2", "read retained 3")
RESTARTED, LIVES = (1, 2), 3
COMPACTED = SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2"}


async def create_topics(run: Run) -> None:
    """Creates the topics of this module unless they are there."""
    for topic, partitions, configs in (
        (programs.RETAINED, PARTITIONS, SMALL),
        (programs.COMPACTED, PARTITIONS, COMPACTED),
        (programs.MOVED, PARTITIONS, SMALL),
        (PROBE, 1, SMALL),
    ):
        await run.topic(topic, partitions, configs)


async def check(run: Run) -> None:
    """Has partitions whose whole history is checked, one after the other. One that a kill interrupted continues."""
    state = run.folder.state
    while run.goes_on:
        topic, path = f"checked-{state.checked}", run.folder.path / f"history-{state.checked}.jsonl"
        await run.topic(topic, 1, {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "1000"})
        history = KeptHistory(f"{topic}-0", path)
        work = PartitionWork(run.cluster, topic, seed=state.checked, history=history, pause_s=CHECKED_PAUSE_S)
        work.start()
        await run.pause(run.options.checked_minutes * 60)
        await work.stop()
        await work.check()
        history.close()
        run.counts["records checked"] += len(history.acknowledged)
        run.counts["deletes checked"] += work.counts["deleted"]
        run.counts["histories checked"] += 1
        await delete_topic(run, topic)
        state.checked += 1
        run.folder.save()
        path.unlink()


async def delete_topic(run: Run, topic: str) -> None:
    """Deletes a topic by the broker that lives on, again if the answer was lost."""

    async def is_deleted() -> bool:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
        answer = await run.cluster.ask(LIVES, request, DELETE_TOPICS_VERSION, limit_s=LIMIT_S)
        return answer.responses[0].error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    await run.cluster.until(f"{topic} is deleted", is_deleted)


class Sampler:
    """Probes with one record at a time and acks=all, and writes samples."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._times: dict[str, int] = {}
        self._all_cpu, self._broker_cpu = CpuShare(), CpuShare()

    async def probe(self) -> None:
        """Times count only while no broker restarts."""
        run = self._run
        while await run.pause(PROBE_EACH_S):
            begun_s, calm = time.monotonic(), not run.restarting
            await run.cluster.append(PROBE, [b"x" * 100])
            if calm and not run.restarting:
                span = span_of((time.monotonic() - begun_s) * 1000)
                self._times[span] = self._times.get(span, 0) + 1

    async def sample(self) -> None:
        """Writes a sample each `--sample-seconds`."""
        while await self._run.pause(self._run.options.sample_seconds):
            await self.write()

    async def write(self) -> None:
        """Writes a sample."""
        run = self._run
        figures = await asyncio.to_thread(measure, run.cluster) | run.gauges
        figures["CPU, % of a core"] = self._all_cpu.percent(
            [*await asyncio.to_thread(marked, run.folder.path), os.getpid()]
        )
        figures["brokers' CPU, % of a core"] = self._broker_cpu.percent(
            run.cluster.brokers[broker_id].pid for broker_id in run.cluster.awake
        )
        times, self._times = self._times, {}
        rounded = {name: round(value, 2) for name, value in figures.items()}
        add_line(run.folder.samples, Sample(run.piece, round(run.seconds), rounded, times, dict(run.counts)))


async def restart(run: Run) -> None:
    """Restarts one broker after the other, as an operator does."""
    earlier, pythons = run.options.earlier, run.cluster.pythons
    while await run.pause(run.options.restart_minutes * 60):
        for broker_id in run.cluster.ids if earlier else RESTARTED:
            run.restarting = True
            await run.cluster.terminate(broker_id)
            if earlier:
                pythons[broker_id] = sys.executable if pythons[broker_id] == earlier else earlier
            await run.cluster.start(broker_id)
            for topic in (programs.RETAINED, programs.COMPACTED, programs.MOVED):
                for number in range(PARTITIONS):
                    await run.cluster.until_in_sync(topic, number)
            run.restarting = False
            run.counts["restarts"] += 1
            if not await run.pause(run.options.restart_minutes * 30):
                break


async def come_and_go(run: Run, keeper: Keeper) -> None:
    """A member of the group ends, and another one takes its place."""
    number = 0
    while await run.pause(run.options.member_minutes * 60):
        await keeper.terminate(MEMBERS[number % len(MEMBERS)])
        run.counts["members replaced"] += 1
        number += 1
