"""FindRecords (key 32009): finds the records that a selector names, and erases them. Lowtide's own.

The leader of each partition answers. It searches its log up to the end at the moment of the first request. A request
with the same search id joins a search that is under way, and asks for its result again. The selector is personal data,
so it is in the request only.

To erase, the leader appends an erasure: a control batch that names the offsets of the records. Then EraseRecords asks
each broker with a replica whether its files are clean. docs/erasure.md; docs/adr/0023-erasures-in-the-log.md.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lowtide.protocol.erasure_ledger_records import NamedRun
from lowtide.protocol.schema import (
    NO_ROWS,
    ApiMessage,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Tagged,
    Uuid,
    Versions,
    versions,
)
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, ZERO_TOPIC_ID

NO_KIND: Final = -1

NAMED_MAX: Final = 4_000
"""The most records that a request names. Each takes up to two of the 10,000 rows that a request may have."""


class RecordOffsets(Message, kw_only=True):
    """Consecutive offsets; both ends are inclusive."""

    first_offset: Int64
    last_offset: Int64


class FindRecordsPartition(Message, kw_only=True):
    """`offsets` select exactly these records, if the request has neither keys nor a header.

    `named` selects the records of an earlier erasure: those at these offsets, if they also have the leader epoch and
    the timestamp. `leader_epoch` and `end_offset` are a leader's: its epoch and the exclusive end of its search.
    """

    partition_index: Int32
    offsets: list[RecordOffsets] = msgspec.field(default_factory=list)
    leader_epoch: Annotated[Int32, Versions("1+")] = NO_LEADER_EPOCH
    end_offset: Annotated[Int64, Versions("1+")] = UNKNOWN_OFFSET
    named: Annotated[list[NamedRun], Versions("1+")] = msgspec.field(default_factory=list)


class FindRecordsTopic(Message, kw_only=True):
    """With a zero id, the topic that has the name now."""

    name: String
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[FindRecordsPartition]


@versions("0-1", flexible="0+")
class FindRecordsRequest(ApiMessage, kw_only=True):
    """One selector: keys, or a header, or offsets in each partition, or named records in each partition.

    The answer is sent when all partitions are searched, or after `timeout_ms`. At most `ranges_max` ranges of offsets
    are returned for a partition. No partition asks whether the broker supports the request. With `erase` the search id
    is the id of the erasure, and no offsets are returned.

    With `force` offsets may name the newest version of a key in a log that is or was compacted. With `stands` the
    erasure is a standing one, which the leader must know: otherwise its later searches might begin too late.

    With `names_newest` a search that doesn't erase, by a header or offsets, names the newest versions of keys that it
    finds in a log that is or was compacted.

    With a `replica_epoch` a leader asks a follower, which has this broker epoch, to search its own replica and to note
    durably that it has: replicas of a compacted log differ. The search id is then that of the leader's attempt. Then
    there may be keys beside a header or offsets: `key_ends` are the inclusive ends up to which versions of them count.
    """

    search_id: Uuid
    topics: list[FindRecordsTopic]
    keys: list[Bytes] = msgspec.field(default_factory=list)
    header_name: Bytes | None = None
    header_value: Bytes | None = None
    timeout_ms: Int32
    ranges_max: Int32 = 1_000
    erase: Bool = False
    force: Bool = False
    stands: Bool = False
    commitment: Bytes = b""
    """To the selector, for the ledger of erasures: SHA-256 of nonce, kind and selector, or empty."""
    replica_epoch: Annotated[Int64, Versions("1+")] = -1
    key_ends: Annotated[list[Int64], Versions("1+")] = NO_ROWS
    """One for each key, or none: all versions count."""
    names_newest: Annotated[Bool, Tagged(0, "0+")] = False
    named_kind: Annotated[Int8, Versions("1+")] = NO_KIND
    """With named records the `SelectorKind` of the erasure that is repeated; otherwise -1."""


class FoundPartition(Message, kw_only=True):
    """The offsets from `searched_from` (inclusive) to `searched_to` (exclusive) are searched if there is no error.

    With REQUEST_TIMED_OUT the search continues, and the bytes tell how far it is.
    """

    partition_index: Int32
    error_code: Int16
    error_message: String | None = None
    leader_epoch: Int32 = NO_LEADER_EPOCH
    searched_from: Int64 = UNKNOWN_OFFSET
    searched_to: Int64 = UNKNOWN_OFFSET
    searched_bytes: Int64 = 0
    total_bytes: Int64 = 0
    record_count: Int64 = 0
    offsets: list[RecordOffsets] = msgspec.field(default_factory=list)
    timestamps: Annotated[list[Int64], Versions("1+")] = NO_ROWS
    leader_epochs: Annotated[list[Int32], Versions("1+")] = NO_ROWS
    """Those of each record found, in the order of offsets; for a leader only."""
    keys: Annotated[list[Bytes], Versions("1+")] = NO_ROWS
    key_ends: Annotated[list[Int64], Versions("1+")] = NO_ROWS
    """The keys of the records that a header or offsets name, each with the highest offset; for a leader only."""
    has_more: Bool = False
    """Whether there are more offsets than were returned."""
    other_count: Annotated[Int64, Versions("1+")] = 0
    """How many records have the offset of a named one, but another leader epoch or timestamp."""
    log_start_offset: Int64 = UNKNOWN_OFFSET
    """Of the leader, if records are erased. Followers may have records below it, which aren't searched."""
    erasures_end: Int64 = UNKNOWN_OFFSET
    """The exclusive end of the erasures that name the records, which are committed. If the search found nothing that
    none of them names, it is the end of the last erasure in the log; -1 if there is none."""
    newest: Annotated[list[RecordOffsets], Tagged(0, "0+")] = msgspec.field(default_factory=list)
    """The records found that are the newest versions of their keys, if they are wanted."""


class FoundTopic(Message, kw_only=True):
    name: String
    partitions: list[FoundPartition]


@versions("0-1", flexible="0+")
class FindRecordsResponse(ApiMessage, kw_only=True):
    """With an error of the whole request there are no rows."""

    error_code: Int16
    error_message: String | None = None
    topics: list[FoundTopic] = msgspec.field(default_factory=list)
