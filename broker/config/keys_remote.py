"""A broker's keys about tiered storage, as facts of Apache Kafka 4.3.

Lowtide has none: they are known, checked and described.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import NO_TIERED_STORAGE, ConfigKey, Matching, Only, Range, Type, at_least

_BOOLEAN, _INT, _LONG, _DOUBLE, _STRING = Type.BOOLEAN, Type.INT, Type.LONG, Type.DOUBLE, Type.STRING
_FOREVER: Final = "9223372036854775807"
_NOT_EMPTY: Final = Matching(r".+", "a text that isn't empty")

# fmt: off
REMOTE_KEYS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey("remote.log.storage.system.enable", _BOOLEAN, "false", Only(value=False, because=NO_TIERED_STORAGE), "Whether the broker has tiered storage."),
    ConfigKey("remote.log.storage.manager.class.name", _STRING, None, _NOT_EMPTY, "A class that stores segments."),
    ConfigKey("remote.log.storage.manager.class.path", _STRING, None, None, "Where that class is."),
    ConfigKey("remote.log.storage.manager.impl.prefix", _STRING, "rsm.config.", _NOT_EMPTY, "How keys for that class begin."),
    ConfigKey("remote.log.metadata.manager.class.name", _STRING,
              "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", _NOT_EMPTY,
              "A class that remembers what is stored where."),
    ConfigKey("remote.log.metadata.manager.class.path", _STRING, None, None, "Where that class is."),
    ConfigKey("remote.log.metadata.manager.impl.prefix", _STRING, "rlmm.config.", _NOT_EMPTY, "How keys for that class begin."),
    ConfigKey("remote.log.metadata.manager.listener.name", _STRING, None, _NOT_EMPTY, "The listener that it connects to."),
    ConfigKey("remote.log.metadata.custom.metadata.max.bytes", _INT, "128", at_least(0), "How long a note on a stored segment may be."),
    ConfigKey("remote.log.index.file.cache.total.size.bytes", _LONG, "1073741824", at_least(1), "The disk space for indexes of stored segments."),
    ConfigKey("remote.log.index.file.cache.ttl.ms", _LONG, "900000", at_least(-1), "How long unused indexes stay.", internal=True),
    ConfigKey("remote.log.manager.thread.pool.size", _INT, "2", at_least(1), "Threads for chores of tiered storage."),
    ConfigKey("remote.log.manager.copier.thread.pool.size", _INT, "10", at_least(1), "Threads that store segments."),
    ConfigKey("remote.log.manager.expiration.thread.pool.size", _INT, "10", at_least(1), "Threads that delete stored segments."),
    ConfigKey("remote.log.manager.follower.thread.pool.size", _INT, "2", at_least(1), "Threads that keep followers' knowledge fresh."),
    ConfigKey("remote.log.manager.task.interval.ms", _LONG, "30000", at_least(1), "How often segments to store or delete are looked for."),
    ConfigKey("remote.log.manager.task.retry.backoff.ms", _LONG, "500", at_least(1), "How long a failed task rests at first.", internal=True),
    ConfigKey("remote.log.manager.task.retry.backoff.max.ms", _LONG, "30000", at_least(1), "How long a failed task rests at most.", internal=True),
    ConfigKey("remote.log.manager.task.retry.jitter", _DOUBLE, "0.2", Range(0, 0.5), "How much those rests vary.", internal=True),
    ConfigKey("remote.log.manager.copy.max.bytes.per.second", _LONG, _FOREVER, at_least(1), "How fast segments are stored."),
    ConfigKey("remote.log.manager.copy.quota.window.num", _INT, "11", at_least(1), "How many windows that looks back."),
    ConfigKey("remote.log.manager.copy.quota.window.size.seconds", _INT, "1", at_least(1), "How long such a window is."),
    ConfigKey("remote.log.manager.fetch.max.bytes.per.second", _LONG, _FOREVER, at_least(1), "How fast stored segments are read."),
    ConfigKey("remote.log.manager.fetch.quota.window.num", _INT, "11", at_least(1), "How many windows that looks back."),
    ConfigKey("remote.log.manager.fetch.quota.window.size.seconds", _INT, "1", at_least(1), "How long such a window is."),
    ConfigKey("remote.log.reader.threads", _INT, "10", at_least(1), "Threads that read stored segments."),
    ConfigKey("remote.log.reader.max.pending.tasks", _INT, "100", at_least(1), "How many reads of stored segments may wait."),
    ConfigKey("remote.fetch.max.wait.ms", _INT, "500", at_least(1), "How long a fetch waits for a stored segment."),
    ConfigKey("remote.list.offsets.request.timeout.ms", _LONG, "30000", at_least(1), "How long a search in stored segments may take."),
)
# fmt: on
