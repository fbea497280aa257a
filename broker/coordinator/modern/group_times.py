"""The times of groups whose partitions the broker assigns: what is set on a group itself, else what the broker says.

A change takes effect at a member's next heartbeat, or the group's next target. Guards: no time is out of the broker's
bounds: what was set before they were drawn closer counts as the bound. Source: Kafka's `GroupConfigManager`,
`GroupConfig`.
"""

from __future__ import annotations

from lowtide.broker.config.keys_of_groups import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    SHARE_ASSIGNMENT_INTERVAL,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_SESSION_TIMEOUT,
)
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.topic_view import ImageHolder


class GroupTimes:
    """The times of a consumer group. All in milliseconds."""

    def __init__(self, settings: GroupSettings, holder: ImageHolder) -> None:
        self._settings = settings
        self._holder = holder

    def session_timeout_ms(self, group_id: str) -> int:
        """After how long without a sign a member is out."""
        settings = self._settings
        bounds = settings.consumer_session_timeout_min_ms, settings.consumer_session_timeout_max_ms
        return self._bounded(group_id, SESSION_TIMEOUT, settings.consumer_session_timeout_ms, bounds)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often members are asked to show that they live."""
        settings = self._settings
        bounds = settings.consumer_heartbeat_interval_min_ms, settings.consumer_heartbeat_interval_max_ms
        return self._bounded(group_id, HEARTBEAT_INTERVAL, settings.consumer_heartbeat_interval_ms, bounds)

    def assignment_interval_ms(self, group_id: str) -> int:
        """How much time lies between two targets."""
        settings = self._settings
        bounds = settings.consumer_assignment_interval_min_ms, settings.consumer_assignment_interval_max_ms
        return self._bounded(group_id, ASSIGNMENT_INTERVAL, settings.consumer_assignment_interval_ms, bounds)

    def _bounded(self, group_id: str, name: str, of_broker_ms: int, bounds: tuple[int, int]) -> int:
        own_ms = self._own_ms(group_id, name)
        return of_broker_ms if own_ms is None else min(max(own_ms, bounds[0]), bounds[1])

    def _own_ms(self, group_id: str, name: str) -> int | None:
        """What is set on the group. What isn't a number, which another version may have let through, isn't set."""
        configs = self._holder.image.group_configs.get(group_id)
        text = configs.configs.get(name) if configs is not None else None
        return int(text) if text is not None and text.isdecimal() else None


class ShareGroupTimes(GroupTimes):
    """The times of a share group. All in milliseconds."""

    def session_timeout_ms(self, group_id: str) -> int:
        """After how long without a sign a member is out."""
        settings = self._settings
        bounds = settings.share_session_timeout_min_ms, settings.share_session_timeout_max_ms
        return self._bounded(group_id, SHARE_SESSION_TIMEOUT, settings.share_session_timeout_ms, bounds)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often members are asked to show that they live."""
        settings = self._settings
        bounds = settings.share_heartbeat_interval_min_ms, settings.share_heartbeat_interval_max_ms
        return self._bounded(group_id, SHARE_HEARTBEAT_INTERVAL, settings.share_heartbeat_interval_ms, bounds)

    def assignment_interval_ms(self, group_id: str) -> int:
        """How much time lies between two targets."""
        settings = self._settings
        bounds = settings.share_assignment_interval_min_ms, settings.share_assignment_interval_max_ms
        return self._bounded(group_id, SHARE_ASSIGNMENT_INTERVAL, settings.share_assignment_interval_ms, bounds)
