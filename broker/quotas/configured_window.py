"""Reads the window over which quotas are measured.

Source: Kafka's `quota.window.num` and `quota.window.size.seconds`.
"""

from __future__ import annotations

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.key import number
from lowtide.broker.quotas.sampled_rate import Window


def configured_window(config: BrokerConfig, keys: str) -> Window:
    """Returns the window configured by the keys with a prefix such as `controller.quota.window`."""
    return Window(number(config.values[f"{keys}.num"]), number(config.values[f"{keys}.size.seconds"]) * 1000)
