"""Clusters with logins and rules, visited by three users of a console: an administrator, a reader, and nobody.

The reader may describe and read one of two topics, describe one of two groups, and nothing else. Nobody has no rights.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from lowtide.testing.cluster import LowtideCluster
from tests.clients.driver import until
from tests.free_ports import free_ports

from .kafka import CLUSTER_ID, TOOL_TIMEOUT_S, Kafka, java

ADMIN, READER, NOBODY = "admin", "reader", "nobody"
VISIBLE, HIDDEN = "visible-topic", "hidden-topic"
VISIBLE_GROUP, HIDDEN_GROUP = "visible-group", "hidden-group"
SECRET = "value-of-the-hidden-topic"
SHOWN = "value-of-the-visible-topic"
LIMIT_S = 60.0

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PROPERTIES = f"""
listeners=PLAINTEXT://127.0.0.1:{{plain}},CONTROLLER://127.0.0.1:{{controller}},LOGINS://127.0.0.1:{{logins}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{plain}},LOGINS://127.0.0.1:{{logins}}
listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGINS:SASL_PLAINTEXT
inter.broker.listener.name=LOGINS
sasl.enabled.mechanisms=PLAIN
listener.name.logins.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.logins.plain.sasl.jaas.config={PLAIN} username="root" password="roots" user_root="roots";
listener.name.logins.scram-sha-512.sasl.jaas.config={SCRAM};
listener.name.controller.plain.sasl.jaas.config={PLAIN} username="root" password="roots" user_root="roots";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{ADMIN};User:root
delegation.token.secret.key=the secret of all brokers
group.initial.rebalance.delay.ms=0
"""


class Visited(NamedTuple):
    """A cluster that the three users can log in to."""

    bootstrap: str
    client_settings: dict[str, str]
    """Those of a console with `--login cluster`, with Kafka's names."""
    passwords: dict[str, str]


@contextmanager
def secure_lowtide() -> Iterator[Visited]:
    """Lowtide with SASL_SSL and an authorizer."""
    with LowtideCluster(secure=True) as cluster:
        given = cluster.for_confluent_kafka
        passwords = {ADMIN: given["sasl.password"], READER: "readers", NOBODY: "nobodys"}
        prepare(given, passwords)
        yield Visited(
            cluster.bootstrap,
            {
                "security.protocol": "SASL_SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": given["ssl.ca.location"],
            },
            passwords,
        )


@contextmanager
def secure_kafka(jars: Path, folder: Path) -> Iterator[Visited]:
    """Apache Kafka with SCRAM logins and its StandardAuthorizer."""
    plain, controller, logins = free_ports(3)
    node = Kafka(jars, folder, (plain, controller), settings=("node.id=0",))  # The id of the broker of Lowtide.
    properties = folder / "server.properties"
    with properties.open("a") as file:
        file.write(PROPERTIES.format(plain=plain, controller=controller, logins=logins))
    shutil.rmtree(node.directory)
    first = f"--add-scram=SCRAM-SHA-512=[name={ADMIN},password=admins]"
    command = java(jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), first)
    subprocess.run(command, check=True, capture_output=True, timeout=TOOL_TIMEOUT_S)
    passwords = {ADMIN: "admins", READER: "readers", NOBODY: "nobodys"}
    bootstrap = f"127.0.0.1:{logins}"
    given = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": ADMIN,
        "sasl.password": passwords[ADMIN],
    }
    try:
        node.start()
        prepare(given, passwords)
        yield Visited(bootstrap, {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}, passwords)
    finally:
        node.stop()


def prepare(settings: dict[str, Any], passwords: dict[str, str]) -> None:
    """Creates users, rules, topics with records, and groups, as the administrator."""
    admin = AdminClient(settings)
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upserts = [
        UserScramCredentialUpsertion(name, credential, password.encode())
        for name, password in passwords.items()
        if name != ADMIN
    ]
    for future in admin.alter_user_scram_credentials(upserts).values():
        future.result(LIMIT_S)
    rules = [
        rule(ResourceType.TOPIC, VISIBLE, AclOperation.READ),
        rule(ResourceType.GROUP, VISIBLE_GROUP, AclOperation.DESCRIBE),
    ]
    for done in admin.create_acls(rules).values():
        done.result(LIMIT_S)
    for created in admin.create_topics([NewTopic(VISIBLE, 2, 1), NewTopic(HIDDEN, 1, 1)]).values():
        created.result(LIMIT_S)
    producer = Producer(settings)
    for topic, value in ((VISIBLE, SHOWN), (HIDDEN, SECRET)):
        for number in range(20):
            producer.produce(topic, f'{{"text": "{value}", "number": {number}}}'.encode(), key=b"key", partition=0)
    assert producer.flush(LIMIT_S) == 0
    for group, topic in ((VISIBLE_GROUP, VISIBLE), (HIDDEN_GROUP, HIDDEN)):
        consumer = Consumer({**settings, "group.id": group, "enable.auto.commit": False})
        until(lambda: commits(consumer, topic))
        consumer.close()


def rule(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{READER}", "*", operation, AclPermissionType.ALLOW
    )


def commits(consumer: Consumer, topic: str) -> bool:
    """Returns whether a commit is taken: the first one meets a coordinator that has still to be elected."""
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    except KafkaException:
        return False
    return True
