"""Reads the configured windows of quotas, and how many connections per second are accepted.

`max.connection.creation.rate` limits the broker and its listeners. If clients have listeners of their own, connections
of brokers count but aren't delayed by the broker's limit. Source: KIP-612, Kafka's
`ConnectionQuotas.recordConnectionAndGetThrottleTimeMs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.key import number
from lowtide.broker.config.listener_keys import ListenerKeys
from lowtide.broker.quotas.sampled_rate import Window

CREATION_RATE: Final = "max.connection.creation.rate"
UNLIMITED: Final = 2**31 - 1


class CreationRates(msgspec.Struct, frozen=True):
    """The connections per second. A listener is present only with a limit of its own."""

    of_broker: int = UNLIMITED
    of_listeners: Mapping[str, int] = MappingProxyType({})
    brokers_listener: str | None = None
    """The listener of the brokers, if clients have others."""

    def limits_at(self, listener: str) -> list[tuple[str | None, int]]:
        """Returns the limits that a connection counts for: its listener's by name, the broker's by None."""
        own = self.of_listeners.get(listener, UNLIMITED)
        limits: list[tuple[str | None, int]] = [] if own == UNLIMITED else [(listener, own)]
        return limits if self.of_broker == UNLIMITED else [*limits, (None, self.of_broker)]


def creation_rates(config: BrokerConfig) -> CreationRates:
    """Reads the limits from a configuration."""
    own = {}
    for listener in config.listeners:
        keys = ListenerKeys(config.values, config.given, listener.name)
        if keys.given_name(CREATION_RATE) == keys.own_name(CREATION_RATE):
            own[listener.name] = keys.number(CREATION_RATE)
    brokers = config.inter_broker_listener if len(config.listeners) > 1 else None
    return CreationRates(number(config.values[CREATION_RATE]), own, brokers)


def configured_window(config: BrokerConfig, keys: str) -> Window:
    """Returns the window configured by the keys with a prefix such as `controller.quota.window`.

    Source: Kafka's `quota.window.num` and `quota.window.size.seconds`.
    """
    return Window(number(config.values[f"{keys}.num"]), number(config.values[f"{keys}.size.seconds"]) * 1000)
