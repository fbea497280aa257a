"""Who gets which partition in a group whose members leave that to the broker (KIP-848): the assignors `uniform` and `range`.

Pure, and the same for the same arguments whatever process computes it: nothing here depends on the order of a set.

Guards: each partition of a topic that a member subscribes to has exactly one owner, and the owner subscribes to its topic. What exists no
more (a topic without a count, a partition beyond it) has no owner. Where two members claim a partition, the first in order has it.

Does not: look at racks (nor does Kafka since 4.0), nor know what members have taken up yet; the caller moves them there step by step.

Cost: `uniform` with equal subscriptions and `range` take about a microsecond for each partition and member. With subscriptions that differ,
`uniform` takes about that times the number of different ones, a second or more for hundreds of these. Then a worker is the place for it.

Source: KIP-848; Kafka's `UniformAssignor`, `RangeAssignor`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from lowtide.protocol.types import TopicId


class AssignedMember(NamedTuple):
    """A member as an assignor sees it."""

    instance_id: str | None
    rack_id: str | None
    topics: frozenset[TopicId]
    """What it subscribes to, patterns resolved. Members that share one object are compared faster."""
    assigned: Mapping[TopicId, frozenset[int]]
    """What the last target gave it; what it must not have any more is sorted out here."""


Target: TypeAlias = dict[str, dict[TopicId, tuple[int, ...]]]
"""The partitions of each member, ascending. Each member is there; a topic of which it has none is not."""
Assignor: TypeAlias = Callable[[Mapping[str, AssignedMember], Mapping[TopicId, int]], Target]

UNIFORM: Final = "uniform"
RANGE: Final = "range"

MOVES_PER_PARTITION: Final = 16
"""When balancing different subscriptions ends although more could be done; Kafka ends after as many rounds."""


def assign_uniform(members: Mapping[str, AssignedMember], partition_counts: Mapping[TopicId, int]) -> Target:
    """Give each member as many partitions as any other, and take away no more than that needs.

    With equal subscriptions the numbers differ by one at most. With different ones no partition is left that could be
    moved to a member with two or more fewer; a chain of moves that only helps as a whole isn't looked for, as in Kafka.
    New partitions are dealt so that those of a topic are spread over members.
    """
    group = _Group(members, partition_counts)
    owners = group.take_over()
    if len(group.subscriptions) == 1:
        _deal(group, owners)
    else:
        _Balancer(group, owners).balance()
    target: Target = {member_id: {} for member_id in members}
    for topic in group.topics:
        found: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners[topic]):
            found.setdefault(owner, []).append(partition)
        for owner, partitions in found.items():
            target[group.order[owner]][topic] = tuple(partitions)
    return target


def assign_range(members: Mapping[str, AssignedMember], partition_counts: Mapping[TopicId, int]) -> Target:
    """Give each member a range of every topic that it subscribes to, static members first, by instance id, then others by member id.

    Members with equal subscriptions get the same numbers of all topics with equally many partitions, which joins rely on. What a member
    had doesn't count: it keeps its ranges while the same ids are there, so a static member does over restarts.
    """
    group = _Group(members, partition_counts)
    target: Target = {member_id: {} for member_id in members}
    for topic in group.topics:
        subscriptions = group.subscribers[topic]
        minimum, extras = divmod(partition_counts[topic], sum(len(group.subscriptions[row]) for row in subscriptions))
        in_order = heapq.merge(*(group.subscriptions[row] for row in subscriptions))
        start = 0
        for place, member in enumerate(in_order if minimum else islice(in_order, extras)):
            end = start + minimum + (place < extras)
            target[group.order[member]][topic] = tuple(range(start, end))
            start = end
    return target


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType({UNIFORM: assign_uniform, RANGE: assign_range})
"""By the name that a client asks for; the first is for clients that don't care."""


class _Group:
    """The members in their order, by number, and who subscribes to what.

    Equal subscriptions are one row of `subscriptions`.
    """

    def __init__(self, members: Mapping[str, AssignedMember], counts: Mapping[TopicId, int]) -> None:
        self.members = members
        self.counts = counts
        self.order = sorted(members, key=lambda member_id: _place(member_id, members[member_id]))
        rows: dict[frozenset[TopicId], list[int]] = {}
        for number, member_id in enumerate(self.order):
            rows.setdefault(members[member_id].topics, []).append(number)
        self.subscriptions = list(rows.values())
        """The members of each, ascending."""
        subscribers: dict[TopicId, list[int]] = {}
        for row, topics in enumerate(rows):
            for topic in topics:
                if counts.get(topic, 0) > 0:
                    subscribers.setdefault(topic, []).append(row)
        self.topics = sorted(subscribers)
        """Those that exist and that a member subscribes to."""
        self.subscribers = subscribers
        """The rows of `subscriptions` that have a topic."""

    def take_over(self) -> dict[TopicId, list[int]]:
        """The owner of each partition that keeps the one it had, as far as that subscribes to it; -1 for the others."""
        owners = {topic: [-1] * self.counts[topic] for topic in self.topics}
        for number, member_id in enumerate(self.order):
            member = self.members[member_id]
            for topic, partitions in member.assigned.items():
                rows = owners.get(topic)
                if rows is None or topic not in member.topics:
                    continue
                for partition in partitions:
                    if 0 <= partition < len(rows) and rows[partition] < 0:
                        rows[partition] = number
        return owners


