"""The model of a replica that is removed, and perhaps added again, while its broker sees the metadata late (rules DR3,
DR7, DR8).

Two brokers, 0 and 1, always have replicas and lead in turn. The third one's replica comes and goes. A log that is
dropped is empty when the replica is added again; one whose broker never sees the removal stays. There is one delete.
Only who leads by the newest record acts as a leader: what former leaders may do is in `cluster.py`. No broker dies or
stops.

`THE LAG TIME PASSES` for a leader: by then the third broker has no word of any leader that is younger than that
leader's knowledge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

LEADERS = (0, 1)

Steps = Iterator[tuple[bool, tuple, "State"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Switches for the handling of a removal."""

    epoch_grows: bool = True
    """With each removal."""
    removed_ones_are_asked: bool = True
    """Whether the others know of it; a delete waits for that."""
    also_when_added_again: bool = True
    followers_keep_them: bool = True
    """A follower also knows of removals when it becomes leader."""
    time_begins_again: bool = True
    """With each leader epoch."""


class Record(NamedTuple):
    """The partition in the store: `member` says whether the third replica is in the ISR, None if it has none."""

    leader: int
    epoch: int
    member: bool | None


class Side(NamedTuple):
    """The knowledge of one of the leaders, by its image. `reported`: the third broker's log start, None while unknown.

    `awaited`: the record that removed it, until it is known to have seen that; `waited`: for so long that it counts no
    more in this epoch.
    """

    image: int
    live: bool
    reported: bool | None
    whole: bool
    awaited: int | None
    waited: bool


class State(NamedTuple):
    """`deleted` and `acknowledged` are of the one delete. The rest is of the third broker.

    `has_delete`: its log starts behind the deleted records. `whole`: it has all other records. `word`: the leader epoch
    in which it was answered, and whether the leader had the delete then; None if that is too long ago.
    """

    history: tuple[Record, ...]
    sides: tuple[Side, Side]
    deleted: bool
    acknowledged: bool
    image: int
    has_delete: bool
    whole: bool
    word: tuple[int, bool] | None


