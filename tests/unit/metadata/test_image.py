"""The image.

What is visible when, the contents of a delta, and that following the watch gives the same result as reading everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lowtide.metadata import keys
from lowtide.metadata.engine import Engine
from lowtide.metadata.image import ImageDelta, MetadataImage, TopicImage, different_partitions
from lowtide.metadata.image_change import apply_batch, difference, load_image
from lowtide.metadata.records import (
    AclChangeRecord,
    AclRecord,
    BrokerRecord,
    ControllerRecord,
    Listener,
    PartitionRecord,
    ScramRecord,
    TokenRecord,
    TopicRecord,
    encode,
)
from lowtide.metadata.store import Delete, Put
from lowtide.metadata.token_image import TokenImage
from lowtide.protocol.types import topic_id_text
from tests.examples import examples

PREFIX = b"/test/"
ID_A, ID_B = b"A" * 16, b"B" * 16


class Cluster:
    """A store's engine, and an image that follows it batch by batch."""

    def __init__(self) -> None:
        self.engine = Engine(boot=1, revision=0, keys=())
        self.image = MetadataImage()
        self.deltas: list[ImageDelta] = []
        self.steps: list[tuple[MetadataImage, MetadataImage, ImageDelta]] = []
        """The images before and after each batch, with the delta between them."""

    def change(self, *operations: Put | Delete) -> ImageDelta:
        """One transaction; keys are without the prefix."""
        staged = self.engine.stage()
        prefixed = [
            Put(PREFIX + o.key, o.value, o.lease) if isinstance(o, Put) else Delete(PREFIX + o.key) for o in operations
        ]
        self.engine.evaluate(staged, (), prefixed, ())
        self.engine.commit(staged)
        for batch in staged.batches:
            before = self.image
            self.image, delta = apply_batch(before, batch, prefix=PREFIX)
            self.deltas.append(delta)
            self.steps.append((before, self.image, delta))
        return self.deltas[-1]

    def loaded(self) -> MetadataImage:
        return load_image(self.engine.range(PREFIX), self.engine.revision, prefix=PREFIX)


def partition(number: int, topic_id: bytes = ID_A, *, leader_epoch: int = 0) -> Put:
    record = PartitionRecord(
        replicas=(1,), isr=(1,), isr_epochs=(5,), leader=1, leader_epoch=leader_epoch, partition_epoch=leader_epoch
    )
    return Put(keys.partition(topic_id, number), encode(record))


def topic(name: str, partitions: int, topic_id: bytes = ID_A) -> Put:
    return Put(keys.topic(name), encode(TopicRecord(topic_id_text(topic_id), partitions)))


def broker(broker_id: int, rack: str | None = None) -> Put:
    return Put(keys.broker(broker_id), encode(BrokerRecord("i", (Listener("PLAINTEXT", "host", 9092),), rack)))


def names(topics: Sequence[TopicImage]) -> list[str]:
    return [each.name for each in topics]


def test_a_topic_appears_with_all_its_partitions() -> None:
    """Chunks before the record are invisible.

    With the record the whole topic is there, in any order of the last batch.
    """
    cluster = Cluster()
    assert cluster.change(partition(0), partition(2)).is_empty
    assert cluster.image.topics == {}
    delta = cluster.change(
        topic("a", 4), partition(3), partition(1), Put(keys.topic_config("a"), encode({"retention.ms": "1"}))
    )
    (created,) = delta.topics_created
    assert created is cluster.image.topics["a"]
    assert [each.modify_revision for each in created.partitions] == [1, 2, 1, 2]
    assert created.configs == {"retention.ms": "1"}
    assert cluster.image.topic_by_id(ID_A) is created
    assert cluster.image.loose_partitions == {}


def test_a_deleted_topic_is_gone_before_all_its_keys_are() -> None:
    """The record decides. The other keys are loose until they are deleted, and a controller sweeps loose partitions."""
    cluster = Cluster()
    cluster.change(topic("a", 3), partition(0), partition(1), partition(2))
    delta = cluster.change(Delete(keys.topic("a")), Delete(keys.partition(ID_A, 0)))
    assert names(delta.topics_deleted) == ["a"]
    assert cluster.image.topics == {}
    assert cluster.image.topic_names == {}
    assert list(cluster.image.loose_partitions[ID_A]) == [1, 2]
    assert cluster.change(Delete(keys.partition(ID_A, 1)), Delete(keys.partition(ID_A, 2))).is_empty
    assert cluster.image.loose_partitions == {}


