"""For the whole suite: what `make test` and CI leave to `make test-all`, which files come first, how far a run is, and when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from . import left_open, taste
from .campaign import struck
from .own_process import Run, own_process
from .suite import state, until


def pytest_configure(config: pytest.Config) -> None:
    # Brokers that tests start as processes listen on no fixed port.
    os.environ.setdefault("LOWTIDE_HTTP_LISTENERS", "")
    state.register(config)
    until.register(config)
    left_open.abort_those_of_aiokafka()
    left_open.close_those_of_kafka_python()


def pytest_itemcollected(item: pytest.Item) -> None:
    if taste.is_longest(item.nodeid):
        item.add_marker(pytest.mark.longest)
    if taste.is_full(item.nodeid) or item.get_closest_marker("longest") is not None:
        item.add_marker(pytest.mark.full)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After pytest-randomly. The sort is stable: within a file, and among short files, the order stays random."""
    items.sort(key=lambda item: -taste.seconds(item.nodeid))


def pytest_sessionfinish() -> None:
    struck.write()


@pytest.fixture(scope="module")
def in_own_process() -> Iterator[Run]:
    """For all measurements of a module: see `own_process`."""
    with own_process() as run:
        yield run
