"""Kafka's API keys, and for each API that Lowtide declares: its messages, its versions and the form of its headers.

A request header is flexible (version 2, with tagged fields) from the API's first flexible version on; a response header
(version 1) likewise, except that of ApiVersions, which a client must be able to read before it knows any version
(KIP-511).

What is declared here isn't yet advertised: the table of versions that clients see comes from the handlers' registry.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from lowtide.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from lowtide.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from lowtide.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from lowtide.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from lowtide.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from lowtide.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from lowtide.protocol.messages.await_metadata import AwaitMetadataRequest, AwaitMetadataResponse
from lowtide.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from lowtide.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from lowtide.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from lowtide.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from lowtide.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from lowtide.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from lowtide.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from lowtide.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from lowtide.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from lowtide.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from lowtide.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from lowtide.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from lowtide.protocol.messages.describe_consumed_offsets import (
    DescribeConsumedOffsetsRequest,
    DescribeConsumedOffsetsResponse,
)
from lowtide.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from lowtide.protocol.messages.describe_deletes import DescribeDeletesRequest, DescribeDeletesResponse
from lowtide.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from lowtide.protocol.messages.describe_health import DescribeHealthRequest, DescribeHealthResponse
from lowtide.protocol.messages.describe_history import DescribeHistoryRequest, DescribeHistoryResponse
from lowtide.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from lowtide.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from lowtide.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from lowtide.protocol.messages.describe_retention import DescribeRetentionRequest, DescribeRetentionResponse
from lowtide.protocol.messages.describe_segments import DescribeSegmentsRequest, DescribeSegmentsResponse
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from lowtide.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from lowtide.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from lowtide.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from lowtide.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from lowtide.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from lowtide.protocol.messages.erase_records import EraseRecordsRequest, EraseRecordsResponse
from lowtide.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from lowtide.protocol.messages.fetch import FetchRequest, FetchResponse
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from lowtide.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from lowtide.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from lowtide.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lowtide.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from lowtide.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from lowtide.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from lowtide.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from lowtide.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from lowtide.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from lowtide.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataResponse
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from lowtide.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from lowtide.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from lowtide.protocol.messages.produce import ProduceRequest, ProduceResponse
from lowtide.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from lowtide.protocol.messages.read_share_group_state import ReadShareGroupStateRequest, ReadShareGroupStateResponse
from lowtide.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from lowtide.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from lowtide.protocol.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from lowtide.protocol.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from lowtide.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from lowtide.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from lowtide.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from lowtide.protocol.messages.write_share_group_state import WriteShareGroupStateRequest, WriteShareGroupStateResponse
from lowtide.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.protocol.schema import ApiMessage


class ApiKey(IntEnum):
    """Every API of Apache Kafka, and ours; members are plain integers.

    Source: the protocol guide's table of API keys.
    """

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    DESCRIBE_CONSUMED_OFFSETS = 32_001
    """Ours, from `FIRST_OF_OURS` on."""
    DESCRIBE_RETENTION = 32_002
    AWAIT_METADATA = 32_003
    DESCRIBE_DELETES = 32_004
    DESCRIBE_SEGMENTS = 32_005
    DESCRIBE_HISTORY = 32_006
    DESCRIBE_HEALTH = 32_007
    ERASE_RECORDS = 32_008


FIRST_OF_OURS: Final = 32_000
"""Keys from here on are of Lowtide alone. They are served and not advertised, so that no client meets a key that its own table lacks."""

TOPIC_IDS_SINCE: Final = 13
"""The version of Produce, and of Fetch, from which topics go by their ids instead of their names (KIP-516)."""


class ApiSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One declared API. The versions are inclusive, and the same for request and response."""

    key: ApiKey
    request: type[ApiMessage]
    response: type[ApiMessage]
    min_version: int
    max_version: int
    first_flexible_version: int
    """May be above `max_version`: then no version is flexible."""


