"""A broker's keys about its cluster: controllers, the metadata log, replicas and leaders, as facts of Apache Kafka 4.3.

A table: its order is by subject.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config_key import ConfigKey, Matching, Type, at_least

_BOOLEAN, _INT, _LONG = Type.BOOLEAN, Type.INT, Type.LONG
_STRING, _LIST = Type.STRING, Type.LIST
_ADDRESS: Final = r"(\[[0-9A-Fa-f:.%]+\]|[^/:@\[\]]+):[0-9]{1,5}"
_SERVER: Final = Matching(_ADDRESS, "a list of host:port")
_VOTER: Final = Matching(f"[0-9]+@{_ADDRESS}", "a list of id@host:port")

# fmt: off
CLUSTER_KEYS: Final[tuple[ConfigKey, ...]] = (
    # The broker and its controller.
    ConfigKey("broker.heartbeat.interval.ms", _INT, "2000", None, "How often the broker tells the controller that it lives."),
    ConfigKey("broker.session.timeout.ms", _INT, "9000", None,
              "After how long without a heartbeat the controller takes a broker for gone."),
    ConfigKey("controlled.shutdown.enable", _BOOLEAN, "true", None, "Whether a stopping broker hands its leaderships over first."),
    ConfigKey("controller.listener.names", _LIST, None, None,
              "The listeners that belong to the controller; the broker uses the first to reach it."),
    ConfigKey("controller.socket.timeout.ms", _INT, "30000", None, "How long the controller waits on a connection to a broker."),
    ConfigKey("controller.performance.always.log.threshold.ms", _LONG, "2000", at_least(0),
              "From which duration on a controller event is always logged.", internal=True),
    ConfigKey("controller.performance.sample.period.ms", _LONG, "60000", at_least(100),
              "How often the durations of controller events are summed up in the log.", internal=True),

    # The quorum of controllers (KRaft).
    ConfigKey("controller.quorum.voters", _LIST, "", _VOTER,
              "The fixed voters, as id@host:port; empty where the voters are kept in the metadata log."),
    ConfigKey("controller.quorum.bootstrap.servers", _LIST, "", _SERVER, "Where to ask for the controllers at first, as host:port."),
    ConfigKey("controller.quorum.auto.join.enable", _BOOLEAN, "false", None, "Whether a new controller makes itself a voter."),
    ConfigKey("controller.quorum.election.timeout.ms", _INT, "1000", at_least(0),
              "How long a voter goes without a leader before it starts an election."),
    ConfigKey("controller.quorum.election.backoff.max.ms", _INT, "1000", at_least(0),
              "How long a candidate rests at most between two elections."),
    ConfigKey("controller.quorum.fetch.timeout.ms", _INT, "2000", at_least(0),
              "How long a voter goes without its leader, or a leader without its majority, before it gives up on it."),
    ConfigKey("controller.quorum.fetch.max.bytes", _INT, "1048576", at_least(1),
              "The most of the metadata log that one fetch asks for; one batch always fits."),
    ConfigKey("controller.quorum.fetch.snapshot.max.bytes", _INT, "1048576", at_least(1),
              "The most of a snapshot that one fetch asks for."),
    ConfigKey("controller.quorum.append.linger.ms", _INT, "25", at_least(0),
              "How long the leader gathers writes before it syncs them to disk."),
    ConfigKey("controller.quorum.request.timeout.ms", _INT, "2000", at_least(0), "How long to wait for another controller's answer."),
    ConfigKey("controller.quorum.retry.backoff.ms", _INT, "20", at_least(0), "How long to rest before a failed request is sent again."),

    # The metadata log.
    ConfigKey("metadata.log.dir", _STRING, None, None, "The directory of the metadata log; the first log directory when not set."),
    ConfigKey("metadata.log.segment.bytes", _INT, "1073741824", at_least(8388608),
              "The size at which a segment of the metadata log is full."),
    ConfigKey("metadata.log.segment.ms", _LONG, "604800000", None, "The age at which a segment of the metadata log is closed."),
    ConfigKey("metadata.log.max.record.bytes.between.snapshots", _LONG, "20971520", at_least(1),
              "How many bytes of records call for a new snapshot."),
    ConfigKey("metadata.log.max.snapshot.interval.ms", _LONG, "3600000", at_least(0),
              "The age at which a snapshot is replaced if anything changed; 0 is never."),
    ConfigKey("metadata.max.retention.bytes", _LONG, "104857600", None,
              "How large the metadata log and its snapshots may grow; below 0 is no limit."),
    ConfigKey("metadata.max.retention.ms", _LONG, "604800000", None,
              "How long old metadata segments and snapshots are kept; below 0 is for ever."),
    ConfigKey("metadata.max.idle.interval.ms", _INT, "500", at_least(0),
              "How often an idle leader writes an empty record to the metadata log; 0 is never."),
    ConfigKey("internal.metadata.delete.delay.millis", _LONG, "60000", None,
              "How long the files of removed metadata segments stay.", internal=True),
    ConfigKey("internal.metadata.log.segment.bytes", _INT, None, None,
              "A segment size of the metadata log below the least that is allowed otherwise.", internal=True),
    ConfigKey("internal.metadata.max.batch.size.in.bytes", _INT, "8388608", None,
              "The largest batch that the metadata log takes.", internal=True),

    # Replicas.
    ConfigKey("num.replica.fetchers", _INT, "1", at_least(1), "How many fetchers a follower runs for each broker it follows."),
    ConfigKey("num.replica.alter.log.dirs.threads", _INT, None, None,
              "How many moves between log directories run at once; one for each directory when not set."),
    ConfigKey("replica.lag.time.max.ms", _LONG, "30000", None, "After how long behind its leader a replica drops out of the ISR."),
    ConfigKey("replica.high.watermark.checkpoint.interval.ms", _LONG, "5000", None, "How often high watermarks are written down."),
    ConfigKey("replica.fetch.max.bytes", _INT, "1048576", at_least(0),
              "The most that a follower fetches of one partition; one batch always fits."),
    ConfigKey("replica.fetch.response.max.bytes", _INT, "10485760", at_least(0),
              "The most that a follower fetches at once; one batch always fits."),
    ConfigKey("replica.fetch.min.bytes", _INT, "1", None, "How many bytes a leader gathers before it answers a follower."),
    ConfigKey("replica.fetch.wait.max.ms", _INT, "500", None, "How long a leader keeps a follower waiting for those bytes."),
    ConfigKey("replica.fetch.backoff.ms", _INT, "1000", at_least(0), "How long a follower leaves a partition alone after an error."),
    ConfigKey("replica.socket.timeout.ms", _INT, "30000", None, "How long a follower waits on its connection to a leader."),
    ConfigKey("replica.socket.receive.buffer.bytes", _INT, "65536", None, "The size of the receive buffer of a follower's socket."),
    ConfigKey("replica.selector.class", _STRING, None, None, "A class that picks the replica a consumer should read from."),

    # Leaders.
    ConfigKey("auto.leader.rebalance.enable", _BOOLEAN, "true", None, "Whether leadership goes back to the preferred replicas by itself."),
    ConfigKey("leader.imbalance.check.interval.seconds", _LONG, "300", at_least(1),
              "How often leaders that aren't the preferred replica are looked for."),
    ConfigKey("unclean.leader.election.enable", _BOOLEAN, "false", None,
              "Whether a replica that isn't in sync may lead when no other is left, at the price of lost records."),
    ConfigKey("unclean.leader.election.interval.ms", _LONG, "300000", at_least(1),
              "How often partitions that need such a leader are looked for.", internal=True),
)
# fmt: on
