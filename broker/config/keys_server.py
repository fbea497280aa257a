"""A broker's keys for itself, its listeners, limits and logs, as in Apache Kafka 4.4, ordered by subject.

A comment marks Lowtide's different defaults.
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
    # Identity. Lowtide's node.id is 0 and its log.dirs are ./data, so that it starts without a file.
    ConfigKey("node.id", _INT, "0", at_least(0), "The ID of the broker in its cluster."),
    ConfigKey("broker.id", _INT, "-1", None, "The former name of node.id; -1 means not set."),
    ConfigKey("broker.rack", _STRING, None, None, "The rack or availability zone of the broker."),
    ConfigKey("process.roles", _LIST, "broker", OneOf(("broker", "controller")),
              "The KRaft roles of the process; a Lowtide broker is always both.", enforced=False),
    ConfigKey("server.max.startup.time.ms", _LONG, _FOREVER, at_least(0), "The maximum time for startup.", enforced=False, internal=True),
    ConfigKey("initial.broker.registration.timeout.ms", _INT, "60000", None, "The time after which startup fails if the broker cannot register."),

    # Listeners and connections.
    ConfigKey("listeners", _LIST, "PLAINTEXT://:9092", _LISTENER, "The addresses that the broker listens on."),
    ConfigKey("advertised.listeners", _LIST, None, _LISTENER, "The addresses that clients connect to; those of listeners if not set."),
    ConfigKey("listener.security.protocol.map", _STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", None,
              "The security protocol of each listener name."),
    ConfigKey("early.start.listeners", _LIST, None, None, "The listeners that open before the broker is ready.", enforced=False),
    ConfigKey("inter.broker.listener.name", _STRING, None, None, "The listener that other brokers connect to."),
    ConfigKey("socket.listen.backlog.size", _INT, "50", at_least(1), "The maximum number of connections that wait to be accepted.", enforced=False),
    ConfigKey("socket.receive.buffer.bytes", _INT, "102400", None, "The size of a socket's receive buffer; -1 uses the system's default.", enforced=False),
    ConfigKey("socket.send.buffer.bytes", _INT, "102400", None, "The size of a socket's send buffer; -1 uses the system's default.", enforced=False),
    ConfigKey("socket.request.max.bytes", _INT, "104857600", at_least(1), "The maximum size of a request."),
    ConfigKey("socket.connection.setup.timeout.ms", _LONG, "10000", None, "The initial timeout for connecting to another broker.", enforced=False),
    ConfigKey("socket.connection.setup.timeout.max.ms", _LONG, "30000", None, "The maximum timeout for connecting to another broker.", enforced=False),
    ConfigKey("connections.max.idle.ms", _LONG, "600000", None, "The time after which an idle connection is closed; a negative value means never."),
    ConfigKey("max.connections", _INT, _UNLIMITED, at_least(0), "The maximum number of open connections."),
    ConfigKey("max.connections.per.ip", _INT, _UNLIMITED, at_least(0), "The maximum number of connections from one IP address."),
    ConfigKey("max.connections.per.ip.overrides", _STRING, "", _OVERRIDES, "The maximum number of connections from single IP addresses, as address:number."),
    ConfigKey("max.connection.creation.rate", _INT, _UNLIMITED, at_least(0),
              "The maximum number of new connections per second; more must wait. Set "
              "listener.name.<listener>.max.connection.creation.rate for a single listener."),
    ConfigKey("num.network.threads", _INT, "3", at_least(1), "The number of threads that read and write sockets; Lowtide has one event loop.", enforced=False),
    ConfigKey("num.io.threads", _INT, "8", at_least(1), "The number of threads that handle requests; Lowtide has one event loop.", enforced=False),
    ConfigKey("background.threads", _INT, "10", at_least(1), "The number of threads for background tasks.", enforced=False),

    # Requests. Kafka's default of queued.max.request.bytes is -1, no limit.
    ConfigKey("queued.max.requests", _INT, "500", at_least(1), "The maximum number of requests that wait for a thread.", enforced=False),
    ConfigKey("queued.max.request.bytes", _LONG, "268435456", None,
              "The maximum total size of the requests in memory, over all connections; a negative value means no limit."),
    ConfigKey("request.timeout.ms", _INT, "30000", None, "The time that the broker waits for a response from another broker.", enforced=False),
    ConfigKey("max.request.partition.size.limit", _INT, "2000", at_least(1), "The maximum number of partitions in a DescribeTopicPartitions response."),
    ConfigKey("fetch.max.bytes", _INT, "57671680", at_least(1024), "The maximum size of a fetch response."),
    ConfigKey("max.incremental.fetch.session.cache.slots", _INT, "1000", at_least(0), "The maximum number of fetch sessions on a broker."),
    ConfigKey("fetch.purgatory.purge.interval.requests", _INT, "1000", None,
              "The number of requests after which completed fetches are purged; Lowtide needs no purge.", enforced=False),
    ConfigKey("producer.purgatory.purge.interval.requests", _INT, "1000", None,
              "The number of requests after which completed produce requests are purged; Lowtide needs no purge.", enforced=False),
    ConfigKey("delete.records.purgatory.purge.interval.requests", _INT, "1", None,
              "The number of requests after which completed deletes are purged; Lowtide needs no purge.", enforced=False),
    ConfigKey("unstable.api.versions.enable", _BOOLEAN, "false", None, "Whether unstable API versions are enabled.", enforced=False, internal=True),
    ConfigKey("unstable.feature.versions.enable", _BOOLEAN, "false", None, "Whether unstable feature versions are enabled.", enforced=False, internal=True),

    # Topics.
    ConfigKey("auto.create.topics.enable", _BOOLEAN, "true", None, "Whether a request for an unknown topic creates the topic."),
    ConfigKey("num.partitions", _INT, "1", at_least(1), "The default number of partitions of a topic."),
    ConfigKey("default.replication.factor", _INT, "1", None, "The default replication factor of a topic."),
    ConfigKey("delete.topic.enable", _BOOLEAN, "true", None, "Whether topics can be deleted."),
    ConfigKey("create.topic.policy.class.name", _CLASS, None, None, "The class that validates new topics.", enforced=False),
    ConfigKey("alter.config.policy.class.name", _CLASS, None, None, "The class that validates configuration changes.", enforced=False),

    # Where the logs are, and how they are written.
    ConfigKey("log.dirs", _LIST, "./data", None, "The log directories."),
    ConfigKey("log.dir", _LIST, None, None, "The log directories if log.dirs is not set."),
    ConfigKey("cordoned.log.dirs", _LIST, "", None,
              "The log directories that receive no new partitions, as they are named in log.dirs; * means all."),
    ConfigKey("log.dir.failure.timeout.ms", _LONG, "30000", at_least(1),
              "The time after which a broker that cannot report a failed log directory stops.", enforced=False),
    ConfigKey("log.segment.bytes", _INT, "1073741824", at_least(1 << 20), "The maximum size of a segment."),
    ConfigKey("log.roll.ms", _LONG, None, at_least(1), "The time after which a segment is rolled. It takes precedence over log.roll.hours."),
    ConfigKey("log.roll.hours", _INT, "168", at_least(1), "The time after which a segment is rolled, in hours."),
    ConfigKey("log.roll.jitter.ms", _LONG, None, at_least(0),
              "The maximum random time by which a segment is rolled early. It takes precedence over log.roll.jitter.hours."),
    ConfigKey("log.roll.jitter.hours", _INT, "0", at_least(0), "The maximum random time by which a segment is rolled early, in hours."),
    ConfigKey("log.index.size.max.bytes", _INT, "10485760", at_least(4), "The maximum size of an index."),
    ConfigKey("log.index.interval.bytes", _INT, "4096", at_least(0), "The number of log bytes between two index entries."),
    ConfigKey("log.preallocate", _BOOLEAN, "false", None, "Whether the file of a new segment is preallocated."),
    ConfigKey("log.segment.delete.delay.ms", _LONG, "60000", at_least(0), "The time before the files of deleted segments are removed."),
    ConfigKey("log.flush.interval.messages", _LONG, _FOREVER, at_least(1), "The number of records after which a partition is flushed to disk."),
    ConfigKey("log.flush.interval.ms", _LONG, None, None,
              "The time after which appended records are flushed to disk; log.flush.scheduler.interval.ms if not set."),
    ConfigKey("log.flush.scheduler.interval.ms", _LONG, _FOREVER, None, "The interval at which the broker looks for logs to flush."),
    ConfigKey("log.flush.offset.checkpoint.interval.ms", _INT, "60000", at_least(0), "The interval at which recovery points are written to disk."),
    ConfigKey("log.flush.start.offset.checkpoint.interval.ms", _INT, "60000", at_least(0),
              "The interval at which log start offsets are written to disk; Lowtide's journal records each at once.", enforced=False),
    ConfigKey("num.recovery.threads.per.data.dir", _INT, "2", at_least(1), "The number of threads that recover logs at startup.", enforced=False),
    ConfigKey("log.initial.task.delay.ms", _LONG, "30000", at_least(0), "The delay of the first background task of the logs after startup.", internal=True),

    # What may be appended.
    ConfigKey("message.max.bytes", _INT, "1048588", at_least(0), "The maximum size of a batch, including its 12 bytes of offset and length."),
    ConfigKey("max.decompressed.message.bytes", _INT, "2147483639", Range(1, 2147483639),
              "The maximum size of a single record in a compressed batch that a producer sends, when it is decompressed."),
    ConfigKey("log.message.timestamp.type", _STRING, "CreateTime", OneOf(("CreateTime", "LogAppendTime")),
              "Whether the timestamp of a record is set by the producer or by the broker."),
    ConfigKey("log.message.timestamp.before.max.ms", _LONG, _FOREVER, at_least(0), "The maximum time by which a record's timestamp can be in the past."),
    ConfigKey("log.message.timestamp.after.max.ms", _LONG, "3600000", at_least(0), "The maximum time by which a record's timestamp can be in the future."),
    ConfigKey("compression.type", _STRING, "producer", OneOf(COMPRESSION_TYPES),
              "The codec that batches are stored with; `producer` keeps the producer's codec."),
    ConfigKey("compression.gzip.level", _INT, "-1", Range(1, 9, -1), "The compression level of gzip; -1 uses its default.", enforced=False),
    ConfigKey("compression.lz4.level", _INT, "9", Range(1, 17), "The compression level of lz4.", enforced=False),
    ConfigKey("compression.zstd.level", _INT, "3", Range(-131072, 22), "The compression level of zstd.", enforced=False),
    ConfigKey("min.insync.replicas", _INT, "1", at_least(1), "The minimum number of in-sync replicas for a write with acks=all."),
    ConfigKey("producer.id.expiration.ms", _INT, "86400000", at_least(1), "The time after which the state of an inactive producer expires."),
    ConfigKey("producer.id.expiration.check.interval.ms", _INT, "600000", at_least(1),
              "The interval at which expired producers are removed.", enforced=False, internal=True),

    # Retention and compaction.
    ConfigKey("log.cleanup.policy", _LIST, "delete", OneOf(CLEANUP_POLICIES), "Whether old segments are deleted, compacted, or both."),
    ConfigKey("log.retention.ms", _LONG, None, None, "The time for which records are kept; -1 means forever. It takes precedence over log.retention.minutes."),
    ConfigKey("log.retention.minutes", _INT, None, None, "The time for which records are kept, in minutes. It takes precedence over log.retention.hours."),
    ConfigKey("log.retention.hours", _INT, "168", None, "The time for which records are kept, in hours."),
    ConfigKey("log.retention.bytes", _LONG, "-1", None, "The maximum size of a partition; -1 means no limit."),
    ConfigKey("log.retention.check.interval.ms", _LONG, "300000", at_least(1), "The interval at which the broker looks for segments to delete."),
    ConfigKey("log.retention.min.timestamp", _LONG, "0", at_least(0),
              "Records older than this time, in ms since 1970, can be deleted (KIP-47); 0 disables it."),
    ConfigKey("log.retention.commitoffset.enable", _BOOLEAN, "false", None, "Whether segments that all groups have consumed are deleted early (KIP-68)."),
    ConfigKey("log.retention.commitoffset.ms", _LONG, "-1", at_least(-1),
              "The time after which a consumed segment is deleted; -1 means never. It takes precedence over log.retention.commitoffset.minutes."),
    ConfigKey("log.retention.commitoffset.minutes", _INT, "-1", at_least(-1),
              "The time after which a consumed segment is deleted, in minutes. It takes precedence over log.retention.commitoffset.hours."),
    ConfigKey("log.retention.commitoffset.hours", _INT, "-1", at_least(-1), "The time after which a consumed segment is deleted, in hours."),
    ConfigKey("log.local.retention.bytes", _LONG, "-2", at_least(-2),
              "The number of bytes that tiered storage keeps on the local disk; -2 uses log.retention.bytes. Lowtide has no tiered storage.", enforced=False),
    ConfigKey("log.local.retention.ms", _LONG, "-2", at_least(-2),
              "The time for which tiered storage keeps segments on the local disk; -2 uses log.retention.ms. Lowtide has no tiered storage.", enforced=False),
    ConfigKey("log.remote.copy.lag.bytes", _LONG, "-1", at_least(-1),
              "The number of newer bytes after which a segment is copied to tiered storage. Lowtide has no tiered storage.", enforced=False),
    ConfigKey("log.remote.copy.lag.ms", _LONG, "0", at_least(-1),
              "The age at which a segment is copied to tiered storage. Lowtide has no tiered storage.", enforced=False),
    ConfigKey("log.cleaner.enable", _BOOLEAN, "true", None, "Whether compaction is enabled."),
    ConfigKey("log.cleaner.threads", _INT, "1", at_least(0), "The number of logs that are compacted in parallel, each in its own process."),
    ConfigKey("log.cleaner.backoff.ms", _LONG, "15000", at_least(0), "The time that the cleaner waits when there is nothing to compact."),
    ConfigKey("log.cleaner.dedupe.buffer.size", _LONG, "134217728", None, "The memory for the keys of all running compactions; each key takes 72 bytes."),
    ConfigKey("log.cleaner.io.buffer.size", _INT, "524288", at_least(0), "The memory for reading and writing in a compaction.", enforced=False),
    ConfigKey("log.cleaner.io.buffer.load.factor", _DOUBLE, "0.9", None, "The maximum load factor of the table of keys.", enforced=False),
    ConfigKey("log.cleaner.io.max.bytes.per.second", _DOUBLE, "1.7976931348623157E308", None,
              "The maximum rate at which all compactions together read and write."),
    ConfigKey("log.cleaner.delete.retention.ms", _LONG, "86400000", at_least(0), "The time for which compacted topics keep tombstones."),
    ConfigKey("log.cleaner.min.cleanable.ratio", _DOUBLE, "0.5", Range(0, 1),
              "The minimum ratio of uncompacted to total log size at which a log is compacted."),
    ConfigKey("log.cleaner.min.compaction.lag.ms", _LONG, "0", at_least(0), "The minimum time for which a record stays uncompacted."),
    ConfigKey("log.cleaner.max.compaction.lag.ms", _LONG, _FOREVER, at_least(1), "The maximum time for which a record stays uncompacted."),

    # Metrics and telemetry.
    ConfigKey("metric.reporters", _LIST, "org.apache.kafka.common.metrics.JmxReporter", None, "The classes that report metrics.", enforced=False),
    ConfigKey("metrics.num.samples", _INT, "2", at_least(1), "The number of samples of a metric.", enforced=False),
    ConfigKey("metrics.recording.level", _STRING, "INFO", None, "The recording level of metrics.", enforced=False),
    ConfigKey("metrics.sample.window.ms", _LONG, "30000", at_least(1), "The length of a sample of a metric.", enforced=False),
    ConfigKey("kafka.metrics.polling.interval.secs", _INT, "10", at_least(1), "The polling interval of the older metrics.", enforced=False),
    ConfigKey("kafka.metrics.reporters", _LIST, "", None, "The classes that report the older metrics.", enforced=False),
    ConfigKey("telemetry.max.bytes", _INT, "1048576", at_least(1), "The maximum size of a client's metrics in one push."),
    ConfigKey("config.providers", _LIST, "", None, "The names of configuration providers.", enforced=False),

    # Quotas.
    ConfigKey("quota.window.num", _INT, "11", at_least(1), "The number of samples of client quotas."),
    ConfigKey("quota.window.size.seconds", _INT, "1", at_least(1), "The length of a sample of client quotas."),
    ConfigKey("replication.quota.window.num", _INT, "11", at_least(1), "The number of samples of replication quotas."),
    ConfigKey("replication.quota.window.size.seconds", _INT, "1", at_least(1), "The length of a sample of replication quotas."),
    ConfigKey("alter.log.dirs.replication.quota.window.num", _INT, "11", at_least(1),
              "The number of samples of quotas for moves between log directories.", enforced=False),
    ConfigKey("alter.log.dirs.replication.quota.window.size.seconds", _INT, "1", at_least(1),
              "The length of a sample of quotas for moves between log directories.", enforced=False),
    ConfigKey("controller.quota.window.num", _INT, "11", at_least(1), "The number of samples of controller mutation quotas."),
    ConfigKey("controller.quota.window.size.seconds", _INT, "1", at_least(1), "The length of a sample of controller mutation quotas."),
    ConfigKey("client.quota.callback.class", _CLASS, None, None, "The class that decides on client quotas.", enforced=False),
)
# fmt: on
