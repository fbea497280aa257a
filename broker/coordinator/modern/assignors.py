"""The server-side assignors of consumer groups (KIP-848): `uniform` and `range`.

Pure and deterministic: nothing depends on the order of a set, so any process computes the same result.

Guards: each partition of a topic that a member subscribes to has exactly one owner, and the owner subscribes to the
topic. Partitions that no longer exist have no owner. If two members claim a partition, the first in order gets it.

Does not: consider racks (nor does Kafka since 4.0), nor know which partitions members have already; the caller moves
members towards the result step by step.

Cost: `uniform` with equal subscriptions and `range` take about a microsecond for each partition and member. With
different subscriptions, `uniform` takes that times the number of different ones: a second or more for hundreds. A
worker should compute that.

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
    """Its subscription, with patterns resolved. Members that share one object are compared faster."""
    assigned: Mapping[TopicId, frozenset[int]]
    """Its part of the last target, which may have partitions that it must not have now."""


Target: TypeAlias = dict[str, dict[TopicId, tuple[int, ...]]]
"""The partitions of each member, ascending. It has all members, but no topic without partitions."""
Assignor: TypeAlias = Callable[[Mapping[str, AssignedMember], Mapping[TopicId, int]], Target]

UNIFORM: Final = "uniform"
RANGE: Final = "range"

MOVES_PER_PARTITION: Final = 16
"""The limit of moves when balancing different subscriptions. Kafka stops after as many rounds."""


def assign_uniform(members: Mapping[str, AssignedMember], partition_counts: Mapping[TopicId, int]) -> Target:
    """Gives each member about equally many partitions, and moves no more of them than that needs.

    With equal subscriptions the numbers differ by one at most. With different ones, no partition could be moved to a
    member with two or more fewer; chains of moves that only help together are not searched, as in Kafka. New partitions
    are dealt so that those of a topic are spread over members.
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
    """Gives each member a range of every topic that it subscribes to.

    Static members come first, by instance id, then others by member id. Members with equal subscriptions get the same
    numbers of all topics with equally many partitions, which joins rely on. Previous assignments don't matter: a member
    keeps its ranges as long as the same ids are present, as static members are over restarts.
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
"""The assignors by name; the first is the default."""


class _Group:
    """The members in order, by number, and their subscriptions. Equal subscriptions are one row."""

    def __init__(self, members: Mapping[str, AssignedMember], counts: Mapping[TopicId, int]) -> None:
        self.members = members
        self.counts = counts
        self.order = sorted(members, key=lambda member_id: _place(member_id, members[member_id]))
        rows: dict[frozenset[TopicId], list[int]] = {}
        for number, member_id in enumerate(self.order):
            rows.setdefault(members[member_id].topics, []).append(number)
        self.subscriptions = list(rows.values())
        """The members with each subscription, ascending."""
        subscribers: dict[TopicId, list[int]] = {}
        for row, topics in enumerate(rows):
            for topic in topics:
                if counts.get(topic, 0) > 0:
                    subscribers.setdefault(topic, []).append(row)
        self.topics = sorted(subscribers)
        """The topics that exist and that a member subscribes to."""
        self.subscribers = subscribers
        """The rows of `subscriptions` that include a topic."""

    def take_over(self) -> dict[TopicId, list[int]]:
        """Returns the owner of each partition that keeps it because it still subscribes; -1 for the others."""
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
    """Balances members with equal subscriptions: those with too many give up, and those that lack get the rest."""
    held: list[list[tuple[int, TopicId, int]]] = [[] for _ in group.order]
    """The partitions of each member with their rank within the topic. The first of each topic come first."""
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
    """Balances members with different subscriptions."""

    def __init__(self, group: _Group, owners: dict[TopicId, list[int]]) -> None:
        self._group = group
        self._owners = owners
        self._loads = [0] * len(group.order)
        self._held: list[dict[TopicId, list[int]]] = [{} for _ in group.order]
        """The partitions of each member by topic, in the order in which it got them."""
        for topic in group.topics:
            for partition, owner in enumerate(owners[topic]):
                if owner >= 0:
                    self._loads[owner] += 1
                    self._held[owner].setdefault(topic, []).append(partition)
        self._least = [[(self._loads[number], number) for number in rows] for rows in group.subscriptions]
        """A heap by load for each subscription. Entries with an outdated load are dropped when they reach the top."""
        for heap in self._least:
            heapq.heapify(heap)
        numbers: dict[tuple[int, ...], int] = {}
        self._reach = {
            topic: numbers.setdefault(tuple(group.subscribers[topic]), len(numbers)) for topic in group.topics
        }
        self._rows = list(numbers)
        """The subscriptions that include a topic, by its number in `_reach`. Most topics have the same."""
        self._row_of = {number: row for row, rows in enumerate(group.subscriptions) for number in rows}

    def balance(self) -> None:
        """Gives the free partitions to members with the fewest, then moves partitions from those with the most."""
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
        """Lets each member, the most loaded first, give partitions to members with at least two fewer.

        Returns the number of moves.
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
        """Returns load and number of the least loaded member that may have a topic; among equals the first."""
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
