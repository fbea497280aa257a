"""Limits the memory that members of groups may take.

A member sends as many bytes as a request may have, and stays for the session timeout it asks for, even if its client is
gone. So the memory of members and of reserved member ids is limited for each group and for all groups of a broker.
Kafka has neither limit. A group's limit is far above the largest record of a group in Kafka, which a group needs to
become stable.

Guards: memory is counted once, from the time it is taken until the member or the group is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

GROUP_BYTES_MAX: Final = 32 << 20
"""The limit of one group, whose leader receives all subscriptions in one response."""

BROKER_BYTES_MAX: Final = 128 << 20
"""The limit of all groups on this broker: some ten thousand members."""

RESERVED_BYTES: Final = 32 << 20
SMALL_GROUP_BYTES: Final = 1 << 20
"""The last `RESERVED_BYTES` are for groups below this size, so that a few large groups don't keep others out."""

MEMBER_BYTES: Final = 2 << 10
"""The memory of a member besides its subscription, and of a reserved member id."""

PROTOCOL_BYTES: Final = 256
"""The memory of a protocol besides its name and metadata."""


class MemberMemory:
    """The memory of all groups of a broker."""

    __slots__ = ("held_bytes", "refused_count")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.refused_count = 0
        """Joins refused for lack of room, for the log."""

    def has_room(self, group_bytes: int, more_bytes: int) -> bool:
        """Returns whether a group that takes `group_bytes` may take more. Not taking more is always allowed."""
        allowed_bytes = (
            BROKER_BYTES_MAX if group_bytes + more_bytes <= SMALL_GROUP_BYTES else BROKER_BYTES_MAX - RESERVED_BYTES
        )
        fits = group_bytes + more_bytes <= GROUP_BYTES_MAX and self.held_bytes + more_bytes <= allowed_bytes
        return fits or more_bytes <= 0


class GroupMemory:
    """The memory of one group, which counts for the broker until it is released."""

    __slots__ = ("broker", "held_bytes")

    def __init__(self, broker: MemberMemory | None) -> None:
        self.broker = broker if broker is not None else MemberMemory()
        self.held_bytes = 0

    def hold(self, more_bytes: int) -> None:
        """Counts more memory, or less."""
        self.held_bytes += more_bytes
        self.broker.held_bytes += more_bytes

    def has_room(self, more_bytes: int) -> bool:
        """Returns whether the group may take more memory. Counts a refusal."""
        if self.broker.has_room(self.held_bytes, more_bytes):
            return True
        self.broker.refused_count += 1
        return False

    def release(self) -> None:
        """Gives the memory back to the broker. Later changes no longer count."""
        self.broker.held_bytes -= self.held_bytes
        self.broker = MemberMemory()


def bytes_of_member(words: Iterable[str | None], protocols: Iterable[tuple[str, bytes]]) -> int:
    """Returns the memory of a member with these names and protocols.

    Its id contains one of the names, so names count twice.
    """
    names = sum(2 * len(word) for word in words if word is not None)
    return MEMBER_BYTES + names + sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)
