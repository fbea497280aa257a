"""The tables of rights in docs/security.md have every key and every request of our own, with what the code asks for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from lowtide.broker.authorizer.resources import CLUSTER, Operation, Resource, ResourceType, topic
from lowtide.broker.config.client_metrics import KEYS as KEYS_OF_METRICS
from lowtide.broker.config.dynamic_config import DYNAMIC_KEYS, is_dynamic
from lowtide.broker.config.keys_of_groups import KEYS_OF_GROUPS
from lowtide.broker.config.keys_topics import TOPIC_KEYS
from lowtide.broker.config.log_levels import LOGGERS
from lowtide.broker.config.sasl_settings import LOGIN_KEYS
from lowtide.broker.config.tls_settings import STORE_KEYS
from lowtide.protocol.api_keys import API, api_name
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.messages import alter_configs, incremental_alter_configs
from tests.each import each

from .asking import WHOLE, Only, ask
from .rights import TABLE

PAGE = (Path(__file__).parents[4] / "docs/security.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### What a right can do\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| ")]
FIRST_OF_OURS = 32_000
DEFAULTS: Final = {str(key.broker_key) for key in TOPIC_KEYS} & DYNAMIC_KEYS
"""Of brokers, of keys of topics."""

PLACES: Final = {"topic": topic("t"), "cluster": CLUSTER, "group": Resource(ResourceType.GROUP, "g")}
RESOURCES: Final = {
    "a topic": (ConfigResourceType.TOPIC, "t"),
    "brokers": (ConfigResourceType.BROKER, "1"),
    "a listener": (ConfigResourceType.BROKER, "1"),
    "a group": (ConfigResourceType.GROUP, "g"),
    "clients' metrics": (ConfigResourceType.CLIENT_METRICS, "m"),
    "loggers": (ConfigResourceType.BROKER_LOGGER, "1"),
}


class Key(NamedTuple):
    """A key on the page: whose it is, and which rights it needs."""

    of: str
    name: str
    needs: tuple[tuple[Operation, Resource], ...]


def rights(text: str) -> tuple[tuple[Operation, Resource], ...]:
    """From `ALTER_CONFIGS and ALTER on the cluster`, and several of these with a comma between them."""
    parts = [part.split(" on the ") for part in text.split(", ")]
    return tuple((getattr(Operation, each), PLACES[place]) for found, place in parts for each in found.split(" and "))


def keys_on_the_page() -> list[Key]:
    found = []
    for keys, needs, _ in ROWS:
        of, _, names = keys.partition(": ")
        if of.removeprefix("of ") not in RESOURCES:
            continue
        if names.startswith("their defaults"):
            names = " ".join(f"`{name}`" for name in sorted(DEFAULTS))
        found += [
            Key(of.removeprefix("of "), name, rights(needs)) for name in re.findall(r"`([^`]+)`", names) or LOGGERS[:1]
        ]
    return found


KEYS = keys_on_the_page()


def test_each_key_that_can_be_set_is_on_the_page_once() -> None:
    known = {
        "a topic": {key.name for key in TOPIC_KEYS},
        "brokers": DYNAMIC_KEYS,
        "a listener": STORE_KEYS | LOGIN_KEYS,
        "a group": {key.name for key in KEYS_OF_GROUPS},
        "clients' metrics": KEYS_OF_METRICS.keys(),
        "loggers": {LOGGERS[0]},
    }
    for of, names in known.items():
        assert sorted(key.name for key in KEYS if key.of == of) == sorted(names), of


@pytest.mark.parametrize("messages", [alter_configs, incremental_alter_configs])
@each("key", KEYS, lambda key: key.name)
def test_a_key_needs_what_the_page_says(key: Key, messages: Any) -> None:
    """All of its rights are enough, and without any one of them it is refused."""
    kind, resource = RESOURCES[key.of]
    name = key.name
    if key.of == "a listener":
        name = f"listener.name.outside.{'plain.' if name == 'sasl.jaas.config' else ''}{name}"
        assert is_dynamic(name)
    prefix, operation = ("Alter", {}) if messages is alter_configs else ("IncrementalAlter", {"config_operation": 0})
    row = messages.AlterConfigsResource(
        resource_type=kind,
        resource_name=resource,
        configs=[messages.AlterableConfig(name=name, value="1", **operation)],
    )
    request = getattr(messages, f"{prefix}ConfigsRequest")(resources=[row], validate_only=False)
    empty = getattr(messages, f"{prefix}ConfigsResponse")(responses=[])
    assert ask(Only(*key.needs), request, empty)[0].resources == [row]
    for missing in key.needs:
        passed, told, _ = ask(Only(*(each for each in key.needs if each != missing)), request, empty)
        assert passed.resources == []
        assert told.responses[0].error_code in (WHOLE, 29, 30)


def test_each_request_of_our_own_is_on_the_page_with_what_it_needs() -> None:
    """What it needs is that of the table of rights, which is tried on a broker."""
    ours = {api_name(key) for key in API if key >= FIRST_OF_OURS}
    told = {cells[0]: cells[1] for cells in ROWS if cells[0] in ours}
    assert told.keys() == ours
    for name, needs in told.items():
        asked = {
            tuple(text.split()[:2])
            for row in TABLE
            if row["api"] == name
            for together in row["needs"]
            for text in together
        }
        listed = (
            set() if needs == "nothing" else {(operation.name, place.type.name) for operation, place in rights(needs)}
        )
        assert listed == asked, name
