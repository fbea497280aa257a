"""The client for whatever speaks Kafka's protocol, for people and programs that administer a cluster.

    from lowtide import AdminClient, TopicPartition
    from lowtide.admin import Committed, DeletedRecords, OffsetSpec, Timestamp

    async with AdminClient("localhost:9092") as admin:
        results = await admin.delete_records({TopicPartition("flights", 0): Committed(["etl"])})

`BlockingAdminClient` has the same methods without `await`. A call about several things gives a result for each, a value or an `AdminError`:

    delete_records({partition: offset | -1 | Timestamp | Committed}, leader_only=, erase=, timeout=, topic_ids=)
                                             -> {partition: DeletedRecords (ErasedRecords) | DeleteRecordsError}
    resolve_delete_targets({partition: ...}) -> {partition: offset | DeleteRecordsError}          nothing is deleted
    list_offsets({partition: OffsetSpec | Timestamp}, read_committed=) -> {partition: ListedOffset | AdminError}
    list_group_offsets(groups, or {group: partitions or None}) -> {group: {partition: CommittedOffset} | AdminError}
    alter_group_offsets(group, {partition: offset}), delete_group_offsets(group, partitions) -> {partition: None |
    AdminError}
    fetch_records(partition, offset, max_bytes=, wait_ms=) -> FetchedRecords                      raises: one thing only
    create_topics([NewTopic]), delete_topics(names), create_partitions({name: count}) -> {name: CreatedTopic or None |
    AdminError}
    list_topics() -> {name: TopicDescription}     describe_topics(names) -> {name: TopicDescription | AdminError}
    describe_configs([ConfigResource(ResourceType.TOPIC, name)], keys=) -> {resource: {key: ConfigEntry} | AdminError}
    alter_configs({resource: [ConfigChange(key, value)]}, validate_only=) -> {resource: None | AdminError}
    describe_quotas() -> {entity: {key: limit}}     alter_quotas({QuotaEntity(user=): {key: limit or None}}) -> {entity: None | AdminError}
    describe_cluster(include_fenced=) -> ClusterDescription     describe_features() -> {name: Feature}
    elect_leaders(partitions, unclean=), alter_reassignments({partition: [broker ids] | None}) -> {partition: None |
    AdminError}
    list_reassignments() -> {partition: Reassignment}     unregister_broker(broker id)
    alter_replica_log_dirs({(broker id, partition): path}) -> {(broker id, partition): AdminError | None}
    describe_log_dirs(brokers=, partitions=) -> {broker id: {path: LogDir} | AdminError}
    describe_acls(AclFilter()) -> [Acl]     create_acls([Acl]) -> {acl: None | AdminError}
    delete_acls([AclFilter]) -> {filter: [Acl] | AdminError}
    create_delegation_token(owner=, renewers=, lifetime_ms=) -> DelegationToken     describe_delegation_tokens(owners=) -> [DelegationToken]
    renew_delegation_token(hmac, period_ms=), expire_delegation_token(hmac, period_ms=) -> when it ends
    list_groups(states=, kinds=) -> ListedGroups     describe_groups(names) -> {name: GroupDescription | AdminError}
    delete_groups(names) -> {name: None | AdminError}
    list_share_group_offsets(groups) -> {group: {partition: ShareOffset} | AdminError}
    alter_share_group_offsets(group, {partition: offset}) -> {partition: None | AdminError}

Settings: `ClientSettings.of({"bootstrap.servers": ...})`, `ClientSettings.read("client.properties", overrides)`;
`SettingsError`. For sockets that aren't asyncio's: `blocking_connection`, or `lowtide.protocol.client`, which both
kinds of connections share.

It reaches clusters over TCP only, and knows nothing of a broker's inside.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lowtide.admin.acls import Acl, AclFilter
    from lowtide.admin.blocking import BlockingAdminClient
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_description import ClusterDescription
    from lowtide.admin.cluster_view import Broker, PartitionDescription, TopicDescription
    from lowtide.admin.configs import (
        ConfigChange,
        ConfigEntry,
        ConfigOperation,
        ConfigResource,
        ConfigSource,
        ResourceType,
    )
    from lowtide.admin.delegation_tokens import DelegationToken
    from lowtide.admin.deletion import (
        TO_HIGH_WATERMARK,
        Committed,
        DeletedRecords,
        DeleteRecordsError,
        DeleteResult,
        DeleteStage,
        DeleteTarget,
        ErasedRecords,
        EraseUnsupportedError,
        LeaderOnlyUnsupportedError,
    )
    from lowtide.admin.errors import (
        AdminError,
        AuthenticationFailedError,
        BrokerAnsweredError,
        ClientClosedError,
        ConnectionFailedError,
        DeadlineExceededError,
        UnsupportedVersionError,
    )
    from lowtide.admin.group_offsets import CommittedOffset
    from lowtide.admin.groups import GroupDescription, GroupListing, GroupMember, ListedGroups
    from lowtide.admin.log_dirs import LogDir, ReplicaSize
    from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
    from lowtide.admin.quotas import DEFAULT_NAME, QuotaEntity
    from lowtide.admin.records import FetchedRecords
    from lowtide.admin.settings import ClientSettings, SettingsError
    from lowtide.admin.share_groups import ShareOffset
    from lowtide.admin.topics import CreatedTopic, NewTopic
    from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType
    from lowtide.protocol.client.versions import Feature
    from lowtide.protocol.types import TopicPartition

__all__ = [
    "DEFAULT_NAME",
    "TO_HIGH_WATERMARK",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPattern",
    "AclPermission",
    "AclResourceType",
    "AdminClient",
    "AdminError",
    "AuthenticationFailedError",
    "BlockingAdminClient",
    "Broker",
    "BrokerAnsweredError",
    "ClientClosedError",
    "ClientSettings",
    "ClusterDescription",
    "Committed",
    "CommittedOffset",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigSource",
    "ConnectionFailedError",
    "CreatedTopic",
    "DeadlineExceededError",
    "DelegationToken",
    "DeleteRecordsError",
    "DeleteResult",
    "DeleteStage",
    "DeleteTarget",
    "DeletedRecords",
    "EraseUnsupportedError",
    "ErasedRecords",
    "Feature",
    "FetchedRecords",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "LeaderOnlyUnsupportedError",
    "ListedGroups",
    "ListedOffset",
    "LogDir",
    "NewTopic",
    "OffsetSpec",
    "PartitionDescription",
    "QuotaEntity",
    "ReplicaSize",
    "ResourceType",
    "SettingsError",
    "ShareOffset",
    "Timestamp",
    "TopicDescription",
    "TopicPartition",
    "UnsupportedVersionError",
]

_MODULES: Final = {
    "lowtide.admin.acls": ("Acl", "AclFilter"),
    "lowtide.protocol.acl_values": ("AclOperation", "AclPattern", "AclPermission", "AclResourceType"),
    "lowtide.admin.blocking": ("BlockingAdminClient",),
    "lowtide.admin.client": ("AdminClient",),
    "lowtide.admin.cluster_description": ("ClusterDescription",),
    "lowtide.admin.cluster_view": ("Broker", "PartitionDescription", "TopicDescription"),
    "lowtide.admin.configs": (
        "ConfigChange",
        "ConfigEntry",
        "ConfigOperation",
        "ConfigResource",
        "ConfigSource",
        "ResourceType",
    ),
    "lowtide.admin.deletion": (
        "TO_HIGH_WATERMARK",
        "Committed",
        "DeletedRecords",
        "DeleteRecordsError",
        "DeleteResult",
        "DeleteStage",
        "DeleteTarget",
        "ErasedRecords",
        "EraseUnsupportedError",
        "LeaderOnlyUnsupportedError",
    ),
    "lowtide.admin.errors": (
        "AdminError",
        "AuthenticationFailedError",
        "BrokerAnsweredError",
        "ClientClosedError",
        "ConnectionFailedError",
        "DeadlineExceededError",
        "UnsupportedVersionError",
    ),
    "lowtide.protocol.client.versions": ("Feature",),
    "lowtide.admin.group_offsets": ("CommittedOffset",),
    "lowtide.admin.groups": ("GroupDescription", "GroupListing", "GroupMember", "ListedGroups"),
    "lowtide.admin.log_dirs": ("LogDir", "ReplicaSize"),
    "lowtide.admin.offsets": ("ListedOffset", "OffsetSpec", "Timestamp"),
    "lowtide.admin.quotas": ("DEFAULT_NAME", "QuotaEntity"),
    "lowtide.admin.records": ("FetchedRecords",),
    "lowtide.admin.share_groups": ("ShareOffset",),
    "lowtide.admin.settings": ("ClientSettings", "SettingsError"),
    "lowtide.admin.delegation_tokens": ("DelegationToken",),
    "lowtide.admin.topics": ("CreatedTopic", "NewTopic"),
    "lowtide.protocol.types": ("TopicPartition",),
}
"""Where each name is. They are imported when they are asked for: Spark's workers need the settings only, and are many."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    message = f"module 'lowtide.admin' has no attribute {name!r}"
    raise AttributeError(message)
