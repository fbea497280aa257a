"""`lowtide dev` as a process: one cluster that stops on a signal and keeps data only in a given directory."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
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
    """Sends the signal. Returns the text of standard error."""
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


@pytest.mark.slow
def test_ctrl_c_is_no_error() -> None:
    """At a terminal all processes get the signal while clients produce and consume; nothing is logged as a warning."""
    command = [sys.executable, "-m", "lowtide.cli.main", "dev", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            servers = {
                "bootstrap.servers": process.stdout.readline().strip().removeprefix("bootstrap.servers="),
                "log_level": 0,
            }
            producer, consumer = (
                Producer(servers),
                Consumer({**servers, "group.id": "g", "auto.offset.reset": "earliest"}),
            )
            producer.produce("t", b"first")
            assert producer.flush(60) == 0
            consumer.subscribe(["t"])
            assert consumer.consume(1, timeout=60)
            for number in range(1000):
                producer.produce("t", b"%d" % number)
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=STOP_LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    levels = {line: json.loads(line)["level"] for line in errors.splitlines()}
    ours = [line for line, level in levels.items() if level not in ("info", "debug") and "event loop" not in line]
    assert ours == [], "a loop that a busy machine held may be reported; nothing else"
    consumer.close()


@pytest.mark.slow
def test_a_quieter_log_is_an_option() -> None:
    with running("--brokers", "1", "--log-level", "warn") as (process, _bootstrap, _data):
        assert not [line for line in stopped(process, signal.SIGTERM).splitlines() if '"info"' in line]


@pytest.mark.slow
def test_data_stay_in_the_given_directory(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        with running("--brokers", "2", "--data", str(tmp_path)) as (process, bootstrap, _data):
            ids.append(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).cluster_id)
            stopped(process, signal.SIGTERM)
    assert ids[0] == ids[1]
    assert (tmp_path / "lowtide-metadata.sqlite").exists()


@pytest.mark.slow
def test_a_port_that_is_taken_is_reported_with_a_message(tmp_path: Path) -> None:
    with running("--brokers", "1", "--data", str(tmp_path / "one")) as (_, bootstrap, _data):
        port = bootstrap.rpartition(":")[2]
        command = [
            sys.executable,
            "-m",
            "lowtide.cli.main",
            "dev",
            "--brokers",
            "1",
            "--port",
            port,
            "--data",
            str(tmp_path / "two"),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=STOP_LIMIT_S, check=False)
        assert ended.returncode == 2
        assert ended.stderr.splitlines()[-1].startswith(
            f"lowtide dev: listeners=PLAINTEXT://127.0.0.1:{port} is not possible: "
        )


@pytest.mark.slow
def test_a_secure_cluster_prints_how_to_log_in(tmp_path: Path) -> None:
    """The lines that it prints work as they are, also those of another start."""
    passwords = set()
    with running("--brokers", "1", "--secure", "--data", str(tmp_path)) as (process, _bootstrap, _data):
        passwords.add((tmp_path / "secure" / "admin.password").read_text())
        stopped(process, signal.SIGTERM)
    with running("--brokers", "1", "--secure", "--data", str(tmp_path)) as (process, _bootstrap, _data):
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(4)]
        assert lines[0].startswith(
            f"User admin may do everything. Its client settings are in {tmp_path}/secure/client: admin.properties"
        )
        for line in lines[1:]:
            words = shlex.split(line)
            command = words if words[0] == "kcat" else [sys.executable, "-m", "lowtide.cli.main", *words[1:]]
            ended = subprocess.run(
                command, input="pencil\n", capture_output=True, text=True, timeout=STOP_LIMIT_S, check=False
            )
            assert ended.returncode == 0, (line, ended.stderr)
        passwords.add((tmp_path / "secure" / "admin.password").read_text())
        (password,) = passwords
        assert password.strip() not in "".join([*lines, stopped(process, signal.SIGTERM)])
