"""Values that Confluent's own serializers wrote are decoded: theirs is the wire format that others use."""

from __future__ import annotations

import json

import pytest

from lowtide.admin.schemas.protobuf_files import message_class

from .record_batches import GrowingTable

serialization = pytest.importorskip("confluent_kafka.serialization")
pytest.importorskip("confluent_kafka.schema_registry.avro", exc_type=ImportError)
pytest.importorskip("confluent_kafka.schema_registry.protobuf", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that Confluent's client uses


@pytest.fixture
def client(registry):
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with SchemaRegistryClient({"url": registry.url}) as opened:
        yield opened


CONTEXT = serialization.SerializationContext("topic", serialization.MessageField.VALUE)


def read(kind, registry, values):
    rows, dead = GrowingTable(kind, (), (("url", registry.url),)).values(*values)
    assert not dead
    return list(rows.values())


def test_avro(registry, client):
    from confluent_kafka.schema_registry.avro import AvroSerializer

    schema = {
        "type": "record",
        "name": "Flight",
        "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "double"]}],
    }
    serializer = AvroSerializer(client, json.dumps(schema))
    flights = [{"carrier": "UA", "delay": 1.5}, {"carrier": "AA", "delay": None}]
    assert read("avro", registry, [serializer(one, CONTEXT) for one in flights]) == flights


@pytest.mark.parametrize("indexes", [(0,), (1,), (1, 0)])
def test_protobuf(registry, client, indexes):
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    text = """syntax = "proto3"; package confluent_interop;
        import "google/protobuf/timestamp.proto";
        message A { string x = 1; google.protobuf.Timestamp t = 2; }
        message B { string x = 1; message C { string x = 1; repeated int64 more = 2; } }"""
    found = message_class(text, {}, indexes)
    serializer = ProtobufSerializer(found, client, {"use.deprecated.format": False})
    rows = read("protobuf", registry, [serializer(found(x=one), CONTEXT) for one in ("a", "b")])
    assert [row["x"] for row in rows] == ["a", "b"]


def test_json_schema(registry, client):
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    schema = {"title": "Flight", "type": "object", "properties": {"carrier": {"type": "string"}}}
    serializer = JSONSerializer(json.dumps(schema), client)
    assert read("json", registry, [serializer({"carrier": "UA"}, CONTEXT)]) == [{"carrier": "UA"}]
