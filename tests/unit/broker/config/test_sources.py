"""Sources of configuration: Java's properties syntax, the environment and the command line, and their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.broker.config.broker_config import BROKER_KEYS
from lowtide.broker.config.key import ConfigError
from lowtide.broker.config.sources import Setting, from_environment, from_properties, from_settings, merge


def texts(text: str) -> dict[str, str]:
    return {key: value.text for key, value in from_properties(text, "server.properties").items()}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("a = b", "a", "b"),
        ("a: b", "a", "b"),
        ("a b", "a", "b"),
        ("a\tb", "a", "b"),
        ("  a=b", "a", "b"),
        ("a", "a", ""),
        ("a=", "a", ""),
        ("a==b", "a", "=b"),
        ("a:=b", "a", "=b"),
        ("a=b#c", "a", "b#c"),
        ("listeners=PLAINTEXT://:9092", "listeners", "PLAINTEXT://:9092"),
        (r"a\=b=c", "a=b", "c"),
        (r"a\ b=c", "a b", "c"),
        (r"a=b\tc", "a", "b\tc"),
        (r"a=C:\\data", "a", r"C:\data"),
        (r"a=\u00e9\q", "a", "\u00e9q"),
        ("a=one,\\\n    two,\\\n  three", "a", "one,two,three"),
        ("a=b\\\\", "a", "b\\"),
        ("a=b\r", "a", "b"),
        ("a=\u2028b", "a", "\u2028b"),
    ],
)
def test_a_line_is_read_as_java_reads_it(line: str, key: str, value: str):
    """Files written for Apache Kafka mean the same here. Source: java.util.Properties."""
    assert texts(line) == {key: value}


def test_comments_and_empty_lines_are_ignored():
    """A comment that ends in a backslash is not continued."""
    assert texts("# a=b\n! c=d \\\n\n   \ne=f\n") == {"e": "f"}


def test_the_last_of_two_lines_counts():
    """As in Java, and its line is the one that a refusal names."""
    assert from_properties("a=1\na=2\n", "server.properties") == {"a": Setting("2", "server.properties line 2")}


def test_a_continued_line_has_the_number_of_its_first():
    """That is where a reader looks for the key."""
    assert from_properties("\na=1,\\\n2", "f")["a"].source == "f line 2"


@pytest.mark.parametrize("text", ["=b", ": b", "a=\\u12", "a=\\u12g4", "a=\\u", "a=\\u+123"])
def test_a_broken_line_is_refused_with_its_number(text: str):
    """The result is neither a traceback nor half a value."""
    with pytest.raises(ConfigError, match=r"^f line 2 .*\.$"):
        from_properties(f"x=y\n{text}\n", "f")


@given(st.text())
def test_no_file_breaks_the_reader(text: str):
    """Any text is read or refused with a message."""
    try:
        found = from_properties(text, "f")
    except ConfigError:
        return
    assert all(value.source.startswith("f line ") for value in found.values())


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_escaped_comes_back(settings: dict[str, str]):
    """Every key and value can be written down, each character as its code."""

    def escape(text: str) -> str:
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2))

    def units(text: str) -> bytes:
        return text.encode("utf-16-be", "surrogatepass")

    read = texts("\n".join(f"{escape(key)}={escape(value)}" for key, value in settings.items()))
    assert {units(key): units(value) for key, value in read.items()} == {
        units(k): units(v) for k, v in settings.items()
    }


def test_environment_names_are_keys_in_capitals():
    """Other variables are ignored."""
    found = from_environment({"LOWTIDE_LOG_RETENTION_MS": "5", "PATH": "/bin", "KAFKA_LOG_DIRS": "x"}, BROKER_KEYS)
    assert found == {"log.retention.ms": Setting("5", "LOWTIDE_LOG_RETENTION_MS")}


def test_every_key_has_a_name_of_its_own_in_the_environment():
    """Dots become underscores, and no two keys may have the same name."""
    environment = {f"LOWTIDE_{key.upper().replace('.', '_')}": key for key in BROKER_KEYS}
    found = from_environment(environment, BROKER_KEYS)
    assert {key: value.text for key, value in found.items()} == {key: key for key in BROKER_KEYS}


@pytest.mark.parametrize("name", ["LOWTIDE_MAX_VERSION_DELETERECORDS", "LOWTIDE_MAX_VERSION_DELETE_RECORDS"])
def test_own_keys_have_their_first_word_once_in_the_environment(name: str):
    """`lowtide.max.version.DeleteRecords`; names in the environment are upper case."""
    (key,) = from_environment({name: "2"}, BROKER_KEYS)
    assert key.lower() == "lowtide.max.version.deleterecords"


def test_an_unknown_variable_is_refused_without_its_value():
    """A misspelt name of a secret's variable must not put the secret into a log."""
    with pytest.raises(ConfigError, match="LOWTIDE_SSL_KEY_PASWORD") as caught:
        from_environment({"LOWTIDE_SSL_KEY_PASWORD": "hunter2"}, BROKER_KEYS)
    assert "hunter2" not in str(caught.value)


def test_the_variable_of_the_plain_form_is_no_key():
    """`LOWTIDE_PURE=1 lowtide serve` runs without compiled code, and starts."""
    assert from_environment({"LOWTIDE_PURE": "1"}, BROKER_KEYS) == {}


def test_a_kubernetes_service_named_lowtide_does_not_stop_the_broker():
    """Kubernetes sets these in every pod beside such a service."""
    links = (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_KAFKA",
        "PORT",
        "PORT_9092_TCP",
        "PORT_9092_TCP_ADDR",
        "PORT_9092_TCP_PROTO",
    )
    assert from_environment({f"LOWTIDE_{link}": "tcp://10.0.0.1:9092" for link in links}, BROKER_KEYS) == {}


def test_settings_are_split_at_the_first_equals_sign():
    """The value may have more of them."""
    assert from_settings(["a=b=c", " d = e"]) == {"a": Setting("b=c", "--set a"), "d": Setting(" e", "--set d")}


@pytest.mark.parametrize("setting", ["a", "=b", " =b", ""])
def test_a_setting_without_key_or_value_is_refused(setting: str):
    """An empty value is valid; a missing one is not."""
    with pytest.raises(ConfigError, match="allowed is --set key=value"):
        from_settings([setting])


def test_the_command_line_beats_the_environment_beats_the_file():
    """Each source overrides the weaker ones, key by key."""
    file = from_properties("num.partitions=1\nnode.id=1\nlog.dirs=1", "f")
    environment = from_environment({"LOWTIDE_NODE_ID": "2", "LOWTIDE_LOG_DIRS": "2"}, BROKER_KEYS)
    merged = merge(file, environment, from_settings(["log.dirs=3"]))
    assert {key: value.text for key, value in merged.items()} == {
        "num.partitions": "1",
        "node.id": "2",
        "log.dirs": "3",
    }
