"""A broker's keys about tiered storage, as facts of Apache Kafka 4.3.

A table: its order is by subject.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config_key import ConfigKey, Matching, Range, Type, at_least

_BOOLEAN, _INT, _LONG, _DOUBLE = Type.BOOLEAN, Type.INT, Type.LONG, Type.DOUBLE
_STRING = Type.STRING
_FOREVER: Final = "9223372036854775807"
_NOT_EMPTY: Final = Matching(".+", "a text that isn't empty")
_TOPIC_BASED: Final = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"

# fmt: off
REMOTE_KEYS: Final[tuple[ConfigKey, ...]] = (
    # The system.
    ConfigKey("remote.log.storage.system.enable", _BOOLEAN, "false", None, "Whether the broker has tiered storage at all."),
    ConfigKey("remote.log.storage.manager.class.name", _STRING, None, _NOT_EMPTY, "The class that stores segments."),
    ConfigKey("remote.log.storage.manager.class.path", _STRING, None, None,
              "Where that class is found; Java's own class path when not set."),
    ConfigKey("remote.log.storage.manager.impl.prefix", _STRING, "rsm.config.", _NOT_EMPTY,
              "How the keys begin that are handed to that class."),
    ConfigKey("remote.log.metadata.manager.class.name", _STRING, _TOPIC_BASED, _NOT_EMPTY,
              "The class that keeps the list of stored segments."),
    ConfigKey("remote.log.metadata.manager.class.path", _STRING, None, None,
              "Where that class is found; Java's own class path when not set."),
    ConfigKey("remote.log.metadata.manager.impl.prefix", _STRING, "rlmm.config.", _NOT_EMPTY,
              "How the keys begin that are handed to that class."),
    ConfigKey("remote.log.metadata.manager.listener.name", _STRING, None, _NOT_EMPTY,
              "The listener over which that class reaches the brokers."),
    ConfigKey("remote.log.metadata.custom.metadata.max.bytes", _INT, "128", at_least(0),
              "The longest note that the storage may keep with a segment."),

    # Work.
    ConfigKey("remote.log.manager.task.interval.ms", _LONG, "30000", at_least(1),
              "How often segments to copy or to delete are looked for."),
    ConfigKey("remote.log.manager.task.retry.backoff.ms", _LONG, "500", at_least(1),
              "How long to rest at first after a failure.", internal=True),
    ConfigKey("remote.log.manager.task.retry.backoff.max.ms", _LONG, "30000", at_least(1),
              "How long to rest at most after failures.", internal=True),
    ConfigKey("remote.log.manager.task.retry.jitter", _DOUBLE, "0.2", Range(0, 0.5),
              "By which part that rest varies at random.", internal=True),
    ConfigKey("remote.log.manager.thread.pool.size", _INT, "2", at_least(1),
              "An older name of remote.log.manager.follower.thread.pool.size."),
    ConfigKey("remote.log.manager.copier.thread.pool.size", _INT, "10", at_least(1), "Threads that copy segments."),
    ConfigKey("remote.log.manager.expiration.thread.pool.size", _INT, "10", at_least(1), "Threads that delete segments."),
    ConfigKey("remote.log.manager.follower.thread.pool.size", _INT, "2", at_least(1),
              "Threads that keep followers up to date about stored segments."),
    ConfigKey("remote.log.manager.copy.max.bytes.per.second", _LONG, _FOREVER, at_least(1), "How fast segments may be copied."),
    ConfigKey("remote.log.manager.copy.quota.window.num", _INT, "11", at_least(1), "How many windows the quota of copying looks back."),
    ConfigKey("remote.log.manager.copy.quota.window.size.seconds", _INT, "1", at_least(1), "How long a window of the quota of copying is."),
    ConfigKey("remote.log.manager.fetch.max.bytes.per.second", _LONG, _FOREVER, at_least(1), "How fast stored segments may be read."),
    ConfigKey("remote.log.manager.fetch.quota.window.num", _INT, "11", at_least(1), "How many windows the quota of reading looks back."),
    ConfigKey("remote.log.manager.fetch.quota.window.size.seconds", _INT, "1", at_least(1),
              "How long a window of the quota of reading is."),

    # Reading.
    ConfigKey("remote.log.reader.threads", _INT, "10", at_least(1), "Threads that read stored segments."),
    ConfigKey("remote.log.reader.max.pending.tasks", _INT, "100", at_least(1), "How many reads of stored segments may wait."),
    ConfigKey("remote.log.index.file.cache.total.size.bytes", _LONG, "1073741824", at_least(1),
              "How many bytes of indexes of stored segments are kept on disk."),
    ConfigKey("remote.log.index.file.cache.ttl.ms", _LONG, "900000", at_least(-1),
              "After how long an unused index leaves that cache; -1 is never.", internal=True),
    ConfigKey("remote.fetch.max.wait.ms", _INT, "500", at_least(1), "How long a fetch waits for a stored segment."),
    ConfigKey("remote.list.offsets.request.timeout.ms", _LONG, "30000", at_least(1),
              "How long a question for offsets waits for stored segments."),
    ConfigKey("follower.fetch.last.tiered.offset.enable", _BOOLEAN, "false", None,
              "Whether an empty follower begins where tiered storage ends."),
)
# fmt: on
