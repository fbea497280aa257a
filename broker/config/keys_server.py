"""A broker's keys about itself, its listeners and limits, and its logs, as facts of Apache Kafka 4.3, and Lowtide's own.

Where Lowtide's default is another one, a comment says so. A table: its order is by subject.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, Matching, OneOf, Range, Type, at_least
from lowtide.broker.config.keys_topics import CLEANUP_POLICIES, COMPRESSION_TYPES

_BOOLEAN, _SHORT, _INT, _LONG, _DOUBLE = Type.BOOLEAN, Type.SHORT, Type.INT, Type.LONG, Type.DOUBLE
_STRING, _LIST, _CLASS = Type.STRING, Type.LIST, Type.CLASS
_FOREVER: Final = "9223372036854775807"
_OVERRIDES: Final = Matching(
    r"(\s*[0-9A-Fa-f.:\[\]]+:[0-9]{1,9}\s*(,|$))*", "addresses with a number each, as in 127.0.0.1:200,::1:100"
)
_UNLIMITED: Final = "2147483647"

LISTENER_PATTERN: Final = r"[A-Za-z0-9._-]+://(\[[0-9A-Fa-f:.%]*\]|[^/:\[\]]*):[0-9]{1,5}"
_LISTENER: Final = Matching(LISTENER_PATTERN, "a list of NAME://host:port, where an empty host is every interface")

# fmt: off
SERVER_KEYS: Final[tuple[ConfigKey, ...]] = (
    # Who it is. Lowtide's node.id is 0, and its log.dirs are ./data, so that it starts without a file.
    ConfigKey("node.id", _INT, "0", at_least(0), "The broker's number in its cluster.", enforced=True),
    ConfigKey("broker.id", _INT, "-1", None, "An older name of node.id; -1 leaves it to that.", enforced=True),
    ConfigKey("broker.rack", _STRING, None, None, "The rack, or zone, of the broker, as clients see it.", enforced=True),
    ConfigKey("process.roles", _LIST, "broker", OneOf(("broker", "controller")),
              "What the process is in a KRaft cluster; Lowtide's broker is both in one."),
    ConfigKey("server.max.startup.time.ms", _LONG, _FOREVER, at_least(0), "How long a start may take.", internal=True),
    ConfigKey("initial.broker.registration.timeout.ms", _INT, "60000", None, "How long to try to register before giving up.",
              enforced=True),

    # Listeners and connections.
    ConfigKey("listeners", _LIST, "PLAINTEXT://:9092", _LISTENER, "Where it listens.", enforced=True),
    ConfigKey("advertised.listeners", _LIST, None, _LISTENER, "The addresses that clients get; the listeners when not set.", enforced=True),
    ConfigKey("listener.security.protocol.map", _STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", None,
              "Which security protocol each listener name stands for.", enforced=True),
    ConfigKey("early.start.listeners", _LIST, None, None, "Listeners that open before the broker is ready."),
    ConfigKey("inter.broker.listener.name", _STRING, None, None, "The listener that other brokers use.", enforced=True),
    ConfigKey("socket.listen.backlog.size", _INT, "50", at_least(1), "How many connections may wait to be accepted."),
    ConfigKey("socket.receive.buffer.bytes", _INT, "102400", None, "The size of a socket's receive buffer; -1 is the system's."),
    ConfigKey("socket.send.buffer.bytes", _INT, "102400", None, "The size of a socket's send buffer; -1 is the system's."),
    ConfigKey("socket.request.max.bytes", _INT, "104857600", at_least(1), "The largest request that is read.", enforced=True),
    ConfigKey("socket.connection.setup.timeout.ms", _LONG, "10000", None, "How long connecting to another broker may take at first."),
    ConfigKey("socket.connection.setup.timeout.max.ms", _LONG, "30000", None, "How long connecting to another broker may take at most."),
    ConfigKey("connections.max.idle.ms", _LONG, "600000", None, "After how long an idle connection is closed; below 0 is never.", enforced=True),
    ConfigKey("max.connections", _INT, _UNLIMITED, at_least(0), "How many connections may be open.", enforced=True),
    ConfigKey("max.connections.per.ip", _INT, _UNLIMITED, at_least(0), "How many connections one address may have.", enforced=True),
    ConfigKey("max.connections.per.ip.overrides", _STRING, "", _OVERRIDES,
              "Addresses with a number of connections of their own, as address:number.", enforced=True),
    ConfigKey("max.connection.creation.rate", _INT, _UNLIMITED, at_least(0), "How many connections a second are served; later ones wait. Of a listener alone as "
              "listener.name.<listener>.max.connection.creation.rate.", enforced=True),
    ConfigKey("num.network.threads", _INT, "3", at_least(1), "Threads that read and write sockets; Lowtide has one event loop."),
    ConfigKey("num.io.threads", _INT, "8", at_least(1), "Threads that handle requests; Lowtide has one event loop."),
    ConfigKey("background.threads", _INT, "10", at_least(1), "Threads for chores."),

    # Requests. Kafka doesn't limit queued.max.request.bytes (-1); Lowtide's memory is a sum of limits.
    ConfigKey("queued.max.requests", _INT, "500", at_least(1), "How many requests may wait for a thread."),
    ConfigKey("queued.max.request.bytes", _LONG, "268435456", None,
              "How many bytes of requests may be in memory over all connections; below 0 is no limit.", enforced=True),
    ConfigKey("request.timeout.ms", _INT, "30000", None, "How long to wait for another broker's answer."),
    ConfigKey("max.request.partition.size.limit", _INT, "2000", at_least(1), "How many partitions of topics one answer describes.", enforced=True),
    ConfigKey("fetch.max.bytes", _INT, "57671680", at_least(1024), "The most that one fetch answers.", enforced=True),
    ConfigKey("max.incremental.fetch.session.cache.slots", _INT, "1000", at_least(0), "How many fetch sessions are kept.", enforced=True),
    ConfigKey("fetch.purgatory.purge.interval.requests", _INT, "1000", None, "How often finished waits of fetches are swept; Lowtide leaves none."),
    ConfigKey("producer.purgatory.purge.interval.requests", _INT, "1000", None,
              "How often finished waits of produces are swept; Lowtide leaves none."),
    ConfigKey("delete.records.purgatory.purge.interval.requests", _INT, "1", None,
              "How often finished waits of deletes are swept; Lowtide leaves none."),
    ConfigKey("unstable.api.versions.enable", _BOOLEAN, "false", None, "Offers API versions that may still change.", internal=True),
    ConfigKey("unstable.feature.versions.enable", _BOOLEAN, "false", None, "Offers feature versions that may still change.", internal=True),

    # Topics.
    ConfigKey("auto.create.topics.enable", _BOOLEAN, "true", None, "Whether asking for a topic makes it.", enforced=True),
    ConfigKey("num.partitions", _INT, "1", at_least(1), "How many partitions a topic gets when the request names no number.", enforced=True),
    ConfigKey("default.replication.factor", _INT, "1", None, "How many replicas a topic gets when the request names no number.", enforced=True),
    ConfigKey("delete.topic.enable", _BOOLEAN, "true", None, "Whether topics may be deleted.", enforced=True),
    ConfigKey("create.topic.policy.class.name", _CLASS, None, None, "A class that judges new topics."),
    ConfigKey("alter.config.policy.class.name", _CLASS, None, None, "A class that judges configuration changes."),

    # Where the logs are, and how they are written.
    ConfigKey("log.dirs", _LIST, "./data", None, "The log directories.", enforced=True),
    ConfigKey("log.dir", _LIST, None, None, "The log directories, where log.dirs doesn't name them.", enforced=True),
    ConfigKey("cordoned.log.dirs", _LIST, "", None, "Log directories that get no new partitions."),
    ConfigKey("log.dir.failure.timeout.ms", _LONG, "30000", at_least(1), "How long a failed log directory may stay unreported."),
    ConfigKey("log.segment.bytes", _INT, "1073741824", at_least(1 << 20), "The size at which a segment is full.", enforced=True),
    ConfigKey("log.roll.ms", _LONG, None, at_least(1), "The age at which a segment is closed, in ms; before log.roll.hours.", enforced=True),
    ConfigKey("log.roll.hours", _INT, "168", at_least(1), "The age at which a segment is closed, in hours.", enforced=True),
    ConfigKey("log.roll.jitter.ms", _LONG, None, at_least(0), "How much earlier a segment may be closed at random, in ms.", enforced=True),
    ConfigKey("log.roll.jitter.hours", _INT, "0", at_least(0), "How much earlier a segment may be closed at random, in hours.", enforced=True),
    ConfigKey("log.index.size.max.bytes", _INT, "10485760", at_least(4), "The size at which an index is full.", enforced=True),
    ConfigKey("log.index.interval.bytes", _INT, "4096", at_least(0), "How many bytes of log lie between two entries of an index.", enforced=True),
    ConfigKey("log.preallocate", _BOOLEAN, "false", None, "Whether a new segment's file gets its full size at once.", enforced=True),
    ConfigKey("log.segment.delete.delay.ms", _LONG, "60000", at_least(0), "How long the files of removed segments stay.", enforced=True),
    ConfigKey("log.flush.interval.messages", _LONG, _FOREVER, at_least(1), "After how many records a partition is synced to disk.", enforced=True),
    ConfigKey("log.flush.interval.ms", _LONG, None, None,
              "After how long appended records are synced to disk; log.flush.scheduler.interval.ms when not set.", enforced=True),
    ConfigKey("log.flush.scheduler.interval.ms", _LONG, _FOREVER, None, "How often logs are looked at for syncing.", enforced=True),
    ConfigKey("log.flush.offset.checkpoint.interval.ms", _INT, "60000", at_least(0), "How often recovery points are written down.", enforced=True),
    ConfigKey("log.flush.start.offset.checkpoint.interval.ms", _INT, "60000", at_least(0),
              "How often log starts are written down; Lowtide's journal has each at once."),
    ConfigKey("num.recovery.threads.per.data.dir", _INT, "2", at_least(1), "Threads that recover logs at the start."),
    ConfigKey("log.initial.task.delay.ms", _LONG, "30000", at_least(0), "How long chores of the logs wait after the start.", enforced=True,
              internal=True),

    # What may be appended.
    ConfigKey("message.max.bytes", _INT, "1048588", at_least(0),
              "The largest batch that is taken, its 12 bytes of offset and length included.", enforced=True),
    ConfigKey("log.message.timestamp.type", _STRING, "CreateTime", OneOf(("CreateTime", "LogAppendTime")),
              "Whose clock gives the timestamp: the producer's or the broker's.", enforced=True),
    ConfigKey("log.message.timestamp.before.max.ms", _LONG, _FOREVER, at_least(0), "How far in the past a timestamp may lie.", enforced=True),
    ConfigKey("log.message.timestamp.after.max.ms", _LONG, "3600000", at_least(0), "How far in the future a timestamp may lie.", enforced=True),
    ConfigKey("compression.type", _STRING, "producer", OneOf(COMPRESSION_TYPES),
              "The codec batches are stored with; `producer` keeps what was sent.", enforced=True),
    ConfigKey("compression.gzip.level", _INT, "-1", Range(1, 9, -1), "How hard gzip tries; -1 is its own default."),
    ConfigKey("compression.lz4.level", _INT, "9", Range(1, 17), "How hard lz4 tries."),
    ConfigKey("compression.zstd.level", _INT, "3", Range(-131072, 22), "How hard zstd tries."),
    ConfigKey("min.insync.replicas", _INT, "1", at_least(1), "How many replicas must be in sync for an acks=all write.", enforced=True),
    ConfigKey("producer.id.expiration.ms", _INT, "86400000", at_least(1), "After how long a silent producer is forgotten.", enforced=True),
    ConfigKey("producer.id.expiration.check.interval.ms", _INT, "600000", at_least(1), "How often silent producers are looked for.",
              internal=True),

    # Retention and compaction.
    ConfigKey("log.cleanup.policy", _LIST, "delete", OneOf(CLEANUP_POLICIES), "Whether old segments are deleted, compacted, or both.", enforced=True),
    ConfigKey("log.retention.ms", _LONG, None, None, "How long records are kept, in ms; -1 is for ever; before log.retention.minutes.", enforced=True),
    ConfigKey("log.retention.minutes", _INT, None, None, "How long records are kept, in minutes; before log.retention.hours.", enforced=True),
    ConfigKey("log.retention.hours", _INT, "168", None, "How long records are kept, in hours.", enforced=True),
    ConfigKey("log.retention.bytes", _LONG, "-1", None, "How large a partition may grow; -1 is no limit.", enforced=True),
    ConfigKey("log.retention.check.interval.ms", _LONG, "300000", at_least(1), "How often segments to delete are looked for.", enforced=True),
    ConfigKey("log.retention.min.timestamp", _LONG, "0", at_least(0),
              "The time, in ms since 1970, before which records may go (KIP-47); 0 says nothing.", enforced=True),
    ConfigKey("log.retention.commitoffset.enable", _BOOLEAN, "false", None,
              "Whether segments that all groups have consumed go before their time (KIP-68).", enforced=True),
    ConfigKey("log.retention.commitoffset.ms", _LONG, "-1", at_least(-1),
              "How old such a segment must be, in ms; -1 is never; before log.retention.commitoffset.minutes.", enforced=True),
    ConfigKey("log.retention.commitoffset.minutes", _INT, "-1", at_least(-1),
              "How old such a segment must be, in minutes; before log.retention.commitoffset.hours.", enforced=True),
    ConfigKey("log.retention.commitoffset.hours", _INT, "-1", at_least(-1), "How old such a segment must be, in hours.", enforced=True),
    ConfigKey("log.local.retention.bytes", _LONG, "-2", at_least(-2),
              "How many bytes stay on the broker's own disk under tiered storage, which this broker does not have; -2 follows log.retention.bytes."),
    ConfigKey("log.local.retention.ms", _LONG, "-2", at_least(-2),
              "How long segments stay on the broker's own disk under tiered storage, which this broker does not have; -2 follows log.retention.ms."),
    ConfigKey("log.cleaner.enable", _BOOLEAN, "true", None, "Whether compaction runs at all.", enforced=True),
    ConfigKey("log.cleaner.threads", _INT, "1", at_least(0), "How many logs are compacted at once, each in a process of its own.", enforced=True),
    ConfigKey("log.cleaner.backoff.ms", _LONG, "15000", at_least(0), "How long compaction rests when there is nothing to do.", enforced=True),
    ConfigKey("log.cleaner.dedupe.buffer.size", _LONG, "134217728", None, "The memory for the keys of all compactions that run: 72 bytes a key.", enforced=True),
    ConfigKey("log.cleaner.io.buffer.size", _INT, "524288", at_least(0), "The memory for reading and writing in a compaction."),
    ConfigKey("log.cleaner.io.buffer.load.factor", _DOUBLE, "0.9", None, "How full the table of keys may get."),
    ConfigKey("log.cleaner.io.max.bytes.per.second", _DOUBLE, "1.7976931348623157E308", None, "How fast all compactions together may read and write.", enforced=True),
    ConfigKey("log.cleaner.delete.retention.ms", _LONG, "86400000", at_least(0),
              "How long compacted topics keep the record that says a key is deleted.", enforced=True),
    ConfigKey("log.cleaner.min.cleanable.ratio", _DOUBLE, "0.5", Range(0, 1), "How much of a log must be uncompacted before it is compacted.", enforced=True),
    ConfigKey("log.cleaner.min.compaction.lag.ms", _LONG, "0", at_least(0), "How long a record is safe from compaction.", enforced=True),
    ConfigKey("log.cleaner.max.compaction.lag.ms", _LONG, _FOREVER, at_least(1), "After how long a record must have been compacted.", enforced=True),

    # Metrics and telemetry.
    ConfigKey("metric.reporters", _LIST, "org.apache.kafka.common.metrics.JmxReporter", None, "Classes that report metrics."),
    ConfigKey("metrics.num.samples", _INT, "2", at_least(1), "How many samples a metric has."),
    ConfigKey("metrics.recording.level", _STRING, "INFO", None, "How detailed metrics are."),
    ConfigKey("metrics.sample.window.ms", _LONG, "30000", at_least(1), "How long a metric's sample is."),
    ConfigKey("kafka.metrics.polling.interval.secs", _INT, "10", at_least(1), "How often older metrics are read."),
    ConfigKey("kafka.metrics.reporters", _LIST, "", None, "Classes that report older metrics."),
    ConfigKey("telemetry.max.bytes", _INT, "1048576", at_least(1), "The largest report of a client's own metrics.", enforced=True),
    ConfigKey("config.providers", _LIST, "", None, "Names of providers that fill in configuration values."),

    # Quotas.
    ConfigKey("quota.window.num", _INT, "11", at_least(1), "How many windows client quotas look back.", enforced=True),
    ConfigKey("quota.window.size.seconds", _INT, "1", at_least(1), "How long a window of client quotas is.", enforced=True),
    ConfigKey("replication.quota.window.num", _INT, "11", at_least(1), "How many windows replication quotas look back.", enforced=True),
    ConfigKey("replication.quota.window.size.seconds", _INT, "1", at_least(1), "How long a window of replication quotas is.", enforced=True),
    ConfigKey("alter.log.dirs.replication.quota.window.num", _INT, "11", at_least(1), "How many windows quotas of moves between disks look back."),
    ConfigKey("alter.log.dirs.replication.quota.window.size.seconds", _INT, "1", at_least(1),
              "How long a window of quotas of moves between disks is."),
    ConfigKey("controller.quota.window.num", _INT, "11", at_least(1), "How many windows quotas of controller requests look back.", enforced=True),
    ConfigKey("controller.quota.window.size.seconds", _INT, "1", at_least(1), "How long a window of quotas of controller requests is.", enforced=True),
    ConfigKey("client.quota.callback.class", _CLASS, None, None, "A class that decides on client quotas."),
)
# fmt: on
