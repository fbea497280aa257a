"""Pages are followed literally: their commands and programs in order, which print what the pages say.

Each page has brokers of its own and an empty folder (`page_trials.py`). Commands that can't be run here are in
docs/lab/pages-tried.md, with reasons.
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
from pathlib import Path
from typing import TypeVar

import pytest

from lowtide import LowtideCluster
from tests.free_ports import free_ports
from tests.pages import ROOT, Step, pages, reasons, steps

from .command_lines import environment
from .page_trials import TRIALS, Trial

T = TypeVar("T")
LIMIT_S = 120
READY = {
    "etcd ": "ready to serve client requests",
    "lowtide console --": "The console is at ",
    "lowtide dev": "bootstrap.servers=",
    "lowtide serve": '"ready"',
}
"""Commands that run until they are stopped, and what they have printed when they serve."""

THREE = "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"


class Reader:
    """Copies from a page into a shell, in a folder of its own."""

    def __init__(self, trial: Trial, cluster: LowtideCluster | None, folder: Path, stack: ExitStack) -> None:
        self.trial, self.folder, self.stack = trial, folder / "work", stack
        self.folder.mkdir()
        address = None if cluster is None else cluster.bootstrap
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ports = dict(zip(("PORT", "PORT_2", "PORT_3"), map(str, free_ports(3)), strict=True))
        given = {name: value.replace("$PORT", ports["PORT"]) for name, value in trial.environment.items()}
        ours = {"PATH": path, "DATA": str(folder / "data"), "PAGES": str(ROOT / "docs"), **ports}
        self.environment = {**environment(address), **given, **ours}
        self.replaced = [*trial.replaced, (".venv/bin/", "")]
        if cluster is not None:
            self.replaced += [(name, cluster.bootstrap) for name in (THREE, "127.0.0.1:9092", "localhost:9092")]
            if "http.listeners" in trial.config:
                [http] = cluster.http_addresses(cluster.broker_ids[0])
                self.replaced.append(("http://127.0.0.1:9644", http.rstrip("/")))
        self.servers: list[tuple[str, subprocess.Popen[bytes], Path]] = []

    def follow(self, step: Step) -> None:
        """Runs a command or program to its end and checks what it prints; starts a server."""
        text = step.text
        for old, new in self.replaced:
            text = text.replace(old, new)
        if text.startswith(tuple(READY)):
            self.start(step, text)
            return
        if step.name.startswith(self.trial.stopped_for):
            for server in self.servers:
                if server[0].startswith("lowtide"):
                    stop(*server)
        done = subprocess.run(
            self.command(step, text),
            cwd=self.folder,
            env=self.environment,
            input=step.typed or of(step, self.trial.typed, ""),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        code = of(step, self.trial.codes, 0)
        assert done.returncode == code, f"{text}\n{done.stdout}\n{done.stderr}"
        if step.printed and not step.name.startswith(self.trial.unlike):
            assert_printed(done.stdout, done.stderr, step.printed, text)

    def command(self, step: Step, text: str) -> list[str]:
        """Returns the command of a step. Python code with tests is run by pytest, and stays for the next ones."""
        if not step.name.startswith("program"):
            return ["bash", "-c", text]
        if "pytest.fixture" in text:
            (self.folder / "conftest.py").write_text(text, encoding="utf-8")
            text = "def test_nothing():\n    pass\n"
        if "def test_" not in text:
            return [sys.executable, "-c", text]
        name = f"test_{step.name.replace(' ', '_')}.py"
        (self.folder / name).write_text(text, encoding="utf-8")
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(self.folder), name]

    def start(self, step: Step, text: str) -> None:
        """Starts a server, and waits until it serves. It is stopped at the end of the page."""
        said = self.folder / f"server-{len(self.servers)}.txt"
        with said.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {text}"], cwd=self.folder, env=self.environment, stdout=output, stderr=output
            )
        self.servers.append((text, process, said))
        self.stack.callback(stop, text, process, said)
        until = time.monotonic() + LIMIT_S
        [ready] = (ready for beginning, ready in READY.items() if text.startswith(beginning))
        while ready not in said.read_text(encoding="utf-8"):
            assert process.poll() is None, f"{text}\n{said.read_text(encoding='utf-8')}"
            assert time.monotonic() < until, text
            time.sleep(0.05)
        if step.printed:
            [line] = (line for line in said.read_text(encoding="utf-8").splitlines() if ready in line)
            assert_printed(line, "", step.printed[:1], text)


def stop(text: str, process: subprocess.Popen[bytes], said: Path) -> None:
    """Stops a server. Those of `lowtide` stop in order; etcd dies by the signal."""
    process.send_signal(signal.SIGTERM)
    code = process.wait(LIMIT_S)
    assert code == 0 or not text.startswith("lowtide"), said.read_text(encoding="utf-8")


def of(step: Step, values: Mapping[str, T], default: T) -> T:
    """Returns the value for commands that begin like this one."""
    return next((value for beginning, value in values.items() if step.name.startswith(beginning)), default)


def masked(text: str) -> str:
    """Returns a text without what is another value each time, and with columns two spaces apart."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "MOMENT", text)
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID", text)
    text = re.sub(r"--nonce \S+", "--nonce NONCE", text)
    text = re.sub(r"\bid [\w-]{22}\b", "id ID", text)
    text = re.sub(r"\bcoordinator \d+", "coordinator BROKER", text)
    text = re.sub(r"\b(127\.0\.0\.1|localhost):\d+", r"\1:PORT", text)
    if "bytes, about" in text:
        text = re.sub(r"^(\w+ .*?) +\d+$", r"\1 SIZE", text, flags=re.MULTILINE)
        text = re.sub(r"\babout [\d.]+ kB", "about SIZE", text)
    if "leader  epoch  replicas" in text:
        text = re.sub(r"^( +\d) .*", r"\1 REPLICAS", text, flags=re.MULTILINE)
    return "\n".join(re.sub(r"  +", "  ", line).strip() for line in text.rstrip().splitlines())


