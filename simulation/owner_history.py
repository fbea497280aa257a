"""Records what members saw of a consumer group, or of one that changes its type, and checks that it was allowed.

Checked (letters of the invariants): G1 a partition has one owner at a time; G2 epochs never decrease; G3 as in
`group_history`; G4 a former owner of a partition commits nothing for it.

A member owns a partition from the response that assigns it until it gives it back. No other may own it within `SURE_S`
after its last request whose response assigns it: no session or rebalance that started then has ended, by any clock,
even with an earlier coordinator. A member that is silent for longer may be removed without knowing it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lowtide.protocol.types import Offset
from lowtide.simulation.group_history import GroupHistory

SURE_S: Final = 1.2
"""Much less than sessions and rebalances of these groups take (`consumer_group_load`)."""


class Tenure:
    """The ownership of a partition: its start, and until when no other member may own it."""

    __slots__ = ("since_s", "sure_until_s")

    def __init__(self, since_s: float, sure_until_s: float) -> None:
        self.since_s = since_s
        self.sure_until_s = sure_until_s


class OwnerHistory(GroupHistory):
    """The history of one group. An owner is a client, under any member id."""

    def __init__(self, name: str, *, changes_kind: bool) -> None:
        """`changes_kind`: an empty group is replaced by one of another type, and epochs start again."""
        super().__init__(name)
        self.changes_kind = changes_kind
        self.tenures: dict[int, dict[str, Tenure]] = {}
        """Partition → owner → start."""
        self.beginnings = 0
        """The number of times that epochs may have started again."""
        self._given: dict[int, list[tuple[float, str]]] = {}
        self._member_until_s: dict[str, float] = {}
        """Until when each client is sure to be a member."""

    def void(self) -> None:
        super().void()
        self.beginnings += 1
        self.tenures.clear()
        self._given.clear()
        self._member_until_s.clear()

    # Who is in the group

    def on_alive(self, owner: str, asked_s: float) -> None:
        """Notes a response that says the client is a member: the group is not empty for some time."""
        if self.changes_kind and asked_s > self._inhabited_until_s:
            self.beginnings += 1
            self.generation_id = 0
        self._member_until_s[owner] = max(self._member_until_s.get(owner, 0.0), asked_s + SURE_S)

    def on_leaving(self, owner: str) -> None:
        """Notes that the client asks to leave, or is told that it has. The group is empty if it was the last one."""
        self._member_until_s.pop(owner, None)

    @property
    def _inhabited_until_s(self) -> float:
        return max(self._member_until_s.values(), default=0.0)

    def on_epoch(self, epoch: int, *, known: int, given_out_before: int, beginnings: int, now_s: float) -> None:
        """Notes that a member received its epoch, as a member or after joining (0).

        `given_out_before` is the highest epoch that a member received before.
        """
        if known:
            if epoch < known:
                self._fail(f"G2: a member in epoch {known} receives epoch {epoch}")
        elif (
            epoch < given_out_before
            and beginnings == self.beginnings
            and not (self.changes_kind and now_s > self._inhabited_until_s)
        ):
            self._fail(f"G2: a member joins in epoch {epoch}, and {given_out_before} was given out before")
        self.generation_id = max(self.generation_id, epoch)

    # Who has what

    def on_owned(self, owner: str, partitions: Iterable[int], *, asked_s: float, now_s: float) -> None:
        """Notes that the response to the request of `asked_s` assigned these partitions in addition."""
        sure_until_s = asked_s + SURE_S
        for partition in partitions:
            tenures = self.tenures.setdefault(partition, {})
            mine = tenures.get(owner)
            if mine is None:
                mine = tenures[owner] = Tenure(now_s, sure_until_s)
                self._given.setdefault(partition, []).append((now_s, owner))
            mine.sure_until_s = max(mine.sure_until_s, sure_until_s)
            for other, tenure in tenures.items():
                if other != owner and min(mine.sure_until_s, tenure.sure_until_s) > now_s:
                    self._fail(
                        f"G1: partition {partition} belongs to {other} since {tenure.since_s:.4f} s, and to {owner}"
                    )

    def on_released(self, owner: str, partitions: Iterable[int]) -> None:
        """Notes that an owner gave up these partitions, or knows that it was removed."""
        for partition in partitions:
            self.tenures.get(partition, {}).pop(owner, None)

    def since_s(self, owner: str, partition: int) -> float | None:
        """Returns the start of an ownership."""
        tenure = self.tenures.get(partition, {}).get(owner)
        return None if tenure is None else tenure.since_s

    def on_owner_committed(self, owner: str, partition: int, *, since_s: float, asked_s: float) -> None:
        """Notes that a commit of `asked_s` was acknowledged for a partition owned since `since_s`."""
        for given_s, other in self._given.get(partition, ()):
            if other != owner and since_s < given_s < asked_s:
                self._fail(
                    f"G4: {owner} commits for partition {partition} that it got at {since_s:.4f} s, and {other} at "
                    f"{given_s:.4f} s"
                )

    def on_committed(
        self, partition: int, offset: Offset, *, generation_id: int, given_out_before: int, voids: int
    ) -> None:
        """See `GroupHistory`. A member with an earlier epoch may commit for partitions owned since then."""
        super().on_committed(partition, offset, generation_id=-1, given_out_before=given_out_before, voids=voids)

    def on_unsure(self, owner: str) -> None:
        """Notes that all partitions of an owner may go to others: a pending request may report that it has none."""
        for tenures in self.tenures.values():
            if owner in tenures:
                tenures[owner].sure_until_s = -1.0
