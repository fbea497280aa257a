"""A broker's keys about replication, elections and the cluster's metadata, as facts of Apache Kafka 4.3.

The keys of KRaft's own quorum are known so that a file written for Apache Kafka can be used as it is. Where Lowtide's
default is another one, a comment says so. A table: its order is by subject.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, Matching, OneOf, Type, at_least

_BOOLEAN, _INT, _LONG, _STRING, _LIST = Type.BOOLEAN, Type.INT, Type.LONG, Type.STRING, Type.LIST
_VOTERS: Final = Matching(r"[0-9]+@[^@\s]+:[0-9]+", "a list of id@host:port")
_VERSION: Final = Matching(r"[0-9]{1,3}(\.[0-9]{1,3}){1,3}(-IV[0-9]{1,3})?", "a version of Apache Kafka")
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's name for sending consumers to a replica in their rack (KIP-392)."""

_SELECTORS: Final = OneOf((RACK_AWARE_SELECTOR,))
_UNLIMITED: Final = "9223372036854775807"
_SERVERS: Final = Matching(r"[^@\s]+:[0-9]+", "a list of host:port")

# fmt: off
CLUSTER_KEYS: Final[tuple[ConfigKey, ...]] = (
    # Followers and leaders.
    ConfigKey("replica.lag.time.max.ms", _LONG, "30000", None, "How long a follower may lag before it is out of sync.", enforced=True),
    ConfigKey("replica.fetch.max.bytes", _INT, "1048576", at_least(0), "How much a follower fetches of one partition at a time. A connection's pending Produce requests have half of it, or there is one.", enforced=True),
    ConfigKey("replica.fetch.min.bytes", _INT, "1", None, "How much a follower waits for.", enforced=True),
    ConfigKey("replica.fetch.wait.max.ms", _INT, "500", None, "How long a follower waits for it.", enforced=True),
    ConfigKey("replica.fetch.response.max.bytes", _INT, "10485760", at_least(0), "How much a follower fetches at a time.", enforced=True),
    ConfigKey("replica.fetch.backoff.ms", _INT, "1000", at_least(0), "How long a follower rests after an error.", enforced=True),
    ConfigKey("replica.high.watermark.checkpoint.interval.ms", _LONG, "5000", None, "How often high watermarks are written down.", enforced=True),
    ConfigKey("replica.selector.class", _STRING, None, _SELECTORS, "Picks the replica that a consumer reads from: one in its rack, else the leader.", enforced=True),
    ConfigKey("replica.socket.receive.buffer.bytes", _INT, "65536", None, "The receive buffer of a follower's connection."),
    ConfigKey("replica.socket.timeout.ms", _INT, "30000", None, "How long a follower waits on its connection.", enforced=True),
    ConfigKey("num.replica.fetchers", _INT, "1", at_least(1), "Has no effect: one connection fetches from each leader."),
    ConfigKey("num.replica.alter.log.dirs.threads", _INT, None, None, "Threads that move replicas between disks."),
    ConfigKey("follower.fetch.last.tiered.offset.enable", _BOOLEAN, "false", None, "Whether a new follower begins after what is tiered."),

    # Throttles of reassignments. In Kafka they can only be set while a broker runs.
    ConfigKey("leader.replication.throttled.rate", _LONG, _UNLIMITED, at_least(0),
              "Bytes a second to throttled followers, of all partitions.", enforced=True),
    ConfigKey("follower.replication.throttled.rate", _LONG, _UNLIMITED, at_least(0),
              "Bytes a second of throttled replicas, from all leaders.", enforced=True),

    ConfigKey("replica.alter.log.dirs.io.max.bytes.per.second", _LONG, _UNLIMITED, at_least(0),
              "Bytes a second that are copied between log directories, over all logs that are moved.", enforced=True),

    # Leadership.
    ConfigKey("unclean.leader.election.enable", _BOOLEAN, "false", None,
              "Whether a replica that lacks acknowledged records may lead when no other is left.", enforced=True),
    ConfigKey("unclean.leader.election.interval.ms", _LONG, "300000", at_least(1), "How often such elections are looked for.", internal=True),
    ConfigKey("auto.leader.rebalance.enable", _BOOLEAN, "true", None, "Whether leadership goes back to preferred replicas.", enforced=True),
    ConfigKey("leader.imbalance.check.interval.seconds", _LONG, "300", at_least(1), "How often leadership is rebalanced.", enforced=True),
    ConfigKey("controlled.shutdown.enable", _BOOLEAN, "true", None, "Whether a broker that stops hands its leaderships over first.",
              enforced=True),

    # Liveness. Kafka's broker shows itself every 2000 ms and counts as dead after 9000.
    ConfigKey("broker.heartbeat.interval.ms", _INT, "500", at_least(10), "How often a broker shows that it lives.", enforced=True),
    ConfigKey("broker.session.timeout.ms", _INT, "4000", at_least(100), "After how long without that it counts as dead.", enforced=True),
    # Kafka has had no such key since 4.0; here it is what KIP-107 is rolled out with.
    ConfigKey("inter.broker.protocol.version", _STRING, None, _VERSION,
              "Below 0.11 this broker doesn't tell its log starts when it follows, and DeleteRecords waits for ever in its cluster.",
              enforced=True),

    # The controller of KRaft.
    ConfigKey("controller.listener.names", _LIST, "", None,
              "Listener names that belong to KRaft's controllers; Lowtide doesn't open them.", enforced=True),
    ConfigKey("controller.performance.always.log.threshold.ms", _LONG, "2000", at_least(0), "Slower events of a controller are logged.",
              internal=True),
    ConfigKey("controller.performance.sample.period.ms", _LONG, "60000", at_least(100), "How long a controller's events are summed up.",
              internal=True),
    ConfigKey("controller.quorum.append.linger.ms", _INT, "25", at_least(0), "How long a controller gathers changes before it writes them."),
    ConfigKey("controller.quorum.auto.join.enable", _BOOLEAN, "false", None, "Whether a controller joins the quorum by itself."),
    ConfigKey("controller.quorum.bootstrap.servers", _LIST, "", _SERVERS, "Where the quorum's members are found."),
    ConfigKey("controller.quorum.election.backoff.max.ms", _INT, "1000", at_least(0), "How long a lost election is rested on."),
    ConfigKey("controller.quorum.election.timeout.ms", _INT, "1000", at_least(0), "After how long without a leader one is elected."),
    ConfigKey("controller.quorum.fetch.max.bytes", _INT, "1048576", at_least(1), "How much a member fetches at a time."),
    ConfigKey("controller.quorum.fetch.snapshot.max.bytes", _INT, "1048576", at_least(1), "How much of a snapshot a member fetches at a time."),
    ConfigKey("controller.quorum.fetch.timeout.ms", _INT, "2000", at_least(0), "After how long without an answer a member stands for election."),
    ConfigKey("controller.quorum.request.timeout.ms", _INT, "2000", at_least(0), "How long a member waits for an answer."),
    ConfigKey("controller.quorum.retry.backoff.ms", _INT, "20", at_least(0), "How long a failed request rests."),
    ConfigKey("controller.quorum.voters", _LIST, "", _VOTERS, "The quorum's members."),
    ConfigKey("controller.socket.timeout.ms", _INT, "30000", None, "How long a broker waits for its controller."),

    # The metadata log of KRaft.
    ConfigKey("metadata.log.dir", _STRING, None, None, "Where the metadata log is."),
    ConfigKey("metadata.log.max.record.bytes.between.snapshots", _LONG, "20971520", at_least(1), "After how many bytes a snapshot is written."),
    ConfigKey("metadata.log.max.snapshot.interval.ms", _LONG, "3600000", at_least(0), "After how long a snapshot is written."),
    ConfigKey("metadata.log.segment.bytes", _INT, "1073741824", at_least(8388608), "The size at which a segment of metadata is full."),
    ConfigKey("metadata.log.segment.ms", _LONG, "604800000", None, "The age at which a segment of metadata is closed."),
    ConfigKey("metadata.max.idle.interval.ms", _INT, "500", at_least(0), "How often an idle controller writes that it lives."),
    ConfigKey("metadata.max.retention.bytes", _LONG, "104857600", None, "How large the metadata log may grow."),
    ConfigKey("metadata.max.retention.ms", _LONG, "604800000", None, "How long the metadata log is kept."),
    ConfigKey("internal.metadata.delete.delay.millis", _LONG, "60000", None, "How long removed files of metadata stay.", internal=True),
    ConfigKey("internal.metadata.log.segment.bytes", _INT, None, None, "A smaller segment of metadata, for tests.", internal=True),
    ConfigKey("internal.metadata.max.batch.size.in.bytes", _INT, "8388608", None, "The largest batch of metadata.", internal=True),
)
# fmt: on
