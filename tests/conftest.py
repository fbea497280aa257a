"""For all tests: how pytest-xdist shares files, the order of files, and the time after which no test begins."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import left_open
from .campaign import struck
from .own_process import Run, own_process

HERE = Path(__file__).parent

UNTIL_S = float(os.environ.get("TEST_UNTIL", "inf"))
"""Seconds since 1970. CI sets it, so that it ends in time on a machine of any speed."""

FIRST = ("pipeline", "sim")
"""The folders of tests/ with the longest files. A long one at the end would leave other workers idle."""

WAITING = ("chaos", "clients")
"""Those whose files wait for other processes. Workers that all wait at once would leave the cores idle."""

WAITING_UNTIL = 0.8
"""Files that wait are spread among the others, up to this part of them."""


def pytest_configure() -> None:
    # Brokers that tests start as processes listen on no fixed port.
    os.environ.setdefault("LOWTIDE_HTTP_LISTENERS", "")
    left_open.abort_those_of_aiokafka()
    left_open.close_those_of_kafka_python()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist=loadfile` a worker gets a file at a time, and one all of tests/pipeline, which share a Spark."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # its package has no types
        def _split_scope(self, nodeid: str) -> str:
            return "tests/pipeline" if nodeid.startswith("tests/pipeline/") else nodeid.partition("::")[0]

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pauses the collector of cycles while tests are collected, and lets it skip what they leave.

    That is twenty thousand items and all modules, of which nothing is garbage. Each full collection of a test would
    search them again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("slowest") is not None:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the files, after pytest-randomly. Otherwise the order stays random."""
    folders = {path: path.relative_to(HERE).parts[0] for path in dict.fromkeys(item.path for item in items)}
    waiting = [path for path, folder in folders.items() if folder in WAITING]
    others = [path for path in folders if path not in waiting]
    others.sort(key=lambda path: FIRST.index(folders[path]) if folders[path] in FIRST else len(FIRST))
    places = {path: place / len(others) for place, path in enumerate(others)}
    places |= {path: WAITING_UNTIL * place / len(waiting) for place, path in enumerate(waiting)}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() >= UNTIL_S:
        pytest.skip("the time for this run was up")


def pytest_sessionfinish() -> None:
    struck.write()


@pytest.fixture(scope="module")
def in_own_process() -> Iterator[Run]:
    """For all measurements of a module: see `own_process`."""
    with own_process() as run:
        yield run
