"""Fixtures of unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from lowtide.protocol import native
from tests.examples import examples

from . import working_tree as working_tree  # noqa: PLC0414 - modules of `bench` can be imported from then on

# How long an example takes says something about the machine, and nothing about what is tested.
settings.register_profile("any machine", deadline=None, max_examples=examples(100))
settings.load_profile("any machine")


@pytest.fixture(params=["plain", "compiled"], scope="module")
def walk_form(request: pytest.FixtureRequest) -> Iterator[str]:
    """A module that uses it runs in both forms of the walk over record batches, if the compiled one is built."""
    compiled = native.compiled
    if compiled is None and request.param == "compiled":
        pytest.skip("the compiled form wasn't built")
    if request.param == "plain":
        native.compiled = None  # type: ignore[misc]
    yield request.param
    native.compiled = compiled  # type: ignore[misc]
