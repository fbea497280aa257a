"""How `lowtide verify-deletes` is called: its options, its exit codes without a cluster, and the fault command."""

from __future__ import annotations

import json
import sys

import pytest

from lowtide.cli.app import run
from lowtide.cli.outcome import ExitCode
from lowtide.protocol.types import TopicPartition
from lowtide.verification.faults import FaultCommand
from lowtide.verification.operations import FOREIGN
from lowtide.verification.requests import serial_of, value_of


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--faults", ""], "--faults is empty"),
        (["--faults", "kill 'it"], "--faults: No closing quotation"),
        (["--minutes", "0"], "'--minutes'"),
        (["--partitions", "0"], "'--partitions'"),
        (["--output", "xml"], "'--output'"),
    ],
)
def test_invalid_options_are_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify-deletes", *words]) == ExitCode.MISUSED
    assert reason in capsys.readouterr().err


def test_an_unreachable_cluster_is_no_anomaly(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 must mean that a promise was broken."""
    words = ["verify-deletes", "-b", "127.0.0.1:1", "--timeout", "0.2", "--output", "json"]
    assert run(words) == ExitCode.UNREACHABLE
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == ExitCode.UNREACHABLE


SCRIPT = "import os, sys; sys.exit(int(sys.argv[1]) * 10 + int(os.environ['VERIFY_DELETES_ROUND']))"


async def test_the_fault_command_gets_the_number_of_the_round() -> None:
    assert await FaultCommand([sys.executable, "-c", SCRIPT], 30).run(3) == (33, "")


async def test_a_fault_command_that_takes_too_long_is_killed() -> None:
    exit_code, error = await FaultCommand([sys.executable, "-c", "import time; time.sleep(60)"], 0.2).run(1)
    assert exit_code is None
    assert error == "it was killed after 0.2 s"


async def test_a_fault_command_that_is_not_there() -> None:
    exit_code, error = await FaultCommand(["/nowhere/kill-brokers"], 5).run(1)
    assert exit_code is None
    assert error == "it could not be started: No such file or directory"


def test_a_value_is_known_only_whole_and_in_its_partition() -> None:
    here, there = TopicPartition("t", 0), TopicPartition("t", 1)
    value = value_of(here, 7)
    assert serial_of(here, value, sent=8) == 7
    assert serial_of(here, value, sent=7) == FOREIGN
    assert serial_of(there, value, sent=8) == FOREIGN
    assert serial_of(here, value[:-1], sent=8) == FOREIGN
    assert serial_of(here, None, sent=8) == FOREIGN
