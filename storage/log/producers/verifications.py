"""Producers whose transaction is being verified by its coordinator before its first batch is appended (KIP-890).

A verification begins when the coordinator is asked and lasts until a batch of the transaction is appended, or a marker
ends it. The object itself guards an append: when the coordinator's answer arrives, `find` must return the same object.
So an answer about a transaction that has ended meanwhile lets nothing into the log.

It also keeps the lowest sequence that the producer has sent. A producer that the log does not know may begin at any
sequence, and several batches may be in flight. If the first is refused with a retriable error, the second must not
become the beginning, or the first would be out of order for good. So a verification also begins when a batch of such a
producer is refused for now (`note_refused`), transactional or not; Kafka does this only for transactions.
`EarlyRefusals` does the same for partitions that aren't here yet.

Another broker may have accepted, and deleted, a batch that was refused here; the producer never sends it again. So
batches after a refused one are refused for now too, and the first of them may begin when it is sent again: by then its
producer has received the answers, and would have sent the earlier batch before.

Guards: no batch is appended to a transaction that its coordinator does not know; a producer's batches keep their order
from the first on.

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
    """A verification of one producer in one epoch.

    `adds_itself`: each transaction has its own epoch, and begins with sequence 0 everywhere.
    """

    producer_epoch: ProducerEpoch
    lowest_sequence: int
    adds_itself: bool
    began_ms: int
    """Wall-clock time."""
    is_refused: bool = False
    """Whether the batch of the lowest sequence was refused for now: it isn't under way here."""
    refused_behind: int = NO_SEQUENCE
    """The first sequence refused for now after that one, since it came last."""


class Verifications:
    """The verifications of one partition; beyond `maximum` the oldest is dropped."""

    __slots__ = ("_maximum", "_of")

    def __init__(self, maximum: int) -> None:
        assert maximum > 0
        self._maximum = maximum
        self._of: dict[ProducerId, Verification] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def begin(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, sequence: int, *, adds_itself: bool, now_ms: int
    ) -> Verification:
        """Returns the producer's verification in this epoch, a new one if needed.

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
        """Records a batch refused for now: its producer sends it again, before later ones."""
        known = self.begin(producer_id, producer_epoch, sequence, adds_itself=False, now_ms=now_ms)
        if known.producer_epoch != producer_epoch:
            return
        if sequence == known.lowest_sequence:
            known.is_refused = True
        elif known.is_refused and known.refused_behind == NO_SEQUENCE:
            known.refused_behind = sequence

    def is_behind_refused(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, sequence: int) -> bool:
        """Returns whether the batch follows one that was refused for now and may be sent again."""
        known = self._of.get(producer_id)
        return (
            known is not None
            and known.producer_epoch == producer_epoch
            and known.is_refused
            and sequence > known.lowest_sequence
        )

    def find(self, producer_id: ProducerId) -> Verification | None:
        """Returns the verification that guards the producer's next batch."""
        return self._of.get(producer_id)

    def may_begin_at(self, producer_id: ProducerId, sequence: int) -> bool:
        """Returns whether a producer that the log does not know may begin at this sequence.

        Coordinators' batches have none.
        """
        known = self._of.get(producer_id)
        if known is None or sequence == NO_SEQUENCE:
            return True
        is_in_turn = sequence <= known.lowest_sequence or sequence == known.refused_behind
        return is_in_turn and (sequence == 0 or not known.adds_itself)

    def on_batch(self, producer_id: ProducerId) -> None:
        """Ends the producer's verification, because a batch of its transaction was appended."""
        self._of.pop(producer_id, None)

    def on_marker(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> None:
        """Ends verifications by an appended marker of this epoch.

        If each transaction has its own epoch, a marker has that of the next one; it must not end the transaction that
        follows it.
        """
        known = self._of.get(producer_id)
        if known is not None and not (known.adds_itself and producer_epoch <= known.producer_epoch):
            del self._of[producer_id]

    def take(self, early: Verifications, known: Container[ProducerId]) -> None:
        """Adds verifications from before the partition was here, except of producers that the log knows."""
        for producer_id, verification in early._of.items():
            if producer_id not in known and producer_id not in self._of and len(self._of) < self._maximum:
                self._of[producer_id] = verification

    def clear(self) -> None:
        """Drops all, because the log was emptied, and other brokers may have appended the producers' first batches."""
        self._of.clear()

    def remove_older(self, oldest_ms: int) -> None:
        """Drops those that began at or before this wall-clock time."""
        for producer_id in [key for key, known in self._of.items() if known.began_ms <= oldest_ms]:
            del self._of[producer_id]


Place: TypeAlias = tuple[str | TopicId, int]
"""A partition by its topic's name or id, as the producer names it; either may be unknown here."""

EARLY_REFUSALS_MAX: Final = 1_000
"""Partitions with refusals before they were here; beyond that the oldest are dropped."""

EARLY_PRODUCERS_MAX: Final = 100
"""Producers of each. Together some 20 MB at most, and only if clients may write to topics that don't exist."""


class EarlyRefusals:
    """Batches that a broker refused for now because their partition wasn't here yet."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[Place, Verifications] = {}

    def __len__(self) -> int:
        return len(self._of)

    def note(self, place: Place, producer: tuple[ProducerId, ProducerEpoch], sequence: int, *, now_ms: int) -> None:
        known = self._of.get(place)
        if known is None:
            if len(self._of) >= EARLY_REFUSALS_MAX:
                del self._of[next(iter(self._of))]
            known = self._of[place] = Verifications(EARLY_PRODUCERS_MAX)
        known.note_refused(*producer, sequence, now_ms=now_ms)

    def note_header(self, place: Place, header: BatchHeader, now_ms: int) -> None:
        """Records the batch with this header, unless it has no idempotent producer."""
        if header.producer_id >= 0 and header.base_sequence >= 0:
            self.note(place, (header.producer_id, header.producer_epoch), header.base_sequence, now_ms=now_ms)

    def take(self, place: Place) -> Verifications | None:
        """Removes and returns the refusals that were noted before this broker had the partition."""
        return self._of.pop(place, None)
