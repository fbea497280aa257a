"""A schema registry for each test. Without the packages of the extra `table` nothing here runs, except in CI."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

_HAS_ALL = all(find_spec(name) is not None for name in ("pyiceberg", "pyarrow", "fastavro", "grpc_tools"))

collect_ignore_glob = [] if _HAS_ALL or os.environ.get("CI") else ["test_*.py"]


@pytest.fixture
def registry():
    from tests.unit.admin.schemas.registry_server import schema_registry

    with schema_registry() as served:
        yield served
