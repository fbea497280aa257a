"""Spark's workers collect garbage after each task: what was imported is left out of that, once for each process."""

from __future__ import annotations

import gc

import pytest

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline import batch_reader
from lowtide.pipeline.ranges import ReadRange
from lowtide.pipeline.tasks import FetchSettings, PlannedRange
from lowtide.protocol.types import TopicPartition


@pytest.fixture
def frozen(monkeypatch):
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    batch_reader.exempt_imports_from_collection.cache_clear()
    yield calls
    batch_reader.exempt_imports_from_collection.cache_clear()


def test_the_first_task_of_a_worker_leaves_imports_out_of_garbage_collection(frozen):
    client = ClientSettings.of({"bootstrap.servers": "127.0.0.1:9"})
    nothing = batch_reader.RangePartition(PlannedRange(ReadRange(TopicPartition("t", 0), 5, 5)))
    for _ in range(2):
        assert list(batch_reader.read_range(client, FetchSettings(), nothing)) == []
    assert frozen == ["freeze"]


def test_a_task_without_anything_to_read_changes_nothing(frozen):
    assert (
        list(batch_reader.read_range(ClientSettings.of({"bootstrap.servers": "127.0.0.1:9"}), FetchSettings(), None))
        == []
    )
    assert frozen == []
