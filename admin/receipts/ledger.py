"""Reads the ledger of erasures from its topic, and writes exports of it.

An export is JSON lines. The first line has the cluster's id and a digest of the other lines. Each of those has the key
and the value of a record, in base64.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import OffsetSpec
from lowtide.admin.receipts.envelope import ReceiptError
from lowtide.protocol.erasure_ledger_records import LedgerEntry, decode_entry
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import BatchHeader, Record, iterate_records, sound_batches
from lowtide.protocol.types import Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.records import FetchedRecords

LEDGER_TOPIC: Final = "__lowtide_erasures"

BATCH_BYTES_MAX: Final = 256 << 20
"""The largest decompressed batch that is read."""

_PARTITION: Final = TopicPartition(LEDGER_TOPIC, 0)

LedgerRow: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of a record; a tombstone has no value."""


class ExportHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of an export. Exports of earlier versions have only the cluster's id."""

    cluster_id: str
    sha256: str | None = None
    """Of all other lines, with their ends, in hexadecimal digits."""


class ExportedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record of the ledger; `value` is None in a tombstone."""

    key: bytes
    value: bytes | None


class NoLedgerError(ReceiptError):
    """The cluster has no ledger: nothing was ever erased."""


class Ledger(msgspec.Struct):
    """The latest record of each key, in the order of the keys' first records."""

    cluster_id: str
    rows: dict[bytes, bytes]

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Adds the next record of the topic. A tombstone removes what an earlier record with its key said."""
        if value is None:
            self.rows.pop(key or b"", None)
        elif key is not None:
            self.rows[key] = value

    def entries(self) -> Iterator[LedgerEntry]:
        """Yields the decoded records, without those of unknown types. Errors: ReceiptError for an unreadable one."""
        for key, value in self.rows.items():
            entry = ledger_entry(key, value)
            if entry is not None:
                yield entry


def ledger_entry(key: bytes, value: bytes | None) -> LedgerEntry | None:
    """Decodes a record; returns None for an unknown type. Errors: ReceiptError."""
    try:
        return decode_entry(key, value)
    except ProtocolError as error:
        shown = base64.b64encode(key[:64]).decode()
        raise ReceiptError(f"the record of the ledger with the key {shown} can't be read: {error}") from None


def export_lines(ledger: Ledger) -> Iterator[bytes]:
    """Yields the lines of an export, each with its end."""
    digest = sha256()
    for line in _record_lines(ledger):
        digest.update(line)
    yield msgspec.json.encode(ExportHead(ledger.cluster_id, digest.hexdigest())) + b"\n"
    yield from _record_lines(ledger)


def _record_lines(ledger: Ledger) -> Iterator[bytes]:
    for key, value in ledger.rows.items():
        yield msgspec.json.encode(ExportedRecord(key, value)) + b"\n"


class LedgerReader:
    """Reads the topic once. With `bytes_max`, only about so many bytes at its end."""

    def __init__(self, client: AdminClient, bytes_max: int | None = None) -> None:
        self._client = client
        self._bytes_max = bytes_max
        self.is_cut = False
        """Whether the beginning was left out."""

    async def cluster_id(self) -> str:
        """Returns the id of the cluster that has the ledger. Errors: ReceiptError, NoLedgerError, AdminError."""
        described = (await self._client.describe_topics([LEDGER_TOPIC]))[LEDGER_TOPIC]
        if isinstance(described, BrokerAnsweredError) and described.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise described
        if isinstance(described, BrokerAnsweredError) and described.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoLedgerError(f"the ledger can't be read: the cluster has no topic {LEDGER_TOPIC}")
        if not isinstance(described, TopicDescription):
            raise ReceiptError(f"the ledger can't be read: {described}")
        cluster_id = (await self._client.describe_cluster()).cluster_id
        if not cluster_id:
            raise ReceiptError("no broker returned the cluster's id")
        return cluster_id

    async def rows(self) -> AsyncIterator[LedgerRow]:
        """Yields the records in their order. Errors: ReceiptError, AdminError."""
        offset, end = [await self._offset_at(place) for place in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)]
        is_first = True
        while offset < end:
            fetched = await self._client.fetch_records(_PARTITION, offset)
            batches = _batches(fetched, offset)
            following = batches[-1][1].next_offset
            if is_first and self._bytes_max is not None:
                kept = max(self._bytes_max * (following - offset) // max(len(fetched.records), 1), 1)
                self.is_cut = end - kept > following
            if is_first and self.is_cut:
                following = Offset(end - kept)
            else:
                for record in _records(fetched.records, batches, offset, end):
                    if record.key is not None:
                        yield record.key, record.value
            offset, is_first = following, False

    async def _offset_at(self, place: OffsetSpec) -> Offset:
        found = (await self._client.list_offsets({_PARTITION: place}))[_PARTITION]
        if isinstance(found, AdminError):
            raise ReceiptError(f"the ledger can't be read: {found}")
        return found.offset


def _batches(fetched: FetchedRecords, offset: Offset) -> list[tuple[int, BatchHeader]]:
    """Returns position and header of each batch from `offset` on; at least one. Errors: ReceiptError."""
    try:
        return list(sound_batches(fetched.records, offset, fetched.high_watermark))
    except ProtocolError as error:
        raise _unreadable(offset, error) from error


def _records(
    content: bytes | memoryview, batches: list[tuple[int, BatchHeader]], offset: Offset, end: Offset
) -> Iterator[Record]:
    """Yields the records of some batches. Errors: ReceiptError."""
    try:
        for position, header in batches:
            if header.is_control:
                continue
            batch = memoryview(content)[position : position + header.size_bytes]
            for record in iterate_records(batch, max_bytes=BATCH_BYTES_MAX):
                if offset <= record.offset < end:
                    yield record
    except ProtocolError as error:
        raise _unreadable(offset, error) from error


def _unreadable(offset: Offset, error: ProtocolError) -> ReceiptError:
    return ReceiptError(f"the ledger can't be read at offset {offset} or later: {error}")
