"""WriteErasures (key 32010): appends records to the ledger of erasures. Lowtide's own, between brokers.

The leader of the ledger's only partition answers when the records are committed. Other brokers can't send them as a
Produce, which is refused for internal topics. docs/adr/0025-ledger-of-erasures.md.
"""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Message, versions


class LedgerRecord(Message, kw_only=True):
    """Key and value of a record, as `erasure_ledger_records` encodes them."""

    key: Bytes
    value: Bytes | None


@versions("0", flexible="0+")
class WriteErasuresRequest(ApiMessage, kw_only=True):
    """All records are appended, or an error is returned."""

    records: list[LedgerRecord]
    timeout_ms: Int32


@versions("0", flexible="0+")
class WriteErasuresResponse(ApiMessage, kw_only=True):
    """No error if all records are committed."""

    error_code: Int16
