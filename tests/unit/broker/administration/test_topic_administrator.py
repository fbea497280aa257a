"""The administrator of topics when the metadata changes during its work.

It decides again, a bounded number of times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lowtide.broker.administration.committing import MAX_PLANS
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.config.broker_config import load_config
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, NotControllerError, SessionError
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.store import AmbiguousError, UnavailableError
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.new_partitions import NewPartitions
from lowtide.replication.new_topics import TopicCreation, TopicSpec
from lowtide.replication.refusal import Refusal

ID = b"1" * 16
TIMEOUT_MS = 60_000


def topic(partitions: int = 1, topic_id: bytes = ID) -> TopicImage:
    return TopicImage("t", topic_id, (PartitionImage((0,), (0,), (1,), 0, 0, 0, 3),) * partitions, {}, 3)


def image(revision: int, *topics: TopicImage) -> MetadataImage:
    names = {each.topic_id: each.name for each in topics}
    return MetadataImage(revision, "c", 0, 1, {0: BrokerImage(0, 1, ())}, {each.name: each for each in topics}, names)


class Session:
    """A metadata session whose commits have the `outcomes`, one after the other.

    An error to raise, or an image to show.
    """

    def __init__(
        self, first: MetadataImage, *outcomes: Exception | MetadataImage | tuple[Exception, MetadataImage]
    ) -> None:
        self.image = first
        self.outcomes = list(outcomes)
        self.plans: list[ChangePlan] = []
        self.coming: MetadataImage | None = None

    async def commit(self, plan: ChangePlan) -> int:
        self.plans.append(plan)
        outcome = self.outcomes.pop(0) if self.outcomes else self.image
        if isinstance(outcome, tuple):
            outcome, self.coming = outcome
        if isinstance(outcome, Exception):
            raise outcome
        self.coming = outcome
        return outcome.revision

    async def wait_for(self, revision: int) -> None:
        if self.image.revision >= revision:
            return
        if self.coming is None or self.coming.revision < revision:
            await asyncio.get_running_loop().create_future()
        assert self.coming is not None
        self.image, self.coming = self.coming, None


def administrator(session: Session) -> TopicAdministrator:
    async def settled() -> None:
        return

    context: Any = SimpleNamespace(
        config=load_config(settings={}),
        metadata=session,
        random=Random(1),
        clock=SimpleNamespace(monotonic_ms=lambda: 0),
        assigned=SimpleNamespace(settled=settled),
        replicas=SimpleNamespace(partitions={}),
    )
    return TopicAdministrator(context)


def conflict(shows: MetadataImage) -> tuple[Exception, MetadataImage]:
    return ConflictError("another broker"), shows


def creation(session: Session, timeout_ms: int = TIMEOUT_MS) -> TopicCreation | Refusal:
    return asyncio.run(administrator(session).create(TopicSpec("t", 1, 1), (), timeout_ms))


def code(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Refusal)
    assert outcome.message
    return outcome.error_code


def test_a_creation_that_conflicts_is_decided_again() -> None:
    """A broker has registered under another epoch: the second plan is based on that."""
    session = Session(image(5), conflict(image(6)), image(7, topic()))
    assert isinstance(creation(session), TopicCreation)
    assert len(session.plans) == 2


def test_a_creation_that_lost_the_race_reports_it() -> None:
    session = Session(image(5), conflict(image(6, topic())))
    assert code(creation(session)) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(session.plans) == 1


@pytest.mark.parametrize(
    ("later", "by_id", "expected"),
    [
        (image(6), False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (image(6), True, ErrorCode.UNKNOWN_TOPIC_ID),
        (image(6, topic(1, b"2" * 16)), False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_deletion_that_lost_the_race_reports_it(later: MetadataImage, expected: ErrorCode, *, by_id: bool) -> None:
    """It does not touch a topic that was re-created under the name."""
    session = Session(image(5, topic()), conflict(later))
    topics = administrator(session)
    (row,) = topics.resolve([(None, ID) if by_id else ("t", ZERO_TOPIC_ID)])
    (outcome,) = asyncio.run(topics.delete([row], TIMEOUT_MS))
    assert code(outcome) == expected
    assert len(session.plans) == 1


def many(count: int, *, first: int = 0) -> list[TopicImage]:
    return [msgspec.structs.replace(topic(topic_id=b"%016d" % n), name=f"t{n}") for n in range(first, first + count)]


def delete_all(session: Session, images: list[TopicImage], timeout_ms: int = TIMEOUT_MS) -> list[Refusal | None]:
    topics = administrator(session)
    rows = topics.resolve([(each.name, ZERO_TOPIC_ID) for each in images])
    return asyncio.run(topics.delete(rows, timeout_ms))


def test_many_topics_are_deleted_together() -> None:
    everything = many(20)
    session = Session(image(5, *everything), image(6))
    assert delete_all(session, everything) == [None] * 20
    assert len(session.plans) == 1


def test_conflicting_topics_are_deleted_except_those_that_are_gone() -> None:
    """One of them was deleted by another broker and re-created; another has more partitions."""
    everything = many(10)
    anew = msgspec.structs.replace(everything[3], topic_id=b"another-topic-id")
    grown = msgspec.structs.replace(topic(3, everything[4].topic_id), name="t4", modify_revision=6)
    session = Session(
        image(5, *everything), conflict(image(6, *everything[:3], anew, grown, *everything[5:])), image(7, anew)
    )
    outcomes = delete_all(session, everything)
    assert code(outcomes[3]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcomes[:3] + outcomes[4:] == [None] * 9
    assert len(session.plans) == 2


def test_topics_that_are_still_there_after_a_lost_answer_are_deleted_again() -> None:
    """If the first topic of a transaction is gone, the others may still be there.

    Another broker may have deleted the first.
    """
    everything = many(5)
    session = Session(image(5, *everything), image(6, *everything[1:]), image(7))
    assert delete_all(session, everything) == [None] * 5
    assert [len(plan.steps[0].compares) for plan in session.plans] == [5, 4]


def test_topics_that_a_lost_answer_has_deleted_are_reported_as_deleted() -> None:
    """The image shows it only later."""
    everything = many(5)
    session = Session(image(5, *everything), image(5, *everything), conflict(image(6)))
    assert delete_all(session, everything) == [None] * 5


def test_topics_that_cannot_be_deleted_each_have_a_reason() -> None:
    everything = many(3)
    assert [
        code(each) for each in delete_all(Session(image(5, *everything), NotControllerError("no")), everything)
    ] == [ErrorCode.NOT_CONTROLLER] * 3
    always = Session(image(5, *everything), *(conflict(image(6 + attempt, *everything)) for attempt in range(100)))
    assert [code(each) for each in delete_all(always, everything)] == [ErrorCode.REQUEST_TIMED_OUT] * 3
    assert len(always.plans) == MAX_PLANS
    waits = Session(image(5, *everything), ConflictError("without a visible reason"))
    assert [code(each) for each in delete_all(waits, everything, timeout_ms=1)] == [ErrorCode.REQUEST_TIMED_OUT] * 3
    assert [code(each) for each in delete_all(Session(image(5, *everything)), everything, timeout_ms=0)] == [
        ErrorCode.REQUEST_TIMED_OUT
    ] * 3


def test_a_deletion_continues_when_the_topic_has_grown() -> None:
    """All its partitions are deleted, the new ones too."""
    grown = msgspec.structs.replace(topic(3), modify_revision=6)
    session = Session(image(5, topic()), conflict(image(6, grown)), image(7))
    topics = administrator(session)
    (row,) = topics.resolve([("t", ZERO_TOPIC_ID)])
    assert asyncio.run(topics.delete([row], TIMEOUT_MS)) == [None]
    assert len(session.plans[1].steps[0].operations) == 4 + 3


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (image(6), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (image(6, topic(3)), ErrorCode.INVALID_PARTITIONS),
        (image(6, topic(4)), ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_a_growth_that_lost_the_race_reports_it(later: MetadataImage, expected: ErrorCode) -> None:
    session = Session(image(5, topic()), conflict(later))
    assert code(asyncio.run(administrator(session).grow(NewPartitions("t", 3), TIMEOUT_MS))) == expected


def test_what_always_conflicts_is_refused_in_the_end() -> None:
    """After a bounded number of attempts, with a retriable code."""
    session = Session(image(5), *(conflict(image(6 + attempt)) for attempt in range(100)))
    assert code(creation(session)) == ErrorCode.REQUEST_TIMED_OUT
    assert len(session.plans) == MAX_PLANS


def test_a_newer_image_is_waited_for_no_longer_than_the_request_may_take() -> None:
    session = Session(image(5), ConflictError("another broker"))
    assert code(creation(session, timeout_ms=1)) == ErrorCode.REQUEST_TIMED_OUT
    assert len(session.plans) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotControllerError("x"), ErrorCode.NOT_CONTROLLER),
        (AmbiguousError("x"), ErrorCode.REQUEST_TIMED_OUT),
        (SessionError("x"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (UnavailableError("x"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_each_failure_has_a_code(error: Exception, expected: ErrorCode) -> None:
    assert code(creation(Session(image(5), error))) == expected


def test_a_request_waits_for_its_turn_no_longer_than_the_request_may_take() -> None:
    """While a change of a topic is under way, other changes of that name wait; those of other names do not."""
    session = Session(image(5))
    held: list[Callable[[], None]] = []

    async def commit(_plan: ChangePlan) -> int:
        future = asyncio.get_running_loop().create_future()
        held.append(lambda: future.set_result(5))
        return int(await future)

    session.commit = commit

    async def run() -> None:
        topics = administrator(session)
        first = asyncio.ensure_future(topics.create(TopicSpec("a.b", 1, 1), (), TIMEOUT_MS))
        await asyncio.sleep(0)
        assert code(await topics.create(TopicSpec("a_b", 1, 1), (), 1)) == ErrorCode.REQUEST_TIMED_OUT
        assert len(held) == 1
        other = asyncio.ensure_future(topics.create(TopicSpec("c", 1, 1), (), TIMEOUT_MS))
        await asyncio.sleep(0)
        assert len(held) == 2
        for release in held:
            release()
        assert all(isinstance(each, TopicCreation) for each in await asyncio.gather(first, other))
        assert not topics._turns, "no change waits, so no turn is kept"

    asyncio.run(run())
