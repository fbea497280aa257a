"""A broker's keys for replication, elections, cluster metadata and tiered storage, as in Apache Kafka 4.4, ordered by subject.

The keys of KRaft are known so that configuration files of Apache Kafka work unchanged. A comment marks Lowtide's
different defaults.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import NO_TIERED_STORAGE, ConfigKey, Matching, OneOf, Only, Range, Type, at_least

_BOOLEAN, _INT, _LONG, _DOUBLE, _STRING = Type.BOOLEAN, Type.INT, Type.LONG, Type.DOUBLE, Type.STRING
_LIST: Final = Type.LIST
_VOTERS: Final = Matching(r"[0-9]+@[^@\s]+:[0-9]+", "a list of id@host:port")
_VERSION: Final = Matching(r"[0-9]{1,3}(\.[0-9]{1,3}){1,3}(-IV[0-9]{1,3})?", "a version of Apache Kafka")
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's class that sends consumers to a replica in their rack (KIP-392)."""

_SELECTORS: Final = OneOf((RACK_AWARE_SELECTOR,))
_NOT_EMPTY: Final = Matching(r".+", "a text that isn't empty")
_UNLIMITED: Final = "9223372036854775807"
_SERVERS: Final = Matching(r"[^@\s]+:[0-9]+", "a list of host:port")

