"""DescribeConsumedOffsets (key 32001): what all groups of a coordinator have consumed of partitions. Lowtide's own, between brokers.

The leader of a partition asks it of every coordinator before it deletes what has been consumed (KIP-68). An answer says which partitions
of `__consumer_offsets` it speaks for, and in which leader epoch, so that the caller sees when a coordinator is missing. Why no
request of Kafka's would do is in docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions


class ConsumedOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic; offsets that were committed for an older topic of the name don't count."""

    name: String
    topic_id: Uuid
    partitions: list[Int32]


class DescribeConsumedOffsetsRequest(ApiMessage, kw_only=True):
    """The partitions, each once."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[ConsumedOffsetsTopic]


class SurveyedCoordinator(Message, kw_only=True):
    """A partition of `__consumer_offsets` whose groups are all counted in the answer."""

    partition_index: Int32
    leader_epoch: Int32


class ConsumedPartition(Message, kw_only=True):
    """The exclusive end of what all groups have consumed, and the group that is there; -1 with a group that consumes and hasn't committed.

    -1 without a group: none has committed anything.
    """

    partition_index: Int32
    consumed_offset: Int64
    group_id: String | None = None


class ConsumedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[ConsumedPartition]


class DescribeConsumedOffsetsResponse(ApiMessage, kw_only=True):
    """All that was asked for, or an error."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    error_code: Int16
    coordinators: list[SurveyedCoordinator] = msgspec.field(default_factory=list)
    topics: list[ConsumedTopic] = msgspec.field(default_factory=list)
