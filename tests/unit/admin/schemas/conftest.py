"""A schema registry for each test."""

from __future__ import annotations

import pytest


@pytest.fixture
def registry():
    from .registry_server import schema_registry

    with schema_registry() as served:
        yield served