_MESSAGES: tuple[tuple[ApiKey, type[ApiMessage], type[ApiMessage]], ...] = (
    (ApiKey.PRODUCE, ProduceRequest, ProduceResponse),
    (ApiKey.FETCH, FetchRequest, FetchResponse),
    (ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse),
    (ApiKey.METADATA, MetadataRequest, MetadataResponse),
    (ApiKey.API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse),
    (ApiKey.CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse),
    (ApiKey.DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse),
    (ApiKey.DELETE_RECORDS, DeleteRecordsRequest, DeleteRecordsResponse),
    (ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    (ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest, DescribeConfigsResponse),
    (ApiKey.ALTER_CONFIGS, AlterConfigsRequest, AlterConfigsResponse),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest, DescribeClientQuotasResponse),
    (ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest, AlterClientQuotasResponse),
    (ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest, ListConfigResourcesResponse),
    (ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
    (ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest, DescribeLogDirsResponse),
    (ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest, DescribeProducersResponse),
    (ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest, CreatePartitionsResponse),
    (ApiKey.ELECT_LEADERS, ElectLeadersRequest, ElectLeadersResponse),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    (ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest, UpdateFeaturesResponse),
    (ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest, UnregisterBrokerResponse),
    (ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest, DescribeQuorumResponse),
    (ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest, DescribeClusterResponse),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    (ApiKey.DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse),
    (ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest, DescribeGroupsResponse),
    (ApiKey.FIND_COORDINATOR, FindCoordinatorRequest, FindCoordinatorResponse),
    (ApiKey.HEARTBEAT, HeartbeatRequest, HeartbeatResponse),
    (ApiKey.JOIN_GROUP, JoinGroupRequest, JoinGroupResponse),
    (ApiKey.LEAVE_GROUP, LeaveGroupRequest, LeaveGroupResponse),
    (ApiKey.LIST_GROUPS, ListGroupsRequest, ListGroupsResponse),
    (ApiKey.OFFSET_COMMIT, OffsetCommitRequest, OffsetCommitResponse),
    (ApiKey.OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse),
    (ApiKey.OFFSET_FETCH, OffsetFetchRequest, OffsetFetchResponse),
    (ApiKey.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    (ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    (ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest, DescribeTransactionsResponse),
    (ApiKey.END_TXN, EndTxnRequest, EndTxnResponse),
    (ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest, ListTransactionsResponse),
    (ApiKey.TXN_OFFSET_COMMIT, TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    (ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    (ApiKey.SYNC_GROUP, SyncGroupRequest, SyncGroupResponse),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse),
    (ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse),
    (ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest, SaslAuthenticateResponse),
    (ApiKey.ENVELOPE, EnvelopeRequest, EnvelopeResponse),
    (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse),
    (ApiKey.PUSH_TELEMETRY, PushTelemetryRequest, PushTelemetryResponse),
    (ApiKey.DESCRIBE_CONSUMED_OFFSETS, DescribeConsumedOffsetsRequest, DescribeConsumedOffsetsResponse),
    (ApiKey.DESCRIBE_RETENTION, DescribeRetentionRequest, DescribeRetentionResponse),
    (ApiKey.AWAIT_METADATA, AwaitMetadataRequest, AwaitMetadataResponse),
    (ApiKey.DESCRIBE_DELETES, DescribeDeletesRequest, DescribeDeletesResponse),
    (ApiKey.DESCRIBE_SEGMENTS, DescribeSegmentsRequest, DescribeSegmentsResponse),
    (ApiKey.DESCRIBE_HISTORY, DescribeHistoryRequest, DescribeHistoryResponse),
    (ApiKey.DESCRIBE_HEALTH, DescribeHealthRequest, DescribeHealthResponse),
    (ApiKey.ERASE_RECORDS, EraseRecordsRequest, EraseRecordsResponse),
    (ApiKey.DESCRIBE_ACLS, DescribeAclsRequest, DescribeAclsResponse),
    (ApiKey.CREATE_ACLS, CreateAclsRequest, CreateAclsResponse),
    (ApiKey.DELETE_ACLS, DeleteAclsRequest, DeleteAclsResponse),
    (ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest, CreateDelegationTokenResponse),
    (ApiKey.RENEW_DELEGATION_TOKEN, RenewDelegationTokenRequest, RenewDelegationTokenResponse),
    (ApiKey.EXPIRE_DELEGATION_TOKEN, ExpireDelegationTokenRequest, ExpireDelegationTokenResponse),
    (ApiKey.DESCRIBE_DELEGATION_TOKEN, DescribeDelegationTokenRequest, DescribeDelegationTokenResponse),
    (ApiKey.SHARE_GROUP_HEARTBEAT, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse),
    (ApiKey.SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest, ShareGroupDescribeResponse),
    (ApiKey.SHARE_FETCH, ShareFetchRequest, ShareFetchResponse),
    (ApiKey.SHARE_ACKNOWLEDGE, ShareAcknowledgeRequest, ShareAcknowledgeResponse),
    (ApiKey.INITIALIZE_SHARE_GROUP_STATE, InitializeShareGroupStateRequest, InitializeShareGroupStateResponse),
    (ApiKey.READ_SHARE_GROUP_STATE, ReadShareGroupStateRequest, ReadShareGroupStateResponse),
    (ApiKey.WRITE_SHARE_GROUP_STATE, WriteShareGroupStateRequest, WriteShareGroupStateResponse),
    (ApiKey.DELETE_SHARE_GROUP_STATE, DeleteShareGroupStateRequest, DeleteShareGroupStateResponse),
    (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse),
)


def _specs(messages: tuple[tuple[ApiKey, type[ApiMessage], type[ApiMessage]], ...]) -> dict[ApiKey, ApiSpec]:
    return {
        key: ApiSpec(
            key=key,
            request=request,
            response=response,
            min_version=request.VERSIONS.low,
            max_version=request.VERSIONS.high,
            first_flexible_version=request.FLEXIBLE.low,
        )
        for key, request, response in messages
    }


API: Mapping[ApiKey, ApiSpec] = MappingProxyType(_specs(_MESSAGES))
"""The APIs that Lowtide speaks. Looked up by `ApiKey` or by the plain integer from the wire."""

SHARE_STATE_KEYS: Final = frozenset(
    {
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""What brokers ask share coordinators (KIP-932)."""

_FIRST_FLEXIBLE = {int(key): spec.first_flexible_version for key, spec in API.items()}
_NEVER_FLEXIBLE = 32_768


def request_header_is_flexible(api_key: int, version: int) -> bool:
    """Whether a request header of this API and version ends in tagged fields; False for an API that isn't declared.

    The version needn't be one that Lowtide speaks: an ApiVersions request of a future version has a flexible header.
    """
    return version >= _FIRST_FLEXIBLE.get(api_key, _NEVER_FLEXIBLE)


def response_header_is_flexible(api_key: int, version: int) -> bool:
    """Whether a response header of this API and version ends in tagged fields: as the request's, but never for ApiVersions."""
    return api_key != ApiKey.API_VERSIONS and request_header_is_flexible(api_key, version)
