"""Values of a program as properties: what users of the clients and of `LowtideCluster` give as numbers and booleans."""

from __future__ import annotations

import pytest

from lowtide.admin.configs import ConfigChange
from lowtide.admin.settings import ClientSettings, SettingsError
from lowtide.admin.topics import NewTopic, _creatable
from lowtide.broker.config.key import ConfigError
from lowtide.runtime.properties import PropertiesError, property_text, read_properties
from lowtide.testing.brokers import _common


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("3", "3"),
        (3, "3"),
        (0.5, "0.5"),
        (True, "true"),
        (False, "false"),
        (["a:1", "b:2"], "a:1,b:2"),
        ((1, True), "1,true"),
        ("", ""),
    ],
)
def test_a_value_is_written_as_in_a_file(value: object, text: str) -> None:
    assert property_text("key", value) == text


@pytest.mark.parametrize("value", [None, b"3", {"a": 1}, object(), ["a", None]])
def test_what_is_no_value_is_refused_by_its_key(value: object) -> None:
    with pytest.raises(PropertiesError, match=r"num\.partitions is .*: allowed are texts, numbers"):
        property_text("num.partitions", value)


def test_the_keys_of_a_cluster_may_have_numbers() -> None:
    given = _common({"num.partitions": 3, "auto.create.topics.enable": False})
    assert (given["num.partitions"].text, given["auto.create.topics.enable"].text) == ("3", "false")
    with pytest.raises(ConfigError, match=r"num\.partitions is None"):
        _common({"num.partitions": None})


def test_topics_and_changes_may_have_numbers() -> None:
    (config,) = _creatable(NewTopic(name="t", configs={"retention.ms": 5})).configs
    assert (config.name, config.value) == ("retention.ms", "5")
    assert ConfigChange("preallocate", value=True).text == "true"
    assert ConfigChange("preallocate").text is None


def test_settings_of_a_client_name_the_key_that_has_no_value() -> None:
    assert ClientSettings.of({"bootstrap.servers": ["127.0.0.1:1", "127.0.0.1:2"], "request.timeout.ms": 500})
    with pytest.raises(SettingsError, match=r"bootstrap\.servers is None"):
        ClientSettings.of({"bootstrap.servers": None})


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert [each.key for each in read_properties("\ufefflog.dirs=a\nnode.id=1\n", "f")] == ["log.dirs", "node.id"]
