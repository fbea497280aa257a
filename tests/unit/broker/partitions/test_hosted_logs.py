"""Logs that cannot be created: one log line for each directory, whatever the number of partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.partitions.hosted_logs import HostedLogs, OfflinePartitions
from lowtide.protocol.types import TopicPartition
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import LogConfig

TOPIC_ID = b"T" * 16


class Disks:
    """The part of the log manager that fails."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Any] = {}
        self.directories = SimpleNamespace(paths=("/a", "/b", "/bb"))
        self.failing = {"/a": "/a", "/bb": "/bb/t-1/00000000000000000000.log"}

    def create_log(self, key: TopicPartition, _topic_id: bytes, _config: LogConfig, *, with_files: bool) -> Any:
        assert with_files, "one of several replicas"
        directory = self.directories.paths[key.partition % 3]
        if directory in self.failing:
            raise StorageError(self.failing[directory], "it has failed")
        return self.logs.setdefault(key, SimpleNamespace(topic_id=TOPIC_ID, offline=False))


def test_one_line_for_each_directory_that_fails() -> None:
    lines: list[dict[str, Any]] = []
    disks = Disks()
    log = SimpleNamespace(error=lambda event, **what: lines.append({"event": event, **what}))
    offline = OfflinePartitions()
    hosted = HostedLogs(disks, offline, log, on_free=lambda _names: None, has_to_go=lambda *_: True)
    keys = [TopicPartition("t", number) for number in range(3000)]

    def ask_for_all() -> None:
        for key in keys:
            hosted.open(key, TOPIC_ID, LogConfig(), is_alone=False)
        hosted.tell_failed()

    ask_for_all()
    expected = [("/a", "/a", 0), ("/bb", disks.failing["/bb"], 2)]
    assert lines == [
        {
            "event": "logs could not be created",
            "directory": directory,
            "partitions": 1000,
            "some_partitions": [f"t-{first + 3 * number}" for number in range(5)],
            "error": f"{path}: it has failed",
        }
        for directory, path, first in expected
    ]
    assert offline.keys == frozenset(key for key in keys if key.partition % 3 != 1)
    assert isinstance(offline.keys, frozenset)
    ask_for_all()
    assert len(lines) == 2, "a known failure is not logged again"
    disks.failing.clear()
    ask_for_all()
    assert offline.keys == frozenset()
    assert len(lines) == 2
