"""A Fetch of very many partitions without a session.

The request stays bytes: it is decoded some rows at a time, whenever it is worked on. Objects are kept only of
partitions that are here, for as long as one of them may end its wait. The answer is bytes as soon as a row is read. Of
a partition named twice the last row counts, as in Kafka; one that isn't here is answered as often as it is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Final

from lowtide.broker.network.request_parts import CutRequest, JoinedAnswer
from lowtide.broker.partitions.delayed.fetch_reader import FetchReader, respond
from lowtide.broker.partitions.delayed.fetch_refused import failed_throughout
from lowtide.broker.partitions.delayed.fetch_rules import FetchOutcome, FetchRules
from lowtide.broker.partitions.fetch_session import FetchPlan, FetchTarget, TargetKey, collect
from lowtide.broker.slices import PARTITIONS_OF_A_STEP
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchResponse

_BYTES_OF_A_PARTITION: Final = 500
"""What a partition that waits takes of what is held for all: the request of such a fetch is counted like so many."""


class RowsPlan(FetchPlan, kw_only=True):
    """What a request without a session fetches: its rows, and those of their partitions that are here, by their keys."""

    rows: CutRequest
    here: dict[TargetKey, FetchTarget]

    @property
    def held_count(self) -> int:
        """How many partitions take as much memory as this, while it waits."""
        return len(self.here) + self.rows.size // _BYTES_OF_A_PARTITION

    def read_steps(
        self, reader: FetchReader, rules: FetchRules, outcome: FetchOutcome, *, notes: bool = False
    ) -> Generator[None, None, JoinedAnswer]:
        """Read all rows, some at a time, and give the answer; `outcome` has no rows then."""
        answer = self.rows.joined()
        yield from answer.add(FetchResponse(responses=[]))
        whole: FetchResponse = answer.message
        done: set[FetchTarget] = set()
        outcome.unsent = {}
        for named in targets_in_steps(self.rows):
            yield
            if named is None:
                continue
            reader.read(self._taken(named, done), rules, notes=notes, begun=outcome)
            part = respond(self, outcome, rules, reader)
            outcome.answers.clear()
            yield from answer.add(part)
            known = {endpoint.node_id for endpoint in whole.node_endpoints}
            whole.node_endpoints += [endpoint for endpoint in part.node_endpoints if endpoint.node_id not in known]
        return answer

    def _taken(self, named: dict[TargetKey, FetchTarget], done: set[FetchTarget]) -> Iterator[FetchTarget]:
        """Those that are kept, each once, in place of the ones that were just decoded; the others as they are."""
        for key, target in named.items():
            kept = self.here.get(key, target)
            if kept is target:
                yield target
            elif kept not in done:
                done.add(kept)
                yield kept


def targets_in_steps(rows: CutRequest) -> Generator[dict[TargetKey, FetchTarget] | None, None, None]:
    """What the request names, some partitions at a time and each by its last mention among those; None after other steps."""
    targets: dict[TargetKey, FetchTarget] = {}
    for part in rows.parts():
        for topic in () if part is None else part.topics:
            for start in range(0, len(topic.partitions), PARTITIONS_OF_A_STEP):
                collect(topic, topic.partitions[start : start + PARTITIONS_OF_A_STEP], targets)
                if len(targets) >= PARTITIONS_OF_A_STEP:
                    yield targets
                    targets = {}
        yield None
    yield targets


def failed_rows_in_steps(
    rows: CutRequest, error: ErrorCode, errors: Counter[tuple[str, int]]
) -> Generator[None, None, JoinedAnswer]:
    """The answer with the same error in each partition, counted in `errors`."""
    joined = rows.joined()
    yield from joined.add(FetchResponse(responses=[]))
    for part in rows.parts():
        yield
        if part is not None:
            yield from joined.add(failed_throughout(part, error, errors))
    return joined
