"""A broker's keys for groups and transactions, as in Apache Kafka 4.3, ordered by subject."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, OneOf, Range, Type, at_least

_BOOLEAN, _SHORT, _INT, _LONG, _STRING, _LIST = Type.BOOLEAN, Type.SHORT, Type.INT, Type.LONG, Type.STRING, Type.LIST
_UNLIMITED: Final = "2147483647"

# fmt: off
GROUP_KEYS: Final[tuple[ConfigKey, ...]] = (
    # The coordinator of groups.
    ConfigKey("group.coordinator.append.linger.ms", _INT, "-1", at_least(-1),
              "The time that a group coordinator collects records before it writes them; -1 adapts it.", enforced=False),
    ConfigKey("group.coordinator.background.threads", _INT, "2", at_least(1), "The number of background threads of a group coordinator.", enforced=False),
    ConfigKey("group.coordinator.cached.buffer.max.bytes", _INT, "1048588", at_least(524288),
              "The maximum size of a buffer that a group coordinator caches.", enforced=False),
    ConfigKey("group.coordinator.rebalance.protocols", _LIST, "classic,consumer,streams", OneOf(("consumer", "classic", "share", "streams")),
              "The group protocols that are enabled."),
    ConfigKey("group.coordinator.threads", _INT, "4", at_least(1), "The number of threads of a group coordinator.", enforced=False),

    # Classic groups.
    ConfigKey("group.initial.rebalance.delay.ms", _INT, "3000", None, "The time that an empty group waits for more members before its first rebalance."),
    ConfigKey("group.max.session.timeout.ms", _INT, "1800000", None, "The maximum session timeout of a classic group's member."),
    ConfigKey("group.min.session.timeout.ms", _INT, "6000", None, "The minimum session timeout of a classic group's member."),
    ConfigKey("group.max.size", _INT, _UNLIMITED, at_least(1), "The maximum number of members in a classic group."),

    # Consumer groups of KIP-848.
    ConfigKey("group.consumer.assignment.interval.ms", _INT, "1000", at_least(0), "The minimum time between two assignments of a consumer group."),
    ConfigKey("group.consumer.min.assignment.interval.ms", _INT, "0", at_least(0), "The minimum assignment interval that a consumer group can set."),
    ConfigKey("group.consumer.max.assignment.interval.ms", _INT, "15000", at_least(0), "The maximum assignment interval that a consumer group can set."),
    ConfigKey("group.consumer.assignors", _LIST, "uniform,range", OneOf(("uniform", "range")),
              "The partition assignors of consumer groups; the first is the default."),
    ConfigKey("group.consumer.heartbeat.interval.ms", _INT, "5000", at_least(1), "The heartbeat interval of consumer group members."),
    ConfigKey("group.consumer.min.heartbeat.interval.ms", _INT, "5000", at_least(1), "The minimum heartbeat interval that a consumer group can set."),
    ConfigKey("group.consumer.max.heartbeat.interval.ms", _INT, "15000", at_least(1), "The maximum heartbeat interval that a consumer group can set."),
    ConfigKey("group.consumer.session.timeout.ms", _INT, "45000", at_least(1), "The time without a heartbeat after which a member leaves a consumer group."),
    ConfigKey("group.consumer.min.session.timeout.ms", _INT, "45000", at_least(1), "The minimum session timeout that a consumer group can set."),
    ConfigKey("group.consumer.max.session.timeout.ms", _INT, "60000", at_least(1), "The maximum session timeout that a consumer group can set."),
    ConfigKey("group.consumer.max.size", _INT, _UNLIMITED, at_least(1), "The maximum number of members in a consumer group."),
    ConfigKey("group.consumer.migration.policy", _STRING, "bidirectional", OneOf(("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"), any_case=True),
              "The conversions that are allowed between classic groups and consumer groups."),
    ConfigKey("group.consumer.regex.refresh.interval.ms", _INT, "600000", at_least(10000),
              "The interval at which subscription patterns are matched against topics again.", internal=True),

    # Share groups of KIP-932.
    ConfigKey("group.share.enable", _BOOLEAN, "true", None, "Whether share groups are enabled (KIP-932).", internal=True),
    ConfigKey("group.share.assignment.interval.ms", _INT, "1000", at_least(0), "The minimum time between two assignments of a share group."),
    ConfigKey("group.share.min.assignment.interval.ms", _INT, "0", at_least(0), "The minimum assignment interval that a share group can set."),
    ConfigKey("group.share.max.assignment.interval.ms", _INT, "15000", at_least(0), "The maximum assignment interval that a share group can set."),
    ConfigKey("group.share.assignors", _LIST, "simple", OneOf(("simple",)), "The partition assignors of share groups."),
    ConfigKey("group.share.delivery.count.limit", _INT, "5", Range(2, 10), "The maximum number of delivery attempts for a record."),
    ConfigKey("group.share.min.delivery.count.limit", _INT, "2", Range(2, 5), "The minimum delivery count limit that a share group can set."),
    ConfigKey("group.share.max.delivery.count.limit", _INT, "10", Range(5, 25), "The maximum delivery count limit that a share group can set."),
    ConfigKey("group.share.heartbeat.interval.ms", _INT, "5000", at_least(1), "The heartbeat interval of share group members."),
    ConfigKey("group.share.min.heartbeat.interval.ms", _INT, "5000", at_least(1), "The minimum heartbeat interval that a share group can set."),
    ConfigKey("group.share.max.heartbeat.interval.ms", _INT, "15000", at_least(1), "The maximum heartbeat interval that a share group can set."),
    ConfigKey("group.share.initialize.retry.interval.ms", _INT, "30000", at_least(1),
              "The time before a failed initialization of a share partition is retried.", internal=True),
    ConfigKey("group.share.partition.max.record.locks", _INT, "2000", Range(100, 10000), "The maximum number of locked records in a share partition."),
    ConfigKey("group.share.min.partition.max.record.locks", _INT, "100", Range(100, 2000), "The minimum number of record locks that a share group can set."),
    ConfigKey("group.share.max.partition.max.record.locks", _INT, "4000", Range(2000, 10000), "The maximum number of record locks that a share group can set."),
    ConfigKey("group.share.persister.class.name", _STRING, "org.apache.kafka.server.share.persister.DefaultStatePersister", None,
              "The class that stores the state of share groups.", enforced=False, internal=True),
    ConfigKey("group.share.record.lock.duration.ms", _INT, "30000", Range(1000, 3600000),
              "The time for which a delivered record stays locked before it is delivered again."),
    ConfigKey("group.share.min.record.lock.duration.ms", _INT, "15000", Range(1000, 30000), "The minimum lock duration that a share group can set."),
    ConfigKey("group.share.max.record.lock.duration.ms", _INT, "60000", Range(30000, 3600000), "The maximum lock duration that a share group can set."),
    ConfigKey("group.share.session.timeout.ms", _INT, "45000", at_least(1), "The time without a heartbeat after which a member leaves a share group."),
    ConfigKey("group.share.min.session.timeout.ms", _INT, "45000", at_least(1), "The minimum session timeout that a share group can set."),
    ConfigKey("group.share.max.session.timeout.ms", _INT, "60000", at_least(1), "The maximum session timeout that a share group can set."),
    ConfigKey("group.share.max.share.sessions", _INT, "2000", at_least(1), "The maximum number of share sessions on a broker."),
    ConfigKey("group.share.max.size", _INT, "200", Range(1, 1000), "The maximum number of members in a share group."),

    # Streams groups of KIP-1071.
    ConfigKey("group.streams.assignment.interval.ms", _INT, "1000", at_least(0),
              "The minimum time between two assignments of a streams group.", enforced=False),
    ConfigKey("group.streams.min.assignment.interval.ms", _INT, "0", at_least(0),
              "The minimum assignment interval that a streams group can set.", enforced=False),
    ConfigKey("group.streams.max.assignment.interval.ms", _INT, "15000", at_least(0),
              "The maximum assignment interval that a streams group can set.", enforced=False),
    ConfigKey("group.streams.heartbeat.interval.ms", _INT, "5000", at_least(1), "The heartbeat interval of streams group members.", enforced=False),
    ConfigKey("group.streams.min.heartbeat.interval.ms", _INT, "5000", at_least(1),
              "The minimum heartbeat interval that a streams group can set.", enforced=False),
    ConfigKey("group.streams.max.heartbeat.interval.ms", _INT, "15000", at_least(1),
              "The maximum heartbeat interval that a streams group can set.", enforced=False),
    ConfigKey("group.streams.initial.rebalance.delay.ms", _INT, "3000", at_least(0),
              "The time that an empty streams group waits for more members before its first rebalance.", enforced=False),
    ConfigKey("group.streams.session.timeout.ms", _INT, "45000", at_least(1),
              "The time without a heartbeat after which a member leaves a streams group.", enforced=False),
    ConfigKey("group.streams.min.session.timeout.ms", _INT, "45000", at_least(1), "The minimum session timeout that a streams group can set.", enforced=False),
    ConfigKey("group.streams.max.session.timeout.ms", _INT, "60000", at_least(1), "The maximum session timeout that a streams group can set.", enforced=False),
    ConfigKey("group.streams.max.size", _INT, _UNLIMITED, at_least(1), "The maximum number of members in a streams group.", enforced=False),
    ConfigKey("group.streams.num.standby.replicas", _INT, "0", at_least(0), "The number of standby replicas for each task.", enforced=False),
    ConfigKey("group.streams.max.standby.replicas", _INT, "2", at_least(0),
              "The maximum number of standby replicas that a streams group can set.", enforced=False),

    # Committed offsets.
    ConfigKey("offset.metadata.max.bytes", _INT, "4096", None, "The maximum size of the metadata of a committed offset."),
    ConfigKey("offsets.commit.timeout.ms", _INT, "5000", at_least(1), "The time that an offset commit waits for replication."),
    ConfigKey("offsets.load.buffer.size", _INT, "5242880", at_least(1), "The number of bytes that a group coordinator reads at a time when it loads."),
    ConfigKey("offsets.retention.check.interval.ms", _LONG, "600000", at_least(1), "The interval at which expired offsets are removed."),
    ConfigKey("offsets.retention.minutes", _INT, "10080", at_least(1), "The time for which the offsets of an empty group are kept."),
    ConfigKey("offsets.topic.compression.codec", _INT, "0", None, "The compression codec of the offsets topic.", enforced=False),
    ConfigKey("offsets.topic.num.partitions", _INT, "50", at_least(1), "The number of partitions of the offsets topic."),
    ConfigKey("offsets.topic.replication.factor", _SHORT, "3", at_least(1), "The replication factor of the offsets topic."),
    ConfigKey("offsets.topic.segment.bytes", _INT, "104857600", at_least(1), "The segment size of the offsets topic."),

    # The coordinator of share groups.
    ConfigKey("share.coordinator.append.linger.ms", _INT, "-1", at_least(-1),
              "The time that a share coordinator collects records before it writes them; -1 adapts it.", enforced=False),
    ConfigKey("share.coordinator.cached.buffer.max.bytes", _INT, "1048588", at_least(524288),
              "The maximum size of a buffer that a share coordinator caches.", enforced=False),
    ConfigKey("share.coordinator.cold.partition.snapshot.interval.ms", _INT, "300000", at_least(1),
              "The interval at which snapshots of idle share partitions are written.", internal=True),
    ConfigKey("share.coordinator.load.buffer.size", _INT, "5242880", at_least(1),
              "The number of bytes that a share coordinator reads at a time when it loads."),
    ConfigKey("share.coordinator.snapshot.update.records.per.snapshot", _INT, "500", Range(0, 500), "The number of update records between two snapshots."),
    ConfigKey("share.coordinator.state.topic.compression.codec", _INT, "0", None, "The compression codec of the share state topic.", enforced=False),
    ConfigKey("share.coordinator.state.topic.min.isr", _SHORT, "2", at_least(1), "The value of min.insync.replicas for the share state topic."),
    ConfigKey("share.coordinator.state.topic.num.partitions", _INT, "50", at_least(1), "The number of partitions of the share state topic."),
    ConfigKey("share.coordinator.state.topic.prune.interval.ms", _INT, "300000", at_least(1),
              "The interval at which old records of the share state topic are deleted.", internal=True),
    ConfigKey("share.coordinator.state.topic.replication.factor", _SHORT, "3", at_least(1), "The replication factor of the share state topic."),
    ConfigKey("share.coordinator.state.topic.segment.bytes", _INT, "104857600", at_least(1), "The segment size of the share state topic."),
    ConfigKey("share.coordinator.threads", _INT, "1", at_least(1), "The number of threads of a share coordinator.", enforced=False),
    ConfigKey("share.coordinator.write.timeout.ms", _INT, "5000", at_least(1), "The time that a write of a share coordinator waits for replication."),
    ConfigKey("share.fetch.purgatory.purge.interval.requests", _INT, "1000", None,
              "The number of requests after which completed share fetches are purged.", enforced=False),

    # Transactions.
    ConfigKey("transaction.max.timeout.ms", _INT, "900000", at_least(1), "The maximum transaction timeout that a producer can request."),
    ConfigKey("transactional.id.expiration.ms", _INT, "604800000", at_least(1), "The time after which an unused transactional ID expires."),
    ConfigKey("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, "10000", at_least(1),
              "The interval at which timed-out transactions are aborted.", enforced=False),
    ConfigKey("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, "3600000", at_least(1),
              "The interval at which expired transactional IDs are removed."),
    ConfigKey("transaction.partition.verification.enable", _BOOLEAN, "true", None,
              "Whether a transactional write is rejected unless its partition belongs to an ongoing transaction."),
    ConfigKey("transaction.two.phase.commit.enable", _BOOLEAN, "false", None, "Whether a transaction can take part in a two-phase commit.", enforced=False),
    ConfigKey("transaction.state.log.load.buffer.size", _INT, "5242880", at_least(1),
              "The number of bytes that a transaction coordinator reads at a time when it loads."),
    ConfigKey("transaction.state.log.min.isr", _INT, "2", at_least(1), "The value of min.insync.replicas for the transaction topic."),
    ConfigKey("transaction.state.log.num.partitions", _INT, "50", at_least(1), "The number of partitions of the transaction topic."),
    ConfigKey("transaction.state.log.replication.factor", _SHORT, "3", at_least(1), "The replication factor of the transaction topic."),
    ConfigKey("transaction.state.log.segment.bytes", _INT, "104857600", at_least(1), "The segment size of the transaction topic."),
    ConfigKey("add.partitions.to.txn.retry.backoff.ms", _INT, "20", at_least(1),
              "The time before a write retries to add its partition to a transaction while the previous transaction is completing."),
    ConfigKey("add.partitions.to.txn.retry.backoff.max.ms", _INT, "100", at_least(0),
              "The maximum time for which a write retries to add its partition to a transaction."),
)
# fmt: on
