"""The rest of a Produce request that takes long: in slices, in the worker, or after a question to a coordinator.

The request was received whole, so its batches are appended although its client has gone.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.partitions.produce.slow_batches import NO_ROOM, SlowBatch, mapped_frame
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.turns import Piece
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

if TYPE_CHECKING:
    from lowtide.broker.partitions.batch_lane import RequestLane
    from lowtide.broker.partitions.produce.produce_attempt import ProduceAttempt
    from lowtide.broker.partitions.produce.transaction_question import Question

QUICK_BYTES: Final = 64 << 10
"""A batch up to this size is checked in the loop after its transaction's coordinator has answered."""


class SlowProduce:
    """Continues an attempt: appends its rest in slices, then its slow batches, each when its check is done."""

    def __init__(self, attempt: ProduceAttempt, responses: list[TopicProduceResponse]) -> None:
        """`responses` have the rows so far, with placeholders of slow batches."""
        self.pending: Pending[ProduceResponse] = Pending(holds_connection=True)
        self._attempt = attempt
        self._responses = responses
        self._rest, attempt.rest = attempt.rest, []
        self._kept_bytes = 0
        self._slow: list[SlowBatch] = []
        self._rows: dict[int, PartitionProduceResponse] = {}
        """The rows that replace placeholders, by the identity of the placeholder."""
        self._lane: RequestLane | None = None

    def start(self) -> Pending[ProduceResponse]:
        """Returns the promise of the answer. The rest is refused if too much memory is kept already."""
        attempt, kept = self._attempt, self._attempt.parts.kept
        if not self._rest:
            self._begin_slow()
            return self.pending
        if kept.count > kept.limit:
            for left in self._rest:
                left.results += [
                    attempt.refuse_for_now(left.topic, row.index, ErrorCode.NOT_ENOUGH_REPLICAS, row.records, NO_ROOM)
                    for row in left.rows
                ]
            self._rest = []
        frames = (mapped_frame(row.records) for left in self._rest for row in left.rows)
        frame = next((frame for frame in frames if frame is not None), b"")  # A request has one.
        self._kept_bytes = len(frame) + sum(left.keep() for left in self._rest)
        kept.count += self._kept_bytes
        attempt.replicas.turns.add(Piece(self._append_rest(), self._fail))
        return self.pending

    def _append_rest(self) -> Generator[None, None, None]:
        for left in self._rest:
            for row in left.rows:
                left.results.append(self._attempt.append(left.topic, row.index, row.records))
                row.records = None
                yield
        self._release()
        self._begin_slow()

    def _release(self) -> None:
        self._attempt.parts.kept.count -= self._kept_bytes
        self._kept_bytes = 0

    def _fail(self, error: Exception) -> None:
        self._release()
        self._attempt.give_back()
        self._attempt.replicas.turns.fail(self.pending, error)

    def _begin_slow(self) -> None:
        attempt = self._attempt
        self._slow, attempt.slow = attempt.slow, []
        if not self._slow:
            self._finish()
            return
        shared = {} if attempt.context.shared is None else attempt.context.shared
        self._lane = shared.get("batches") or attempt.parts.lane.begin(attempt.parts.decompressed_bytes_max)
        shared["batches"] = self._lane  # All parts of a request share the limit of decompressed bytes.
        for batch in self._slow:
            if batch.question is not None:
                self._ask(batch, batch.question)
            else:
                self._submit(batch)

    def _submit(self, batch: SlowBatch) -> None:
        assert self._lane is not None
        self._lane.submit(batch.check, partial(self._on_checked, batch))

    def _ask(self, batch: SlowBatch, question: Question) -> None:
        self._attempt.parts.verifier.ask(question, batch.renew, partial(self._on_verified, batch))

    def _on_verified(self, batch: SlowBatch, error: ErrorCode) -> None:
        if error != ErrorCode.NONE:
            self._on_checked(batch, error)
        elif len(batch.records) <= QUICK_BYTES:
            self._on_checked(batch, batch.check())
        else:
            self._submit(batch)

    def _on_checked(self, batch: SlowBatch, outcome: Any) -> None:
        self._attempt.parts.kept.count -= batch.release()
        if self.pending.done:
            return
        try:
            self._append(batch, outcome)
        except Exception as error:  # noqa: BLE001  it is logged, and closes one connection
            self._attempt.replicas.turns.fail(self.pending, error)

    def _append(self, batch: SlowBatch, outcome: Any) -> None:
        """Appends a checked batch, if its partition is still here. `outcome`: see `SlowBatch.check`; or an error."""
        if isinstance(outcome, BaseException):
            raise outcome
        attempt, index = self._attempt, batch.placeholder.index
        if isinstance(outcome, ErrorCode):
            row = attempt.refuse_transaction(batch, outcome)
        else:
            assert outcome is not None, "rules without haste always come to a result"
            found = attempt.replicas.find(batch.topic, index)
            if found is batch.partition:
                row = attempt.append(batch.topic, index, batch.records, outcome, batch.guard)
            else:
                error = found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER
                row = attempt.misdirect(batch.topic, index, error, batch.records)
        if attempt.slow:  # The check found a transaction, so its coordinator must be asked.
            asked = attempt.slow.pop()
            asked.placeholder = batch.placeholder
            assert asked.question is not None
            self._ask(asked, asked.question)
            return
        self._rows[id(batch.placeholder)] = row
        if len(self._rows) == len(self._slow):
            self._finish()

    def _finish(self) -> None:
        for topic in self._responses if self._rows else ():
            topic.partition_responses = [self._rows.get(id(row), row) for row in topic.partition_responses]
        answer = self._attempt.answer(self._responses)
        if isinstance(answer, Pending):
            self.pending.on_abandoned = answer.abandon
            answer.listen(self.pending.complete)
        else:
            self.pending.complete(NO_ANSWER if answer is None else answer)
