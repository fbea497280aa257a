"""The rest of a Produce request that takes long together: appended in slices, others have their turn in between.

Its client need not be there any more: the request was received whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lowtide.broker.partitions.produce.produce_slowly import SlowProduce, pass_on
from lowtide.broker.partitions.produce.slow_batches import NO_ROOM, keep
from lowtide.broker.pending import Pending
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import ProduceResponse, TopicProduceResponse

if TYPE_CHECKING:
    from lowtide.broker.partitions.produce.produce_attempt import ProduceAttempt


class SlicedProduce:
    """What is left of one attempt."""

    def __init__(self, attempt: ProduceAttempt, responses: list[TopicProduceResponse]) -> None:
        """The rows of what is left follow those in `responses`."""
        self._attempt = attempt
        self._responses = responses
        self._rest, attempt.rest = attempt.rest, []
        self._kept_bytes = 0
        self._pending: Pending[ProduceResponse] = Pending(holds_connection=True)

    def start(self) -> Pending[ProduceResponse]:
        """Keep the rest, or refuse it if too much is kept already, and continue in the loop's next pass."""
        attempt = self._attempt
        kept = attempt.parts.kept
        if kept.count > kept.limit:
            for left in self._rest:
                for row in left.rows:
                    left.results.append(
                        attempt.refuse_for_now(
                            left.topic, row.index, ErrorCode.NOT_ENOUGH_REPLICAS, row.records, NO_ROOM
                        )
                    )
            self._rest = []
        self._kept_bytes = keep(self._rest)
        kept.count += self._kept_bytes
        attempt.replicas.slices.run(self._steps(), lambda: True, self._fail)
        return self._pending

    def _steps(self) -> Iterator[None]:
        attempt = self._attempt
        for left in self._rest:
            for row in left.rows:
                left.results.append(attempt.append(left.topic, row.index, row.records))
                row.records = None
                yield
        self._release()
        answer = SlowProduce(attempt, self._responses).start() if attempt.slow else attempt.answer(self._responses)
        yield
        pass_on(answer, self._pending)

    def _release(self) -> None:
        self._attempt.parts.kept.count -= self._kept_bytes
        self._kept_bytes = 0

    def _fail(self) -> None:
        self._release()
        self._attempt.give_back()
        self._pending.fail()
