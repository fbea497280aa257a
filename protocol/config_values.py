"""The numbers of configurations in requests: resource types, and the sources of values (KIP-133, KIP-226, KIP-569)."""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    """A kind of resource with a configuration. Source: Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """The source of a value. Source: Kafka's DescribeConfigsResponse.ConfigSource."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8
