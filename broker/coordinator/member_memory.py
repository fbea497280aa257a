"""How much members of classic groups may make a broker remember.

A member says what it likes, in as many bytes as a request may have, and stays for as long a session as it asks for,
whether or not a client is there any more. So what is held for members, and for ids that were given out, has a limit in
each group, and one over all groups of a broker. Kafka has neither; what a group may hold is far above what fits into
its record there, and without that it is never stable.

Guards: what a group holds is counted once, from the moment in which it is held until the member, or the group, is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

GROUP_BYTES_MAX: Final = 32 << 20
"""Of one group: the leader receives all of it in one answer."""

BROKER_BYTES_MAX: Final = 128 << 20
"""Of all groups that are coordinated here: some ten thousands of members."""

RESERVED_BYTES: Final = 32 << 20
SMALL_GROUP_BYTES: Final = 1 << 20
"""The last `RESERVED_BYTES` of a broker are for groups that hold less than this: a few large ones keep no other out."""

MEMBER_BYTES: Final = 2 << 10
"""What a member takes besides what it says, and an id that was given out, which may be the only one of its group."""

PROTOCOL_BYTES: Final = 256
"""What a protocol takes besides its name and metadata."""


class MemberMemory:
    """What all groups of a broker hold."""

    __slots__ = ("held_bytes", "refused_count")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.refused_count = 0
        """Joins that were refused for want of room, for the log."""

    def has_room(self, group_bytes: int, more_bytes: int) -> bool:
        """Whether a group that holds so much may hold more; what takes no more may always be."""
        allowed_bytes = (
            BROKER_BYTES_MAX if group_bytes + more_bytes <= SMALL_GROUP_BYTES else BROKER_BYTES_MAX - RESERVED_BYTES
        )
        fits = group_bytes + more_bytes <= GROUP_BYTES_MAX and self.held_bytes + more_bytes <= allowed_bytes
        return fits or more_bytes <= 0


def bytes_of_member(words: Iterable[str | None], protocols: Iterable[tuple[str, bytes]]) -> int:
    """What a member takes that has these names and speaks these protocols; its id has one of the names in it, hence twice."""
    names = sum(2 * len(word) for word in words if word is not None)
    return MEMBER_BYTES + names + sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)