def test_a_re_created_topic_is_deleted_and_created() -> None:
    """The same name under another id is another topic: brokers must remove the old log.

    This also holds if one batch does both.
    """
    cluster = Cluster()
    cluster.change(topic("a", 1), partition(0))
    delta = cluster.change(topic("a", 1, ID_B), partition(0, ID_B))
    assert [each.topic_id for each in delta.topics_deleted] == [ID_A]
    assert [each.topic_id for each in delta.topics_created] == [ID_B]
    assert delta.topics_changed == ()
    assert dict(cluster.image.topic_names) == {ID_B: "a"}


def test_a_changed_partition_is_in_the_delta_and_others_are_shared() -> None:
    """A new leader epoch is in the delta; unchanged parts are the same objects, so nothing is copied deeply."""
    cluster = Cluster()
    cluster.change(topic("a", 2), partition(0), partition(1))
    cluster.change(topic("b", 1, ID_B), partition(0, ID_B))
    before = cluster.image
    delta = cluster.change(partition(1, leader_epoch=1))
    assert names(delta.topics_changed) == ["a"]
    assert [each.leader_epoch for each in cluster.image.topics["a"].partitions] == [0, 1]
    assert [each.leader_epoch for each in before.topics["a"].partitions] == [0, 0], "an existing image does not change"
    assert cluster.image.topics["b"] is before.topics["b"]
    assert cluster.image.topics["a"].partitions[0] is before.topics["a"].partitions[0]


def test_added_partitions_appear_with_the_count() -> None:
    """Growing a topic in chunks: partitions beyond the count wait for the record."""
    cluster = Cluster()
    cluster.change(topic("a", 1), partition(0))
    assert cluster.change(partition(1), partition(2)).is_empty
    assert len(cluster.image.topics["a"].partitions) == 1
    delta = cluster.change(topic("a", 4), partition(3))
    assert names(delta.topics_changed) == ["a"]
    assert len(cluster.image.topics["a"].partitions) == 4


def test_partitions_of_a_growth_that_was_abandoned_are_not_counted() -> None:
    """They stay loose, however the topic grows afterwards, also in an image that is loaded again."""
    cluster = Cluster()
    cluster.change(topic("a", 1), partition(0))
    cluster.change(partition(1), partition(2), partition(3))
    assert names(cluster.change(topic("a", 2), partition(1)).topics_changed) == ["a"]
    assert [each.modify_revision for each in cluster.image.topics["a"].partitions] == [1, 3]
    assert list(cluster.image.loose_partitions[ID_A]) == [2, 3]
    assert cluster.change(Delete(keys.partition(ID_A, 2))).is_empty
    assert names(cluster.change(topic("a", 4), partition(2), partition(3)).topics_changed) == ["a"]
    assert [each.modify_revision for each in cluster.image.topics["a"].partitions] == [1, 3, 5, 5]
    assert cluster.image.loose_partitions == {}


def test_configurations_come_and_go() -> None:
    """A configuration is part of its topic, and the next change compares its revision."""
    cluster = Cluster()
    cluster.change(topic("a", 1), partition(0))
    delta = cluster.change(Put(keys.topic_config("a"), encode({"retention.ms": "7"})))
    assert names(delta.topics_changed) == ["a"]
    assert (cluster.image.topics["a"].configs, cluster.image.topics["a"].config_revision) == ({"retention.ms": "7"}, 2)
    cluster.change(Delete(keys.topic_config("a")))
    assert (cluster.image.topics["a"].configs, cluster.image.topics["a"].config_revision) == ({}, 0)
    assert cluster.change(Put(keys.topic_config("nobody"), encode({"x": "y"}))).is_empty


