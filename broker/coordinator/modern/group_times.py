"""The times of modern groups: the group's own setting within the broker's bounds, or else the broker's setting.

A change takes effect with a member's next heartbeat, or with the group's next target. Source: Kafka's
`GroupConfigManager`, `GroupConfig`.
"""

from __future__ import annotations

from functools import partial

from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.topic_view import ImageHolder


class GroupTimes:
    """The times of groups of one type, by group id. All in milliseconds."""

    def __init__(self, settings: GroupSettings, holder: ImageHolder, group_type: GroupType) -> None:
        self._holder = holder

        def setting(name: str) -> tuple[str, int, int, int]:
            key, field = f"{group_type.value}.{name}.ms", f"{group_type.value}_{name}".replace(".", "_")
            default_ms = getattr(settings, f"{field}_ms")
            return key, default_ms, getattr(settings, f"{field}_min_ms"), getattr(settings, f"{field}_max_ms")

        self.session_timeout_ms = partial(self._time_ms, setting("session.timeout"))
        """How long a member may be silent before it is removed."""
        self.heartbeat_interval_ms = partial(self._time_ms, setting("heartbeat.interval"))
        """How often members are asked to send heartbeats."""
        self.assignment_interval_ms = partial(self._time_ms, setting("assignment.interval"))
        """The least time between two targets."""

    def _time_ms(self, setting: tuple[str, int, int, int], group_id: str) -> int:
        """Returns one time of a group. A value that isn't a number, which another version let through, is ignored."""
        key, default_ms, minimum_ms, maximum_ms = setting
        configs = self._holder.image.group_configs.get(group_id)
        text = configs.configs.get(key) if configs is not None else None
        return min(max(int(text), minimum_ms), maximum_ms) if text is not None and text.isdecimal() else default_ms
