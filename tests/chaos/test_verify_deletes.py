"""`lowtide verify-deletes` against three broker processes that are killed, all together and one by one: no anomaly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lowtide.admin.client import AdminClient
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.random import Random
from lowtide.verification.faults import FaultResult
from lowtide.verification.report import RunVerdict, report_lines, verdict_of
from lowtide.verification.run import RunPlan, RunResult, VerificationRun
from tests.etcd import missing

from .cluster_processes import ClusterProcesses

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PLAN = RunPlan(
    prefix="verify",
    duration_s=20.0,
    topics=1,
    partitions=2,
    replication_factor=3,
    round_s=6.0,
    recovery_s=60.0,
)


async def verified(cluster: ClusterProcesses, fault: Callable[[int], Awaitable[None]]) -> RunResult:
    async def faults(number: int) -> FaultResult:
        await fault(number)
        return FaultResult(0)

    async with AdminClient(cluster.bootstrap) as client:
        run = VerificationRun(client, PLAN, SystemClock(), Random(7), faults)
        try:
            result = await run.prepare()
            await run.run(result)
        finally:
            remaining = await run.clean_up()
        assert not remaining
        assert not await client.list_topics()
    return result


@pytest.mark.slow
async def test_killed_brokers_keep_all_promises(tmp_path: Path) -> None:
    async with ClusterProcesses(tmp_path) as cluster:

        async def kill(number: int) -> None:
            await cluster.restart(*(cluster.ids if number % 2 else (cluster.ids[number % 3],)))

        result = await verified(cluster, kill)
    report = "\n".join(report_lines(result, 7))
    assert verdict_of(result) is RunVerdict.KEPT, report
    assert result.history.faults, report
    assert result.erases, report
    assert result.surveys[-1].read, report
    assert sum(len(judge.deletes) for judge in result.history.judges.values()) > 10, report