def test_brokers_and_the_controller() -> None:
    """The epoch is the revision of the registration; a new registration is a change even with the same value."""
    cluster = Cluster()
    assert cluster.change(broker(1), broker(2, "r")).brokers_changed == (1, 2)
    assert cluster.image.brokers[2].rack == "r"
    assert cluster.image.brokers[1].epoch == 1
    assert cluster.image.brokers[1].listeners == (Listener("PLAINTEXT", "host", 9092),)
    delta = cluster.change(Put(keys.CONTROLLER, encode(ControllerRecord(2, 1))))
    assert delta.controller_changed
    assert (cluster.image.controller_id, cluster.image.controller_revision) == (2, 2)
    delta = cluster.change(Delete(keys.broker(1)), Delete(keys.CONTROLLER))
    assert (delta.brokers_changed, delta.controller_changed) == ((1,), True)
    assert (cluster.image.controller_id, cluster.image.controller_revision) == (-1, 0)
    assert cluster.change(broker(1)).brokers_changed == (1,)
    assert cluster.image.brokers[1].epoch == 4


def test_unknown_keys_are_ignored() -> None:
    """Keys and fields that this version does not know do not change the image."""
    cluster = Cluster()
    assert cluster.change(Put(b"features/x", b"\xff"), Put(keys.NEXT_PRODUCER_ID, b"1000")).is_empty
    assert cluster.change(Put(keys.CLUSTER_ID, b"the-cluster")).is_empty
    assert cluster.image.cluster_id == "the-cluster"
    cluster.change(
        Put(keys.topic("a"), encode(TopicRecord(topic_id_text(ID_A), 1)).replace(b"}", b',"future":[1]}')), partition(0)
    )
    assert list(cluster.image.topics) == ["a"]


@pytest.mark.parametrize(
    ("operations", "key", "complaint"),
    [
        ([topic("a", 2), partition(0)], keys.partition(ID_A, 1), "it is missing, and its topic is there"),
        ([topic("a", 2), partition(0), partition(3), partition(4)], keys.partition(ID_A, 1), "it is missing"),
        ([Put(keys.partition(ID_A, 0), b"{}")], keys.partition(ID_A, 0), "not a PartitionRecord"),
        (
            [Put(keys.partition(ID_A, 0), partition(0).value.replace(b'"isr_epochs":[5]', b'"isr_epochs":[]'))],
            keys.partition(ID_A, 0),
            "1 ISR members, 0",
        ),
    ],
)
def test_what_lowtide_cannot_have_written_is_named(operations: list[Put | Delete], key: bytes, complaint: str) -> None:
    """A topic never has fewer partitions than it should: what is missing has no leader."""
    cluster = Cluster()
    cluster.change(*operations)
    assert complaint in cluster.image.unreadable[key].reason
    assert all(len(each.partitions) == 2 for each in cluster.image.topics.values())


def test_a_partition_of_an_existing_topic_is_not_removed() -> None:
    """Partitions are removed only with their topic. The next change writes the record again."""
    cluster = Cluster()
    cluster.change(topic("a", 2), partition(0), partition(1))
    before = cluster.image.topics["a"].partitions[1]
    cluster.change(Delete(keys.partition(ID_A, 1)))
    assert cluster.image.topics["a"].partitions[1] == msgspec.structs.replace(before, modify_revision=0)
    assert cluster.image.unreadable[keys.partition(ID_A, 1)].keeps
    cluster.change(partition(1, leader_epoch=1))
    assert not cluster.image.unreadable


def test_a_topic_does_not_shrink() -> None:
    """No controller writes a smaller count."""
    cluster = Cluster()
    cluster.change(topic("a", 2), partition(0), partition(1))
    cluster.change(topic("a", 1))
    assert len(cluster.image.topics["a"].partitions) == 2
    assert "has 2 partitions, and its record says 1" in cluster.image.unreadable[keys.topic("a")].reason


def test_a_topic_that_lacked_a_partition_leaves_nothing_behind_when_it_is_deleted() -> None:
    cluster = Cluster()
    cluster.change(topic("a", 2), partition(0))
    cluster.change(Delete(keys.topic("a")), Delete(keys.partition(ID_A, 0)))
    assert cluster.image.topics == {}
    assert not cluster.image.unreadable
    assert not cluster.image.loose_partitions


_topic_changes = st.sampled_from(
    ["create", "delete", "sweep", "recreate", "elect", "configure", "unconfigure", "grow", "give up"]
)


