"""The assignor of share groups: spreads members evenly over partitions, and partitions evenly over members.

Pure. If there are no more members than partitions, each partition has one member. Otherwise each partition has as many
members as are needed so that all members have one. Members keep their partitions as far as that allows.

Guards: among members with the same subscription none has two more than another; no partition is without a member; with
the same members and partitions the result is the same.

Source: Kafka's `SimpleAssignor`, `SimpleHomogeneousAssignmentBuilder`; KIP-932.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from lowtide.broker.coordinator.modern.modern_member import Assignment, assignment_of
from lowtide.protocol.types import TopicId

Place: TypeAlias = tuple[TopicId, int]


def assign(
    members: Mapping[str, frozenset[TopicId]],
    partitions: Mapping[TopicId, Sequence[int]],
    current: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """Returns the partitions of each member.

    `members` are the topics of each; `partitions` are those that may be assigned.
    """
    subscriptions = set(members.values())
    if len(subscriptions) == 1:
        groups: list[tuple[list[str], frozenset[TopicId]]] = [(sorted(members), next(iter(subscriptions)))]
    else:
        topics = sorted(topic_id for topic_id in partitions)
        groups = [
            ([name for name in sorted(members) if topic in members[name]], frozenset((topic,))) for topic in topics
        ]
    found: dict[str, list[Place]] = {name: [] for name in members}
    for names, topics_of_group in groups:
        places = [(topic_id, number) for topic_id in sorted(topics_of_group) for number in partitions.get(topic_id, ())]
        if names and places:
            for name, some in _balance(names, places, current).items():
                found[name] += some
    return {name: _assignment(places) for name, places in found.items()}


def _assignment(places: Iterable[Place]) -> Assignment:
    rows: dict[TopicId, list[int]] = {}
    for topic_id, number in places:
        rows.setdefault(topic_id, []).append(number)
    return assignment_of(rows.items())


def _balance(
    names: Sequence[str], places: Sequence[Place], current: Mapping[str, Assignment]
) -> dict[str, list[Place]]:
    """Assigns each place to the same number of members, all of which subscribe to all places."""
    sharing = -(-len(names) // len(places))
    base, larger = divmod(sharing * len(places), len(names))
    kept = _keep(names, places, current, sharing, (base, larger))
    return kept if _fill(kept, places, sharing, base + (1 if larger else 0)) else _in_turn(names, places, sharing)


def _keep(
    names: Sequence[str],
    places: Sequence[Place],
    current: Mapping[str, Assignment],
    sharing: int,
    shares: tuple[int, int],
) -> dict[str, list[Place]]:
    """Returns the places that members keep.

    `shares`: what each member has at least, and how many members have one more.
    """
    room = dict.fromkeys(places, sharing)
    base, larger = shares
    kept: dict[str, list[Place]] = {}
    for name in names:
        mine = kept[name] = []
        for topic_id, numbers in sorted(current.get(name, {}).items()):
            for number in sorted(numbers):
                if len(mine) == base and not larger:
                    break
                if len(mine) <= base and room.get((topic_id, number), 0):
                    room[topic_id, number] -= 1
                    mine.append((topic_id, number))
        larger -= len(mine) > base
    return kept


def _fill(kept: dict[str, list[Place]], places: Sequence[Place], sharing: int, most: int) -> bool:
    """Gives the remaining places to the members with the fewest. Returns whether none then has more than `most`."""
    holders: dict[Place, set[str]] = {place: set() for place in places}
    for name, mine in kept.items():
        for place in mine:
            holders[place].add(name)
    least = [(len(mine), name) for name, mine in kept.items()]
    heapify(least)
    for place in places:
        has_it: list[tuple[int, str]] = []
        while len(holders[place]) < sharing and least:
            count, name = heappop(least)
            if name in holders[place]:
                has_it.append((count, name))
                continue
            if count >= most:
                return False
            kept[name].append(place)
            holders[place].add(name)
            has_it.append((count + 1, name))
        for each in has_it:
            heappush(least, each)
        if len(holders[place]) < sharing:
            return False
    counts = [len(mine) for mine in kept.values()]
    return max(counts) - min(counts) <= 1


def _in_turn(names: Sequence[str], places: Sequence[Place], sharing: int) -> dict[str, list[Place]]:
    """Deals all places from the beginning, to the members in turn.

    Consecutive members are different, so no place has one twice.
    """
    given: dict[str, list[Place]] = {name: [] for name in names}
    for index in range(sharing * len(places)):
        given[names[index % len(names)]].append(places[index // sharing])
    return given
