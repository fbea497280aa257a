"""Kafka Connect, standalone: a source (`java/Numbers.java`) writes numbers, and a sink prints them."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.free_ports import free_ports

from .kafka import java
from .lowtide_process import LowtideProcess
from .members import DEADLINE_S, until
from .tools import SHORT_LIVED, JavaClient

pytestmark = pytest.mark.interop

COUNT = 100
CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


def properties(file: Path, **given: object) -> str:
    """Writes a file of properties; returns its path. In names `_` stands for a dot."""
    file.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in given.items()))
    return str(file)


def numbers(log: Path) -> list[int]:
    """Returns the numbers that the sink has printed, in order."""
    lines = log.read_text().splitlines(keepends=True)
    return [int(line.split()[1]) for line in lines if line.startswith("number ") and line.endswith("\n")]


def has_enough(log: Path) -> bool:
    """Returns whether the sink has printed enough numbers."""
    return len(numbers(log)) >= COUNT


def test_records_pass_from_a_source_to_a_sink(jars: Path, broker: LowtideProcess, tmp_path: Path) -> None:
    """Connect continues after a restart: no number is lost."""
    worker = properties(
        tmp_path / "worker.properties",
        bootstrap_servers=broker.bootstrap,
        key_converter=CONVERTER,
        value_converter=CONVERTER,
        offset_storage_file_filename=tmp_path / "offsets",
        offset_flush_interval_ms=200,
        listeners=f"http://127.0.0.1:{free_ports(1)[0]}",
        plugin_discovery="only_scan",
    )
    kinds = {"source": {"topic": "connected"}, "sink": {"topics": "connected"}}
    connectors = [
        properties(
            tmp_path / f"{kind}.properties",
            name=kind,
            connector_class=f"Numbers${kind.capitalize()}",
            tasks_max=1,
            **more,
        )
        for kind, more in kinds.items()
    ]
    JavaClient(jars, broker.bootstrap, classes := tmp_path / "classes")
    command = java(
        jars,
        "org.apache.kafka.connect.cli.ConnectStandalone",
        worker,
        *connectors,
        options=SHORT_LIVED,
        classes=str(classes),
    )
    read: list[int] = []
    for run in range(2):
        log = tmp_path / f"log-{run}"
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            until(partial(has_enough, log), log.read_text)
            process.terminate()
            assert process.wait(DEADLINE_S) in (0, 143), log.read_text()[-3000:]
        finally:
            process.kill()
            process.wait(DEADLINE_S)
        read += numbers(log)
    assert sorted(set(read)) == list(range(max(read) + 1))
    assert max(read) >= 2 * COUNT - 1
