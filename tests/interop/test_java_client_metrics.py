"""Metrics pushed by Java clients (KIP-714): subscribed with kafka-client-metrics, shown at /metrics."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.free_ports import free_ports

from .lowtide_process import LowtideProcess
from .tools import JavaClient, Tools

pytestmark = pytest.mark.interop

LIMIT_S = 60.0
SUBSCRIBE = ("--alter", "--name", "of-producers", "--interval", "1000", "--match", "client_id=push.*")


@pytest.fixture(scope="module")
def port() -> int:
    [port] = free_ports(1)
    return port


@pytest.fixture(scope="module")
def broker(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    with LowtideProcess(
        tmp_path_factory.mktemp("lowtide") / "data", http_listeners=f"http://127.0.0.1:{port}", http_trust_local="true"
    ) as process:
        yield process


def test_subscriptions_are_set_listed_and_deleted(tools: Tools) -> None:
    altered = tools.run("kafka-client-metrics", *SUBSCRIBE, "--metrics", "org.apache.kafka.producer.")
    assert altered.lines == ["Altered client metrics config for of-producers."]
    assert tools.run("kafka-client-metrics", "--list").lines == ["of-producers"]
    head, *keys = tools.run("kafka-client-metrics", "--describe", "--name", "of-producers").lines
    assert head == "Client metrics configs for of-producers are:"
    assert {line.split()[0] for line in keys if line.strip()} == {
        "interval.ms=1000",
        "match=client_id=push.*",
        "metrics=org.apache.kafka.producer.",
    }
    assert tools.run("kafka-client-metrics", "--delete", "--name", "of-producers").exit_code == 0
    assert [line for line in tools.run("kafka-client-metrics", "--list").lines if line.strip()] == []


def test_what_a_java_producer_pushes_is_on_the_page_until_it_is_silent(
    tools: Tools, java_client: JavaClient, port: int
) -> None:
    tools.run("kafka-client-metrics", *SUBSCRIBE, "--metrics", "org.apache.kafka.producer.")
    command = java_client.command("telemetry")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        instance = json.loads(client.stdout.readline())
        assert instance["what"] == "instance", instance
        client.stdin.write("\n")
        client.stdin.flush()
        found = pushed_until(port, wanted=True)
        client.stdin.close()
        assert json.loads(client.stdout.readline())["what"] == "closed"
    names = {labels["metric"] for labels, _ in found}
    assert "org.apache.kafka.producer.record.send.total" in names
    assert all(name.startswith("org.apache.kafka.producer.") for name in names)
    assert {labels["client_instance_id"] for labels, _ in found} == {instance["id"]}
    assert {(labels["client_id"], labels["client_software_name"]) for labels, _ in found} == {
        ("pushes", "apache-kafka-java")
    }
    assert pushed_until(port, wanted=False) == []


def pushed_until(port: int, *, wanted: bool) -> list[tuple[dict[str, str], float]]:
    """Returns the series of clients, once there are some, or none any more."""
    end_s = time.monotonic() + LIMIT_S
    while bool(found := pushed(port)) is not wanted:
        assert time.monotonic() < end_s, found
        time.sleep(0.5)
    return found


def pushed(port: int) -> list[tuple[dict[str, str], float]]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return [
        (sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "lowtide_client_metric"
    ]
