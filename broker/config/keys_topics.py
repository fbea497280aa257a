"""The keys of a topic's configuration, as in Apache Kafka 4.4, in the order of the manual.

A topic that does not set a key uses the broker's key beside it.
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
    "a list of up to 100 group ids of up to 255 characters; a trailing * matches all ids with that prefix",
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
    enforced: bool = True,
    internal: bool = False,
) -> ConfigKey:
    return ConfigKey(name, type_, default, allowed, doc, enforced, internal, Scope.TOPIC, broker_key)


# fmt: off
TOPIC_KEYS: Final[tuple[ConfigKey, ...]] = (
    _topic("cleanup.policy", Type.LIST, "delete", OneOf(CLEANUP_POLICIES), "log.cleanup.policy",
           "Whether old segments are deleted, compacted to the last record of each key, or both. Records of a compacted topic must have a key."),
    _topic("compression.gzip.level", Type.INT, "-1", Range(1, 9, -1), "compression.gzip.level",
           "The compression level of gzip; -1 uses its default.", enforced=False),
    _topic("compression.lz4.level", Type.INT, "9", Range(1, 17), "compression.lz4.level", "The compression level of lz4.", enforced=False),
    _topic("compression.type", Type.STRING, "producer", OneOf(COMPRESSION_TYPES), "compression.type",
           "The codec that batches are stored with; `producer` keeps the producer's codec."),
    _topic("compression.zstd.level", Type.INT, "3", Range(-131072, 22), "compression.zstd.level", "The compression level of zstd.", enforced=False),
    _topic("delete.retention.ms", Type.LONG, "86400000", at_least(0), "log.cleaner.delete.retention.ms",
           "The time for which a compacted topic keeps tombstones."),
    _topic("errors.deadletterqueue.group.enable", Type.BOOLEAN, "false", None, None, "Whether share groups can write dead letters to the topic."),
    _topic("file.delete.delay.ms", Type.LONG, "60000", at_least(0), "log.segment.delete.delay.ms",
           "The time before the files of deleted segments are removed."),
    _topic("flush.messages", Type.LONG, _FOREVER, at_least(1), "log.flush.interval.messages",
           "The number of records after which a partition is flushed to disk."),
    _topic("flush.ms", Type.LONG, _FOREVER, at_least(0), "log.flush.interval.ms", "The time after which appended records are flushed to disk."),
    _topic("follower.replication.throttled.replicas", Type.LIST, "", _THROTTLED, None, "The replicas whose fetches are throttled."),
    _topic("index.interval.bytes", Type.INT, "4096", at_least(0), "log.index.interval.bytes", "The number of log bytes between two index entries."),
    _topic("internal.segment.bytes", Type.INT, None, at_least(1), None, "A segment size below the minimum of segment.bytes, for tests.", internal=True),
    _topic("leader.replication.throttled.replicas", Type.LIST, "", _THROTTLED, None, "The replicas whose followers are throttled."),
    _topic("local.retention.bytes", Type.LONG, "-2", at_least(-2), "log.local.retention.bytes",
           "The number of bytes that tiered storage keeps on the local disk; -2 uses retention.bytes. Lowtide has no tiered storage.", enforced=False),
    _topic("local.retention.ms", Type.LONG, "-2", at_least(-2), "log.local.retention.ms",
           "The time for which tiered storage keeps segments on the local disk; -2 uses retention.ms. Lowtide has no tiered storage.", enforced=False),
    _topic("log.retention.min.timestamp", Type.LONG, "0", at_least(0), "log.retention.min.timestamp",
           "A segment is deleted when all its records are older than this time, in ms since 1970 (KIP-47); 0 disables it."),
    _topic("lowtide.delete.erase", Type.BOOLEAN, "false", None, "lowtide.log.delete.erase",
           "Whether each replica erases deleted records about a second after the delete. No file then contains them and no fetch returns them."),
    _topic("lowtide.erasure.key.filter", Type.STRING, "search", OneOf(("none", "search")), "lowtide.log.erasure.key.filter",
           "Whether a search for keys builds a filter of the keys of each segment that it reads (search), 13 to 39 bits a key. Later searches then read only the parts of these segments that may have one of their keys."),
    _topic("lowtide.hold.reason", Type.STRING, "", None, None, "Why the topic is held; shown to those whose deletes are refused."),
    _topic("lowtide.hold.until", Type.LONG, "-1", at_least(-1), None,
           "Until this time, in ms since 1970, no record of the topic is deleted, compacted or erased, and the topic can't be deleted; -1 is no hold. To lower it needs ALTER on the cluster."),
    _topic("lowtide.retention.commitoffset.groups", Type.LIST, "", DELETING_GROUPS, "lowtide.log.retention.commitoffset.groups",
           "The groups whose commits delete consumed records, as group IDs or prefixes that end with *. Records "
           "that one of them has not consumed are kept. If empty, every group protects its records, and the "
           "commits of principals with DELETE on the topic delete them."),
    _topic("max.compaction.lag.ms", Type.LONG, _FOREVER, at_least(1), "log.cleaner.max.compaction.lag.ms",
           "The maximum time for which a record stays uncompacted."),
    _topic("max.decompressed.message.bytes", Type.INT, "2147483639", Range(1, 2147483639), "max.decompressed.message.bytes",
           "The maximum size of a single record in a compressed batch that a producer sends, when it is decompressed."),
    _topic("max.message.bytes", Type.INT, "1048588", at_least(0), "message.max.bytes",
           "The maximum size of a batch, including its 12 bytes of offset and length."),
    _topic("message.timestamp.after.max.ms", Type.LONG, "3600000", at_least(0), "log.message.timestamp.after.max.ms",
           "The maximum time by which a record's timestamp can be in the future."),
    _topic("message.timestamp.before.max.ms", Type.LONG, _FOREVER, at_least(0), "log.message.timestamp.before.max.ms",
           "The maximum time by which a record's timestamp can be in the past."),
    _topic("message.timestamp.type", Type.STRING, "CreateTime", OneOf(("CreateTime", "LogAppendTime")), "log.message.timestamp.type",
           "Whether the timestamp of a record is set by the producer or by the broker."),
    _topic("min.cleanable.dirty.ratio", Type.DOUBLE, "0.5", Range(0, 1), "log.cleaner.min.cleanable.ratio",
           "The minimum ratio of uncompacted to total log size at which a log is compacted."),
    _topic("min.compaction.lag.ms", Type.LONG, "0", at_least(0), "log.cleaner.min.compaction.lag.ms", "The minimum time for which a record stays uncompacted."),
    _topic("min.insync.replicas", Type.INT, "1", at_least(1), "min.insync.replicas",
           "The minimum number of in-sync replicas for a write with acks=all; the replication factor is an upper bound."),
    _topic("preallocate", Type.BOOLEAN, "false", None, "log.preallocate", "Whether the file of a new segment is preallocated."),
    _topic("remote.copy.lag.bytes", Type.LONG, "-1", at_least(-1), "log.remote.copy.lag.bytes",
           "The number of newer bytes after which a segment is copied to tiered storage. Lowtide has no tiered storage.", enforced=False),
    _topic("remote.copy.lag.ms", Type.LONG, "0", at_least(-1), "log.remote.copy.lag.ms",
           "The age at which a segment is copied to tiered storage. Lowtide has no tiered storage.", enforced=False),
    _topic("remote.log.copy.disable", Type.BOOLEAN, "false", None, None, "Whether segments are no longer copied to tiered storage.", enforced=False),
    _topic("remote.log.delete.on.disable", Type.BOOLEAN, "false", None, None,
           "Whether tiered segments are deleted when tiered storage is disabled.", enforced=False),
    _topic("remote.storage.enable", Type.BOOLEAN, "false", _NOT_TIERED, None, "Whether tiered storage is enabled.", enforced=False),
    _topic("retention.bytes", Type.LONG, "-1", None, "log.retention.bytes",
           "The size of a partition above which its oldest segments are deleted; -1 means no limit."),
    _topic("retention.commitoffset.hours", Type.INT, "-1", at_least(-1), None, "The same as retention.commitoffset.ms, in hours."),
    _topic("retention.commitoffset.minutes", Type.INT, "-1", at_least(-1), None,
           "The same as retention.commitoffset.ms, in minutes. It takes precedence over retention.commitoffset.hours."),
    _topic("retention.commitoffset.ms", Type.LONG, "-1", at_least(-1), "log.retention.commitoffset.ms",
           "The time after which a segment that all groups have consumed is deleted (KIP-68); at most retention.ms; -1 means never."),
    _topic("retention.ms", Type.LONG, "604800000", at_least(-1), "log.retention.ms",
           "The time for which records are kept before their segment is deleted; -1 means forever."),
    _topic("segment.bytes", Type.INT, "1073741824", at_least(1 << 20), "log.segment.bytes", "The maximum size of a segment."),
    _topic("segment.index.bytes", Type.INT, "10485760", at_least(4), "log.index.size.max.bytes",
           "The maximum size of an index; a full index rolls the segment."),
    _topic("segment.jitter.ms", Type.LONG, "0", at_least(0), "log.roll.jitter.ms", "The maximum random time by which a segment is rolled before segment.ms."),
    _topic("segment.ms", Type.LONG, "604800000", at_least(1), "log.roll.ms", "The time after which a segment is rolled."),
    _topic("unclean.leader.election.enable", Type.BOOLEAN, "false", None, "unclean.leader.election.enable",
           "Whether a replica outside the ISR may become leader when no other replica is left, which can lose acknowledged records."),
)
# fmt: on
