"""For the whole suite: which tests `make test` leaves to `make test-all`, long files first where workers share them, how far a run is."""

from __future__ import annotations

import pytest

from . import taste
from .campaign import struck
from .suite import state


def pytest_configure(config: pytest.Config) -> None:
    state.register(config)


def pytest_itemcollected(item: pytest.Item) -> None:
    if taste.is_full(item.nodeid):
        item.add_marker(pytest.mark.full)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After pytest-randomly. The sort is stable: within a file, and among short files, the order stays random."""
    items.sort(key=lambda item: -taste.seconds(item.nodeid))


def pytest_sessionfinish() -> None:
    struck.write()
