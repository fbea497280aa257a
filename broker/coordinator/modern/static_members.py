"""The static members of a modern group: which member has an instance id (KIP-345)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from lowtide.protocol.errors import ErrorCode


class IdentifiedMember(Protocol):
    """A member of a group."""

    @property
    def member_id(self) -> str:
        """The id of this member, which a returning static member replaces by another one."""

    @property
    def instance_id(self) -> str | None:
        """The id of a static member, which it keeps; None for a dynamic one."""


M = TypeVar("M", bound=IdentifiedMember)


class StaticMembers(dict[str, str]):
    """Instance id → member id."""

    def predecessor_of(self, member: IdentifiedMember) -> str | None:
        """Returns the member id under which a member is known: that of its instance id, which it may take over."""
        return member.member_id if member.instance_id is None else self.get(member.instance_id)

    def members_with(self, members: Mapping[str, M], member: M) -> dict[str, M]:
        """Returns the members after one has joined or changed, without the one whose instance id it takes over."""
        after = {**members, member.member_id: member}
        replaced = self.predecessor_of(member)
        if replaced is not None and replaced != member.member_id:
            del after[replaced]
        return after

    def find(self, members: Mapping[str, M], member_id: str, instance_id: str | None) -> M | ErrorCode:
        """Returns a member.

        Errors: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if another member has taken over the instance id.
        """
        if instance_id is None:
            return members.get(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        known = self.get(instance_id)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return members[known] if known == member_id else ErrorCode.FENCED_INSTANCE_ID

    def on_changed(self, old: IdentifiedMember | None, new: IdentifiedMember | None) -> None:
        """Follows a member that was added, changed or removed."""
        if old is not None and old.instance_id is not None and self.get(old.instance_id) == old.member_id:
            del self[old.instance_id]
        if new is not None and new.instance_id is not None:
            self[new.instance_id] = new.member_id
