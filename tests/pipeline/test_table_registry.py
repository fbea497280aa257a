"""`lowtide table run --registry`: what Confluent's own serializers write becomes rows, with Spark and a registry."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from lowtide.admin.schemas.protobuf_files import message_class
from lowtide.pipeline.options import OptionError
from lowtide.pipeline.table.job import TableJob
from lowtide.pipeline.table.sampling import with_schema
from lowtide.pipeline.table.schemas.decoding import PREFIX, SchemaSettings
from tests.examples import one_in
from tests.unit.admin.schemas.registry_server import SchemaRegistry, schema_registry

from .table_jobs import TABLE, LocalJobs
from .test_table_command import Command, lowtide_command

serialization = pytest.importorskip("confluent_kafka.serialization")
pytest.importorskip("confluent_kafka.schema_registry.avro", exc_type=ImportError)
pytest.importorskip("confluent_kafka.schema_registry.protobuf", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that Confluent's client uses

DEAD = f"{TABLE}_dead_letters"
AT = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
AVRO_FIELDS = [
    {"name": "carrier", "type": "string"},
    {"name": "delay", "type": ["null", "double"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
PROTOBUF = """syntax = "proto3"; package flights; import "google/protobuf/timestamp.proto";
    message Flight { string carrier = 1; optional double delay = 2; google.protobuf.Timestamp at = 3; %s }"""


@pytest.fixture
def jobs(lowtide: SimpleNamespace, topic: str, tmp_path: Path):
    made = LocalJobs(lowtide.bootstrap, topic, tmp_path)
    yield made
    made.close()


@pytest.fixture
def registry():
    with schema_registry() as made:
        yield made


def avro_values(registry: SchemaRegistry, topic: str, flights: list[dict[str, Any]], *, with_gate: bool) -> list[bytes]:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer

    more = [{"name": "gate", "type": ["null", "string"], "default": None}] if with_gate else []
    schema = {"type": "record", "name": "Flight", "fields": AVRO_FIELDS + more}
    with SchemaRegistryClient({"url": registry.url}) as client:
        write = AvroSerializer(client, json.dumps(schema))
        return [write(one, serialization.SerializationContext(topic, "value")) for one in flights]


def protobuf_values(
    registry: SchemaRegistry, topic: str, flights: list[dict[str, Any]], *, with_gate: bool
) -> list[bytes]:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    kind = message_class(PROTOBUF % ("optional string gate = 4;" if with_gate else ""), {}, (0,))
    with SchemaRegistryClient({"url": registry.url}) as client:
        write = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
        return [write(kind(**one), serialization.SerializationContext(topic, "value")) for one in flights]


VALUES = {"avro": avro_values, "protobuf": protobuf_values}


def send(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(120) == 0


def flights_of(first: int, count: int, **more: object) -> list[dict[str, Any]]:
    return [
        {"carrier": f"C{number}", "delay": None if number % 3 else number / 2, "at": AT, **more}
        for number in range(first, first + count)
    ]


def job_of(jobs: LocalJobs, kind: str, registry: SchemaRegistry) -> TableJob:
    made = jobs.job(kind)
    made._options = replace(made._options, schema=SchemaSettings(kind=kind, registry=(("url", registry.url),)))
    return made


def rows_in(jobs: LocalJobs) -> list[dict[str, Any]]:
    rows = jobs.table().scan().to_arrow().to_pylist()
    found = [{key: value for key, value in row.items() if not key.startswith(PREFIX)} for row in rows]
    return sorted(found, key=lambda row: int(row["carrier"][1:]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_values_of_confluents_serializers_become_rows(lowtide, topic, jobs, registry, tmp_path, kind):
    """First by `auto`, which asks the registry; then with a field that the writer's schema has since then."""
    where = ["-b", lowtide.bootstrap, "--catalog", f"sqlite:///{tmp_path}/catalog.db", "--table", TABLE]
    words = [*where, "--once", "--master", "local[2]", "--registry", registry.url, "-o", "json"]
    old, new = flights_of(0, 40), flights_of(40, 40, gate="B7")
    send(lowtide.bootstrap, topic, VALUES[kind](registry, topic, old, with_gate=False))
    first = json.loads(lowtide_command(tmp_path, "table", "run", topic, *words).splitlines()[0])
    assert (first["outcome"], first["rows"], first["dead_letters"]) == ("committed", 40, 0)
    assert jobs.table().properties["lowtide.schema"] == kind
    assert rows_in(jobs) == old
    unknown = (b"\0" + (4711).to_bytes(4, "big") + b"\0\0", b"neither")
    send(lowtide.bootstrap, topic, [*VALUES[kind](registry, topic, new, with_gate=True), *unknown])
    second = json.loads(lowtide_command(tmp_path, "table", "run", topic, *words).splitlines()[0])
    assert (second["rows"], second["dead_letters"]) == (40, 2)
    assert rows_in(jobs) == [{**one, "gate": None} for one in old] + new
    reasons = sorted(jobs.table(DEAD).scan().to_arrow().column("error").to_pylist())
    assert len(reasons) == 2
    assert any("4711" in one for one in reasons), reasons


@pytest.mark.parametrize("kind", one_in(2, ("avro", "protobuf")))
def test_a_table_that_needs_a_registry_is_not_continued_without_one(lowtide, topic, jobs, registry, tmp_path, kind):
    """Nothing is read, so nothing is lost and no record is dead: with the registry the job goes on."""
    send(lowtide.bootstrap, topic, VALUES[kind](registry, topic, flights_of(0, 4), with_gate=False))
    made = job_of(jobs, kind, registry)
    assert made.round().rows == 4
    send(lowtide.bootstrap, topic, VALUES[kind](registry, topic, flights_of(4, 4), with_gate=False))
    with pytest.raises(OptionError, match=rf"table db\.numbers has values of the schema {kind}.*give --registry"):
        with_schema(jobs.job("auto")._options, jobs.catalog, jobs.cluster)
    where = ["-b", lowtide.bootstrap, "--catalog", f"sqlite:///{tmp_path}/catalog.db", "--table", TABLE]
    command = Command(tmp_path, "table", "run", topic, *where, "--once")
    code, _ = command.end()
    assert code == 2
    assert "give --registry" in command.errors[-1]
    assert len(jobs.table().snapshots()) == 1
    assert made.round().rows == 4
    assert rows_in(jobs) == flights_of(0, 8)


def test_a_registry_that_is_away_repeats_the_round_and_kills_no_record(lowtide, topic, jobs, registry):
    send(lowtide.bootstrap, topic, avro_values(registry, topic, flights_of(0, 4), with_gate=False))
    made = job_of(jobs, "avro", registry)
    registry.answers += [(503, {"error_code": 503, "message": "later"})] * 100
    with pytest.raises(OSError, match="503"):
        made.round()
    assert jobs.data_files() == set()
    registry.answers.clear()
    report = made.round()
    assert (report.rows, report.dead) == (4, 0)