class Removals:
    """One partition, with at most `records` states of it."""

    def __init__(self, rules: Rules, records: int) -> None:
        self.rules = rules
        self.records = records

    def starts(self) -> Iterator[tuple[tuple, State]]:
        side = Side(0, True, False, True, None, False)
        first = State((Record(0, 1, True),), (side, side), False, False, 0, False, True, (1, False))
        yield ("broker 0 leads, all three are in sync",), first

    def steps(self, state: State, may_fail: bool) -> Steps:
        yield from self.controller_steps(state)
        yield from self.image_steps(state)
        yield from self.fetch_steps(state)
        yield from self.leader_steps(state)
        if may_fail:
            yield from self.time_steps(state)

    # The store

    def controller_steps(self, state: State) -> Steps:
        newest = state.history[-1]
        if len(state.history) == self.records:
            return
        grown = newest.epoch + 1
        moved = newest._replace(leader=1 - newest.leader, epoch=grown)
        yield (
            False,
            ("broker {} is to lead, epoch {}", moved.leader, grown),
            state._replace(history=(*state.history, moved)),
        )
        if newest.member is None:
            added = newest._replace(member=False)
            yield False, ("a replica is added",), state._replace(history=(*state.history, added))
        else:
            removed = newest._replace(member=None, epoch=grown if self.rules.epoch_grows else newest.epoch)
            yield False, ("the replica is removed",), state._replace(history=(*state.history, removed))

    # Images

    def image_steps(self, state: State) -> Steps:
        for broker in LEADERS:
            side = state.sides[broker]
            if side.image + 1 < len(state.history):
                yield (
                    False,
                    ("broker {} sees record {}", broker, side.image + 1),
                    _with(state, broker, self._seen(state, broker)),
                )
        last = len(state.history) - 1
        if state.image < last:
            yield False, ("the third broker sees record {}", state.image + 1), self._third_sees(state, state.image + 1)
        if state.image + 1 < last:
            yield False, ("the third broker sees record {} only", last), self._third_sees(state, last)

    def _seen(self, state: State, broker: int) -> Side:
        """Returns a leader's side with the next record."""
        side, rules = state.sides[broker], self.rules
        before, now = state.history[side.image], state.history[side.image + 1]
        awaited = side.awaited
        if rules.removed_ones_are_asked and before.member is not None and now.member is None:
            knows = now.leader == broker or rules.followers_keep_them
            awaited = side.image + 1 if knows else awaited
        if before.member is None and now.member is not None and not rules.also_when_added_again:
            awaited = None
        side = side._replace(image=side.image + 1, awaited=awaited)
        if now.epoch != before.epoch:  # Nothing is known of the third, which counts as live if it has a replica.
            return side._replace(
                live=now.member is not None,
                reported=None,
                whole=False,
                waited=side.waited and not rules.time_begins_again,
            )
        if before.member is None and now.member is not None:
            return side._replace(live=False, reported=None, whole=False)
        return side._replace(live=side.live and now.member is not None)

    def _third_sees(self, state: State, image: int) -> State:
        before, now = state.history[state.image], state.history[image]
        state = state._replace(image=image)
        if (before.member is None) == (now.member is None):
            return state
        return state._replace(has_delete=False, whole=False, word=None)  # Its log is dropped, or new.

    # The third broker's fetches

    def fetch_steps(self, state: State) -> Steps:
        known = state.history[state.image]
        newest = state.history[-1]
        side = state.sides[known.leader]
        seen = state.history[side.image]
        if known.member is None or seen.leader != known.leader or newest.leader != known.leader:
            return
        if seen.epoch != known.epoch or seen.member is None:
            return  # It is refused, and learns nothing.
        reported = side._replace(live=True, reported=state.has_delete, whole=state.whole)
        after = _with(state, known.leader, reported)._replace(
            word=(known.epoch, state.deleted), has_delete=state.deleted, whole=True
        )
        yield False, ("the third broker fetches in epoch {}", known.epoch), after

    # The leader

    def leader_steps(self, state: State) -> Steps:
        newest = state.history[-1]
        broker = newest.leader
        side = state.sides[broker]
        seen = state.history[side.image]
        if seen.leader != broker or seen.epoch != newest.epoch:
            return
        if not state.deleted:
            yield False, ("broker {} deletes", broker), state._replace(deleted=True)
        elif not state.acknowledged and self._all_have_it(side, seen, newest):
            yield False, ("broker {} ACKNOWLEDGES the delete", broker), state._replace(acknowledged=True)
        if side.awaited is not None and state.image >= side.awaited:
            confirmed = side._replace(awaited=None)
            yield (
                False,
                ("broker {} learns that the third knows of the removal", broker),
                _with(state, broker, confirmed),
            )
        may_join = seen == newest and newest.member is False and side.whole and (side.reported or not state.deleted)
        if may_join and len(state.history) < self.records:
            joined = newest._replace(member=True)
            yield False, ("the third joins the ISR",), state._replace(history=(*state.history, joined))

    def _all_have_it(self, side: Side, seen: Record, newest: Record) -> bool:
        counts = (
            seen.member or newest.member or (seen.member is False and side.live)
        )  # The newest may be its own proposal.
        return (side.awaited is None or side.waited) and (not counts or side.reported is True)

    def time_steps(self, state: State) -> Steps:
        newest = state.history[-1]
        side = state.sides[newest.leader]
        if state.history[side.image] != newest:
            return
        after = _with(state, newest.leader, side._replace(live=False, waited=True))
        yield True, ("THE LAG TIME PASSES for broker {}", newest.leader), after._replace(word=None)

    # What may never be

    def violation(self, state: State) -> str | None:
        if state.history[-1].member and not state.whole:
            return "P2: a member of the ISR lacks records"
        if not state.acknowledged or state.has_delete:
            return None
        if state.history[-1].member:
            return "D8: a member of the ISR lacks the acknowledged delete"
        known = state.history[state.image]
        if known.member is not None and state.word is not None and state.word == (known.epoch, False):
            return "D1: a broker answers consumers below the acknowledged delete"
        return None


def _with(state: State, broker: int, side: Side) -> State:
    sides = list(state.sides)
    sides[broker] = side
    return state._replace(sides=(sides[0], sides[1]))
