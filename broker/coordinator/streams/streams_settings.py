"""The settings of streams groups: a group's own within the broker's bounds, or else the broker's.

A change takes effect with a member's next heartbeat, or with the group's next target. Source: Kafka's `GroupConfig`.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.group_times import GroupTimes
from lowtide.broker.coordinator.modern.topic_view import ImageHolder

STANDBY_REPLICAS: Final = "num.standby.replicas"
RACK_AWARE_TAGS: Final = "rack.aware.assignment.tags"
"""The names of settings in the records of groups."""

_NO_LIMIT: Final = 2**63 - 1


class StreamsSettings:
    """The settings of one coordinator's streams groups, by group id. Times are in milliseconds."""

    def __init__(self, settings: GroupSettings, holder: ImageHolder) -> None:
        self._settings = settings
        self._holder = holder
        times = GroupTimes(settings, holder, GroupType.STREAMS)
        self.session_timeout_ms = times.session_timeout_ms
        self.heartbeat_interval_ms = times.heartbeat_interval_ms
        self.assignment_interval_ms = times.assignment_interval_ms

    @property
    def max_size(self) -> int:
        """The most members of a group."""
        return self._settings.streams_max_size

    def initial_delay_ms(self, group_id: str) -> int:
        """Returns how long a group without members waits for more members before its first target."""
        return self._number(group_id, "initial.rebalance.delay.ms", self._settings.streams_initial_rebalance_delay_ms)

    def task_offset_interval_ms(self, group_id: str) -> int:
        """Returns how often members report the offsets of their tasks."""
        settings = self._settings
        default, least = settings.streams_task_offset_interval_ms, settings.streams_task_offset_interval_min_ms
        return self._number(group_id, "task.offset.interval.ms", default, least)

    def acceptable_recovery_lag(self, group_id: str) -> int:
        """Returns the lag, in offsets, with which a copy of a task counts as caught up."""
        return self._number(group_id, "acceptable.recovery.lag", self._settings.streams_acceptable_recovery_lag)

    def warmup_replicas(self, group_id: str) -> int:
        """Returns the most warm-up tasks of a group."""
        settings = self._settings
        most = settings.streams_max_warmup_replicas
        return self._number(group_id, "num.warmup.replicas", settings.streams_num_warmup_replicas, most=most)

    def assignment_configs(self, group_id: str) -> dict[str, str]:
        """Returns the settings that a target depends on, as in records."""
        settings = self._settings
        most = settings.streams_max_standby_replicas
        standby = self._number(group_id, STANDBY_REPLICAS, settings.streams_num_standby_replicas, most=most)
        found = {STANDBY_REPLICAS: str(standby)}
        own = self._text(group_id, RACK_AWARE_TAGS)
        tags = settings.streams_rack_aware_tags if own is None else tags_in(own)
        if tags:
            found[RACK_AWARE_TAGS] = ",".join(tags)
        return found

    def _text(self, group_id: str, name: str) -> str | None:
        configs = self._holder.image.group_configs.get(group_id)
        return configs.configs.get(f"streams.{name}") if configs is not None else None

    def _number(self, group_id: str, name: str, default: int, least: int = 0, most: int = _NO_LIMIT) -> int:
        """Returns one setting. A value that isn't a number, which another version let through, is ignored."""
        text = self._text(group_id, name)
        return min(max(int(text), least), most) if text is not None and text.isdecimal() else default


def tags_in(text: str) -> tuple[str, ...]:
    """Returns the tag keys in a list."""
    return tuple(tag.strip() for tag in text.split(",") if tag.strip())
