"""Fixtures of unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from lowtide.protocol import native

# How long an example takes says something about the machine, and nothing about what is tested.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(params=["plain", "compiled"], scope="module")
def walk_form(request: pytest.FixtureRequest) -> Iterator[str]:
    """A module that uses it runs in both forms of the walk over record batches, where the compiled one was built."""
    compiled = native.compiled
    if compiled is None and request.param == "compiled":
        pytest.skip("the compiled form wasn't built")
    if request.param == "plain":
        native.compiled = None  # type: ignore[misc]
    yield request.param
    native.compiled = compiled  # type: ignore[misc]
