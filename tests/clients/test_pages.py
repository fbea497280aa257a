"""Pages are followed literally: their commands and programs in order, which print what the pages say.

Each page has brokers of its own and an empty folder. `TRIALS` says what a page assumes: brokers, topics and records,
and what stands for addresses and paths. Commands that can't be run here are in docs/lab/pages-tried.md, with reasons.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lowtide import LowtideCluster
from tests.pages import Step, pages, reasons, steps

from .command_lines import environment

LIMIT_S = 120
SERVERS = ("lowtide console --", "lowtide dev", "lowtide serve")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a page assumes that its reader has.

    `before` is run by the shell first. `replaced` are pairs of a text of the page, in its commands and programs, and
    the text that stands for it here. The output of commands that begin with one of `unlike` differs each time, or
    is of other data: only the exit code is checked.
    """

    brokers: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False
    before: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    unlike: tuple[str, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    slow: bool = True


TRIALS: dict[str, Trial] = {}


class Reader:
    """Somebody who copies from a page, in a folder of its own."""

    def __init__(self, trial: Trial, cluster: LowtideCluster, folder: Path, stack: ExitStack) -> None:
        self.trial, self.folder, self.stack = trial, folder, stack
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**environment(cluster.bootstrap), "PATH": path}
        self.replaced = (
            *trial.replaced,
            ("127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094", cluster.bootstrap),
            ("127.0.0.1:9092", cluster.bootstrap),
            ("localhost:9092", cluster.bootstrap),
            (".venv/bin/", ""),
        )

    def here(self, text: str) -> str:
        for old, new in self.replaced:
            text = text.replace(old, new)
        return text

    def follow(self, step: Step) -> None:
        text = self.here(step.text)
        if text.startswith(SERVERS):
            self.start(step, text)
            return
        command = [sys.executable, "-c", text] if step.name.startswith("program") else ["bash", "-c", text]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            input=step.typed,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        code = next((code for beginning, code in self.trial.codes.items() if step.name.startswith(beginning)), 0)
        assert done.returncode == code, f"{text}\n{done.stdout}\n{done.stderr}"
        if step.printed and not step.name.startswith(self.trial.unlike):
            assert_printed(done.stdout, step.printed, text)

    def start(self, step: Step, text: str) -> None:
        """Starts a server and waits for its first line; it stops in order at the end of the page."""
        output = self.stack.enter_context((self.folder / "server.out").open("w+"))
        process = subprocess.Popen(
            ["bash", "-c", f"exec {text}"], cwd=self.folder, env=self.environment, stdout=output, stderr=output
        )
        self.stack.callback(stop, process)
        for _ in range(LIMIT_S * 10):
            said = (self.folder / "server.out").read_text()
            if "\n" in said:
                break
            assert process.poll() is None, f"{text}\n{said}"
            time.sleep(0.1)
        if step.printed:
            assert_printed(said.partition("\n")[0], step.printed[:1], text)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


def masked(line: str) -> str:
    """Returns a line without what is another value each time, and with single spaces."""
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "MOMENT", line)
    line = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID", line)
    line = re.sub(r"\bid [\w-]{22}\b", "id ID", line)
    line = re.sub(r"\babout [\d.]+ kB", "about SIZE", line)
    line = re.sub(r"\bcoordinator \d+", "coordinator BROKER", line)
    line = re.sub(r"\b(127\.0\.0\.1|localhost):\d+", r"\1:PORT", line)
    return re.sub(r"  +", "  ", line).strip()


def assert_printed(output: str, shown: tuple[str, ...], text: str) -> None:
    """`...` in a line of the page stands for any text; alone on a line, for any lines."""
    pattern = "\n".join(
        r"(?:.*\n?)*" if line == "..." else re.escape(masked(line)).replace("…", ".*") for line in shown
    )
    said = "\n".join(masked(line) for line in output.rstrip().splitlines())
    assert re.fullmatch(pattern, said), f"{text}\nprints\n{said}\nthe page says\n" + "\n".join(map(masked, shown))


@contextmanager
def reader(trial: Trial, folder: Path) -> Iterator[Reader]:
    with LowtideCluster(
        brokers=trial.brokers, config=trial.config, secure=trial.secure, data_directory=folder / "data"
    ) as cluster, ExitStack() as stack:
        work = folder / "work"
        work.mkdir()
        yield Reader(trial, cluster, work, stack)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] if trial.slow else []) for page, trial in TRIALS.items()]
)
def test_a_page_can_be_followed(page: str, tmp_path: Path):
    """A reader who copies each command gets what the page says."""
    if shutil.which("kcat") is None and not os.environ.get("CI"):
        pytest.skip("kcat is not installed")
    trial, listed = TRIALS[page], reasons()
    with reader(trial, tmp_path) as somebody:
        for line in trial.before:
            somebody.follow(Step(page, line, line, "", ()))
        for step in steps(page, pages()[page]):
            if not any(reason.covers(step) for reason in listed):
                somebody.follow(step)


def test_each_command_is_run_or_has_a_reason():
    """A page without a trial has reasons for all of its commands, and each reason is for a command."""
    listed = reasons()
    every = [step for page, text in pages().items() for step in steps(page, text)]
    assert [
        (step.page, step.name)
        for step in every
        if step.page not in TRIALS and not any(reason.covers(step) for reason in listed)
    ] == []
    assert [reason for reason in listed if not any(reason.covers(step) for step in every)] == []
    assert set(TRIALS) <= {step.page for step in every}
