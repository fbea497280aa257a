"""The public names of `lowtide.admin`."""

from __future__ import annotations

from lowtide.admin.acls import Acl, AclFilter
from lowtide.admin.blocking import BlockingAdminClient
from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_description import ClusterDescription
from lowtide.admin.cluster_view import Broker, PartitionDescription, TopicDescription
from lowtide.admin.configs import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource
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
from lowtide.admin.erasing import PartitionErasure
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
from lowtide.admin.producing import WrittenRecords
from lowtide.admin.quotas import DEFAULT_NAME, QuotaEntity
from lowtide.admin.records import FetchedRecords
from lowtide.admin.settings import ClientSettings, SettingsError
from lowtide.admin.share_groups import ShareOffset
from lowtide.admin.standing import StandingErasureDescription, StandingTerms
from lowtide.admin.streams_groups import (
    StreamsMemberDescription,
    StreamsSubtopology,
    StreamsTask,
    StreamsTasks,
    StreamsTopology,
)
from lowtide.admin.topics import CreatedTopic, NewTopic
from lowtide.admin.transactions import (
    ListedTransactions,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.protocol.client.versions import Feature
from lowtide.protocol.config_values import ConfigResourceType, ConfigSource
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
    "ConfigResourceType",
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
    "ListedTransactions",
    "LogDir",
    "NewTopic",
    "OffsetSpec",
    "PartitionDescription",
    "PartitionErasure",
    "ProducerDescription",
    "QuotaEntity",
    "ReplicaSize",
    "SettingsError",
    "ShareOffset",
    "StandingErasureDescription",
    "StandingTerms",
    "StreamsMemberDescription",
    "StreamsSubtopology",
    "StreamsTask",
    "StreamsTasks",
    "StreamsTopology",
    "Timestamp",
    "TopicDescription",
    "TopicPartition",
    "TransactionDescription",
    "TransactionListing",
    "UnsupportedVersionError",
    "WrittenRecords",
]
