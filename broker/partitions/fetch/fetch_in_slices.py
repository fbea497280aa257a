"""Reads and answers a fetch of very many partitions in steps."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import msgspec

from lowtide.broker.partitions.fetch.fetch_reader import FetchReader, respond
from lowtide.broker.partitions.fetch.fetch_rules import FetchOutcome, FetchRules
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan, FetchTarget
from lowtide.broker.turns import PARTITIONS_OF_A_STEP, taken
from lowtide.protocol.messages.fetch import FetchResponse


def read_steps(
    reader: FetchReader,
    targets: Sequence[FetchTarget],
    rules: FetchRules,
    outcome: FetchOutcome,
    *,
    notes: bool = False,
) -> Iterator[None]:
    """Reads as `FetchReader.read`, into `outcome`."""
    for start in range(0, len(targets), PARTITIONS_OF_A_STEP):
        reader.read(targets[start : start + PARTITIONS_OF_A_STEP], rules, notes=notes, begun=outcome)
        yield


def enough_in_steps(
    reader: FetchReader, targets: Sequence[FetchTarget], rules: FetchRules
) -> Generator[None, None, bool]:
    """Returns whether there are enough bytes for an answer, or an error."""
    total = 0
    for start in range(0, len(targets), PARTITIONS_OF_A_STEP):
        available = reader.available_bytes(targets[start : start + PARTITIONS_OF_A_STEP], rules, found=0)
        total += available or 0
        if available is None or total >= rules.minimum_bytes:
            return True
        yield
    return False


def respond_in_steps(
    plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader
) -> Generator[None, None, FetchResponse]:
    """Returns the answer as `respond` does, and removes the partitions from the outcome."""
    whole = respond(plan, msgspec.structs.replace(outcome, answers=[]), rules, reader)
    for answers in taken(outcome.answers, PARTITIONS_OF_A_STEP):
        yield
        part = respond(plan, msgspec.structs.replace(outcome, answers=answers), rules, reader)
        for topic in part.responses:
            last = whole.responses[-1] if whole.responses else None
            if last is not None and (last.topic, last.topic_id) == (topic.topic, topic.topic_id):
                last.partitions += topic.partitions
            else:
                whole.responses.append(topic)
        known = {endpoint.node_id for endpoint in whole.node_endpoints}
        whole.node_endpoints += [endpoint for endpoint in part.node_endpoints if endpoint.node_id not in known]
    yield
    return whole
