"""EraseRecords (key 32008): has no file of a replica hold what was deleted of a partition. Lowtide's own.

It goes to each broker that has a replica, not to leaders alone: each one erases its own files. It deletes nothing: what
it erases lies below the log start, which DeleteRecords has raised. docs/erasure.md;
docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID


class EraseRecordsPartition(Message, kw_only=True):
    """Records below `offset` (exclusive) are to be absent."""

    partition_index: Int32
    offset: Int64


class EraseRecordsTopic(Message, kw_only=True):
    """Partitions of one topic; with zeros for its id, of whichever topic has the name."""

    name: String
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[EraseRecordsPartition]


class EraseRecordsRequest(ApiMessage, kw_only=True):
    """At most a thousand partitions; none asks whether the broker knows the request.

    A row waits for `timeout_ms` at most.
    """

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[EraseRecordsTopic]
    timeout_ms: Int32


class ErasedPartition(Message, kw_only=True):
    """Without an error no file of the replica has a record below the offset, and the disk knows.

    The message says more of an error.
    """

    partition_index: Int32
    log_start_offset: Int64 = UNKNOWN_OFFSET
    error_code: Int16
    error_message: String | None = None


class ErasedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[ErasedPartition]


class EraseRecordsResponse(ApiMessage, kw_only=True):
    """Row by row; with an error of the whole request there are none."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    error_code: Int16
    topics: list[ErasedTopic] = msgspec.field(default_factory=list)
