"""kafka-acls, unmodified, against a running Lowtide with an authorizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .lowtide_process import LowtideProcess
from .tools import Tools

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """One where every client is an administrator, until there are logins."""
    settings = {
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data", **settings) as process:
        yield process


@pytest.fixture(scope="module")
def tools(jars: Path, broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(jars, broker.bootstrap, tmp_path_factory.mktemp("jvm"))


def listed(tools: Tools, *words: str) -> str:
    return tools.run("kafka-acls", "--list", *words).out


def test_kafkas_tool_adds_lists_and_removes_rules(tools: Tools) -> None:
    """Covers shorthands for producers and consumers, prefixes, denials by host, and rules that match a topic."""
    tools.run("kafka-acls", "--add", "--allow-principal", "User:alice", "--producer", "--topic", "flights")
    tools.run(
        "kafka-acls", "--add", "--allow-principal", "User:bob", "--consumer", "--topic", "flights", "--group", "etl"
    )
    prefixed = ("--resource-pattern-type", "prefixed")
    tools.run(
        "kafka-acls",
        "--add",
        "--deny-principal",
        "User:*",
        "--deny-host",
        "10.0.0.7",
        "--operation",
        "Delete",
        "--topic",
        "fl",
        *prefixed,
    )
    everything = listed(tools)
    assert "resourceType=TOPIC, name=flights, patternType=LITERAL" in everything
    assert "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW" in everything
    assert "resourceType=GROUP, name=etl, patternType=LITERAL" in everything
    matching = listed(tools, "--topic", "flights", "--resource-pattern-type", "match")
    assert "principal=User:*, host=10.0.0.7, operation=DELETE, permissionType=DENY" in matching
    assert "etl" not in matching
    of_alice = listed(tools, "--principal", "User:alice")
    assert "User:bob" not in of_alice
    tools.run("kafka-acls", "--remove", "--force", "--topic", "fl", *prefixed)
    tools.run("kafka-acls", "--remove", "--force", "--topic", "flights")
    tools.run("kafka-acls", "--remove", "--force", "--group", "etl")
    assert listed(tools).strip() == ""


def test_what_is_refused_is_said(tools: Tools) -> None:
    refused = tools.call("kafka-acls", "--add", "--allow-principal", "alice", "--operation", "Read", "--topic", "t")
    assert refused.exit_code == 1
