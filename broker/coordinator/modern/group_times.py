"""The times of modern groups, and the timers of their members and next targets.

A time is the group's own setting within the broker's bounds, or else the broker's setting. A change takes effect with a
member's next heartbeat, or with the group's next target.

Source: Kafka's `GroupConfigManager`, `GroupConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from lowtide.broker.coordinator.classic.rebalancing import TimerKey
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.modern_group import ModernGroup
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.topic_view import ImageHolder
from lowtide.broker.coordinator.runtime.timers import Timers

MEMBER_TIMERS: Final = ("heartbeat", "revocation", "rejoin", "resync")


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


class MemberTimers:
    """The timers of one coordinator's groups of one type."""

    def __init__(self, timers: Timers[TimerKey], times: GroupTimes) -> None:
        self.deadlines = timers
        self.times = times

    def extend_session(self, group: ModernGroup, member: ModernMember, now_ms: int) -> None:
        """Starts a member's session timeout again."""
        classic = member.classic
        timeout_ms = self.times.session_timeout_ms(group.group_id) if classic is None else classic.session_timeout_ms
        self.deadlines.schedule(("heartbeat", group.group_id, member.member_id), now_ms + timeout_ms)

    def expect_revocation(self, group: ModernGroup, member: ModernMember, now_ms: int) -> None:
        """Starts the time in which a member has to revoke partitions."""
        timeout_ms = max(member.rebalance_timeout_ms, 0)
        self.deadlines.schedule(("revocation", group.group_id, member.member_id), now_ms + timeout_ms)

    def schedule_assignment(self, group_id: str, deadline_ms: int) -> None:
        """Sets the time of the group's next target, unless it is set."""
        if self.deadlines.deadline_of(("assignment", group_id, "")) is None:
            self.deadlines.schedule(("assignment", group_id, ""), deadline_ms)

    def cancel(self, group: ModernGroup, members: Iterable[str]) -> None:
        """Cancels the timers of members, and that of the next target if the group is dead."""
        for member_id in members:
            for kind in MEMBER_TIMERS:
                self.deadlines.cancel((kind, group.group_id, member_id))
        if group.is_dead:
            self.deadlines.cancel(("assignment", group.group_id, ""))
