"""`lowtide dev` as a process: its brokers are one cluster, it stops when it is told to, and keeps its data only where it was told to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

STOP_LIMIT_S = 120.0


@contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its bootstrap servers and the line about its data. Killed at the end, if it still runs then."""
    command = [sys.executable, "-m", "lowtide.cli.main", "dev", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            bootstrap = process.stdout.readline()
            assert bootstrap.startswith("bootstrap.servers="), process.communicate(timeout=STOP_LIMIT_S)
            yield process, bootstrap.strip().removeprefix("bootstrap.servers="), process.stdout.readline()
        finally:
            process.kill()


def stopped(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Tell the process to stop. Returns what it had to say on standard error."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=STOP_LIMIT_S)
    assert process.returncode == 0, errors
    return errors


def test_three_brokers_run_until_ctrl_c_and_leave_nothing_behind() -> None:
    with running("--set", "num.partitions=5") as (process, bootstrap, data):
        assert bootstrap.count(",") == 2
        known = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60)
        assert sorted(f"{each.host}:{each.port}" for each in known.brokers.values()) == sorted(bootstrap.split(","))
        directory = Path(data.partition("data in ")[2].partition(";")[0])
        assert (directory / "broker-3").is_dir()
        assert "Traceback" not in stopped(process, signal.SIGINT)
    assert not directory.exists()


def test_data_stay_where_they_were_asked_for(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        with running("--brokers", "2", "--data", str(tmp_path)) as (process, bootstrap, _data):
            ids.append(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).cluster_id)
            stopped(process, signal.SIGTERM)
    assert ids[0] == ids[1]
    assert (tmp_path / "lowtide-metadata.sqlite").exists()


def test_a_port_that_is_taken_is_told_in_a_sentence(tmp_path: Path) -> None:
    with running("--brokers", "1", "--data", str(tmp_path / "one")) as (_, bootstrap, _data):
        port = bootstrap.rpartition(":")[2]
        command = [sys.executable, "-m", "lowtide.cli.main", "dev", "--brokers", "1", "--port", port, "--data", str(tmp_path / "two")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=STOP_LIMIT_S, check=False)
        assert ended.returncode == 2
        assert ended.stderr.splitlines()[-1].startswith(f"lowtide dev: listeners=PLAINTEXT://127.0.0.1:{port} is not possible: ")
