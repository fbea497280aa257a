"""ReadErasures (key 32011): reads the ledger of erasures about some partitions. Lowtide's own, between brokers.

A leader whose log may lack an acknowledged erasure asks the leader of the ledger, and erases again.
docs/adr/0025-ledger-of-erasures.md.
"""

from __future__ import annotations

import msgspec

from lowtide.protocol.messages.write_erasures import LedgerRecord
from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, Uuid, versions
from lowtide.protocol.types import UNKNOWN_OFFSET


class ErasuresPartition(Message, kw_only=True):
    """A partition whose erasures are read."""

    topic_id: Uuid
    partition_index: Int32


@versions("0", flexible="0+")
class ReadErasuresRequest(ApiMessage, kw_only=True):
    """Reads the ledger from `offset` on (inclusive)."""

    offset: Int64
    partitions: list[ErasuresPartition]


@versions("0", flexible="0+")
class ReadErasuresResponse(ApiMessage, kw_only=True):
    """The records about the partitions, in the order of the ledger; a later one with the same key replaces it.

    `next_offset` is where to read on; -1 if all committed records were read.
    """

    error_code: Int16
    records: list[LedgerRecord] = msgspec.field(default_factory=list)
    next_offset: Int64 = UNKNOWN_OFFSET
