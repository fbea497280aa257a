"""A pytest plugin: keep the progress of this process in the file that `TEST_STATE` names, for the program that runs several lanes.

With workers (pytest-xdist) the process that distributes the tests keeps the file; workers only report the number of deselected tests.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from .report import LaneState, kind_of

VARIABLE = "TEST_STATE"
WRITE_EVERY_S = 0.5


CAUSE_LINES, CAUSE_CHARACTERS = 8, 1000
"""Kept of the message of a failure: pytest shows values item by item."""


def cause_of(report: pytest.TestReport) -> str:
    """Where a test failed and the message of its exception, cut."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return "\n".join(str(report.longrepr).splitlines()[-CAUSE_LINES:])[-CAUSE_CHARACTERS:]
    message = "\n".join(crash.message.splitlines()[:CAUSE_LINES])
    return f"{Path(crash.path).name}:{crash.lineno}: {message[:CAUSE_CHARACTERS]}"


class StateKeeper:
    """Registered by `tests/conftest.py` if the variable is set."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = LaneState()
        self._outcomes: dict[str, str] = {}
        self._written_s = 0.0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        left = Counter(kind_of(item.nodeid) for item in items)
        self._state.left = dict(Counter(self._state.left) + left)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._state.total = len(session.items)
            self._write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._state.total = len(ids)
        self._write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        self._state.left = getattr(node, "workeroutput", {}).get("left", self._state.left)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._state.running[nodeid] = time.monotonic()
        self._write(at_most_every_s=WRITE_EVERY_S)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = kind_of(report.nodeid)
        self._state.seconds[kind] = self._state.seconds.get(kind, 0.0) + report.duration
        if report.failed:
            if self._outcomes.get(report.nodeid) != "failed":
                self._state.failed.append(report.nodeid)
                self._state.causes[report.nodeid] = cause_of(report)
            self._outcomes[report.nodeid] = "failed"
        elif report.skipped:
            reason = (
                report.longrepr[2]
                if isinstance(report.longrepr, tuple)
                else str(getattr(report, "wasxfail", "expected to fail"))
            )
            self._state.skipped[reason] = self._state.skipped.get(reason, 0) + 1
            self._outcomes[report.nodeid] = "skipped"
        else:
            self._outcomes.setdefault(report.nodeid, "passed")
        self._write(at_most_every_s=WRITE_EVERY_S)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._state.running.pop(nodeid, None)
        self._state.done += 1
        outcome, counts = self._outcomes.pop(nodeid, "passed"), self._state.outcomes.setdefault(kind_of(nodeid), {})
        counts[outcome] = counts.get(outcome, 0) + 1
        self._write(at_most_every_s=WRITE_EVERY_S)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._state.running.clear()
        self._write()

    def _write(self, *, at_most_every_s: float = 0.0) -> None:
        now_s = time.monotonic()
        if now_s - self._written_s >= at_most_every_s:
            self._written_s = now_s
            beside = self._path.with_suffix(".new")
            beside.write_bytes(msgspec.json.encode(self._state))
            beside.replace(self._path)


class LeftOut:
    """Registered in workers: the tests that the marker expression deselected, for the process that keeps the file."""

    def __init__(self, output: dict[str, Any]) -> None:
        self._output = output

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        left = Counter(kind_of(item.nodeid) for item in items)
        self._output["left"] = dict(Counter(self._output.get("left", {})) + left)


def register(config: pytest.Config) -> None:
    """Errors: none; without the variable no file is kept."""
    worker_output = getattr(config, "workeroutput", None)
    if worker_output is not None:
        config.pluginmanager.register(LeftOut(worker_output), "lowtide-left-out")
    elif VARIABLE in os.environ:
        config.pluginmanager.register(StateKeeper(Path(os.environ[VARIABLE])), "lowtide-state")
