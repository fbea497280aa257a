"""The keys of a topic's configuration, as facts of Apache Kafka 4.3.

A topic that doesn't set a key follows the broker's key named beside it. A table: its order is that of the manual.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import (
    NO_TIERED_STORAGE,
    Allowed,
    ConfigKey,
    Matching,
    OneOf,
    Only,
    Range,
    Scope,
    Type,
    at_least,
)

_FOREVER: Final = "9223372036854775807"
COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES: Final = ("compact", "delete")
_NOT_TIERED: Final = Only(value=False, because=NO_TIERED_STORAGE)
DELETING_GROUPS: Final = Matching(
    r".{1,255}",
    "a list of up to 100 group ids of up to 255 characters; * at the end of one stands for all that begin so",
    100,
)
_THROTTLED: Final = Matching(r"\*|[0-9]+:[0-9]+", "*, or a list of partition:broker")


def _topic(  # noqa: PLR0913  columns of a table
    name: str,
    type_: Type,
    default: str | None,
    allowed: Allowed,
    broker_key: str | None,
    doc: str,
    *,
    enforced: bool = False,
    internal: bool = False,
) -> ConfigKey:
    return ConfigKey(name, type_, default, allowed, doc, enforced, internal, Scope.TOPIC, broker_key)


# fmt: off
TOPIC_KEYS: Final[tuple[ConfigKey, ...]] = (
    _topic("cleanup.policy", Type.LIST, "delete", OneOf(CLEANUP_POLICIES), "log.cleanup.policy",
           "Whether old segments are deleted, compacted to the last record of each key, or both; where it compacts, each record needs a key.", enforced=True),
    _topic("compression.gzip.level", Type.INT, "-1", Range(1, 9, -1), "compression.gzip.level", "How hard gzip tries; -1 is its own default."),
    _topic("compression.lz4.level", Type.INT, "9", Range(1, 17), "compression.lz4.level", "How hard lz4 tries."),
    _topic("compression.type", Type.STRING, "producer", OneOf(COMPRESSION_TYPES), "compression.type",
           "The codec batches are stored with; `producer` keeps what was sent.", enforced=True),
    _topic("compression.zstd.level", Type.INT, "3", Range(-131072, 22), "compression.zstd.level", "How hard zstd tries."),
    _topic("delete.retention.ms", Type.LONG, "86400000", at_least(0), "log.cleaner.delete.retention.ms",
           "How long a compacted topic keeps the record that says a key is deleted.", enforced=True),
    _topic("file.delete.delay.ms", Type.LONG, "60000", at_least(0), "log.segment.delete.delay.ms",
           "How long the files of removed segments stay on disk.", enforced=True),
    _topic("flush.messages", Type.LONG, _FOREVER, at_least(1), "log.flush.interval.messages",
           "After how many records a partition is synced to disk.", enforced=True),
    _topic("flush.ms", Type.LONG, _FOREVER, at_least(0), "log.flush.interval.ms",
           "After how long appended records are synced to disk.", enforced=True),
    _topic("follower.replication.throttled.replicas", Type.LIST, "", _THROTTLED, None, "The replicas whose fetching is slowed down.",
           enforced=True),
    _topic("index.interval.bytes", Type.INT, "4096", at_least(0), "log.index.interval.bytes",
           "How many bytes of log lie between two entries of an index.", enforced=True),
    _topic("internal.segment.bytes", Type.INT, None, at_least(1), None,
           "A segment size below the least that segment.bytes allows, for tests.", enforced=True, internal=True),
    _topic("leader.replication.throttled.replicas", Type.LIST, "", _THROTTLED, None,
           "The replicas whose serving of followers is slowed down.", enforced=True),
    _topic("local.retention.bytes", Type.LONG, "-2", at_least(-2), "log.local.retention.bytes",
           "How many bytes stay on the broker's own disk under tiered storage, which this broker does not have; -2 follows retention.bytes."),
    _topic("local.retention.ms", Type.LONG, "-2", at_least(-2), "log.local.retention.ms",
           "How long segments stay on the broker's own disk under tiered storage, which this broker does not have; -2 follows retention.ms."),
    _topic("log.retention.min.timestamp", Type.LONG, "0", at_least(0), "log.retention.min.timestamp",
           "The time, in ms since 1970, before which records may go: a segment goes when all of it is older (KIP-47); 0 says nothing.",
           enforced=True),
    _topic("lowtide.delete.erase", Type.BOOLEAN, "false", None, "lowtide.log.delete.erase",
           "Whether each replica erases what is deleted about a second later: no file has a deleted record any more, and no fetch carries one.", enforced=True),
    _topic("lowtide.retention.commitoffset.groups", Type.LIST, "", DELETING_GROUPS, "lowtide.log.retention.commitoffset.groups",
           "The groups whose commits let consumed records go, and keep those that they have not consumed: ids, or beginnings of ids with * behind them. "
           "Empty: every group keeps, and those let go whose committers have DELETE on the topic.", enforced=True),
    _topic("max.compaction.lag.ms", Type.LONG, _FOREVER, at_least(1), "log.cleaner.max.compaction.lag.ms",
           "After how long a record must have been compacted at the latest.", enforced=True),
    _topic("max.message.bytes", Type.INT, "1048588", at_least(0), "message.max.bytes",
           "The largest batch that is taken, its 12 bytes of offset and length included.", enforced=True),
    _topic("message.timestamp.after.max.ms", Type.LONG, "3600000", at_least(0), "log.message.timestamp.after.max.ms",
           "How far in the future a record's timestamp may lie.", enforced=True),
    _topic("message.timestamp.before.max.ms", Type.LONG, _FOREVER, at_least(0), "log.message.timestamp.before.max.ms",
           "How far in the past a record's timestamp may lie.", enforced=True),
    _topic("message.timestamp.type", Type.STRING, "CreateTime", OneOf(("CreateTime", "LogAppendTime")), "log.message.timestamp.type",
           "Whose clock gives the timestamp: the producer's or the broker's.", enforced=True),
    _topic("min.cleanable.dirty.ratio", Type.DOUBLE, "0.5", Range(0, 1), "log.cleaner.min.cleanable.ratio",
           "How much of a log must be uncompacted before it is compacted.", enforced=True),
    _topic("min.compaction.lag.ms", Type.LONG, "0", at_least(0), "log.cleaner.min.compaction.lag.ms",
           "How long a record is safe from compaction.", enforced=True),
    _topic("min.insync.replicas", Type.INT, "1", at_least(1), "min.insync.replicas",
           "How many replicas must be in sync for an acks=all write; never more than there are.", enforced=True),
    _topic("preallocate", Type.BOOLEAN, "false", None, "log.preallocate", "Whether a new segment's file gets its full size at once.", enforced=True),
    _topic("remote.log.copy.disable", Type.BOOLEAN, "false", None, None, "Stops the copying of segments to tiered storage."),
    _topic("remote.log.delete.on.disable", Type.BOOLEAN, "false", None, None,
           "Whether tiered segments go when tiered storage is switched off."),
    _topic("remote.storage.enable", Type.BOOLEAN, "false", _NOT_TIERED, None, "Keeps old segments in tiered storage."),
    _topic("retention.bytes", Type.LONG, "-1", None, "log.retention.bytes",
           "How large a partition may grow before its oldest segments are deleted; -1 is no limit.", enforced=True),
    _topic("retention.commitoffset.hours", Type.INT, "-1", at_least(-1), None,
           "retention.commitoffset.ms in hours.", enforced=True),
    _topic("retention.commitoffset.minutes", Type.INT, "-1", at_least(-1), None,
           "retention.commitoffset.ms in minutes; before retention.commitoffset.hours.", enforced=True),
    _topic("retention.commitoffset.ms", Type.LONG, "-1", at_least(-1), "log.retention.commitoffset.ms",
           "How old a segment must be to go when all groups have consumed it (KIP-68); at most retention.ms; -1 is never.", enforced=True),
    _topic("retention.ms", Type.LONG, "604800000", at_least(-1), "log.retention.ms",
           "How long records are kept before their segment is deleted; -1 is for ever.", enforced=True),
    _topic("segment.bytes", Type.INT, "1073741824", at_least(1 << 20), "log.segment.bytes",
           "The size at which a segment is full.", enforced=True),
    _topic("segment.index.bytes", Type.INT, "10485760", at_least(4), "log.index.size.max.bytes",
           "The size at which an index, and with it the segment, is full.", enforced=True),
    _topic("segment.jitter.ms", Type.LONG, "0", at_least(0), "log.roll.jitter.ms",
           "How much earlier than segment.ms a segment may be closed, at random.", enforced=True),
    _topic("segment.ms", Type.LONG, "604800000", at_least(1), "log.roll.ms",
           "The age at which a segment is closed and a new one begun.", enforced=True),
    _topic("unclean.leader.election.enable", Type.BOOLEAN, "false", None, "unclean.leader.election.enable",
           "Whether a replica that lacks acknowledged records may lead when no other is left.", enforced=True),
)
# fmt: on
