"""Clients with KIP-890 against three brokers: each starts its next transaction while the markers of the last one are
being written.

Both are external programs: Kafka's `kafka-producer-perf-test`, and franz-go's own consume-transform-produce test
(`TestTxnEtl`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide import LowtideCluster

from .franz_go import BUILD_TIMEOUT_S, SOURCE
from .tools import Tools

pytestmark = pytest.mark.interop

PARTITIONS = 12
RECORDS = 20_000
ETL_RECORDS = 10_000
ETL_LIMIT_S = 540
SLOW_S = 60


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    """Three brokers."""
    with LowtideCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kgo_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests of franz-go's client, built, of the version that `go/` needs."""
    if shutil.which("go") is None:
        assert os.environ.get("CI_INTEROP") != "1", "CI_INTEROP=1, but go not installed"
        pytest.skip("go not installed")
    program = tmp_path_factory.mktemp("kgo") / "kgo.test"
    command = ["go", "test", "-c", "-o", str(program), "github.com/twmb/franz-go/pkg/kgo"]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"go test -c: {done.stderr[-2000:]}"
    return program


def test_the_java_producer_commits_every_50_ms(jars: Path, three: LowtideCluster, tmp_path: Path) -> None:
    tools = Tools(jars, three.bootstrap, tmp_path)
    tools.run(
        "kafka-topics", "--create", "--topic", "short", "--partitions", str(PARTITIONS), "--replication-factor", "3"
    )
    sending = [
        "--num-records",
        str(RECORDS),
        "--record-size",
        "100",
        "--throughput",
        "5000",
        "--transaction-duration-ms",
        "50",
    ]
    properties = f"bootstrap.servers={three.bootstrap}"
    ran = tools.call(
        "kafka-producer-perf-test", "--topic", "short", *sending, "--command-property", properties, "linger.ms=0"
    )
    assert ran.exit_code == 0, ran
    assert re.search(rf"^{RECORDS} records sent", ran.out, re.MULTILINE), ran
    assert "Exception" not in ran.out + ran.err


def test_franz_gos_own_test_of_transactions(kgo_tests: Path, three: LowtideCluster, tmp_path: Path) -> None:
    given = {
        "KGO_SEEDS": three.bootstrap,
        "KGO_TEST_RF": "3",
        "KGO_TEST_RECORDS": str(ETL_RECORDS),
        "KGO_LOG_LEVEL": "none",
    }
    command = [str(kgo_tests), "-test.run", "^TestTxnEtl$", "-test.v", f"-test.timeout={ETL_LIMIT_S}s"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=ETL_LIMIT_S + SLOW_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert "--- PASS: TestTxnEtl " in done.stdout
