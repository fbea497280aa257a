"""The timers of the members of modern groups, and of their next targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lowtide.broker.coordinator.classic.rebalancing import TimerKey
from lowtide.broker.coordinator.modern.group_times import GroupTimes
from lowtide.broker.coordinator.modern.modern_group import ModernGroup
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.runtime.timers import Timers

MEMBER_TIMERS: Final = ("heartbeat", "revocation", "rejoin", "resync")


class MemberTimers:
    """The timers of the groups of one type among those of one coordinator."""

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