def assert_printed(out: str, err: str, shown: tuple[str, ...], text: str) -> None:
    """A page shows the standard output, or errors and remarks below it. `…` in a line stands for any text."""
    pattern = re.compile(re.escape(masked("\n".join(shown))).replace("…", ".*"))
    said = f"{text}\nprints\n{out}{err}\nthe page says\n" + "\n".join(shown)
    assert pattern.fullmatch(masked(out)) or pattern.fullmatch(masked(out + err)), said


@contextmanager
def reader(trial: Trial, folder: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        cluster = None
        if trial.brokers:
            cluster = LowtideCluster(trial.brokers, config=trial.config, data_directory=folder / "data")
            stack.enter_context(cluster)
        yield Reader(trial, cluster, folder, stack)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * trial.slow) for page, trial in TRIALS.items()]
)
def test_a_page_can_be_followed(page: str, tmp_path: Path):
    """Each command and program does what the page says, for a reader who copies it."""
    trial, listed = TRIALS[page], reasons()
    for program in trial.programs:
        if shutil.which(program) is None and not os.environ.get("CI"):
            pytest.skip(f"{program} is not installed")
    with reader(trial, tmp_path) as somebody:
        for line in trial.before:
            somebody.follow(Step(page, line, line, "", ()))
        for step in steps(page, pages()[page]):
            if not any(reason.covers(step) for reason in listed):
                somebody.follow(step)


def test_each_command_is_run_or_has_a_reason():
    """A page without a trial has reasons for all of its commands, and each reason is that of a command."""
    listed = reasons()
    every = [step for page, text in pages().items() for step in steps(page, text)]
    assert set(TRIALS) <= {step.page for step in every}
    assert [
        (step.page, step.name)
        for step in every
        if step.page not in TRIALS and not any(reason.covers(step) for reason in listed)
    ] == []
    assert [reason for reason in listed if not any(reason.covers(step) for step in every)] == []
    assert all(reason.reason for reason in listed)
