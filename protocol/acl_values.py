"""The numbers of ACLs, in requests and in the metadata (KIP-140, KIP-430)."""

from __future__ import annotations

from enum import IntEnum


class AclResourceType(IntEnum):
    """The resource type of an ACL. Source: Kafka's ResourceType."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """How a name matches resources; the first two are for filters. Source: Kafka's PatternType."""

    ANY = 1
    MATCH = 2
    """All ACLs that apply to a resource of the name."""
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """The operation of an ACL; ANY is for filters. Source: Kafka's AclOperation."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """The effect of an ACL; ANY is for filters. Source: Kafka's AclPermissionType."""

    ANY = 1
    DENY = 2
    ALLOW = 3
