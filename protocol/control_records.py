"""Control batches: the markers that end a producer's transaction on one partition.

The key of the only record has the outcome, and the value the epoch of the coordinator. Source: KIP-98,
`ControlRecordTypeSchema` and `EndTxnMarker`.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from lowtide.protocol.compression import Buffer
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import iterate_records, read_batch_header

_CONTROL_KEY = struct.Struct(">hh")
_END_TRANSACTION_VALUE = struct.Struct(">hi")


class ControlRecordType(IntEnum):
    """The type of a control batch. Source: KIP-98."""

    ABORT = 0
    COMMIT = 1


class ControlRecord(msgspec.Struct, gc=False):
    """The only record of a control batch: the outcome of a transaction, and its coordinator epoch."""

    type: ControlRecordType
    coordinator_epoch: int


def end_transaction_record(control: ControlRecord) -> tuple[bytes, bytes]:
    """Returns the key and value of a marker. Both start with version 0 (`ControlRecordTypeSchema`, `EndTxnMarker`)."""
    return _CONTROL_KEY.pack(0, control.type), _END_TRANSACTION_VALUE.pack(0, control.coordinator_epoch)


def read_control_record(batch: Buffer, *, max_bytes: int) -> ControlRecord | None:
    """Reads the marker of a control batch; returns None for another type, or without records.

    Kafka's readers skip other types; compaction leaves batches without records of unneeded markers. Errors:
    ProtocolError if the batch is invalid or its key or value is too short.
    """
    if not read_batch_header(batch).record_count:
        return None
    record = next(iterate_records(batch, max_bytes=max_bytes), None)
    if record is None or record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise ProtocolError("a control batch without a control record")
    _, control_type = _CONTROL_KEY.unpack_from(record.key)
    if control_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return None
    if record.value is None or len(record.value) < _END_TRANSACTION_VALUE.size:
        raise ProtocolError("a transaction marker without a coordinator epoch")
    _, coordinator_epoch = _END_TRANSACTION_VALUE.unpack_from(record.value)
    return ControlRecord(ControlRecordType(control_type), coordinator_epoch)
