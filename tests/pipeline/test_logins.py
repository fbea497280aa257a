"""`format("lowtide")` over TLS as a user with few rights, who may delete from one topic only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException

from lowtide import BlockingAdminClient
from lowtide.admin.acls import Acl, AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.scram import ScramMechanism

from .conftest import run_to_its_end

USER, PASSWORD = "analyst", "pen=cil, zoë"
RIGHTS = {
    "logins-trimmed": (AclOperation.READ, AclOperation.DELETE),
    "logins-written": (AclOperation.READ, AclOperation.WRITE),
    "logins-kept": (AclOperation.READ,),
    "logins-hidden": (),
}
COUNT = 6
PATIENT = {"kafka.default.api.timeout.ms": "1800000", "kafkaConsumer.pollTimeoutMs": "1800000"}
REFUSED_WITHIN_S = 600
"""A refused login is not retried for half an hour, as an unreachable broker is."""


@pytest.fixture(scope="module")
def secured(lowtide_secure: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """The administrator's settings, and the analyst's as options; topics with records."""
    settings = lowtide_secure.for_confluent_kafka
    principal = f"User:{USER}"
    with BlockingAdminClient(settings) as admin:
        user = ScramUpsertion(mechanism=ScramMechanism.SHA_512, password=PASSWORD, salt=b"analyst")
        assert admin.alter_scram_users({USER: user}) == {USER: None}
        rules = [
            Acl(AclResourceType.TOPIC, topic, AclPattern.LITERAL, principal, "*", operation, AclPermission.ALLOW)
            for topic, operations in RIGHTS.items()
            for operation in operations
        ]
        assert not any(admin.create_acls(rules).values())
    topics = AdminClient(settings)
    for result in topics.create_topics([NewTopic(topic, 1) for topic in RIGHTS]).values():
        result.result(120)
    producer = Producer(settings)
    for number in range(COUNT):
        for topic in RIGHTS:
            producer.produce(topic, f"v{number}", partition=0)
    assert producer.flush(120) == 0
    return SimpleNamespace(settings=settings, options=options(lowtide_secure, PASSWORD), cluster=lowtide_secure)


def options(cluster: SimpleNamespace, password: str) -> dict[str, str]:
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{USER}" password="{password}";'
    return {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": cluster.for_confluent_kafka["ssl.ca.location"],
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": login,
    }


def begins(secured: SimpleNamespace, topic: str) -> int:
    """Returns the log start, as the administrator sees it."""
    consumer = Consumer({**secured.settings, "group.id": "looks"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), 30, cached=False)[0]
    finally:
        consumer.close()


@pytest.mark.slow
def test_a_stream_trims_what_it_may_delete_and_goes_on_where_it_may_not(spark, secured, tmp_path) -> None:
    read: dict[str, int] = {}
    for topic in ("logins-trimmed", "logins-kept"):
        counts: list[int] = []
        reader = spark.readStream.format("lowtide").options(
            **secured.options, subscribe=topic, startingOffsets="earliest", trim="eager"
        )
        reader = reader.option("trimTimeout", "5s")
        writer = reader.load().writeStream.foreachBatch(lambda frame, _, counts=counts: counts.append(frame.count()))
        run_to_its_end(writer.option("checkpointLocation", str(tmp_path / topic)).trigger(availableNow=True))
        read[topic] = sum(counts)
    assert read == {"logins-trimmed": COUNT, "logins-kept": COUNT}
    assert (begins(secured, "logins-trimmed"), begins(secured, "logins-kept")) == (COUNT, 0)


@pytest.mark.slow
def test_rows_are_written_where_a_rule_allows_it(spark, secured) -> None:
    rows = spark.createDataFrame([("a",), ("b",)], ["value"])
    rows.write.format("lowtide").mode("append").options(**secured.options, topic="logins-written").save()
    reader = spark.read.format("lowtide").options(**secured.options, subscribe="logins-written")
    assert {"a", "b"} < {row.value.decode() for row in reader.load().collect()}
    with pytest.raises(
        PySparkException, match="logins-kept.*TOPIC_AUTHORIZATION_FAILED|TOPIC_AUTHORIZATION_FAILED.*logins-kept"
    ):
        rows.write.format("lowtide").mode("append").options(**secured.options, topic="logins-kept").save()


@pytest.mark.parametrize("what", ["a topic without a rule", "another password"])
def test_what_is_refused_ends_the_query_soon_and_says_why(spark, secured, what: str) -> None:
    given = secured.options if "topic" in what else options(secured.cluster, "guessed")
    topic, reason = (
        ("logins-hidden", "logins-hidden")
        if "topic" in what
        else ("logins-kept", f"{USER} cannot log in with SCRAM-SHA-512")
    )
    began = time.monotonic()
    with pytest.raises(PySparkException, match=reason) as refused:
        spark.read.format("lowtide").options(**given, **PATIENT, subscribe=topic).load().collect()
    assert time.monotonic() - began < REFUSED_WITHIN_S
    assert PASSWORD not in str(refused.value)
    assert "guessed" not in str(refused.value)
