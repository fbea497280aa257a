"""Keys and headers that are searched and erased are in no log line, file, metric or error of the brokers."""

from __future__ import annotations

import base64
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lowtide.admin import BlockingAdminClient, NewTopic, PartitionErasure, TopicPartition
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.find_records import FindRecordsPartition, FindRecordsRequest, FindRecordsTopic
from lowtide.testing.cluster import LowtideCluster
from tests.frames import Frames

from .replica_files import files_with

KEY_BYTES = 12


def forms(secret: bytes) -> list[bytes]:
    """Returns how a text could show the secret."""
    whole = {secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode()}
    for skipped in range(3):  # Base64 of something that contains it, at each of the three alignments.
        coded = base64.b64encode(bytes(skipped) + secret)
        whole |= {coded[4 if skipped else 0 : len(coded) - 4], base64.urlsafe_b64encode(secret).rstrip(b"=")}
    return sorted(whole)


@pytest.fixture
def cluster() -> Iterator[LowtideCluster]:
    config = {
        "lowtide.log.level": "TRACE",
        "lowtide.audit.log": "file",
        "lowtide.audit.file": "audit.log",
        "lowtide.audit.events": "logins,logins-refused,denied,changes,deletes",
        "http.listeners": "http://127.0.0.1:0",
        "http.trust.local": "true",
    }
    with LowtideCluster(brokers=3, config=config) as cluster:
        yield cluster


class Topic:
    """A topic with records of the person, each with the key and the header."""

    def __init__(self, cluster: LowtideCluster) -> None:
        self.key, self.header = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20, "compression.type": "zstd"})
        for number in range(500):
            headers = [("who", self.header)] if number % 50 == 7 else []
            producer.produce("t", b"v" * 50, self.key if number % 50 == 3 else b"other", partition=0, headers=headers)
        assert producer.flush(30) == 0


def broken_requests(bootstrap: str, topic: Topic) -> list[str]:
    """Sends requests with the selectors that are refused. Returns what the broker said."""
    row = FindRecordsPartition(partition_index=0)
    both = {"header_name": b"who", "header_value": topic.header}
    said = []
    for fields in (
        {"keys": [topic.key], **both},
        {"keys": [topic.key, bytes(1 << 17)]},
        {"keys": [topic.key] * 2, "commitment": topic.key},
        {"keys": [topic.key], "ranges_max": -1},
        {"keys": [topic.key], "replica_epoch": 7},
        {"keys": [topic.key + bytes([each % 256, each // 256]) for each in range(2_000)]},
        {**both, "timeout_ms": 0, "erase": True},
    ):
        topics = [FindRecordsTopic(name="t", partitions=[row])]
        values = {"search_id": secrets.token_bytes(16), "topics": topics, "timeout_ms": 0} | fields
        with Frames(bootstrap) as frames:
            try:
                said.append(str(frames.ask(FindRecordsRequest(**values), 1)))
            except ConnectionError as error:
                said.append(str(error))
    with Frames(bootstrap) as frames:  # A frame that ends in the middle of the key.
        body = request_header(ApiKey.FIND_RECORDS, 1, 7, "c") + topic.key
        frames.send(body)
    return said


def test_selectors_are_in_no_line_file_metric_or_error(cluster: LowtideCluster) -> None:
    said: list[str] = []
    place, missing = TopicPartition("t", 0), TopicPartition("missing", 0)
    first = cluster.bootstrap.split(",", maxsplit=1)[0]
    with BlockingAdminClient(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name="t", partitions=1, replication_factor=3)])
        topic = Topic(cluster)
        said += [str(admin.find_records([place, missing], keys=[topic.key]))]
        said += [str(admin.find_records([place], header=("who", topic.header)))]
        said += broken_requests(first, topic)
        for selector in ({"keys": [topic.key]}, {"header": ("who", topic.header)}):
            erased = admin.erase_records([place, missing], **selector)
            assert isinstance(erased[place], PartitionErasure)
            assert dict(erased[place].not_erased_by) == {}
            said.append(str(erased))
        said += [
            urllib.request.urlopen(f"{address}/metrics").read().decode()
            for broker_id in cluster.broker_ids
            for address in cluster.http_addresses(broker_id)
        ]
        said.append(cluster.log())
        for secret in (topic.key, topic.header):
            for folders in ("t-*", "__lowtide_erasures-*"):
                assert files_with(cluster, secret, folders) == [], "also decompressed"
    texts = [each.encode() for each in said]
    files = {path: path.read_bytes() for path in Path(cluster.data_directory).rglob("*") if path.is_file()}
    assert any("audit" in path.name and content for path, content in files.items())
    assert any(b"records erased" in content or b"erase" in content for content in files.values())
    for secret in (topic.key, topic.header):
        for form in forms(secret):
            assert [text[:200] for text in texts if form in text] == [], form
            assert [str(path) for path, content in files.items() if form in content] == [], form
