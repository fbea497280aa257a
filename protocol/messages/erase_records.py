"""EraseRecords (key 32008): erases records from the files of a replica. Lowtide's own.

It goes to each broker with a replica, because each one erases its own files. It deletes nothing: the records are below
the log start offset, which DeleteRecords has raised, or named by an erasure, which FindRecords has appended.
docs/erasure.md; docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions, versions
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID

NO_ERASURE: Final = bytes(16)


class EraseRecordsPartition(Message, kw_only=True):
    """Records below `offset` (exclusive) must be absent, and those that erasures below `erasures_end` name."""

    partition_index: Int32
    offset: Int64
    erasures_end: Annotated[Int64, Versions("1+")] = 0


class EraseRecordsTopic(Message, kw_only=True):
    """With a zero id, the topic that has the name now."""

    name: String
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[EraseRecordsPartition]


@versions("0-1", flexible="0+")
class EraseRecordsRequest(ApiMessage, kw_only=True):
    """At most a thousand partitions; none asks whether the broker supports the request.

    `timeout_ms` applies to each row.
    """

    topics: list[EraseRecordsTopic]
    timeout_ms: Int32
    erasure_id: Annotated[Uuid, Versions("1+")] = NO_ERASURE
    """Under which the ledger of erasures gets the answer; zero for none."""


class ErasedPartition(Message, kw_only=True):
    """No error if no file of the replica contains such a record, durably."""

    partition_index: Int32
    log_start_offset: Int64 = UNKNOWN_OFFSET
    error_code: Int16
    error_message: String | None = None


class ErasedTopic(Message, kw_only=True):
    name: String
    partitions: list[ErasedPartition]


@versions("0-1", flexible="0+")
class EraseRecordsResponse(ApiMessage, kw_only=True):
    """With an error of the whole request there are no rows."""

    error_code: Int16
    topics: list[ErasedTopic] = msgspec.field(default_factory=list)
