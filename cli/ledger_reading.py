"""Reads the ledger of erasures from its topic or from an export, and writes exports.

An export is JSON lines: the first has the cluster's id, the others key and value of a record in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import OffsetSpec
from lowtide.cli.call import NetworkCall
from lowtide.cli.outcome import CommandError, misused
from lowtide.cli.record_format import Form
from lowtide.cli.show import ENDLESS, ShowRequest, readable
from lowtide.protocol.erasure_ledger_records import LedgerEntry, decode_entry
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import Record
from lowtide.protocol.types import Offset, TopicPartition

LEDGER_TOPIC: Final = "__lowtide_erasures"

LINE_BYTES_MAX: Final = 16 << 20
"""The longest line of an export; a record of the ledger has about 100 KiB at most."""

_PARTITION: Final = TopicPartition(LEDGER_TOPIC, 0)


class ExportHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of an export."""

    cluster_id: str


class ExportedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record of the ledger; `value` is None in a tombstone."""

    key: bytes
    value: bytes | None


class Ledger(msgspec.Struct):
    """The latest record of each key, in the order of the keys' first records."""

    cluster_id: str
    rows: dict[bytes, bytes]

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Adds the next record; a tombstone removes the earlier one."""
        if value is None:
            self.rows.pop(key or b"", None)
        elif key is not None:
            self.rows[key] = value

    def entries(self) -> Iterator[LedgerEntry]:
        """Yields the decoded records, without those of unknown types. Errors: CommandError for an unreadable one."""
        for key, value in self.rows.items():
            try:
                entry = decode_entry(key, value)
            except ProtocolError as error:
                shown = base64.b64encode(key[:64]).decode()
                raise CommandError(f"the record of the ledger with the key {shown} can't be read: {error}.") from None
            if entry is not None:
                yield entry


async def read_ledger(call: NetworkCall) -> Ledger:
    """Reads the whole topic. Errors: CommandError if the cluster has none; AdminError."""
    described = (await call.client.describe_topics([LEDGER_TOPIC]))[LEDGER_TOPIC]
    if not isinstance(described, TopicDescription):
        is_missing = (
            isinstance(described, BrokerAnsweredError) and described.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        reason = f"the cluster has no topic {LEDGER_TOPIC}" if is_missing else str(described)
        raise CommandError(f"the ledger can't be read: {reason}.")
    cluster_id = (await call.client.describe_cluster()).cluster_id
    if not cluster_id:
        raise CommandError("no broker returned the cluster's id.")
    ledger = Ledger(cluster_id, {})
    offset, end = [await _offset_at(call, place) for place in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)]
    wanted = ShowRequest(named=False, end=end, count=ENDLESS, form=Form.TEXT, control=False, read_committed=False)
    while offset < end:
        rows, following = readable(await call.client.fetch_records(_PARTITION, offset), _PARTITION, offset, wanted)
        for row in rows:
            if isinstance(row, Record):
                ledger.add(row.key, row.value)
        if following <= offset:
            break
        offset = following
    return ledger


async def _offset_at(call: NetworkCall, place: OffsetSpec) -> Offset:
    found = (await call.client.list_offsets({_PARTITION: place}))[_PARTITION]
    if isinstance(found, AdminError):
        raise CommandError(f"the ledger can't be read: {found}.")
    return found.offset


def export_lines(ledger: Ledger) -> Iterator[bytes]:
    """Yields the lines of an export, each with its end."""
    yield msgspec.json.encode(ExportHead(ledger.cluster_id)) + b"\n"
    for key, value in ledger.rows.items():
        yield msgspec.json.encode(ExportedRecord(key, value)) + b"\n"


def read_export(path: str) -> Ledger:
    """Reads an export. Errors: CommandError, with the line if one is invalid."""
    number = 0
    try:
        with Path(path).open("rb") as file:
            lines = _lines(path, file)
            number = 1
            ledger = Ledger(msgspec.json.decode(next(lines, b""), type=ExportHead).cluster_id, {})
            for number, line in enumerate(lines, 2):  # noqa: B007 - the error has the number
                record = msgspec.json.decode(line, type=ExportedRecord)
                ledger.add(record.key, record.value)
    except msgspec.MsgspecError as error:
        raise misused(f"{path} line {number} is not that of an export of the ledger: {error}.") from None
    except OSError as error:
        raise misused(f"{path} can't be read: {error.strerror}.") from None
    return ledger


def _lines(name: str, file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES_MAX + 1):
        if len(line) > LINE_BYTES_MAX:
            raise misused(f"{name} has a line of more than {LINE_BYTES_MAX} bytes.")
        yield line
