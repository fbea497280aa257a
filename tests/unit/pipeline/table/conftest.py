"""A catalog for each test. Without PyIceberg nothing of the folder runs, except in CI, which has it."""

from __future__ import annotations

import importlib.util
import os

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("pyiceberg") is not None or os.environ.get("CI") else ["test_*.py"]


@pytest.fixture
def catalog(tmp_path):
    from .tables import sqlite_catalog

    with sqlite_catalog(tmp_path) as made:
        yield made


@pytest.fixture
def table(catalog):
    from .tables import new_table

    return new_table(catalog)
