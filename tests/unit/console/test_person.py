"""Whose records are wanted is read strictly, and no error repeats a key."""

from __future__ import annotations

import pytest

from lowtide.admin.cluster_view import ClusterView, PartitionDescription, TopicDescription
from lowtide.admin.finding import KEYS_MAX
from lowtide.console.answers import RefusedError
from lowtide.console.person import chosen_topics, query_of

SECRET = "4711-secret"


def test_keys_are_read_in_each_form():
    assert query_of({"keys": ["a", "b", "a"]}).keys == {b"a", b"b"}
    assert query_of({"keys": ["00ff"], "key_format": "hex"}).keys == {b"\x00\xff"}
    assert query_of({"keys": ["AP8="], "key_format": "base64"}).keys == {b"\x00\xff"}
    assert query_of({"header": "who=a=b"}).header == ("who", b"a=b")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "Give keys or a header."),
        ({"keys": [], "header": ""}, "Give keys or a header."),
        ({"keys": SECRET}, f"keys must be a list of 1 to {KEYS_MAX} strings."),
        ({"keys": [SECRET] * (KEYS_MAX + 1)}, f"keys must be a list of 1 to {KEYS_MAX} strings."),
        ({"keys": ["a", SECRET], "key_format": "hex"}, "Key 1 is not hex."),
        ({"keys": [f"{SECRET}!"], "key_format": "base64"}, "Key 1 is not base64."),
        ({"keys": ["\ud800"]}, "Key 1 is not text."),
        ({"keys": [7]}, "Key 1 is empty."),
        ({"keys": [SECRET], "key_format": "rot13"}, "key_format must be one of text, hex, base64."),
        ({"header": SECRET}, "The header must have the form NAME=VALUE."),
        ({"header": f"={SECRET}"}, "The header must have the form NAME=VALUE."),
        ({"keys": ["x" * (1 << 20), SECRET]}, "The keys have more than 1048576 bytes together."),
    ],
)
def test_an_error_is_one_sentence_without_a_key(given: dict[str, object], sentence: str):
    with pytest.raises(RefusedError) as caught:
        query_of(given)
    assert caught.value.sentence == sentence
    assert SECRET not in sentence


def view_of(*names: str, internal: str = "__inner") -> ClusterView:
    one = PartitionDescription(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
    topics = {
        name: TopicDescription(name=name, topic_id=None, is_internal=name == internal, partitions={0: one})
        for name in (*names, internal)
    }
    return ClusterView(cluster_id="c", controller_id=1, brokers={}, topics=topics, errors={})


def test_topics_are_chosen_by_name_by_pattern_or_all():
    view = view_of("orders-1", "orders-2", "clicks")
    names = [[each.name for each in chosen_topics(view, *given, everything=False)] for given in (
        (["clicks"], []), ([], ["orders-?"]), (["orders-1"], ["orders-*"]),
    )]  # fmt: skip
    assert names == [["clicks"], ["orders-1", "orders-2"], ["orders-1", "orders-2"]]
    assert [each.name for each in chosen_topics(view, [], [], everything=True)] == ["clicks", "orders-1", "orders-2"]


@pytest.mark.parametrize(
    ("names", "patterns", "sentence"),
    [
        (["gone"], [], "There is no topic gone, or you may not describe it."),
        (["__inner"], [], "__inner is an internal topic: its records belong to the brokers."),
        ([], ["__*"], "No topic matches __*."),
    ],
)
def test_topics_that_cant_be_searched_are_refused(names: list[str], patterns: list[str], sentence: str):
    with pytest.raises(RefusedError) as caught:
        chosen_topics(view_of("orders"), names, patterns, everything=False)
    assert caught.value.sentence == sentence