# fmt: off
CLUSTER_KEYS: Final[tuple[ConfigKey, ...]] = (
    # Followers and leaders.
    ConfigKey("replica.lag.time.max.ms", _LONG, "30000", None, "A follower that has not caught up with its leader for this long leaves the ISR."),
    ConfigKey("replica.fetch.max.bytes", _INT, "1048576", at_least(0),
              "The number of bytes that a follower fetches from one partition per request. Half of it bounds the "
              "pending Produce requests of a connection, except that one is always allowed."),
    ConfigKey("replica.fetch.min.bytes", _INT, "1", None, "The minimum number of bytes that a leader collects before it answers a follower's fetch."),
    ConfigKey("replica.fetch.wait.max.ms", _INT, "500", None, "The maximum time that a leader waits for replica.fetch.min.bytes."),
    ConfigKey("replica.fetch.response.max.bytes", _INT, "10485760", at_least(0), "The maximum number of bytes in a response to a follower's fetch."),
    ConfigKey("replica.fetch.backoff.ms", _INT, "1000", at_least(0), "The time that a follower waits after an error before it fetches again."),
    ConfigKey("replica.high.watermark.checkpoint.interval.ms", _LONG, "5000", None, "The interval at which high watermarks are written to disk."),
    ConfigKey("replica.selector.class", _STRING, None, _SELECTORS,
              "The class that selects the replica that a consumer reads from. The only one is rack-aware: it "
              "selects a replica in the consumer's rack, or else the leader."),
    ConfigKey("replica.socket.receive.buffer.bytes", _INT, "65536", None, "The size of the receive buffer of a follower's connection.", enforced=False),
    ConfigKey("replica.socket.timeout.ms", _INT, "30000", None, "The time that a follower waits for a response."),
    ConfigKey("num.replica.fetchers", _INT, "1", at_least(1),
              "The number of fetcher threads for each leader; Lowtide uses one connection for each leader.", enforced=False),
    ConfigKey("num.replica.alter.log.dirs.threads", _INT, None, None, "The number of threads that move replicas between log directories.", enforced=False),
    ConfigKey("follower.fetch.last.tiered.offset.enable", _BOOLEAN, "false", None,
              "Whether a new follower starts after the last tiered offset.", enforced=False),

    # Throttles of reassignments. In Kafka they can only be set at runtime.
    ConfigKey("leader.replication.throttled.rate", _LONG, _UNLIMITED, at_least(0),
              "The maximum rate, in bytes per second, at which this broker serves throttled replicas, over all partitions."),
    ConfigKey("follower.replication.throttled.rate", _LONG, _UNLIMITED, at_least(0),
              "The maximum rate, in bytes per second, at which throttled replicas on this broker fetch, over all leaders."),

    ConfigKey("replica.alter.log.dirs.io.max.bytes.per.second", _LONG, _UNLIMITED, at_least(0),
              "The maximum rate, in bytes per second, at which replicas move between log directories, over all moves."),

    # Leadership.
    ConfigKey("unclean.leader.election.enable", _BOOLEAN, "false", None,
              "Whether a replica outside the ISR may become leader when no other replica is left, which can lose acknowledged records."),
    ConfigKey("unclean.leader.election.interval.ms", _LONG, "300000", at_least(1),
              "The interval at which the controller looks for partitions that need an unclean election.", enforced=False, internal=True),
    ConfigKey("auto.leader.rebalance.enable", _BOOLEAN, "true", None, "Whether leadership returns to preferred replicas."),
    ConfigKey("leader.imbalance.check.interval.seconds", _LONG, "300", at_least(1), "The interval at which leadership is rebalanced."),
    ConfigKey("controlled.shutdown.enable", _BOOLEAN, "true", None, "Whether a broker hands over its leaderships before it stops."),

    # Liveness. The defaults of Kafka are 2000 ms and 9000 ms.
    ConfigKey("broker.heartbeat.interval.ms", _INT, "500", at_least(10), "The interval at which a broker renews its session."),
    ConfigKey("broker.session.timeout.ms", _INT, "4000", at_least(100), "The time without a heartbeat after which a broker is fenced."),
    # Kafka removed this key in 4.0; here it serves the rollout of KIP-107.
    ConfigKey("inter.broker.protocol.version", _STRING, None, _VERSION,
              "A version below 0.11 stops this broker from reporting its log start offsets when it follows, and DeleteRecords never completes in its cluster."),

    # The controller of KRaft.
    ConfigKey("controller.listener.names", _LIST, "", None, "The names of the listeners of KRaft controllers; Lowtide does not open them."),
    ConfigKey("controller.performance.always.log.threshold.ms", _LONG, "2000", at_least(0),
              "Controller events that take longer are logged.", enforced=False, internal=True),
    ConfigKey("controller.performance.sample.period.ms", _LONG, "60000", at_least(100),
              "The period over which controller events are summarized.", enforced=False, internal=True),
    ConfigKey("controller.quorum.append.linger.ms", _INT, "25", at_least(0),
              "The time that a controller collects changes before it writes them.", enforced=False),
    ConfigKey("controller.quorum.auto.join.enable", _BOOLEAN, "false", None, "Whether a controller joins the quorum automatically.", enforced=False),
    ConfigKey("controller.quorum.bootstrap.servers", _LIST, "", _SERVERS, "The addresses for finding the members of the quorum.", enforced=False),
    ConfigKey("controller.quorum.election.backoff.max.ms", _INT, "1000", at_least(0), "The maximum time between elections.", enforced=False),
    ConfigKey("controller.quorum.election.timeout.ms", _INT, "1000", at_least(0), "The time without a leader after which an election starts.", enforced=False),
    ConfigKey("controller.quorum.fetch.max.bytes", _INT, "1048576", at_least(1),
              "The maximum number of bytes that a quorum member fetches per request.", enforced=False),
    ConfigKey("controller.quorum.fetch.snapshot.max.bytes", _INT, "1048576", at_least(1),
              "The maximum number of bytes of a snapshot that a quorum member fetches per request.", enforced=False),
    ConfigKey("controller.quorum.fetch.timeout.ms", _INT, "2000", at_least(0),
              "The time without a successful fetch after which a quorum member becomes a candidate.", enforced=False),
    ConfigKey("controller.quorum.request.timeout.ms", _INT, "2000", at_least(0), "The time that a quorum member waits for a response.", enforced=False),
    ConfigKey("controller.quorum.retry.backoff.ms", _INT, "20", at_least(0), "The time before a failed request is retried.", enforced=False),
    ConfigKey("controller.quorum.voters", _LIST, "", _VOTERS, "The voters of the quorum.", enforced=False),
    ConfigKey("controller.socket.timeout.ms", _INT, "30000", None, "The time that a broker waits for a response from its controller.", enforced=False),

    # The metadata log of KRaft.
    ConfigKey("metadata.log.dir", _STRING, None, None, "The directory of the metadata log.", enforced=False),
    ConfigKey("metadata.log.max.record.bytes.between.snapshots", _LONG, "20971520", at_least(1),
              "The number of bytes after which a snapshot is written.", enforced=False),
    ConfigKey("metadata.log.max.snapshot.interval.ms", _LONG, "3600000", at_least(0), "The time after which a snapshot is written.", enforced=False),
    ConfigKey("metadata.log.segment.bytes", _INT, "1073741824", at_least(8388608), "The maximum size of a segment of the metadata log.", enforced=False),
    ConfigKey("metadata.log.segment.ms", _LONG, "604800000", None, "The time after which a segment of the metadata log is rolled.", enforced=False),
    ConfigKey("metadata.max.idle.interval.ms", _INT, "500", at_least(0), "The interval at which an idle controller writes a no-op record.", enforced=False),
    ConfigKey("metadata.max.retention.bytes", _LONG, "104857600", None, "The maximum size of the metadata log.", enforced=False),
    ConfigKey("metadata.max.retention.ms", _LONG, "604800000", None, "The time for which the metadata log is kept.", enforced=False),
    ConfigKey("internal.metadata.delete.delay.millis", _LONG, "60000", None,
              "The time before deleted files of the metadata log are removed.", enforced=False, internal=True),
    ConfigKey("internal.metadata.log.segment.bytes", _INT, None, None, "A smaller segment size of the metadata log, for tests.", enforced=False, internal=True),
    ConfigKey("internal.metadata.max.batch.size.in.bytes", _INT, "8388608", None,
              "The maximum size of a batch of the metadata log.", enforced=False, internal=True),
)

