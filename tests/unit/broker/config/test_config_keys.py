"""The table of configuration keys: the value of each text, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.broker.config.broker_config import BROKER_KEYS
from lowtide.broker.config.key import HIDDEN, ConfigError, ConfigKey, Matching, OneOf, Range, Type, at_least, value_text
from lowtide.broker.config.keys_cluster import CLUSTER_KEYS, REMOTE_KEYS
from lowtide.broker.config.keys_groups import GROUP_KEYS
from lowtide.broker.config.keys_own import OWN_KEYS
from lowtide.broker.config.keys_security import SECURITY_KEYS
from lowtide.broker.config.keys_server import SERVER_KEYS
from lowtide.broker.config.keys_topics import TOPIC_KEYS
from tests.each import each

TABLES = (SERVER_KEYS, CLUSTER_KEYS, GROUP_KEYS, SECURITY_KEYS, REMOTE_KEYS, OWN_KEYS)
KEYS = [key for table in (*TABLES, TOPIC_KEYS) for key in table]
ONE_OF_EACH = {
    Type.BOOLEAN: ("true", True),
    Type.SHORT: ("-32768", -32768),
    Type.INT: ("2147483647", 2147483647),
    Type.LONG: ("-9223372036854775808", -(2**63)),
    Type.DOUBLE: ("1.5E3", 1500.0),
    Type.STRING: ("a b", "a b"),
    Type.LIST: ("a, b ,c", ("a", "b", "c")),
    Type.CLASS: ("a.B", "a.B"),
    Type.PASSWORD: ("s3cret", "s3cret"),
}


def key_of(type_: Type, allowed=None) -> ConfigKey:
    return ConfigKey("some.key", type_, None, allowed, "A key.")


def test_no_key_is_in_two_tables():
    """A key that is described twice could have two meanings."""
    names = [key.name for table in TABLES for key in table]
    assert len(names) == len(set(names)) == len(BROKER_KEYS)
    assert len({key.name for key in TOPIC_KEYS}) == len(TOPIC_KEYS)


OF_LOWTIDE = ("lowtide.", "http.", "console.")
"""What the names of Lowtide's own keys begin with."""


def test_all_keys_of_kafka_4_4_are_known():
    """A file for Apache Kafka must not be refused for a key that Kafka has: it has 367 for brokers and 37 for topics,
    without those of dead letters and streams groups that are new.

    Nine more for brokers are keys of streams groups in Kafka 4.4.

    One more is from Kafka before 4.0, one from 4.0 alone, and three are keys that Kafka can set only while it runs.
    KIP-47 and KIP-68, which Kafka has not adopted, have five for brokers and four for topics. Two more are keys of
    Kafka's authorizer, which reads them itself. Five keys for topics are Lowtide's own. The keys for dead letters, two
    for brokers and one for topics, are those of Kafka 4.4 (KIP-1191).
    """
    kafka = [name for name in BROKER_KEYS if not name.startswith(OF_LOWTIDE)]
    assert (len(kafka), len(TOPIC_KEYS)) == (367 + 9 + 5 + 5 + 2 + 2, 37 + 4 + 5 + 1)
    assert len(BROKER_KEYS) == len(kafka) + len(OWN_KEYS)


@each("key", KEYS, lambda key: f"{key.scope.value}-{key.name}")
def test_a_key_is_sound(key: ConfigKey):
    """Its default is valid and is written as read; its description is one sentence; its limit has a description."""
    if key.default is not None:
        value = key.default_value
        assert key.parse(value_text(value)) == value
    assert key.doc.endswith(".")
    assert "\n" not in key.doc
    assert key.describe_allowed()
    if key.broker_key is not None:
        broker = BROKER_KEYS[key.broker_key]
        assert broker.type is key.type or {broker.type, key.type} == {Type.INT, Type.LONG}


def test_topic_defaults_are_those_of_the_broker():
    """A topic without settings on a broker without settings has Kafka's defaults, from either table."""
    by_synonyms = {"flush.ms", "retention.ms", "segment.ms", "segment.jitter.ms"}
    for key in TOPIC_KEYS:
        if key.broker_key is not None and key.name not in by_synonyms:
            assert BROKER_KEYS[key.broker_key].default_value == key.default_value, key.name


@pytest.mark.parametrize("type_", Type)
def test_each_type_reads_its_text(type_: Type):
    """White space around a value is ignored, as in Kafka."""
    text, value = ONE_OF_EACH[type_]
    assert key_of(type_).parse(f"  {text}\t") == value


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (Type.BOOLEAN, "yes"),
        (Type.BOOLEAN, ""),
        (Type.BOOLEAN, "1"),
        (Type.SHORT, "32768"),
        (Type.INT, "2147483648"),
        (Type.INT, "1_000"),
        (Type.INT, "1.0"),
        (Type.INT, "0x10"),
        (Type.INT, ""),
        (Type.INT, "1 2"),
        (Type.INT, "\u0661"),
        (Type.LONG, "9223372036854775808"),
        (Type.LONG, "9" * 5000),
        (Type.DOUBLE, "nan"),
        (Type.DOUBLE, "inf"),
        (Type.DOUBLE, "1,5"),
        (Type.DOUBLE, "."),
    ],
)
def test_what_is_no_value_of_its_type_is_refused(type_: Type, text: str):
    """Python accepts more than Java does; a text that Kafka refuses is refused."""
    with pytest.raises(ConfigError, match=r"some\.key="):
        key_of(type_).parse(text)


@pytest.mark.parametrize(
    ("allowed", "type_", "good", "bad"),
    [
        (at_least(1), Type.INT, ["1", "7"], ["0", "-1"]),
        (Range(0, 1), Type.DOUBLE, ["0", "1", "0.5"], ["1.01", "-0.1"]),
        (Range(1, 9, -1), Type.INT, ["-1", "1", "9"], ["0", "-2", "10"]),
        (OneOf(("none", "some")), Type.STRING, ["none", "some"], ["None", "", "none,some"]),
        (OneOf(("NONE",), any_case=True), Type.STRING, ["none", "None"], ["no"]),
        (
            OneOf(("compact", "delete")),
            Type.LIST,
            ["", "delete", "delete,delete", "delete, compact"],
            ["DELETE", "delete,", "x"],
        ),
        (
            Matching("[0-9]+:[0-9]+", "a list of a:b"),
            Type.LIST,
            ["", "1:2", "1:2,3:4"],
            ["1", "1:2,", "1:2\n"[:-1] + "x"],
        ),
    ],
)
def test_limits_are_inclusive_and_kept(allowed, type_: Type, good: list[str], bad: list[str]):
    """Each kind of limit accepts its bounds and nothing beyond them."""
    key = key_of(type_, allowed)
    for text in good:
        key.parse(text)
    for text in bad:
        with pytest.raises(ConfigError) as caught:
            key.parse(text)
        assert key.describe_allowed() in str(caught.value)


def test_a_refused_secret_is_not_shown():
    """Refusals are logged."""
    key = key_of(Type.PASSWORD, Matching("[a-z]+", "small letters"))
    with pytest.raises(ConfigError) as caught:
        key.parse("Hunter2")
    assert "Hunter2" not in str(caught.value)
    assert HIDDEN in str(caught.value)


@given(st.sampled_from(KEYS), st.text(max_size=30))
def test_no_text_breaks_a_key(key: ConfigKey, text: str):
    """Any text is either refused or becomes a value that is the same when written and read again."""
    try:
        value = key.parse(text)
    except ConfigError:
        return
    assert key.parse(value_text(value)) == value
