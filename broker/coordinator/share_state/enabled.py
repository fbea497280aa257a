"""Whether share groups (KIP-932) are served: one gate for their APIs, their feature level and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.config.key import Value

SHARE_GROUPS_KEY: Final = "group.share.enable"
"""Internal, as in Kafka 4.0: for tests until all of share groups is served."""


def share_groups_enabled(values: Mapping[str, Value]) -> bool:
    """Whether a broker with these values of its configuration serves share groups."""
    return values[SHARE_GROUPS_KEY] is True
