"""The audit log of a real broker: who was refused, who changed and deleted what, and no password."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from lowtide import LowtideCluster
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.frames import Frames

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MARKER = "marker-password-7f3a"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = f'{PLAIN} user_admin="{MARKER}-admin" user_alice="{MARKER}-alice";'


class Broker:
    """A broker with logins, rules and an audit log."""

    def __init__(self, cluster: LowtideCluster, path: Path) -> None:
        self.cluster, self.path = cluster, path

    def admin(self, user: str, password: str) -> AdminClient:
        return AdminClient(self.settings(user, password))

    def settings(self, user: str, password: str) -> dict[str, Any]:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }
        return {"bootstrap.servers": self.cluster.bootstrap, "client.id": f"client-of-{user}", **login}

    def lines(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Waits for lines of an event with these values, which are written beside the answer."""
        deadline = time.monotonic() + 20
        while True:
            wanted = {"event": event, **fields}.items()
            found = [
                line
                for line in map(json.loads, self.path.read_text().splitlines())
                if all(line.get(k) == v for k, v in wanted)
            ]
            if found or time.monotonic() > deadline:
                assert found, event
                return found
            time.sleep(0.02)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path = tmp_path_factory.mktemp("audit") / "audit.log"
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "authorizer.class.name": STANDARD,
        "super.users": "User:admin",
        "lowtide.audit.log": "file",
        "lowtide.audit.file": str(path),
        "lowtide.audit.events": "logins,logins-refused,denied,changes,deletes",
    }
    with LowtideCluster(config=config) as cluster:
        yield Broker(cluster, path)


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    client = broker.admin("admin", f"{MARKER}-admin")
    client.create_topics([NewTopic("orders", 1)])["orders"].result(30)
    producer = Producer(broker.settings("admin", f"{MARKER}-admin"))
    for _ in range(10):
        producer.produce("orders", b"x")
    assert producer.flush(30) == 0
    return client


def test_a_delete_is_a_line_with_who_and_what(broker: Broker, admin: AdminClient) -> None:
    admin.delete_records([TopicPartition("orders", 0, 7)])[TopicPartition("orders", 0)].result(30)
    (line,) = broker.lines("records deleted")
    assert len(line.pop("topic_id")) == 22
    assert line.pop("timestamp").endswith("Z")
    assert line.pop("correlation_id") > 0
    assert line == {
        "event": "records deleted",
        "node_id": 0,
        "principal": "User:admin",
        "host": "127.0.0.1",
        "client_id": "client-of-admin",
        "topic": "orders",
        "partition": 0,
        "requested_offset": 7,
        "old_log_start_offset": 0,
        "log_start_offset": 7,
        "low_watermark": 7,
        "result": "NONE",
    }
    assert stat.S_IMODE(broker.path.stat().st_mode) == 0o600


def test_refusals_and_denials_are_lines_and_filters_are_not(broker: Broker, admin: AdminClient) -> None:
    alice = broker.admin("alice", f"{MARKER}-alice")
    assert "orders" not in alice.list_topics(timeout=20).topics
    with pytest.raises(KafkaException):
        broker.admin("alice", f"{MARKER}-wrong").list_topics(timeout=3)
    with pytest.raises(KafkaException):
        alice.delete_topics(["orders"])["orders"].result(30)
    (denied,) = broker.lines("operation denied")
    assert (denied["principal"], denied["operation"], denied["resource"]) == ("User:alice", "DESCRIBE", "TOPIC:orders")
    refused = broker.lines("login refused")
    assert all(line["listener"] == "SASL_PLAINTEXT" and "alice" in line["reason"] for line in refused)


def test_changes_are_lines_without_their_secrets(broker: Broker, admin: AdminClient) -> None:
    topic = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    topic.add_incremental_config(ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([topic])[topic].result(30)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion("carol", info, f"{MARKER}-carol".encode(), f"{MARKER}-salt".encode())
    admin.alter_user_scram_credentials([upsertion])["carol"].result(30)
    rule = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([rule])[rule].result(30)
    (changed,) = broker.lines("configuration changed")
    assert changed["configs"] == [{"key": "retention.ms", "operation": "SET", "value": "1000"}]
    (user,) = broker.lines("user changed")
    assert (user["user"], user["change"], user["result"]) == ("carol", "set", "NONE")
    (acl,) = broker.lines("acl created")
    assert (acl["acl"]["principal"], acl["acl"]["operation"], acl["result"]) == ("User:bob", "READ", "NONE")


def test_a_changed_feature_is_a_line(broker: Broker, admin: AdminClient) -> None:
    """No client for Python has this request."""
    request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature="no.such.feature", max_version_level=1)])
    with Frames(broker.cluster.bootstrap) as frames:
        assert frames.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        assert frames.ask(SaslAuthenticateRequest(auth_bytes=f"\0admin\0{MARKER}-admin".encode()), 2).error_code == 0
        assert frames.ask(request, 2).error_code == ErrorCode.INVALID_UPDATE_VERSION
    (line,) = broker.lines("feature changed")
    assert (line["principal"], line["feature"], line["level"], line["result"]) == (
        "User:admin",
        "no.such.feature",
        1,
        "INVALID_UPDATE_VERSION",
    )


def test_a_deleted_topic_is_a_line_and_no_password_is_in_the_file(broker: Broker, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("old", 1)])["old"].result(30)
    admin.delete_topics(["old"])["old"].result(30)
    assert [(line["principal"], line["result"]) for line in broker.lines("topic deleted", topic="old")] == [
        ("User:admin", "NONE")
    ]
    broker.lines("login accepted")
    assert MARKER not in broker.path.read_text()


def test_each_broker_of_a_cluster_has_a_file_of_its_own(tmp_path: Path) -> None:
    """The file is in the log directory, and continued after a restart; another broker's file is refused."""
    config = {"lowtide.audit.log": "file", "lowtide.audit.file": "audit.log"}
    with LowtideCluster(brokers=2, data_directory=tmp_path, config=config) as cluster:
        client = AdminClient({"bootstrap.servers": cluster.bootstrap})
        client.create_topics([NewTopic("a", 1), NewTopic("b", 1)])["b"].result(30)
        client.delete_topics(["a"])["a"].result(30)
        cluster.restart()
        client.delete_topics(["b"])["b"].result(30)
    files = list(tmp_path.rglob("audit.log"))
    assert len(files) == 2
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {line["topic"] for line in lines if line["event"] == "topic deleted"} == {"a", "b"}
    config["lowtide.audit.file"] = str(tmp_path / "audit.log")
    with pytest.raises(OSError, match="is the audit log of another broker"), LowtideCluster(brokers=2, config=config):
        pass
