"""DescribeConsumedOffsets (key 32001): what all groups of a coordinator have consumed of partitions.

Lowtide's own, between brokers. The leader of a partition asks it of every coordinator before it deletes what has been
consumed (KIP-68). An answer says which partitions of `__consumer_offsets` it speaks for, and in which leader epoch, so
that the caller sees when a coordinator is missing. Why no request of Kafka's would do is in
docs/adr/0008-requests-of-our-own.md.

Version 0 knew nothing of who may delete, so it is not served: until all brokers have version 1, nothing goes for being
consumed.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions
from lowtide.protocol.types import UNKNOWN_OFFSET


class ConsumedOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic; offsets that were committed for an older topic of the name don't count.

    With `groups` only these count: ids, or beginnings of ids with `*` behind them.
    """

    name: String
    topic_id: Uuid
    partitions: list[Int32]
    groups: list[String] = msgspec.field(default_factory=list)


class DescribeConsumedOffsetsRequest(ApiMessage, kw_only=True):
    """The partitions, each once."""

    VERSIONS: ClassVar = Versions("1")
    FLEXIBLE: ClassVar = Versions("1+")

    topics: list[ConsumedOffsetsTopic]


class SurveyedCoordinator(Message, kw_only=True):
    """A partition of `__consumer_offsets` whose groups are all counted in the answer."""

    partition_index: Int32
    leader_epoch: Int32


class ConsumedPartition(Message, kw_only=True):
    """The exclusive end of what all groups have consumed, and the group that is there; -1 with a group that consumes and hasn't committed.

    -1 without a group: none has committed anything. Of the groups whose commits may delete, the slowest is the releasing one, with its
    offset and who committed that, where it is known.
    """

    partition_index: Int32
    consumed_offset: Int64
    group_id: String | None = None
    releasing_offset: Int64 = UNKNOWN_OFFSET
    releasing_group_id: String | None = None
    committer: String | None = None


class ConsumedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[ConsumedPartition]


class DescribeConsumedOffsetsResponse(ApiMessage, kw_only=True):
    """All that was asked for, or an error."""

    VERSIONS: ClassVar = Versions("1")
    FLEXIBLE: ClassVar = Versions("1+")

    error_code: Int16
    coordinators: list[SurveyedCoordinator] = msgspec.field(default_factory=list)
    topics: list[ConsumedTopic] = msgspec.field(default_factory=list)
