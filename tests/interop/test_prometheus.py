"""A real Prometheus scrapes three brokers: boards and alerts have data, and alerts fire when a broker is gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide import BlockingAdminClient
from lowtide.admin.quotas import DEFAULT_NAME, QuotaEntity
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.scram import ScramMechanism
from lowtide.testing.cluster import LowtideCluster

from .boards import ALL, BoardQuery
from .prometheus import FOLDER, LIMIT_S, Prometheus

pytestmark = pytest.mark.interop

PASSWORD = "for-prometheus-alone"
BOARD = json.loads((FOLDER.parent / "grafana/boards/lowtide.json").read_text(encoding="utf-8"))
TOPIC, GROUP = "clicks", "readers"


def needs(program: str) -> None:
    if shutil.which(program) is None:
        assert os.environ.get("CI_INTEROP") != "1", f"CI_INTEROP=1, but {program} is not installed"
        pytest.skip(f"{program} is not installed (Debian's package prometheus)")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    """Three brokers that are used: records, a group that is behind, and a user for Prometheus."""
    with LowtideCluster(3, config={"http.listeners": "http://127.0.0.1:0", "default.replication.factor": "3"}) as made:
        change = ScramUpsertion(mechanism=ScramMechanism.SHA_256, password=PASSWORD, salt=b"of the test")
        with BlockingAdminClient({"bootstrap.servers": made.bootstrap}) as client:
            assert client.alter_scram_users({"prometheus": change}) == {"prometheus": None}
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(60)
        producer = Producer({"bootstrap.servers": made.bootstrap, "acks": "all"})
        for number in range(3000):
            producer.produce(TOPIC, value=b"x" * 100, partition=number % 3)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": made.bootstrap, "group.id": GROUP, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition(TOPIC, number, 400) for number in range(3)], asynchronous=False)
        consumer.assign([TopicPartition(TOPIC, number, 400) for number in range(3)])
        assert consumer.consume(100, timeout=60)
        consumer.close()
        yield made


@pytest.fixture(scope="module")
def prometheus(cluster: LowtideCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    needs("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "password").write_text(PASSWORD)
    addresses = [cluster.http_addresses(broker_id)[0].removeprefix("http://") for broker_id in cluster.broker_ids]
    with Prometheus(folder, addresses, folder / "password") as running:
        running.until('count(up{job="kafka-broker"} == 1) == 3')
        yield running


@pytest.mark.parametrize(
    "asked", [pytest.param(asked, id=f"{board}-{asked.series}") for board, rows in ALL.items() for asked in rows]
)
def test_what_boards_ask_has_data(prometheus: Prometheus, asked: BoardQuery):
    prometheus.until(asked.query())


def test_every_panel_of_our_board_has_data(prometheus: Prometheus, cluster: LowtideCluster):
    """Rates need something that happens while it is scraped: of everything a little."""
    settings = {"bootstrap.servers": cluster.bootstrap}
    admin = AdminClient(settings)
    with BlockingAdminClient(settings) as client:
        limits = {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9, "request_percentage": 1e4}
        client.alter_quotas({QuotaEntity(user=DEFAULT_NAME): limits})
    admin.create_topics([NewTopic("of-panels", 1, 3)])["of-panels"].result(60)
    expressions = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 50
    end_s = time.monotonic() + LIMIT_S
    wanted, offset = dict.fromkeys(expressions), 1
    while wanted:
        assert time.monotonic() < end_s, list(wanted)
        producer = Producer(settings | {"acks": "all"})
        for _ in range(20):
            producer.produce("of-panels", value=b"x" * 1000)
        assert producer.flush(60) == 0
        consumer = Consumer(settings | {"group.id": GROUP, "enable.auto.commit": False})
        consumer.assign([TopicPartition("of-panels", 0, offset)])
        assert consumer.consume(1, timeout=60)
        consumer.commit(offsets=[TopicPartition("of-panels", 0, offset + 1)], asynchronous=False)
        consumer.close()
        [deleted] = admin.delete_records([TopicPartition("of-panels", 0, offset)]).values()
        assert deleted.result(60).low_watermark == offset
        offset += 1
        for title, expression in list(wanted):
            if prometheus.values(in_words_of_prometheus(expression)):
                del wanted[title, expression]


def in_words_of_prometheus(expression: str) -> str:
    """Sends Grafana's queries with everything selected."""
    return re.sub(r"\$(namespace|cluster|broker|topic|group)\b", ".*", expression.replace("$__rate_interval", "1m"))


def test_lag_is_what_it_is(prometheus: Prometheus):
    found = prometheus.until(f'max by (partition) (kafka_consumergroup_lag{{consumergroup="{GROUP}",topic="{TOPIC}"}})')
    assert {each["metric"]["partition"]: float(each["value"][1]) for each in found} == {
        "0": 600.0,
        "1": 600.0,
        "2": 600.0,
    }


def test_rules_work_and_only_a_broker_that_is_gone_is_told(prometheus: Prometheus, cluster: LowtideCluster):
    """This is one test because tests have no order; a restarted broker serves metrics at another port."""
    prometheus.until('kafka_controller_kafkacontroller_activecontrollercount{job="kafka-controller"}')
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 20
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert prometheus.ask("alerts")["alerts"] == []
    cluster.stop_broker(3)
    prometheus.until('ALERTS{alertname="KafkaBrokerDown",alertstate="pending"}')
    prometheus.until('ALERTS{alertname="KafkaUnderReplicatedPartitions",alertstate="pending"}')
    assert prometheus.values('ALERTS{alertname=~"KafkaNoController|KafkaOfflinePartitions",alertstate="firing"}') == []
    cluster.start_broker(3)


def test_promtool_takes_all_of_it(tmp_path: Path):
    """The configuration with its rules, and what the alerts are to do."""
    needs("promtool")
    folder = tmp_path / "prometheus"
    shutil.copytree(FOLDER, folder)
    for name in ("prometheus.yml", "compose.yml"):
        subprocess.run(["promtool", "check", "config", "--syntax-only", name], cwd=folder, check=True)
    subprocess.run(["promtool", "check", "rules", "alerts.yml", "confluent.yml"], cwd=folder, check=True)
    shutil.copy(Path(__file__).parent / "alerts_test.yml", folder)
    subprocess.run(["promtool", "test", "rules", "alerts_test.yml"], cwd=folder, check=True)
