"""DescribeConsumedOffsets (key 32001): what all groups of a coordinator have consumed. Lowtide's own, between brokers.

The leader of a partition asks every coordinator before it deletes consumed records (KIP-68). The response lists its
partitions of `__consumer_offsets` with their leader epochs, so that a missing coordinator is noticed.
docs/adr/0008-requests-of-our-own.md says why no request of Kafka's fits.

Version 0 did not say who may delete, so it is not supported: until all brokers have version 1, no consumed records are
deleted.
"""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, versions
from lowtide.protocol.types import UNKNOWN_OFFSET


class ConsumedOffsetsTopic(Message, kw_only=True):
    """Offsets of an older topic with the same name are excluded.

    `groups` restricts the result to group ids, or prefixes that end with `*`.
    """

    name: String
    topic_id: Uuid
    partitions: list[Int32]
    groups: list[String] = msgspec.field(default_factory=list)


@versions("1", flexible="1+")
class DescribeConsumedOffsetsRequest(ApiMessage, kw_only=True):
    """Each partition appears once."""

    topics: list[ConsumedOffsetsTopic]


class SurveyedCoordinator(Message, kw_only=True):
    """A partition of `__consumer_offsets` whose groups are all counted in the response."""

    partition_index: Int32
    leader_epoch: Int32


class ConsumedPartition(Message, kw_only=True):
    """The exclusive end of the records that all groups have consumed, and the slowest group.

    -1 with a group: it consumes but has not committed. -1 without a group: none has committed. The releasing group is
    the slowest of those whose commits may delete, with its offset and its committer, if known.
    """

    partition_index: Int32
    consumed_offset: Int64
    group_id: String | None = None
    releasing_offset: Int64 = UNKNOWN_OFFSET
    releasing_group_id: String | None = None
    committer: String | None = None


class ConsumedTopic(Message, kw_only=True):
    name: String
    partitions: list[ConsumedPartition]


@versions("1", flexible="1+")
class DescribeConsumedOffsetsResponse(ApiMessage, kw_only=True):
    error_code: Int16
    coordinators: list[SurveyedCoordinator] = msgspec.field(default_factory=list)
    topics: list[ConsumedTopic] = msgspec.field(default_factory=list)
