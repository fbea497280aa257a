"""A campaign with quick runs continues after a kill, keeps its folder small, and ends its processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.campaign import __main__ as campaign
from tests.campaign import machine
from tests.campaign.kinds import Command, Kind, Workplace
from tests.campaign.ledger import load
from tests.campaign.plan import Limits

WRITES = """
import json, os, pathlib, sys
seed, file = int(sys.argv[1]), pathlib.Path(sys.argv[2])
pathlib.Path(os.environ["TMPDIR"], "large").write_bytes(bytes(1000))
file.write_text(json.dumps({"faults": {"kill": seed}, "states": 0, "broken": [[seed, "bad", ""]] if seed == 3 else []}))
print("seed", seed)
"""

SLEEPS = """
import os, subprocess, sys, pathlib
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[2]).write_text(str(child.pid))
child.wait()
"""


def kind(program: str) -> Kind:
    def command(place: Workplace, first: int, _end: int) -> Command:
        return Command((sys.executable, "-c", program, str(first), str(place.simulated)), {}, "again {seed}")

    return Kind("quick", 1, 1, command)


def made(folder: Path, program: str = WRITES, **limits: int) -> campaign.Campaign:
    return campaign.Campaign(folder, [kind(program)], Limits(limits.get("floor_bytes", 0), runs=limits.get("runs", 2)))


def test_the_next_campaign_continues_where_the_last_one_ended(tmp_path: Path):
    assert made(tmp_path).go() == "2 runs are done"
    second = made(tmp_path)
    assert second.go() == "2 runs are done"
    entries = load(second.ledger)
    assert [(entry.first_seed, entry.end_seed) for entry in entries] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [entry.faults for entry in entries] == [{"kill": seed} for seed in range(4)]
    assert [violation.replay for entry in entries for violation in entry.violations] == ["again 3"]
    assert second.broken == 1


def test_two_runs_at_a_time_have_seeds_and_folders_of_their_own(tmp_path: Path):
    """Each run waits for a file that the other one writes: one at a time would never end."""
    meets = """
import json, os, pathlib, sys, time
seed, file = int(sys.argv[1]), pathlib.Path(sys.argv[2])
meeting = pathlib.Path(os.environ["MEETING"])
(meeting / str(seed)).touch()
while not (meeting / str(seed ^ 1)).exists():
    time.sleep(0.01)
file.write_text(json.dumps({"faults": {"kill": 1}, "states": 0, "broken": []}))
"""
    meeting = tmp_path / "meeting"
    meeting.mkdir()

    def command(place: Workplace, first: int, _end: int) -> Command:
        words = (sys.executable, "-c", meets, str(first), str(place.simulated))
        return Command(words, {"MEETING": str(meeting)}, "")

    one = campaign.Campaign(tmp_path / "campaign", [Kind("quick", 1, 1, command)], Limits(0, runs=4), processes=2)
    (tmp_path / "campaign").mkdir()
    assert one.go() == "4 runs are done"
    assert sorted(entry.first_seed for entry in load(one.ledger)) == [0, 1, 2, 3]
    assert machine.marked(tmp_path / "campaign") == []


def test_a_run_that_takes_too_long_is_ended_with_its_processes_and_adds_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(campaign, "RUN_LIMIT_S", 0.0)
    one = made(tmp_path, SLEEPS)
    assert one.go() == "quick 0: not done after 0 s"
    assert load(one.ledger) == []
    assert machine.marked(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_campaign_that_is_ended_leaves_nothing_running_in_the_end(tmp_path: Path, number: int):
    """Ctrl-C and SIGTERM end the run at once; after SIGKILL the next campaign does."""
    program = """
import pathlib, signal, sys
from tests.unit.campaign import test_campaign as tests
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.default_int_handler)
tests.made(pathlib.Path(sys.argv[1]), tests.SLEEPS).go()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=campaign.ROOT, stderr=subprocess.DEVNULL
    )
    try:
        started = tmp_path / "results/simulated.json"
        until(lambda: started.exists() and started.read_text() != "")
        until(
            lambda: int(started.read_text()) in machine.marked(tmp_path)
        )  # Its environment is there when it has been executed.
    finally:
        process.send_signal(number)
        process.wait(60)
    if number == signal.SIGKILL:
        assert machine.marked(tmp_path) != []
        made(tmp_path, runs=0).go()
    assert machine.marked(tmp_path) == []
    assert load(tmp_path / "ledger.jsonl") == []


AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="Linux shares no processor among sessions here")
def test_a_session_that_a_run_begins_steps_back_too():
    """A nice value alone counts within a session only."""
    program = """
import os, pathlib, subprocess, sys
from tests.campaign import machine
machine.step_back()
print(pathlib.Path("/proc/self/autogroup").read_text(), end="")
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
machine.set_session_back(child.pid)
print(pathlib.Path(f"/proc/{child.pid}/autogroup").read_text(), end="")
child.kill()
child.wait()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=campaign.ROOT, capture_output=True, text=True, check=True, start_new_session=True
    )
    assert [line.partition(" ")[2] for line in done.stdout.splitlines()] == ["nice 19", "nice 19"], done.stderr


def until(condition) -> None:
    """Polls the condition: another process fulfils it."""
    waiting = threading.Event()
    for _ in range(6000):
        if condition():
            return
        waiting.wait(0.01)
    pytest.fail("it never came")


def test_a_simulator_reports_the_faults(tmp_path: Path):
    """One seed of one broker, as the campaign runs it."""
    file = tmp_path / "simulated.json"
    command = [sys.executable, "-m", "tests.campaign.simulators", "one broker", "3", "4", str(file)]
    subprocess.run(command, cwd=campaign.ROOT, capture_output=True, check=True, timeout=300)
    found = json.loads(file.read_text())
    assert found["broken"] == []
    assert sum(found["faults"].values()) > 0
