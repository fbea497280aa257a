"""The collector of cycles passes over what stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from lowtide.runtime.long_lived import MADE_PER_FREEZE, LongLived


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


def test_what_was_made_is_passed_over_each_time_it_is_much() -> None:
    long_lived = LongLived()
    kept: list[list[int]] = []
    for _ in range(2):
        for _ in range(MADE_PER_FREEZE - 1):
            kept.append([])
            long_lived.note_made()
        assert any(container is kept[-1] for container in gc.get_objects())
        long_lived.note_made()
        assert not any(container is kept[-1] for container in gc.get_objects()), "frozen objects aren't among those"


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
