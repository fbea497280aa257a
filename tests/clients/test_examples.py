"""The programs in `examples/` do what they describe. The one for Spark is in `tests/pipeline/test_spark_example.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 120

AT_A_BROKER = {
    "produce_consume": "9 hello 9",
    "produce_consume_kafka_python": "9 hello 9",
    "delete_records": "partition 0 now starts at 7",
    "admin_client": "topic deleted",
    "transactions": "read_committed ['paid', 'shipped']",
    "exactly_once": "20 results, each exactly once",
}
"""Examples that take a broker's address, and a line that each prints."""

AT_A_CLUSTER = {"leader_only_delete": "partition 1: the leader starts at 6"}

BY_THEMSELVES = {
    "retention_of_consumed": "both groups have consumed everything: the old segments are gone",
    "retention_by_minimum_timestamp": "whole segments of October are gone; every record of November is there",
    "three_brokers": "10 records are acknowledged by all replicas in sync",
    "delete_records": "partition 0 now starts at 7",
}
"""Examples that start their own brokers, and one of those that can do both."""

ELSEWHERE = {"some_broker", "spark_trim", "test_with_lowtide"}


def lines_of(command: list[str], *, cwd: Path) -> list[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_example_is_run():
    """A new example needs a row above, and one in the page."""
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {*AT_A_BROKER, *AT_A_CLUSTER, *BY_THEMSELVES, *ELSEWHERE}
    page = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| `examples/(\w+)\.py`", page, re.MULTILINE), "some_broker"} == names


@pytest.mark.parametrize("name", AT_A_BROKER)
def test_an_example_at_a_broker(name: str, lowtide: SimpleNamespace, tmp_path: Path):
    assert AT_A_BROKER[name] in lines_of(
        [sys.executable, str(EXAMPLES / f"{name}.py"), lowtide.bootstrap], cwd=tmp_path
    )


@pytest.mark.parametrize("name", AT_A_CLUSTER)
def test_an_example_at_a_cluster(name: str, lowtide_cluster: SimpleNamespace, tmp_path: Path):
    assert AT_A_CLUSTER[name] in lines_of(
        [sys.executable, str(EXAMPLES / f"{name}.py"), lowtide_cluster.bootstrap], cwd=tmp_path
    )


@pytest.mark.parametrize(
    "name", [name if name == "three_brokers" else pytest.param(name, marks=pytest.mark.slow) for name in BY_THEMSELVES]
)
def test_an_example_by_itself(name: str, tmp_path: Path):
    assert BY_THEMSELVES[name] in lines_of([sys.executable, str(EXAMPLES / f"{name}.py")], cwd=tmp_path)


def test_the_example_for_pytest(tmp_path: Path):
    """Runs in a separate pytest, as readers run it."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(EXAMPLES / "test_with_lowtide.py"),
    ]
    assert any(line.startswith("2 passed") for line in lines_of(command, cwd=tmp_path))
