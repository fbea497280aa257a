"""Timestamps of the first unconsumed records, for the lag in seconds.

The timestamp is that of the first record in the batch, or of the append with `LogAppendTime`; it is read from the batch
header, which the offset index locates. So it is too early by at most the producer's linger time.

Guards: a scrape reads at most `READS_MAX` headers from the page cache; a worker reads the others for the next scrape.
Results are kept while scrapes use them, so an idle group costs nothing.
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
"""The maximum number of reads per scrape: about twenty milliseconds, in slices."""

_Key: TypeAlias = tuple[TopicPartition, Offset]


class ProducedTimes:
    """The timestamps of the last scrape. Call `begin` and `end` around each."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._known: dict[_Key, int] = {}
        self._asked: dict[_Key, int] = {}
        self._left = READS_MAX

    def begin(self) -> None:
        self._asked, self._left = {}, READS_MAX

    def end(self) -> None:
        """Ends a scrape: unused timestamps are dropped."""
        self._known = self._asked

    def of(self, log: Log, offset: Offset) -> int | None:
        """Returns the timestamp of the record at `offset` or above (milliseconds since 1970); None if not known yet."""
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
            return None  # Requests report the error.
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
