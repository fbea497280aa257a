"""Producers on a lossy network: after any retry, reordering or restore the log has each record once, in order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import read_batch_header
from lowtide.storage.log.producers.producer_state import AcceptedBatch, DuplicateBatch, ProducerStateManager
from tests.examples import examples

from .producing import header_of

NOW = 1_700_000_000_000
PRODUCERS = st.integers(1, 3)
Batch = tuple[int, int, int, int]
"""Producer, epoch, base sequence, record count."""


class Producers(RuleBasedStateMachine):
    """Three producers, one log, and a model with every batch ever appended."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ProducerStateManager()
        self.log: list[tuple[int, Batch]] = []
        self.next_offset = 0
        self.epochs = {1: 0, 2: 0, 3: 0}
        self.next_sequences = {1: 0, 2: 0, 3: 0}

    def appended_by(self, producer: int) -> list[tuple[int, Batch]]:
        """The batches of the producer's current run: since the last that had another epoch, oldest first."""
        own = [(offset, batch) for offset, batch in self.log if batch[0] == producer]
        return [(offset, batch) for offset, batch in own if batch[1] == own[-1][1][1]]

    def send(self, batch: Batch) -> None:
        """Check a batch as the log does, judge the outcome by the model, and append it if accepted."""
        producer, epoch, sequence, count = batch
        outcome = self.state.check(*batch)
        own = self.appended_by(producer)
        seen = {known: offset for offset, known in own[-5:]}
        if batch in seen:
            offset = seen[batch]
            assert outcome == DuplicateBatch(offset, offset + count - 1, NOW + offset)
        elif own and epoch < own[-1][1][1]:
            assert outcome is ErrorCode.INVALID_PRODUCER_EPOCH
        elif own and sequence != (0 if epoch > own[-1][1][1] else own[-1][1][2] + own[-1][1][3]):
            assert outcome is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            assert isinstance(outcome, AcceptedBatch)
            base = self.next_offset
            self.state.update(header_of(*batch, max_timestamp=NOW + base), base_offset=base, now_ms=NOW)
            self.log.append((base, batch))
            self.next_offset += count

    @rule(producer=PRODUCERS, count=st.integers(1, 4), lost=st.booleans())
    def produce(self, producer: int, count: int, lost: bool) -> None:
        """The next batch is sent, or lost: then the producer continues, and its next batches are out of order."""
        batch = (producer, self.epochs[producer], self.next_sequences[producer], count)
        if not lost:
            self.send(batch)
        self.next_sequences[producer] += count

    @rule(producer=PRODUCERS)
    def bump_epoch(self, producer: int) -> None:
        """The producer gives up and starts over."""
        self.epochs[producer] += 1
        self.next_sequences[producer] = 0

    @rule(back=st.integers(1, 12))
    def retry(self, back: int) -> None:
        """A batch of the log arrives again, perhaps a very old one."""
        if self.log:
            self.send(self.log[-min(back, len(self.log))][1])

    @rule(producer=PRODUCERS, epoch=st.integers(0, 3), sequence=st.integers(0, 12), count=st.integers(1, 4))
    def interfere(self, producer: int, epoch: int, sequence: int, count: int) -> None:
        """Another client uses the producer's id."""
        self.send((producer, epoch, sequence, count))

    @rule()
    def replay(self) -> None:
        """The broker restarts and rebuilds the state from the log: the state must be the same."""
        rebuilt = ProducerStateManager()
        for offset, (producer, epoch, sequence, count) in self.log:
            records = [(NOW + offset, None, None, ())] * count
            batch = build_batch(
                records, base_offset=offset, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
            )
            rebuilt.replay(read_batch_header(batch), now_ms=NOW)
        assert rebuilt.producers == self.state.producers
        self.state = rebuilt

    @invariant()
    def a_snapshot_keeps_the_ends(self) -> None:
        """A snapshot keeps, per producer, epoch and last batch."""
        copy = ProducerStateManager()
        copy.load_snapshot(self.state.encode_snapshot(), now_ms=NOW)
        assert {key: (entry.producer_epoch, entry.batches[-1]) for key, entry in copy.producers.items()} == {
            key: (entry.producer_epoch, entry.batches[-1]) for key, entry in self.state.producers.items()
        }

    @invariant()
    def sequences_have_no_gaps(self) -> None:
        """In the log, a producer's sequences follow each other within an epoch, and epochs never fall."""
        last: dict[int, Batch] = {}
        for _, batch in self.log:
            before = last.get(batch[0])
            if before is not None:
                assert batch[1] >= before[1]
                assert batch[2] == (0 if batch[1] > before[1] else before[2] + before[3])
            last[batch[0]] = batch


TestProducers = Producers.TestCase
TestProducers.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
