"""A member of a classic group. Source: Kafka's `ClassicGroupMember`."""

from __future__ import annotations

import msgspec

from lowtide.broker.coordinator.runtime.effects import Reply


class ClassicMember(msgspec.Struct):
    """One member: its data, its assignment, and its waiting requests.

    `protocols`: name and metadata, the preferred one first.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    awaiting_join: Reply = None
    """The request that waits for the rebalance."""
    awaiting_sync: Reply = None
    """The request that waits for the leader's assignments."""
    is_new: bool = False
    """Whether it has not been in a generation yet."""
    held_bytes: int = 0
    """The memory that the group has counted for it."""

    def metadata(self, protocol: str) -> bytes:
        """Returns the metadata of a protocol that the member speaks."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        message = f"member {self.member_id} does not speak {protocol}"
        raise AssertionError(message)

    def vote(self, candidates: frozenset[str]) -> str:
        """Returns the candidate that the member prefers."""
        return next(name for name, _ in self.protocols if name in candidates)