def _place(member_id: str, member: AssignedMember) -> tuple[bool, str, str]:
    return member.instance_id is None, member.instance_id or "", member_id


def _deal(group: _Group, owners: dict[TopicId, list[int]]) -> None:
    """Balance members that all subscribe to the same: members with too many give up, the rest is dealt to those that lack."""
    held: list[list[tuple[int, TopicId, int]]] = [[] for _ in group.order]
    """Of each member, its partitions with their rank within their topic there: the first of each topic come first."""
    for topic in group.topics:
        ranks: dict[int, int] = {}
        for partition, owner in enumerate(owners[topic]):
            if owner >= 0:
                rank = ranks[owner] = ranks.get(owner, -1) + 1
                held[owner].append((rank, topic, partition))
    minimum, extras = divmod(sum(len(rows) for rows in owners.values()), len(held))
    quotas = [minimum] * len(held)
    for number in sorted(range(len(held)), key=lambda number: -len(held[number]))[:extras]:
        quotas[number] += 1
    for rows, quota in zip(held, quotas, strict=True):
        if len(rows) > quota:
            for _, topic, partition in sorted(rows)[quota:]:
                owners[topic][partition] = -1
    free = sorted(
        (partition, topic) for topic in group.topics for partition, owner in enumerate(owners[topic]) if owner < 0
    )
    dealt = 0
    for number, (rows, quota) in enumerate(zip(held, quotas, strict=True)):
        end = dealt + max(quota - len(rows), 0)
        for partition, topic in free[dealt:end]:
            owners[topic][partition] = number
        dealt = end


class _Balancer:
    """Balances members whose subscriptions differ."""

    def __init__(self, group: _Group, owners: dict[TopicId, list[int]]) -> None:
        self._group = group
        self._owners = owners
        self._loads = [0] * len(group.order)
        self._held: list[dict[TopicId, list[int]]] = [{} for _ in group.order]
        """Of each member, its partitions by topic; what it got last is last."""
        for topic in group.topics:
            for partition, owner in enumerate(owners[topic]):
                if owner >= 0:
                    self._loads[owner] += 1
                    self._held[owner].setdefault(topic, []).append(partition)
        self._least = [[(self._loads[number], number) for number in rows] for rows in group.subscriptions]
        """Of each subscription, a heap by load; entries whose load isn't true any more are dropped when they are met."""
        for heap in self._least:
            heapq.heapify(heap)
        numbers: dict[tuple[int, ...], int] = {}
        self._reach = {
            topic: numbers.setdefault(tuple(group.subscribers[topic]), len(numbers)) for topic in group.topics
        }
        self._rows = list(numbers)
        """The subscriptions that have a topic, by its number in `_reach`: most topics have the same."""
        self._row_of = {number: row for row, rows in enumerate(group.subscriptions) for number in rows}

    def balance(self) -> None:
        """Give the free partitions to members with the fewest, then move from those who have most."""
        for topic in sorted(self._group.topics, key=self._pressure):
            for partition, owner in enumerate(self._owners[topic]):
                if owner < 0:
                    self._give(topic, partition, self._least_loaded(self._reach[topic])[1])
        moves = MOVES_PER_PARTITION * sum(self._loads)
        while moves > 0:
            made = self._move_round(moves)
            if not made:
                return
            moves -= made

    def _pressure(self, topic: TopicId) -> tuple[float, int, TopicId]:
        subscribers = sum(len(self._group.subscriptions[row]) for row in self._group.subscribers[topic])
        return -len(self._owners[topic]) / subscribers, subscribers, topic

    def _move_round(self, moves_max: int) -> int:
        """Let each member, the most loaded first, give away what others can have who have at least two fewer.

        Returns the moves.
        """
        moves = 0
        most = [(-load, number) for number, load in enumerate(self._loads)]
        heapq.heapify(most)
        while most and moves < moves_max:
            _, number = heapq.heappop(most)
            best = self._best_move(number)
            if best is None:
                continue
            topic, receiver = best
            self._give(topic, self._take(topic, number), receiver)
            moves += 1
            heapq.heappush(most, (-self._loads[number], number))
        return moves

    def _best_move(self, number: int) -> tuple[TopicId, int] | None:
        least, best = self._loads[number] - 1, None
        seen = set()
        for topic in reversed(self._held[number]):
            reach = self._reach[topic]
            if reach not in seen:
                seen.add(reach)
                load, receiver = self._least_loaded(reach)
                if load < least:
                    least, best = load, (topic, receiver)
        return best

    def _least_loaded(self, reach: int) -> tuple[int, int]:
        """The least loaded of those who may have a topic, the first in order among equals: its load and number."""
        return min(self._top(row) for row in self._rows[reach])

    def _top(self, row: int) -> tuple[int, int]:
        heap = self._least[row]
        while heap[0][0] != self._loads[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0]

    def _take(self, topic: TopicId, number: int) -> int:
        partitions = self._held[number][topic]
        partition = partitions.pop()
        if not partitions:
            del self._held[number][topic]
        self._change_load(number, -1)
        return partition

    def _give(self, topic: TopicId, partition: int, number: int) -> None:
        self._owners[topic][partition] = number
        self._held[number].setdefault(topic, []).append(partition)
        self._change_load(number, 1)

    def _change_load(self, number: int, by: int) -> None:
        self._loads[number] += by
        heapq.heappush(self._least[self._row_of[number]], (self._loads[number], number))
