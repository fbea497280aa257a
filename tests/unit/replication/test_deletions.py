"""Which topics are deleted in one transaction."""

from __future__ import annotations

from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.store import MAX_TRANSACTION_OPERATIONS, Compare
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.deletions import TopicDeletion, plan_deletion, plan_deletions, resolve_deletions
from lowtide.replication.steps import MAX_STEP_COMPARES


def topic(number: int, partitions: int = 1) -> TopicImage:
    return TopicImage(
        f"t{number}", b"%016d" % number, (PartitionImage((0,), (0,), (1,), 0, 0, 0, 3),) * partitions, {}, 3
    )


def cluster(*topics: TopicImage) -> tuple[MetadataImage, dict[int, TopicDeletion]]:
    names = {each.topic_id: each.name for each in topics}
    image = MetadataImage(5, "c", 0, 1, {0: BrokerImage(0, 1, ())}, {each.name: each for each in topics}, names)
    return image, dict(enumerate(resolve_deletions(image, [(each.name, ZERO_TOPIC_ID) for each in topics])))


def test_as_many_small_topics_are_deleted_together_as_fit_a_transaction() -> None:
    image, wanted = cluster(*(topic(number, 1 + number % 3) for number in range(300)))
    groups, refusals = plan_deletions(image, wanted)
    assert not refusals
    assert sorted(member for group in groups for member in group.members) == list(range(300))
    operations = []
    for group in groups:
        (step,) = group.plan.steps
        assert len(step.operations) <= MAX_TRANSACTION_OPERATIONS
        assert len(step.compares) == len(group.members) <= MAX_STEP_COMPARES
        operations += step.operations
    alone = [plan_deletion(image, deletion) for deletion in wanted.values()]
    assert operations == [operation for plan in alone for step in plan.steps for operation in step.operations]
    assert len(groups) <= len(operations) // (MAX_TRANSACTION_OPERATIONS - 6) + 1


def test_each_topic_is_deleted_only_in_the_state_of_the_image() -> None:
    image, wanted = cluster(topic(1), topic(2))
    ((group,), _) = plan_deletions(image, wanted)
    assert [(compare.field, compare.operator, compare.argument) for compare in group.plan.steps[0].compares] == [
        ("modify", "==", 3)
    ] * 2
    assert all(type(compare) is Compare for compare in group.plan.steps[0].compares)
    assert len({compare.key for compare in group.plan.steps[0].compares}) == 2


def test_a_large_topic_is_deleted_alone_and_the_small_ones_around_it_together() -> None:
    image, wanted = cluster(topic(0), topic(1, 250), topic(2), topic(3, 100))
    groups, _ = plan_deletions(image, wanted)
    assert sorted((group.members, len(group.plan.steps)) for group in groups) == [((0, 2, 3), 1), ((1,), 3)]


def test_a_missing_topic_is_refused_and_the_others_are_deleted() -> None:
    image, wanted = cluster(topic(0), topic(1), topic(2))
    smaller, _ = cluster(topic(0), topic(2))
    groups, refusals = plan_deletions(smaller, wanted)
    assert [group.members for group in groups] == [(0, 2)]
    assert {number: refusal.error_code for number, refusal in refusals.items()} == {
        1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert plan_deletions(image, {}) == ([], {})
