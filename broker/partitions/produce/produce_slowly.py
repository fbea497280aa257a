"""The rest of a Produce request whose batches take long: checked by the worker, or their transaction's coordinator is asked.

Each batch is appended when its check is done, if its partition is still here; the client need not be. The answer is built when all are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

if TYPE_CHECKING:
    from lowtide.broker.partitions.batch_lane import RequestLane
    from lowtide.broker.partitions.produce.produce_attempt import ProduceAttempt
    from lowtide.broker.partitions.produce.slow_batches import SlowBatch

QUICK_BYTES: Final = 64 << 10
"""A batch of a transaction that waited for its coordinator is checked in the loop if it isn't larger."""


class SlowProduce:
    """The slow batches of one attempt."""

    def __init__(self, attempt: ProduceAttempt, responses: list[TopicProduceResponse]) -> None:
        """`responses` have the placeholders of the attempt's slow batches."""
        self.pending: Pending[ProduceResponse] = Pending(holds_connection=True)
        self._attempt = attempt
        self._responses = responses
        self._slow, attempt.slow = attempt.slow, []
        self._rows: dict[int, PartitionProduceResponse] = {}
        """What takes a placeholder's place."""
        shared = attempt.context.shared
        begun = None if shared is None else shared.get("batches")
        self._lane: RequestLane = begun or attempt.parts.lane.begin(attempt.parts.decompressed_bytes_max)
        if shared is not None:
            shared["batches"] = self._lane  # What the batches decompress to is bounded for all parts together.

    def start(self) -> Pending[ProduceResponse]:
        """Begin with all batches."""
        for batch in self._slow:
            if batch.question is not None:
                self._ask(batch)
            else:
                self._lane.submit(batch.check, partial(self._on_checked, batch))
        return self.pending

    def _ask(self, batch: SlowBatch) -> None:
        assert batch.question is not None
        self._attempt.parts.verifier.ask(batch.question, batch.renew, partial(self._on_verified, batch))

    def _on_verified(self, batch: SlowBatch, error: ErrorCode) -> None:
        if error != ErrorCode.NONE:
            self._on_checked(batch, error)
        elif len(batch.records) <= QUICK_BYTES:
            self._on_checked(batch, batch.check())
        else:
            self._lane.submit(batch.check, partial(self._on_checked, batch))

    def _on_checked(self, batch: SlowBatch, outcome: Any) -> None:
        self._attempt.parts.kept.count -= batch.release()
        if self.pending.done:
            return
        try:
            self._append(batch, outcome)
        except Exception as error:  # A bug of ours costs one connection, and is logged with its traceback.
            self._attempt.parts.log.error("request failed", request="Produce", exc_info=error)
            self.pending.fail()

    def _append(self, batch: SlowBatch, outcome: Any) -> None:
        """Append what was checked, if that partition is still here."""
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
        if attempt.slow:  # Checked, and found to be of a transaction whose coordinator has to be asked.
            asked = attempt.slow.pop()
            asked.placeholder = batch.placeholder
            self._ask(asked)
            return
        self._rows[id(batch.placeholder)] = row
        if len(self._rows) == len(self._slow):
            self._finish()

    def _finish(self) -> None:
        for topic in self._responses:
            topic.partition_responses = [self._rows.get(id(row), row) for row in topic.partition_responses]
        pass_on(self._attempt.answer(self._responses), self.pending)


def pass_on(answer: ProduceResponse | Pending[ProduceResponse] | None, pending: Pending[ProduceResponse]) -> None:
    """Have `pending` answered with what another promise gives, with an answer that is there, or with none that is wanted."""
    if isinstance(answer, Pending):
        pending.on_abandoned = answer.abandon
        answer.listen(pending.complete)
    else:
        pending.complete(NO_ANSWER if answer is None else answer)