REMOTE_KEYS: Final[tuple[ConfigKey, ...]] = (
    # Lowtide has no tiered storage: the keys are checked and described.
    ConfigKey("remote.log.storage.system.enable", _BOOLEAN, "false", Only(value=False, because=NO_TIERED_STORAGE),
              "Whether tiered storage is enabled.", enforced=False),
    ConfigKey("remote.log.storage.manager.class.name", _STRING, None, _NOT_EMPTY, "The class that stores segments remotely.", enforced=False),
    ConfigKey("remote.log.storage.manager.class.path", _STRING, None, None, "The class path of the remote storage manager.", enforced=False),
    ConfigKey("remote.log.storage.manager.impl.prefix", _STRING, "rsm.config.", _NOT_EMPTY,
              "The prefix of the keys for the remote storage manager.", enforced=False),
    ConfigKey("remote.log.metadata.manager.class.name", _STRING, "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", _NOT_EMPTY,
              "The class that stores the metadata of remote segments.", enforced=False),
    ConfigKey("remote.log.metadata.manager.class.path", _STRING, None, None, "The class path of the remote log metadata manager.", enforced=False),
    ConfigKey("remote.log.metadata.manager.impl.prefix", _STRING, "rlmm.config.", _NOT_EMPTY,
              "The prefix of the keys for the remote log metadata manager.", enforced=False),
    ConfigKey("remote.log.metadata.manager.listener.name", _STRING, None, _NOT_EMPTY,
              "The listener that the remote log metadata manager connects to.", enforced=False),
    ConfigKey("remote.log.metadata.custom.metadata.max.bytes", _INT, "128", at_least(0),
              "The maximum size of the custom metadata of a remote segment.", enforced=False),
    ConfigKey("remote.log.index.file.cache.total.size.bytes", _LONG, "1073741824", at_least(1),
              "The disk space for cached indexes of remote segments.", enforced=False),
    ConfigKey("remote.log.index.file.cache.ttl.ms", _LONG, "900000", at_least(-1),
              "The time after which an unused index is removed from the cache.", enforced=False, internal=True),
    ConfigKey("remote.log.manager.thread.pool.size", _INT, "2", at_least(1), "The number of threads of the remote log manager.", enforced=False),
    ConfigKey("remote.log.manager.copier.thread.pool.size", _INT, "10", at_least(1),
              "The number of threads that copy segments to remote storage.", enforced=False),
    ConfigKey("remote.log.manager.expiration.thread.pool.size", _INT, "10", at_least(1),
              "The number of threads that delete expired remote segments.", enforced=False),
    ConfigKey("remote.log.manager.follower.thread.pool.size", _INT, "2", at_least(1),
              "The number of threads that serve follower partitions in the remote log manager.", enforced=False),
    ConfigKey("remote.log.manager.task.interval.ms", _LONG, "30000", at_least(1),
              "The interval at which the remote log manager runs its tasks.", enforced=False),
    ConfigKey("remote.log.manager.task.retry.backoff.ms", _LONG, "500", at_least(1),
              "The initial time before a failed task is retried.", enforced=False, internal=True),
    ConfigKey("remote.log.manager.task.retry.backoff.max.ms", _LONG, "30000", at_least(1),
              "The maximum time before a failed task is retried.", enforced=False, internal=True),
    ConfigKey("remote.log.manager.task.retry.jitter", _DOUBLE, "0.2", Range(0, 0.5), "The random variation of the retry time.", enforced=False, internal=True),
    ConfigKey("remote.log.manager.copy.max.bytes.per.second", _LONG, _UNLIMITED, at_least(1),
              "The maximum rate at which segments are copied to remote storage.", enforced=False),
    ConfigKey("remote.log.manager.copy.quota.window.num", _INT, "11", at_least(1), "The number of samples of the copy quota.", enforced=False),
    ConfigKey("remote.log.manager.copy.quota.window.size.seconds", _INT, "1", at_least(1), "The length of a sample of the copy quota.", enforced=False),
    ConfigKey("remote.log.manager.fetch.max.bytes.per.second", _LONG, _UNLIMITED, at_least(1),
              "The maximum rate at which remote segments are fetched.", enforced=False),
    ConfigKey("remote.log.manager.fetch.quota.window.num", _INT, "11", at_least(1), "The number of samples of the fetch quota.", enforced=False),
    ConfigKey("remote.log.manager.fetch.quota.window.size.seconds", _INT, "1", at_least(1), "The length of a sample of the fetch quota.", enforced=False),
    ConfigKey("remote.log.reader.threads", _INT, "10", at_least(1), "The number of threads that read remote segments.", enforced=False),
    ConfigKey("remote.log.reader.max.pending.tasks", _INT, "100", at_least(1), "The maximum number of pending reads of remote segments.", enforced=False),
    ConfigKey("remote.fetch.max.wait.ms", _INT, "500", at_least(1), "The maximum time that a fetch waits for a remote segment.", enforced=False),
    ConfigKey("remote.list.offsets.request.timeout.ms", _LONG, "30000", at_least(1),
              "The maximum time that a ListOffsets request waits for remote storage.", enforced=False),
)
# fmt: on
