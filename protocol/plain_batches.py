"""Builds the batches that a broker writes itself: one timestamp, no compression, no headers.

Writes the same bytes as `batch_building.build_batch` in a fifth of the time, because coordinators write tens of
thousands of records per second.

    >>> from lowtide.protocol.batch_building import build_batch
    >>> from lowtide.protocol.records import MAGIC_POSITION
    >>> tail = encode_plain_batch([(b"k", b"v")], 1_600_000_000_000)
    >>> tail == build_batch([(1_600_000_000_000, b"k", b"v", ())])[MAGIC_POSITION:]
    True
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from lowtide.protocol import native
from lowtide.protocol.batch_building import AFTER_CRC_STRUCT, VARINTS
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.records import CURRENT_MAGIC
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.protocol.types import ProducerEpoch, ProducerId

_UP_TO_CRC = struct.Struct(">bI")
_NO_HEADERS: Final = b"\0"


def encode_plain_batch(
    records: Sequence[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
    *,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    attributes: int = 0,
) -> bytes:
    """Returns a batch of these keys and values, without its first 16 bytes, which the log sets.

    `attributes` has the transactional and the control bit. The batch has no sequence.
    """
    assert records, "a batch has at least one record"
    count = len(records)
    head = AFTER_CRC_STRUCT.pack(
        attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch, NO_SEQUENCE, count
    )
    payload = native.compiled.plain_records(head, records) if native.compiled is not None else None
    if payload is None:
        payload = head + _plain_records(records)
    return _UP_TO_CRC.pack(CURRENT_MAGIC, crc32c(payload)) + payload


def _plain_records(records: Sequence[tuple[bytes | None, bytes | None]]) -> bytes:
    varints, absent = VARINTS, VARINTS[-1]
    pieces: list[bytes] = []
    for delta, (key, value) in enumerate(records):
        keyed = absent if key is None else varints[len(key)] + key
        valued = absent if value is None else varints[len(value)] + value
        body = b"\0\0" + varints[delta] + keyed + valued + _NO_HEADERS
        pieces += (varints[len(body)], body)
    return b"".join(pieces)
