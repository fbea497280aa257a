"""Certificates are replaced under load over mutual TLS: no error, and new connections see the new ones."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide import LowtideCluster

from .certificate_files import WAIT_S, issue, serial_of, shown_serial, trust, wait_for_another

RENEWAL_MS = 100
RECORD = b"x" * 1000
IN_FLIGHT_MAX = 2_000
TOPIC = "t"


class Traffic:
    """A producer and a consumer that run beside the test, and everything that they report."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.errors: list[str] = []
        self.sent = self.delivered = self.received = 0
        common = settings | {"error_cb": self._on_error, "log_level": 0}
        self._producer = Producer(common | {"linger.ms": 2})
        self._consumer = Consumer(common | {"group.id": "g", "auto.offset.reset": "earliest"})
        self._consumer.subscribe([TOPIC])
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]
        for thread in self._threads:
            thread.start()

    def _on_error(self, error: KafkaError) -> None:
        self.errors.append(str(error))

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._on_error(error)

    def _produce(self) -> None:
        while not self._stopping.is_set():
            if self.sent - self.received < IN_FLIGHT_MAX:
                self._producer.produce(TOPIC, RECORD, on_delivery=self._on_delivery)
                self.sent += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.01)
        self._producer.flush(WAIT_S)

    def _consume(self) -> None:
        give_up = None
        while not (self._stopping.is_set() and self.received >= self.sent):
            for message in self._consumer.consume(500, timeout=0.1):
                error = message.error()
                if error is None:
                    self.received += 1
                else:
                    self._on_error(error)
            if self._stopping.is_set():
                give_up = give_up or time.monotonic() + WAIT_S
                if time.monotonic() > give_up:
                    break
        self._consumer.close()

    def wait_for_more(self) -> None:
        """Waits until records are acknowledged that were sent after this call."""
        sent, give_up = self.sent, time.monotonic() + WAIT_S
        while self.received <= sent and time.monotonic() < give_up:
            time.sleep(0.01)
        assert self.received > sent, self.errors

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("rounds", [2, 50])
@pytest.mark.slow
def test_certificates_are_replaced_under_load(tmp_path: Path, rounds: int) -> None:
    """Replaced by a new one, a broken one, and one of another authority; the trust stores have both authorities."""
    authorities = (trustme.CA(), trustme.CA())
    trust(tmp_path, *authorities)
    issue(authorities[0], tmp_path)
    issue(authorities[1], tmp_path, file="client.pem", common_name="client")
    config = {
        "listeners": "SSL://127.0.0.1:0",
        "listener.security.protocol.map": "SSL:SSL",
        "inter.broker.listener.name": "SSL",
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "lowtide.tls.reload.interval.ms": str(RENEWAL_MS),
    }
    with LowtideCluster(config=config) as cluster:
        port = cluster.ports(cluster.broker_ids[0])["SSL"]
        client = str(tmp_path / "client.pem")
        settings: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.location": client,
            "ssl.key.location": client,
        }
        # A consumer that subscribes before the topic exists reports that it does not.
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(WAIT_S)
        traffic = Traffic(settings)
        try:
            traffic.wait_for_more()
            for number in range(rounds):
                before = shown_serial(port, client)
                issue(authorities[number % 2], tmp_path)
                assert wait_for_another(port, before, client) == serial_of(tmp_path / "server.pem")
                AdminClient(settings).list_topics(timeout=WAIT_S)
                good = shown_serial(port, client)
                (tmp_path / "server.pem").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
                traffic.wait_for_more()
                assert shown_serial(port, client) == good
                traffic.wait_for_more()
        finally:
            traffic.stop()
    assert traffic.errors == []
    assert traffic.delivered == traffic.received == traffic.sent > 0
