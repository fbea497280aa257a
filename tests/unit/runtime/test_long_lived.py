"""The collector of cycles skips long-lived objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest

from lowtide.runtime.long_lived import KEPT_MIN, LongLived, pause_for_imports, resume_after_imports


class Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    before = gc.get_freeze_count()
    yield
    if not before:
        gc.unfreeze()


@pytest.fixture
def long_lived() -> Iterator[LongLived]:
    thresholds = gc.get_threshold()
    gc.freeze()  # What the tests have made.
    gc.collect()  # The next full one comes when a quarter of what this one has left is new.
    made = LongLived()
    made.watch()
    yield made
    gc.callbacks.remove(made._on_collected)
    gc.set_threshold(*thresholds)


class Collections:
    """How many objects the longest full collection has left."""

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, phase: str, collection: dict[str, Any]) -> None:
        if phase == "stop" and collection["generation"] == 2:
            self.longest = max(self.longest, len(gc.get_objects(2)))


@pytest.mark.usefixtures("long_lived")
def test_no_collection_goes_through_all_that_has_come_to_stay() -> None:
    collections = Collections()
    gc.callbacks.insert(0, collections)
    try:
        kept: list[list[int]] = [[] for _ in range(40 * KEPT_MIN)]
    finally:
        gc.callbacks.remove(collections)
    assert 0 < collections.longest < 10 * KEPT_MIN < len(kept) / 3
    assert not any(container is kept[0] for container in gc.get_objects()), "gc.get_objects has no frozen objects"


@pytest.mark.usefixtures("long_lived")
def test_few_objects_are_not_passed_over() -> None:
    kept: list[int] = []
    gc.collect()
    assert any(container is kept for container in gc.get_objects())


def test_garbage_is_collected_before_and_after() -> None:
    long_lived = LongLived()
    node = Node()
    before = ref(node)
    del node
    long_lived.freeze()
    assert before() is None
    node = Node()
    after = ref(node)
    del node
    gc.collect()
    assert after() is None


def test_modules_are_imported_without_the_collector_and_skipped_by_it_later() -> None:
    """A start imports hundreds of modules, and none of what they hold is garbage."""
    kept: list[int] = []
    pause_for_imports()
    try:
        assert not gc.isenabled()
    finally:
        resume_after_imports()
    assert gc.isenabled()
    assert not any(container is kept for container in gc.get_objects())
