"""Reads the ledger of erasures from its topic or from an export, for commands."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from lowtide.admin.receipts.envelope import ReceiptError
from lowtide.admin.receipts.ledger import ExportedRecord, ExportHead, Ledger, LedgerReader
from lowtide.cli.call import NetworkCall
from lowtide.cli.outcome import CommandError, misused
from lowtide.protocol.erasure_ledger_records import LedgerEntry
from lowtide.runtime.json_text import decode_json

LINE_BYTES_MAX: Final = 16 << 20
"""The longest line of an export; a record of the ledger has about 100 KiB at most."""


async def read_ledger(call: NetworkCall) -> Ledger:
    """Reads the whole topic. Errors: CommandError if the cluster has none; AdminError."""
    reader = LedgerReader(call.client)
    try:
        ledger = Ledger(await reader.cluster_id(), {})
        async for key, value in reader.rows():
            ledger.add(key, value)
    except ReceiptError as error:
        raise CommandError(f"{error}.") from None
    return ledger


def entries_of(ledger: Ledger) -> Iterator[LedgerEntry]:
    """Yields the decoded records of a ledger. Errors: CommandError for an unreadable one."""
    try:
        yield from ledger.entries()
    except ReceiptError as error:
        raise CommandError(f"{error}.") from None


def read_export(path: str) -> Ledger:
    """Reads an export. Errors: CommandError, with the line if one is invalid, and if lines were changed or cut off."""
    number, digest = 0, sha256()
    try:
        with Path(path).open("rb") as file:
            lines = _lines(path, file)
            number = 1
            head = decode_json(next(lines, b""), ExportHead)
            ledger = Ledger(head.cluster_id, {})
            for number, line in enumerate(lines, 2):  # noqa: B007 - the error has the number
                digest.update(line)
                record = decode_json(line, ExportedRecord)
                ledger.add(record.key, record.value)
    except ValueError as error:
        raise misused(f"{path} line {number} is not that of an export of the ledger: {error}.") from None
    except OSError as error:
        raise misused(f"{path} can't be read: {error.strerror}.") from None
    if head.sha256 not in (None, digest.hexdigest()):
        raise misused(f"{path} is damaged or not whole: its lines are not those that were exported.")
    return ledger


def _lines(name: str, file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES_MAX + 1):
        if len(line) > LINE_BYTES_MAX:
            raise misused(f"{name} has a line of more than {LINE_BYTES_MAX} bytes.")
        yield line
