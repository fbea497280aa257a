"""kafka-configs for users, clients and addresses, unmodified: SCRAM credentials and quotas.

Lowtide answers as Apache Kafka does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .lowtide_process import LowtideProcess
from .secured_kafka import SecuredKafka
from .tools import Tools

pytestmark = pytest.mark.interop

ALICE = ("--entity-type", "users", "--entity-name", "ali=ce")
EVERY_USER = ("--entity-type", "users", "--entity-default")
CLIENT = ("--entity-type", "clients", "--entity-name", "c1")
ADDRESS = ("--entity-type", "ips", "--entity-name", "10.0.0.7")
EVERY_ADDRESS = ("--entity-type", "ips", "--entity-default")

STORY: tuple[tuple[str, ...], ...] = (
    (
        "--alter",
        *ALICE,
        "--add-config",
        "SCRAM-SHA-256=[iterations=8192,password=one],SCRAM-SHA-512=[password=two]",
    ),  # One at a time.
    ("--alter", *ALICE, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=one]"),
    ("--alter", *ALICE, "--add-config", "SCRAM-SHA-512=[password=two]"),
    ("--describe", *ALICE),
    ("--alter", *ALICE, "--delete-config", "SCRAM-SHA-512"),
    ("--describe", *ALICE),
    ("--alter", *ALICE, "--delete-config", "SCRAM-SHA-512"),
    ("--alter", *ALICE, "--add-config", "SCRAM-SHA-512=[iterations=20000,password=four]"),
    ("--alter", *ALICE, "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048"),
    ("--alter", *ALICE, *CLIENT, "--add-config", "request_percentage=12.5"),
    ("--alter", *EVERY_USER, *CLIENT, "--add-config", "controller_mutation_rate=3"),
    ("--alter", *EVERY_USER, "--add-config", "producer_byte_rate=4096"),
    ("--describe", *ALICE),
    ("--describe", *ALICE, *CLIENT),
    ("--describe", *EVERY_USER),
    ("--describe", *EVERY_USER, *CLIENT),
    ("--describe", *CLIENT),
    ("--alter", *ALICE, "--delete-config", "producer_byte_rate"),
    ("--describe", *ALICE),
    ("--alter", *ALICE, "--add-config", "producer_byte_rate=-1"),
    ("--alter", *ADDRESS, "--add-config", "connection_creation_rate=10"),
    ("--alter", *EVERY_ADDRESS, "--add-config", "connection_creation_rate=100"),
    ("--describe", *ADDRESS),
    ("--describe", *EVERY_ADDRESS),
    ("--alter", *ADDRESS, "--delete-config", "connection_creation_rate"),
    ("--describe", "--entity-type", "ips"),
)


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> LowtideProcess:
    """One that no other test changes."""
    return LowtideProcess(tmp_path_factory.mktemp("users") / "data")


def ordered(line: str) -> str:
    """Returns a line with its list sorted: Kafka's order depends on the hashes of one run."""
    head, are, listed = line.partition(" are ")
    return f"{head}{are}{', '.join(sorted(listed.split(', ')))}"


def printed(tools: Tools) -> list[str]:
    """Returns what the tool prints in the scenario, with only the classes of errors: brokers word them differently."""
    found = []
    for words in STORY:
        ran = tools.call("kafka-configs", *words)
        causes = re.findall(r"^Caused by: ([\w.]+)", ran.err, re.MULTILINE)
        found.append(f"{' '.join(words)}: {ran.exit_code} {sorted(map(ordered, ran.lines))} {causes}")
    return found


def test_users_and_quotas_are_set_and_shown_as_by_kafka(
    jars: Path, own_broker: LowtideProcess, secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs = printed(Tools(jars, secured.node.bootstrap, tmp_path_factory.mktemp("jvm")))
    with own_broker as broker:
        ours = printed(Tools(jars, broker.bootstrap, tmp_path_factory.mktemp("jvm")))
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []
    assert "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096" in ours[3]
    assert "SCRAM-SHA-512" not in ours[5]
