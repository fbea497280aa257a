"""`lowtide verify-deletes` as a command: it reports, and leaves no topic, also if it is ended by a signal."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lowtide.admin import BlockingAdminClient
from lowtide.testing.cluster import LowtideCluster

from .command_lines import command, environment, run_process

LIMIT_S = 120
LOOK_AGAIN_S = 0.05

NO_FAULT = shlex.join([sys.executable, "-c", "pass"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as cluster:
        yield cluster


def topics(cluster: LowtideCluster) -> list[str]:
    with BlockingAdminClient(cluster.bootstrap) as admin:
        return list(admin.list_topics())


def test_a_run_without_anomalies(cluster: LowtideCluster) -> None:
    words = ("--minutes", 0.15, "--fault-interval", 3, "--partitions", 2, "--seed", 3, "--output", "json")
    ran = run_process("verify-deletes", *words, "--faults", NO_FAULT, bootstrap=cluster.bootstrap)
    report = json.loads(ran.stdout)
    assert (report["verdict"], report["anomalies"], report["deletes_that_came_back"]) == ("kept", [], 0)
    assert (report["seed"], report["replication_factor"], report["erases_keys"]) == (3, 3, True)
    assert report["deletes_acknowledged"] > 0
    assert report["reads_below_deletes"]["followers"] > 0
    assert report["surveys"][-1]["led"] == 2 * 3, "each replica of each partition led"
    assert all(fault["operation"].endswith("exit code 0") for fault in report["faults"])
    assert topics(cluster) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_a_run_in_order(cluster: LowtideCluster, number: signal.Signals) -> None:
    running = subprocess.Popen(
        command("verify-deletes", "--minutes", 10),
        env=environment(cluster.bootstrap),
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        try:
            until = time.monotonic() + LIMIT_S
            while not topics(cluster):
                assert time.monotonic() < until, "no topic was created"
                time.sleep(LOOK_AGAIN_S)
            running.send_signal(number)
            report, _ = running.communicate(timeout=LIMIT_S)
        except BaseException:
            running.kill()  # Otherwise a failure waits for the end of its ten minutes.
            raise
    assert running.returncode == 130
    assert topics(cluster) == []
    assert not report or "ended early" in report
