"""Producers whose transactions a coordinator is being asked about, before the first batch of a transaction is appended (KIP-890).

A verification begins when the coordinator is asked and stays until a batch of the transaction is appended, or a marker ends it. The
value itself is the guard of an append: it has to be the one that `find` returns when the coordinator's answer is acted on. So an answer
about a transaction that has ended meanwhile lets nothing into the log.

It also keeps the lowest sequence that the producer has come with. A producer that the log does not know may begin at any sequence, and
several batches may be under way: where the first is refused with an error that is retried, the second must not become the beginning, or
the first would be out of order for good. So one begins, too, when a batch of such a producer is refused for now (`note_refused`), be it
of a transaction or not; Kafka leaves these out. `EarlyRefusals` has those of partitions that aren't here yet.

What was refused here another broker may have got, and may have deleted since: the producer never sends it again. So batches behind one that
was refused are refused for now, too, and the first of them may begin when it comes once more: its producer has had the answers by then,
and would have sent the earlier batch before it.

Guards: no batch is appended to a transaction that its coordinator does not know; a producer's batches keep their order from the first on.

Source: KIP-890; Kafka's `VerificationStateEntry`, `VerificationGuard`, `ProducerAppendInfo.checkSequence`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.protocol.types import NO_SEQUENCE, ProducerEpoch, ProducerId, TopicId

if TYPE_CHECKING:
    from lowtide.protocol.records import BatchHeader


class Verification(msgspec.Struct, eq=False):
    """One producer's, in one epoch.

    `adds_itself`: each transaction has an epoch of its own, and begins with sequence 0 everywhere.
    """

    producer_epoch: ProducerEpoch
    lowest_sequence: int
    adds_itself: bool
    began_ms: int
    """Wall-clock time."""
    is_refused: bool = False
    """The batch of the lowest sequence was refused for now: it isn't under way here."""
    refused_behind: int = NO_SEQUENCE
    """The first that was refused for now after that one, since it came last."""


class Verifications:
    """Those of one partition; at most `maximum`, beyond which the oldest is dropped."""

    __slots__ = ("_maximum", "_of")

    def __init__(self, maximum: int) -> None:
        assert maximum > 0
        self._maximum = maximum
        self._of: dict[ProducerId, Verification] = {}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def begin(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, sequence: int, *, adds_itself: bool, now_ms: int
    ) -> Verification:
        """Return the producer's verification in this epoch, which it may have already.

        A later epoch replaces an earlier one.
        """
        known = self._of.get(producer_id)
        if known is not None and known.producer_epoch >= producer_epoch:
            if known.producer_epoch == producer_epoch:
                if sequence <= known.lowest_sequence:
                    known.lowest_sequence, known.is_refused, known.refused_behind = sequence, False, NO_SEQUENCE
                known.adds_itself |= adds_itself
            return known
        self._of.pop(producer_id, None)
        if len(self._of) >= self._maximum:
            del self._of[next(iter(self._of))]
        begun = self._of[producer_id] = Verification(producer_epoch, sequence, adds_itself, now_ms)
        return begun

    def note_refused(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, sequence: int, *, now_ms: int
    ) -> None:
        """A batch was refused for now: its producer sends it again, before those behind it."""
        known = self.begin(producer_id, producer_epoch, sequence, adds_itself=False, now_ms=now_ms)
        if known.producer_epoch != producer_epoch:
            return
        if sequence == known.lowest_sequence:
            known.is_refused = True
        elif known.is_refused and known.refused_behind == NO_SEQUENCE:
            known.refused_behind = sequence

    def is_behind_refused(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, sequence: int) -> bool:
        """Whether the batch comes behind one that was refused for now, and may come once more."""
        known = self._of.get(producer_id)
        return (
            known is not None
            and known.producer_epoch == producer_epoch
            and known.is_refused
            and sequence > known.lowest_sequence
        )

    def find(self, producer_id: ProducerId) -> Verification | None:
        """Return the one that guards the producer's next batch."""
        return self._of.get(producer_id)

    def may_begin_at(self, producer_id: ProducerId, sequence: int) -> bool:
        """Whether a producer that the log does not know may begin at this sequence. Coordinators' batches have none."""
        known = self._of.get(producer_id)
        if known is None or sequence == NO_SEQUENCE:
            return True
        is_in_turn = sequence <= known.lowest_sequence or sequence == known.refused_behind
        return is_in_turn and (sequence == 0 or not known.adds_itself)

    def on_batch(self, producer_id: ProducerId) -> None:
        """A batch of the producer's transaction was appended: the log knows the transaction."""
        self._of.pop(producer_id, None)

    def on_marker(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> None:
        """A marker of this epoch was appended.

        The marker of a transaction has the epoch of the next one where each has its own: such a marker does not end
        what it precedes.
        """
        known = self._of.get(producer_id)
        if known is not None and not (known.adds_itself and producer_epoch <= known.producer_epoch):
            del self._of[producer_id]

    def take(self, early: Verifications, known: Container[ProducerId]) -> None:
        """Take over what was noted before the partition was here, but of producers that the log knows."""
        for producer_id, verification in early._of.items():
            if producer_id not in known and producer_id not in self._of and len(self._of) < self._maximum:
                self._of[producer_id] = verification

    def clear(self) -> None:
        """Drop all: the log was emptied, and what producers began with may have been appended and deleted elsewhere meanwhile."""
        self._of.clear()

    def remove_older(self, oldest_ms: int) -> None:
        """Drop those that began at or before this wall-clock time."""
        for producer_id in [key for key, known in self._of.items() if known.began_ms <= oldest_ms]:
            del self._of[producer_id]


Place: TypeAlias = tuple[str | TopicId, int]
"""A partition by the name or the id of its topic, as its producer names it: either may be unknown here."""

EARLY_REFUSALS_MAX: Final = 1_000
"""Partitions for which something was refused before they were here; the oldest ones are dropped."""

EARLY_PRODUCERS_MAX: Final = 100
"""Producers of each of them. All together take some 20 MB at most, and only where clients may write to topics that don't exist."""


class EarlyRefusals:
    """What a broker has refused for now because the partition wasn't here yet: its topic was just created, or it is on its way."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[Place, Verifications] = {}

    def __len__(self) -> int:
        return len(self._of)

    def note(self, place: Place, producer: tuple[ProducerId, ProducerEpoch], sequence: int, *, now_ms: int) -> None:
        """A batch was refused for now: see `Verifications.note_refused`."""
        known = self._of.get(place)
        if known is None:
            if len(self._of) >= EARLY_REFUSALS_MAX:
                del self._of[next(iter(self._of))]
            known = self._of[place] = Verifications(EARLY_PRODUCERS_MAX)
        known.note_refused(*producer, sequence, now_ms=now_ms)

    def note_header(self, place: Place, header: BatchHeader, now_ms: int) -> None:
        """The same for the batch with this header; one without an idempotent producer is in no order."""
        if header.producer_id >= 0 and header.base_sequence >= 0:
            self.note(place, (header.producer_id, header.producer_epoch), header.base_sequence, now_ms=now_ms)

    def take(self, place: Place) -> Verifications | None:
        """Return and forget what was noted for a partition, which is here now."""
        return self._of.pop(place, None)
