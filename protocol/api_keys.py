"""Kafka's API keys and Lowtide's own, and the messages, versions and header form of each supported API.

A request header is flexible (version 2, with tagged fields) from the API's first flexible version; a response header
(version 1) likewise, except that of ApiVersions, which a client reads before it knows any version (KIP-511).

The versions that clients see come from the handlers' registry.
"""

from __future__ import annotations

import importlib
import pkgutil
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.protocol.schema import ApiMessage


class ApiKey(IntEnum):
    """Every API of Apache Kafka and Lowtide. Source: the protocol guide's table of API keys."""

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
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    DESCRIBE_CONSUMED_OFFSETS = 32_001
    """Lowtide's own, from `FIRST_OF_OURS`."""
    DESCRIBE_RETENTION = 32_002
    AWAIT_METADATA = 32_003
    DESCRIBE_DELETES = 32_004
    DESCRIBE_SEGMENTS = 32_005
    DESCRIBE_HISTORY = 32_006
    DESCRIBE_HEALTH = 32_007
    ERASE_RECORDS = 32_008
    FIND_RECORDS = 32_009
    WRITE_ERASURES = 32_010
    READ_ERASURES = 32_011
    ALTER_STANDING_ERASURES = 32_012
    DESCRIBE_STANDING_ERASURES = 32_013


FIRST_OF_OURS: Final = 32_000
"""The first of Lowtide's own keys. They are not advertised, so that no client gets an unknown key."""

TOPIC_IDS_SINCE: Final = 13
"""The version of Produce and Fetch from which topics are identified by id (KIP-516)."""


class ApiSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One supported API. Versions are inclusive, and the same for request and response."""

    key: ApiKey
    request: type[ApiMessage]
    response: type[ApiMessage]
    min_version: int
    max_version: int
    first_flexible_version: int
    """Above `max_version` if no version is flexible."""


def api_name(key: ApiKey) -> str:
    """Returns the API's name as the protocol guide writes it: `DeleteRecords`."""
    return key.name.title().replace("_", "")


def _spec(key: ApiKey) -> ApiSpec:
    """Returns the API whose messages `messages/<name of the key>.py` declares."""
    module = importlib.import_module(f"{messages.__name__}.{key.name.lower()}")
    name = api_name(key)
    request, response = getattr(module, f"{name}Request"), getattr(module, f"{name}Response")
    return ApiSpec(
        key=key,
        request=request,
        response=response,
        min_version=request.VERSIONS.low,
        max_version=request.VERSIONS.high,
        first_flexible_version=request.FLEXIBLE.low,
    )


_DECLARED = {each.name for each in pkgutil.iter_modules(messages.__path__)}

API: Mapping[ApiKey, ApiSpec] = MappingProxyType({key: _spec(key) for key in ApiKey if key.name.lower() in _DECLARED})
"""The APIs that Lowtide speaks. Looked up by `ApiKey` or by the plain integer from the wire."""

_FIRST_FLEXIBLE = {int(key): spec.first_flexible_version for key, spec in API.items()}
_NEVER_FLEXIBLE = 32_768


def request_header_is_flexible(api_key: int, version: int) -> bool:
    """Returns whether a request header ends with tagged fields; False for an unsupported API.

    Unsupported versions are allowed: an ApiVersions request of a future version has a flexible header.
    """
    return version >= _FIRST_FLEXIBLE.get(api_key, _NEVER_FLEXIBLE)


def response_header_is_flexible(api_key: int, version: int) -> bool:
    """Returns whether a response header ends with tagged fields: as in the request, but never for ApiVersions."""
    return api_key != ApiKey.API_VERSIONS and request_header_is_flexible(api_key, version)