class _Driver:
    """Makes changes as the controller would, on topics `a` and `b`."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.next_id = 0

    def play(self, name: str, change: str) -> None:
        cluster, current = self.cluster, self.cluster.image.topics.get(name)
        if change in {"create", "recreate"} and (change == "recreate" or current is None):
            self.next_id += 1
            topic_id = bytes([self.next_id]) * 16
            cluster.change(partition(1, topic_id))
            remove = [Delete(keys.topic_config(name))] if change == "recreate" else []
            cluster.change(topic(name, 2, topic_id), partition(0, topic_id), *remove)
        elif change == "sweep" and cluster.image.loose_partitions:
            loose = cluster.image.loose_partitions.items()
            cluster.change(*(Delete(keys.partition(topic_id, number)) for topic_id, each in loose for number in each))
        elif current is not None:
            self.play_on(current, change)

    def play_on(self, current: TopicImage, change: str) -> None:
        cluster, count = self.cluster, len(current.partitions)
        if change == "delete":
            cluster.change(
                Delete(keys.topic(current.name)),
                Delete(keys.topic_config(current.name)),
                Delete(keys.partition(current.topic_id, 0)),
            )
        elif change == "elect":
            cluster.change(partition(0, current.topic_id, leader_epoch=current.partitions[0].leader_epoch + 1))
        elif change == "configure":
            cluster.change(Put(keys.topic_config(current.name), encode({"k": str(cluster.image.revision)})))
        elif change == "unconfigure":
            cluster.change(Delete(keys.topic_config(current.name)))
        elif change == "give up":
            cluster.change(partition(count, current.topic_id), partition(count + 2, current.topic_id))
        elif change == "grow":
            cluster.change(partition(count, current.topic_id))
            cluster.change(topic(current.name, count + 2, current.topic_id), partition(count + 1, current.topic_id))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), _topic_changes), max_size=25))
def test_following_gives_the_same_as_reading(changes: list[tuple[str, str]]) -> None:
    """After any history the image that followed equals one read whole, and the sum of the deltas is the difference."""
    driver = _Driver()
    for name, change in changes:
        before = driver.cluster.image
        told = len(driver.cluster.deltas)
        driver.play(name, change)
        assert driver.cluster.image == driver.cluster.loaded()
        whole = difference(before, driver.cluster.image)
        touched = {
            each.name
            for delta in driver.cluster.deltas[told:]
            for each in (*delta.topics_created, *delta.topics_deleted, *delta.topics_changed)
        }
        assert {each.name for each in (*whole.topics_created, *whole.topics_deleted, *whole.topics_changed)} == touched
        for old, new, delta in driver.cluster.steps[told:]:
            for each in delta.topics_changed:
                was, now = old.topics[each.name].partitions, new.topics[each.name].partitions
                assert list(delta.partitions_changed[each.name]) == different_partitions(was, now)


def test_a_thousand_partitions_in_chunks_cause_little_copying() -> None:
    """Ten chunks of a hundred: the work is linear in the partitions; each is decoded once and shared from then on."""
    cluster = Cluster()
    for start in range(0, 1000, 100):
        cluster.change(*(partition(number) for number in range(start, start + 100)))
    loose = dict(cluster.image.loose_partitions[ID_A])
    cluster.change(topic("a", 1000))
    assert all(loose[number] is each for number, each in enumerate(cluster.image.topics["a"].partitions))


def test_what_is_set_on_brokers_is_shown_by_their_names() -> None:
    """The empty name stands for all brokers; the delta has the names that changed, and a deletion leaves nothing."""
    cluster = Cluster()
    delta = cluster.change(
        Put(keys.broker_config(""), encode({"a": "1"})), Put(keys.broker_config("3"), encode({"b": "2"}))
    )
    assert delta == ImageDelta(broker_configs_changed=("", "3"))
    assert not delta.is_empty
    assert {name: (each.configs, each.revision) for name, each in cluster.image.broker_configs.items()} == {
        "": ({"a": "1"}, 1),
        "3": ({"b": "2"}, 1),
    }
    assert cluster.change(Put(keys.broker_config("3"), encode({"b": "3"}))).broker_configs_changed == ("3",)
    assert cluster.change(broker(3)).broker_configs_changed == ()
    before = cluster.image
    assert cluster.change(Delete(keys.broker_config(""))).broker_configs_changed == ("",)
    assert set(cluster.image.broker_configs) == {"3"}
    assert set(before.broker_configs) == {"", "3"}
    assert cluster.loaded() == cluster.image
    assert difference(before, cluster.image).broker_configs_changed == ("",)


def test_what_is_set_on_groups_is_kept_by_their_ids():
    """An id may contain the separator of keys, and any other character."""
    cluster = Cluster()
    ids = ["g", "a/b", "config/group/g", "é \x00"]
    for number, group_id in enumerate(ids):
        assert cluster.change(Put(keys.group_config(group_id), encode({"a": str(number)}))).is_empty
    assert {name: each.configs for name, each in cluster.image.group_configs.items()} == {
        group_id: {"a": str(number)} for number, group_id in enumerate(ids)
    }
    before = cluster.image
    cluster.change(Delete(keys.group_config("a/b")))
    assert set(cluster.image.group_configs) == set(ids) - {"a/b"}
    assert set(before.group_configs) == set(ids)


def test_subscriptions_to_metrics_are_kept_by_their_names() -> None:
    cluster = Cluster()
    cluster.change(Put(keys.client_metrics("a/b"), encode({"metrics": "*"})))
    assert {name: each.configs for name, each in cluster.image.client_metrics.items()} == {"a/b": {"metrics": "*"}}
    assert cluster.loaded() == cluster.image
    cluster.change(Delete(keys.client_metrics("a/b")))
    assert cluster.image.client_metrics == {}


def test_rules_come_and_go_under_their_keys() -> None:
    """Two that differ in one field only are two; an image that was handed out keeps what it had (CVE-2024-27309)."""
    cluster = Cluster()
    rules = [AclRecord(2, name, 3, "User:a", "*", 3, permission) for name in ("t", "*") for permission in (2, 3)]
    values = [encode(rule) for rule in rules]
    assert cluster.change(*(Put(keys.acl(value), value) for value in values)).is_empty
    before = cluster.image
    assert [each.acl for each in before.acls.values()] == rules
    cluster.change(broker(1))
    assert cluster.image.acls is before.acls
    cluster.change(Delete(keys.acl(values[1])))
    assert [each.acl for each in cluster.image.acls.values()] == [rules[0], *rules[2:]]
    assert len(before.acls) == 4
    assert cluster.image == cluster.loaded()


def test_a_change_of_many_rules_is_in_force_at_once_and_through_step_by_step() -> None:
    """What an image shows is the same whether it followed or was read, at every step."""
    cluster = Cluster()
    rules = [AclRecord(2, f"t{number}", 3, "User:a", "*", 3, 3) for number in range(4)]
    values = [encode(rule) for rule in rules]
    cluster.change(*(Put(keys.acl(value), value) for value in values[:2]))
    record = AclChangeRecord(
        added=tuple(msgspec.structs.astuple(rule) for rule in rules[1:]),
        removed=(keys.acl(values[0]).removeprefix(keys.ACLS).decode(),),
    )
    steps: list[Any] = [
        [Put(keys.ACL_CHANGE, encode(record))],
        [Put(keys.acl(value), value) for value in values[1:3]],
        [Put(keys.acl(values[3]), values[3])],
        [Delete(keys.acl(values[0])), Delete(keys.ACL_CHANGE)],
    ]
    for number, step in enumerate(steps):
        cluster.change(*step)
        assert {each.acl for each in cluster.image.acls.values()} == set(rules[1:])
        assert cluster.image == cluster.loaded()
        assert (cluster.image.acl_change is None) == (number == 3)


def test_tokens_come_change_and_go_under_their_keys() -> None:
    """The key is made of the HMAC and doesn't show it; an image that was handed out keeps what it had."""
    cluster = Cluster()
    key = keys.token(b"hmac")
    assert b"hmac" not in key
    token = TokenRecord(
        "id", "User:a", "User:b", ("User:c",), 1, 2, 3, {"SCRAM-SHA-256": ScramRecord(b"s", b"k", b"l", 4096)}
    )
    assert cluster.change(Put(key, encode(token))).is_empty
    before = cluster.image
    assert before.tokens == {key: TokenImage(token, 1)}
    cluster.change(broker(1))
    assert cluster.image.tokens is before.tokens
    cluster.change(Put(key, encode(replace(token, expires_ms=9))))
    assert (cluster.image.tokens[key].token.expires_ms, cluster.image.tokens[key].revision) == (9, 3)
    assert cluster.image == cluster.loaded()
    cluster.change(Delete(key))
    assert (cluster.image.tokens, len(before.tokens)) == ({}, 1)
