"""The end of a move: no producer is answered by what a power cut may leave in a folder with the earlier name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.storage.directory.log_move import LogMove
from lowtide.storage.log.offsets import LogOffsets
from lowtide.storage.log.producers.open_transactions import OpenTransactions

KEY = TopicPartition("t", 0)


class Source(LogOffsets):
    """The log that is moved, and its copy: neither knows a producer."""

    topic_partition = KEY
    directory = "/b/t-0.x-future"
    files = SimpleNamespace(relocate=lambda _folder: None)
    producer_state = SimpleNamespace(transactions=OpenTransactions(), producers={})
    erasures = swaps = SimpleNamespace(take_over=lambda _source: None)


def offsets(recovery_point: int) -> Any:
    return Source(log_start_offset=0, log_end_offset=10, high_watermark=10, recovery_point=recovery_point)


def test_records_that_wait_for_the_disk_wait_for_the_name_of_the_copy() -> None:
    """A producer with `flush.messages=1` waits for offset 9, which the copy has synced and its source has not."""
    seen: list[Any] = []
    source, future = offsets(9), offsets(10)
    committer = SimpleNamespace(submit=lambda barrier, _on_done: seen.append(barrier))
    target = SimpleNamespace(
        path="/b",
        partitions=SimpleNamespace(futures={KEY: future}),
        flush=lambda log: seen.append((log, log.recovery_point)),
    )
    place: Any = SimpleNamespace(
        target=SimpleNamespace(filesystem=SimpleNamespace(rename=lambda *_: None), committer=committer),
        on_named=lambda *_: None,
        on_moved=lambda _move, log: seen.append(log.recovery_point),
    )
    LogMove(source, target, place, future=future)._swap(future)
    # The name, then the flush, which the committer answers after it. What looks at the log meanwhile sees what the
    # source had.
    assert seen == [Barrier(directories=("/b",)), (future, 9), 9]
