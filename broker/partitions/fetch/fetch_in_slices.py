"""The steps of a waiting fetch of very many partitions: some of them at a time are counted, read and answered."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

import msgspec

from lowtide.broker.partitions.fetch.fetch_reader import FetchReader, has_log_start_to_tell, respond
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan
from lowtide.broker.partitions.fetch.fetch_targets import FetchOutcome, FetchRules, FetchTarget
from lowtide.broker.turns import PARTITIONS_OF_A_STEP, taken
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchResponse


def read_steps(
    reader: FetchReader,
    targets: Sequence[FetchTarget],
    rules: FetchRules,
    outcome: FetchOutcome,
    *,
    notes: bool = False,
) -> Iterator[None]:
    """Reads like `FetchReader.read`, into `outcome`."""
    for start in range(0, len(targets), PARTITIONS_OF_A_STEP):
        reader.read(targets[start : start + PARTITIONS_OF_A_STEP], rules, notes=notes, begun=outcome)
        yield


def available_bytes(
    reader: FetchReader, targets: Iterable[FetchTarget], rules: FetchRules, *, found: int
) -> int | None:
    """Returns about how many bytes a read would find, counted up to `minimum_bytes`; None if it must answer at once.

    `found` is the number of partitions that existed when the wait began. One that is gone since then is an error.
    """
    total = 0
    for target in targets:
        partition = reader.find(target, rules)
        if isinstance(partition, ErrorCode):
            if target.watched is not None:
                return None
            continue
        found -= 1
        log = partition.log
        if reader.check(partition, target, rules) != ErrorCode.NONE or target.fetch_offset > log.log_end_offset:
            return None
        if rules.is_follower and has_log_start_to_tell(target, partition):
            return None
        end_offset = (
            log.log_end_offset
            if rules.is_follower
            else log.last_stable_offset
            if rules.read_committed
            else log.high_watermark
        )
        if target.fetch_offset < end_offset and (not rules.is_follower or reader.may_send(partition, target, rules)):
            total += log.bytes_between(
                max(target.fetch_offset, log.log_start_offset), end_offset, target.partition_max_bytes
            )
            if total >= rules.minimum_bytes:
                return total
    return total if found <= 0 else None


def enough_in_steps(
    reader: FetchReader, targets: Sequence[FetchTarget], rules: FetchRules
) -> Generator[None, None, bool]:
    """Returns whether there are enough bytes to answer, or an error."""
    total = 0
    for start in range(0, len(targets), PARTITIONS_OF_A_STEP):
        available = available_bytes(reader, targets[start : start + PARTITIONS_OF_A_STEP], rules, found=0)
        total += available or 0
        if available is None or total >= rules.minimum_bytes:
            return True
        yield
    return False


def respond_in_steps(
    plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader
) -> Generator[None, None, FetchResponse]:
    """Responds like `respond`, some partitions at a time, and removes them from the outcome."""
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
