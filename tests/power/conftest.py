"""Runs only on request by its marker (`make power-cuts`), for it mounts file systems."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that were not requested."""
    if "power" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("power"):
            item.add_marker(pytest.mark.skip(reason="mounts file systems, as root: run `make power-cuts`"))
