"""The keys of records that a search has found, so that other versions of the same keys can be found. Pure.

Keys are personal data: they are never part of a log line, an error or a `repr`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Final

from lowtide.protocol.compression import Buffer
from lowtide.protocol.record_keys import find_keys
from lowtide.protocol.records import BatchHeader
from lowtide.protocol.types import Offset, ProducerId
from lowtide.storage.erasures.record_search import KEY_BYTES_MAX, KEYS_MAX

NO_PRODUCER: Final = -1
"""Of a record outside of transactions."""


class FoundKeys:
    """For each found record its key, or None, and its producer id if it is part of a transaction."""

    def __init__(
        self, keys: Sequence[bytes | None] = (), numbers: Sequence[int] = (), producer_ids: Sequence[int] = ()
    ) -> None:
        """`numbers` are the places in `keys`, which are all different; one for each record, as of `producer_ids`."""
        self.keys = list(keys)
        self.numbers = array("i", numbers)
        self.producer_ids = array("q", producer_ids)
        self._places = {key: place for place, key in enumerate(self.keys)}
        self._bytes = sum(len(key or b"") for key in self.keys)

    @property
    def are_too_many(self) -> bool:
        """Whether no selector may have so many keys."""
        return len(self.keys) > KEYS_MAX + (None in self._places) or self._bytes > KEY_BYTES_MAX

    def add(self, key: bytes | None, producer_id: int) -> None:
        place = self._places.setdefault(key, len(self.keys))
        if place == len(self.keys):
            self.keys.append(key)
            self._bytes += len(key or b"")
        self.numbers.append(place)
        self.producer_ids.append(producer_id)

    def add_batch(self, header: BatchHeader, records: Buffer, offsets: Sequence[Offset]) -> None:
        """Adds some of the uncompressed `records` of a batch. Errors: ProtocolError."""
        payload = bytes(records)
        found = find_keys(payload, 0, len(payload), header.record_count)
        keyless = set(found.keyless)
        numbers = {header.base_offset + delta: number for number, delta in enumerate(found.deltas)}
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        for number in (numbers[offset] for offset in offsets):
            self.add(None if number in keyless else found.keys[number], producer_id)

    def each(self) -> Iterator[tuple[bytes | None, ProducerId]]:
        """Returns key and producer id of each record."""
        columns = zip(self.numbers, self.producer_ids, strict=True)
        return starmap(lambda number, producer_id: (self.keys[number], ProducerId(producer_id)), columns)
