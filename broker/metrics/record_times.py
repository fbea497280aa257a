"""When records were produced that groups have still to consume, for the lag in seconds.

The time is that of the first record of the batch that holds the offset, or of the append where topics have
`LogAppendTime`: read from the header of the batch, whose place the offset index gives. So it may be too early by as
long as a producer gathered a batch.

Guards: a scrape reads at most `READS_MAX` headers, and none that isn't in the page cache: such a one is read by a
worker, and is there at the next scrape. What was found is kept as long as a scrape asks for it, so a group that stands
still costs nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Final, TypeAlias

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, TIMESTAMP_TYPE_BIT, read_batch_header
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.worker import Worker
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import FileSlice, Log

READS_MAX: Final = 1_000
"""In one scrape: some twenty milliseconds, in slices."""

_Key: TypeAlias = tuple[TopicPartition, Offset]


class RecordTimes:
    """Remembers the times that the last scrape asked for. `begin` and `end` are called around each."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._known: dict[_Key, int] = {}
        self._asked: dict[_Key, int] = {}
        self._left = READS_MAX

    def begin(self) -> None:
        """A scrape begins."""
        self._asked, self._left = {}, READS_MAX

    def end(self) -> None:
        """A scrape has ended: what it didn't ask for is forgotten."""
        self._known = self._asked

    def of(self, log: Log, offset: Offset) -> int | None:
        """When the record at `offset`, or the first above it, was produced (milliseconds since 1970); None where that isn't known yet."""
        key = log.topic_partition, offset
        found = self._known.get(key)
        if found is None and self._left > 0:
            self._left -= 1
            found = self._read(log, key)
        if found is not None:
            self._asked[key] = found
        return found

    def _read(self, log: Log, key: _Key) -> int | None:
        header = bytearray(RECORD_BATCH_OVERHEAD)
        try:
            batch = log.read(key[1], 1, end_offset=log.high_watermark, seeks_records=True).slice
            if batch is None:
                return None
            if batch.file.preadv([header], batch.position, nowait=True) == len(header):
                return _time_of(header)
        except BlockingIOError:
            pass
        except (OSError, StorageError, ProtocolError):
            return None  # Those who serve it find out what is wrong.
        if batch is not None:
            self._worker.submit(partial(_read_header, batch), partial(self._on_read, key))
        return None

    def _on_read(self, key: _Key, outcome: int | BaseException) -> None:
        if isinstance(outcome, int):
            self._known[key] = outcome


def _read_header(batch: FileSlice) -> int:
    header = bytearray(RECORD_BATCH_OVERHEAD)
    batch.file.preadv([header], batch.position)
    return _time_of(header)


def _time_of(header: bytearray) -> int:
    found = read_batch_header(header)
    return found.max_timestamp if found.attributes & TIMESTAMP_TYPE_BIT else found.base_timestamp
