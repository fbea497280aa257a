"""Who isn't a replica any more and may not know it: for how long deletes wait for such a broker, and what ends that."""

from __future__ import annotations

from lowtide.metadata.image import MetadataImage
from lowtide.replication.former_replicas import FormerReplica, FormerReplicas

from .leaders import LAG_MS, TOPIC_ID, image_of, partition_of

IMAGE = image_of(10, {1: 1, 2: 2, 3: 3})
LEFT = partition_of((1,), (1,), replicas=(1,), revision=10)


def removed(*broker_ids: int, image: MetadataImage = IMAGE, now_ms: int = 100) -> FormerReplicas:
    former = FormerReplicas(TOPIC_ID, 0, LAG_MS)
    former.note_removed(list(broker_ids), LEFT, image, now_ms)
    return former


def awaited(former: FormerReplicas, image: MetadataImage = IMAGE, now_ms: int = 100) -> list[int]:
    return list(former.awaited(image, now_ms))


def test_a_broker_is_awaited_until_it_acts_on_the_removal() -> None:
    former = removed(2, 3)
    assert former.awaited(IMAGE, 100) == {2: FormerReplica(2, 10, 100), 3: FormerReplica(3, 10, 100)}
    former.note_confirmed(2, 9)
    assert awaited(former) == [2, 3], "that was before"
    former.note_confirmed(2, 10)
    former.note_confirmed(4, 10)
    assert (awaited(former), len(former)) == ([3], 1)
    former.note_confirmed(3, 11)
    assert (awaited(former), len(former)) == ([], 0)


def test_it_is_awaited_for_the_lag_time_and_no_longer() -> None:
    former = removed(2, now_ms=100)
    assert awaited(former, now_ms=100 + LAG_MS) == [2]
    assert awaited(former, now_ms=101 + LAG_MS) == []
    former.restart_limit(200)
    assert awaited(former, now_ms=200 + LAG_MS) == [2], "another leader may have answered it until then"
    assert awaited(former, now_ms=201 + LAG_MS) == []


def test_the_end_of_its_registration_or_of_its_directory_ends_it() -> None:
    former = removed(2)
    assert awaited(former, image_of(11, {1: 1, 3: 3})) == [], "it isn't registered"
    assert awaited(former, image_of(11, {1: 1, 2: 11, 3: 3})) == [], (
        "it has registered again, and read the metadata before"
    )
    assert awaited(former, image_of(11, {1: 1, 2: 2}, offline_replicas={2: {TOPIC_ID: (0,)}})) == []
    assert awaited(former, image_of(11, {1: 1, 2: 2}, offline_replicas={2: {TOPIC_ID: (1,)}})) == [2]


def test_who_has_no_registration_is_never_awaited() -> None:
    assert len(removed(4)) == 0


def test_who_is_added_again_is_awaited_as_before() -> None:
    """Its broker may have seen neither change, and its fetches of an earlier leader epoch are refused.

    They don't make it live.
    """
    former = removed(2, 3)
    former.note_removed([], partition_of((1,), (1,), replicas=(1, 3), revision=11), IMAGE, 120)
    assert awaited(former) == [2, 3]
    former.note_removed([3], partition_of((1,), (1,), replicas=(1,), revision=12), IMAGE, 130)
    former.note_confirmed(3, 11)
    assert awaited(former) == [2, 3], "it knows of the first removal"
    former.note_confirmed(3, 12)
    assert awaited(former) == [2]
