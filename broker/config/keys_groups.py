"""A broker's keys about groups and transactions, as facts of Apache Kafka 4.3. A table: its order is by subject."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, OneOf, Range, Type, at_least

_BOOLEAN, _SHORT, _INT, _LONG, _STRING, _LIST = Type.BOOLEAN, Type.SHORT, Type.INT, Type.LONG, Type.STRING, Type.LIST
_UNLIMITED: Final = "2147483647"

# fmt: off
GROUP_KEYS: Final[tuple[ConfigKey, ...]] = (
    # The coordinator of groups.
    ConfigKey("group.coordinator.append.linger.ms", _INT, "-1", at_least(-1), "How long a coordinator gathers records; -1 adapts."),
    ConfigKey("group.coordinator.background.threads", _INT, "2", at_least(1), "Threads for a coordinator's chores."),
    ConfigKey("group.coordinator.cached.buffer.max.bytes", _INT, "1048588", at_least(524288), "The largest buffer that a coordinator keeps."),
    ConfigKey("group.coordinator.rebalance.protocols", _LIST, "classic,consumer,streams", OneOf(("consumer", "classic", "share", "streams")),
              "The kinds of groups that are served.", enforced=True),
    ConfigKey("group.coordinator.threads", _INT, "4", at_least(1), "Threads of the coordinator."),

    # Classic groups.
    ConfigKey("group.initial.rebalance.delay.ms", _INT, "3000", None, "How long an empty group waits for more members.", enforced=True),
    ConfigKey("group.max.session.timeout.ms", _INT, "1800000", None, "The longest session that a member may ask for.", enforced=True),
    ConfigKey("group.min.session.timeout.ms", _INT, "6000", None, "The shortest session that a member may ask for.", enforced=True),
    ConfigKey("group.max.size", _INT, _UNLIMITED, at_least(1), "How many members a group may have.", enforced=True),

    # Consumer groups of KIP-848.
    ConfigKey("group.consumer.assignment.interval.ms", _INT, "1000", at_least(0), "How much time lies between two assignments of a group.",
              enforced=True),
    ConfigKey("group.consumer.min.assignment.interval.ms", _INT, "0", at_least(0), "The least that it may be.", enforced=True),
    ConfigKey("group.consumer.max.assignment.interval.ms", _INT, "15000", at_least(0), "The most that it may be.", enforced=True),
    ConfigKey("group.consumer.assignors", _LIST, "uniform,range", OneOf(("uniform", "range")), "How partitions are assigned; the first is the default.",
              enforced=True),
    ConfigKey("group.consumer.heartbeat.interval.ms", _INT, "5000", at_least(1), "How often a member shows that it lives.", enforced=True),
    ConfigKey("group.consumer.min.heartbeat.interval.ms", _INT, "5000", at_least(1), "The least that it may be.", enforced=True),
    ConfigKey("group.consumer.max.heartbeat.interval.ms", _INT, "15000", at_least(1), "The most that it may be.", enforced=True),
    ConfigKey("group.consumer.session.timeout.ms", _INT, "45000", at_least(1), "After how long without a sign a member is out.", enforced=True),
    ConfigKey("group.consumer.min.session.timeout.ms", _INT, "45000", at_least(1), "The least that it may be.", enforced=True),
    ConfigKey("group.consumer.max.session.timeout.ms", _INT, "60000", at_least(1), "The most that it may be.", enforced=True),
    ConfigKey("group.consumer.max.size", _INT, _UNLIMITED, at_least(1), "How many members a group may have.", enforced=True),
    ConfigKey("group.consumer.migration.policy", _STRING, "bidirectional",
              OneOf(("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"), any_case=True), "Which kinds of group may turn into the other.",
              enforced=True),
    ConfigKey("group.consumer.regex.refresh.interval.ms", _INT, "600000", at_least(10000), "How often patterns are matched to topics again.",
              internal=True, enforced=True),

    # Share groups of KIP-932.
    ConfigKey("group.share.enable", _BOOLEAN, "false", None, "Whether share groups are served, for tests.", internal=True, enforced=True),
    ConfigKey("group.share.assignment.interval.ms", _INT, "1000", at_least(0), "How much time lies between two assignments of a group."),
    ConfigKey("group.share.min.assignment.interval.ms", _INT, "0", at_least(0), "The least that a group may set for it."),
    ConfigKey("group.share.max.assignment.interval.ms", _INT, "15000", at_least(0), "The most that a group may set for it."),
    ConfigKey("group.share.assignors", _LIST, "simple", None, "How partitions are assigned."),
    ConfigKey("group.share.delivery.count.limit", _INT, "5", Range(2, 10), "How often a record is delivered before it is given up."),
    ConfigKey("group.share.min.delivery.count.limit", _INT, "2", Range(2, 5), "The least that a group may set for it."),
    ConfigKey("group.share.max.delivery.count.limit", _INT, "10", Range(5, 25), "The most that a group may set for it."),
    ConfigKey("group.share.heartbeat.interval.ms", _INT, "5000", at_least(1), "How often a member shows that it lives."),
    ConfigKey("group.share.min.heartbeat.interval.ms", _INT, "5000", at_least(1), "The least that a group may set for it."),
    ConfigKey("group.share.max.heartbeat.interval.ms", _INT, "15000", at_least(1), "The most that a group may set for it."),
    ConfigKey("group.share.initialize.retry.interval.ms", _INT, "30000", at_least(1), "How long a failed preparation rests.", internal=True),
    ConfigKey("group.share.partition.max.record.locks", _INT, "2000", Range(100, 10000), "How many records of a partition may be out at once."),
    ConfigKey("group.share.min.partition.max.record.locks", _INT, "100", Range(100, 2000), "The least that a group may set for it."),
    ConfigKey("group.share.max.partition.max.record.locks", _INT, "4000", Range(2000, 10000), "The most that a group may set for it."),
    ConfigKey("group.share.persister.class.name", _STRING, "org.apache.kafka.server.share.persister.DefaultStatePersister", None,
              "A class that keeps the state of share groups.", internal=True),
    ConfigKey("group.share.record.lock.duration.ms", _INT, "30000", Range(1000, 3600000), "How long a record is out before it is delivered again."),
    ConfigKey("group.share.min.record.lock.duration.ms", _INT, "15000", Range(1000, 30000), "The least that a group may set for it."),
    ConfigKey("group.share.max.record.lock.duration.ms", _INT, "60000", Range(30000, 3600000), "The most that a group may set for it."),
    ConfigKey("group.share.session.timeout.ms", _INT, "45000", at_least(1), "After how long without a sign a member is out."),
    ConfigKey("group.share.min.session.timeout.ms", _INT, "45000", at_least(1), "The least that a group may set for it."),
    ConfigKey("group.share.max.session.timeout.ms", _INT, "60000", at_least(1), "The most that a group may set for it."),
    ConfigKey("group.share.max.share.sessions", _INT, "2000", at_least(1), "How many share sessions a broker keeps."),
    ConfigKey("group.share.max.size", _INT, "200", Range(1, 1000), "How many members a group may have."),

    # Streams groups of KIP-1071.
    ConfigKey("group.streams.assignment.interval.ms", _INT, "1000", at_least(0), "How much time lies between two assignments of a group."),
    ConfigKey("group.streams.min.assignment.interval.ms", _INT, "0", at_least(0), "The least that a group may set for it."),
    ConfigKey("group.streams.max.assignment.interval.ms", _INT, "15000", at_least(0), "The most that a group may set for it."),
    ConfigKey("group.streams.heartbeat.interval.ms", _INT, "5000", at_least(1), "How often a member shows that it lives."),
    ConfigKey("group.streams.min.heartbeat.interval.ms", _INT, "5000", at_least(1), "The least that a group may set for it."),
    ConfigKey("group.streams.max.heartbeat.interval.ms", _INT, "15000", at_least(1), "The most that a group may set for it."),
    ConfigKey("group.streams.initial.rebalance.delay.ms", _INT, "3000", at_least(0), "How long an empty group waits for more members."),
    ConfigKey("group.streams.session.timeout.ms", _INT, "45000", at_least(1), "After how long without a sign a member is out."),
    ConfigKey("group.streams.min.session.timeout.ms", _INT, "45000", at_least(1), "The least that a group may set for it."),
    ConfigKey("group.streams.max.session.timeout.ms", _INT, "60000", at_least(1), "The most that a group may set for it."),
    ConfigKey("group.streams.max.size", _INT, _UNLIMITED, at_least(1), "How many members a group may have."),
    ConfigKey("group.streams.num.standby.replicas", _INT, "0", at_least(0), "How many copies of each task stand by."),
    ConfigKey("group.streams.max.standby.replicas", _INT, "2", at_least(0), "The most that a group may set for it."),

    # Committed offsets.
    ConfigKey("offset.metadata.max.bytes", _INT, "4096", None, "How long a note on a committed offset may be.", enforced=True),
    ConfigKey("offsets.commit.timeout.ms", _INT, "5000", at_least(1), "How long a commit waits for its replicas.", enforced=True),
    ConfigKey("offsets.load.buffer.size", _INT, "5242880", at_least(1),
              "How much is read at a time when a coordinator starts.", enforced=True),
    ConfigKey("offsets.retention.check.interval.ms", _LONG, "600000", at_least(1),
              "How often outdated offsets are looked for.", enforced=True),
    ConfigKey("offsets.retention.minutes", _INT, "10080", at_least(1), "How long an empty group's offsets are kept.", enforced=True),
    ConfigKey("offsets.topic.compression.codec", _INT, "0", None, "The number of the codec of the topic of offsets."),
    ConfigKey("offsets.topic.num.partitions", _INT, "50", at_least(1), "How many partitions the topic of offsets has.", enforced=True),
    ConfigKey("offsets.topic.replication.factor", _SHORT, "3", at_least(1), "How many replicas the topic of offsets has.", enforced=True),
    ConfigKey("offsets.topic.segment.bytes", _INT, "104857600", at_least(1), "The segment size of the topic of offsets.", enforced=True),

    # The coordinator of share groups.
    ConfigKey("share.coordinator.append.linger.ms", _INT, "-1", at_least(-1), "How long a coordinator gathers records; -1 adapts."),
    ConfigKey("share.coordinator.cached.buffer.max.bytes", _INT, "1048588", at_least(524288), "The largest buffer that a coordinator keeps."),
    ConfigKey("share.coordinator.cold.partition.snapshot.interval.ms", _INT, "300000", at_least(1), "How often idle partitions get a snapshot.",
              internal=True),
    ConfigKey("share.coordinator.load.buffer.size", _INT, "5242880", at_least(1), "How much is read at a time when a coordinator starts."),
    ConfigKey("share.coordinator.snapshot.update.records.per.snapshot", _INT, "500", Range(0, 500), "How many updates lie between snapshots."),
    ConfigKey("share.coordinator.state.topic.compression.codec", _INT, "0", None, "The number of the codec of the topic of states."),
    ConfigKey("share.coordinator.state.topic.min.isr", _SHORT, "2", at_least(1), "How many replicas of the topic of states must be in sync."),
    ConfigKey("share.coordinator.state.topic.num.partitions", _INT, "50", at_least(1), "How many partitions the topic of states has."),
    ConfigKey("share.coordinator.state.topic.prune.interval.ms", _INT, "300000", at_least(1), "How often the topic of states is cut.",
              internal=True),
    ConfigKey("share.coordinator.state.topic.replication.factor", _SHORT, "3", at_least(1), "How many replicas the topic of states has."),
    ConfigKey("share.coordinator.state.topic.segment.bytes", _INT, "104857600", at_least(1), "The segment size of the topic of states."),
    ConfigKey("share.coordinator.threads", _INT, "1", at_least(1), "Threads of the coordinator."),
    ConfigKey("share.coordinator.write.timeout.ms", _INT, "5000", at_least(1), "How long a write waits for its replicas."),
    ConfigKey("share.fetch.purgatory.purge.interval.requests", _INT, "1000", None, "How often finished waits of share fetches are swept."),

    # Transactions.
    ConfigKey("transaction.max.timeout.ms", _INT, "900000", at_least(1),
              "The longest transaction that a producer may ask for.", enforced=True),
    ConfigKey("transactional.id.expiration.ms", _INT, "604800000", at_least(1),
              "After how long an unused transactional id is forgotten.", enforced=True),
    ConfigKey("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, "10000", at_least(1),
              "How often transactions that took too long are looked for."),
    ConfigKey("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, "3600000", at_least(1),
              "How often unused transactional ids are looked for.", enforced=True),
    ConfigKey("transaction.partition.verification.enable", _BOOLEAN, "true", None,
              "Whether a write must belong to an open transaction.", enforced=True),
    ConfigKey("transaction.two.phase.commit.enable", _BOOLEAN, "false", None, "Whether transactions may wait for an outer one."),
    ConfigKey("transaction.state.log.load.buffer.size", _INT, "5242880", at_least(1),
              "How much is read at a time when a coordinator starts.", enforced=True),
    ConfigKey("transaction.state.log.min.isr", _INT, "2", at_least(1),
              "How many replicas of the topic of transactions must be in sync.", enforced=True),
    ConfigKey("transaction.state.log.num.partitions", _INT, "50", at_least(1),
              "How many partitions the topic of transactions has.", enforced=True),
    ConfigKey("transaction.state.log.replication.factor", _SHORT, "3", at_least(1),
              "How many replicas the topic of transactions has.", enforced=True),
    ConfigKey("transaction.state.log.segment.bytes", _INT, "104857600", at_least(1),
              "The segment size of the topic of transactions.", enforced=True),
    ConfigKey("add.partitions.to.txn.retry.backoff.ms", _INT, "20", at_least(1),
              "After how long a write adds its partition to its transaction again, while the one before is ending.", enforced=True),
    ConfigKey("add.partitions.to.txn.retry.backoff.max.ms", _INT, "100", at_least(0),
              "For how long a write adds its partition again.", enforced=True),
)
# fmt: on
