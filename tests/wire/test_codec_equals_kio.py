"""The codec agrees with kio, an independent implementation generated from Kafka's own message definitions.

kio lacks DeleteRecords version 3 (KIP-1343), the versions and requests that are new in Kafka 4.4, and those of Lowtide
alone.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import io
import uuid
from typing import Any

import msgspec
import pytest
from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from lowtide.protocol.api_keys import API, FIRST_OF_OURS, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.constructs import CountedArray, Entity, NullableEntity
from lowtide.protocol.schema import wire_form
from lowtide.protocol.types import ZERO_TOPIC_ID
from tests.examples import rounds

from .conftest import Case, RandomMessages, each_case

pytestmark = pytest.mark.seeds

ROUNDS = rounds(8)
UNKNOWN = {
    (ApiKey.API_VERSIONS, 5),
    (ApiKey.DELETE_GROUPS, 3),
    (ApiKey.DELETE_RECORDS, 3),
    (ApiKey.TXN_OFFSET_COMMIT, 6),
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 1),
    (ApiKey.STREAMS_GROUP_DESCRIBE, 1),
    (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0),
}
OLDER_NAMES = {
    "generation_id_or_member_epoch": "generation_id",
    "acceptable_recovery_lag_legacy": "acceptable_recovery_lag",
}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)


def plain(value: Any) -> Any:
    """Returns a value of kio in the form of ours: milliseconds, lists, sixteen bytes."""
    if isinstance(value, dt.timedelta):
        return value // MILLISECOND
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, enum.Enum):
        return value.value
    return value


def assert_same(form: Any, ours: Any, theirs: Any) -> None:
    """Compares field by field in wire order: names differ a little, and kio has None for the zero uuid."""
    if isinstance(form, CountedArray) and ours is not None:
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(form.element, mine, other)
    elif isinstance(form, NullableEntity) and ours is None:
        assert theirs is None
    elif isinstance(form, Entity):
        ours = form.make() if ours is None else ours
        forms = dict(form.fields) | {
            field.name: field.content for field in (form.tags.fields.values() if form.tags else ())
        }
        names = [name for name in msgspec.structs.asdict(ours) if name in forms]
        fields = [field.name for field in dataclasses.fields(theirs)]
        assert len(names) == len(fields), f"{names} and {fields}"
        for name, field in zip(names, fields, strict=True):
            assert field.removesuffix("_ms") in (name.removesuffix("_ms"), OLDER_NAMES.get(name)), (
                f"{names} and {fields}"
            )
            assert_same(forms[name], getattr(ours, name), getattr(theirs, field))
    else:
        assert ours == (ZERO_TOPIC_ID if theirs is None and ours == ZERO_TOPIC_ID else plain(theirs))


@pytest.mark.newest
@each_case
def test_same_bytes_and_values_as_kio(case: Case, seed: str) -> None:
    """kio reads our bytes to the same values and writes the same bytes; we read what kio writes."""
    tame_messages = RandomMessages(seed, is_tame=True)
    if case.api_key >= FIRST_OF_OURS:
        return
    load = load_request_schema if case.message is API[ApiKey(case.api_key)].request else load_response_schema
    if (case.api_key, case.version) in UNKNOWN:
        with pytest.raises((UnknownEntity, UnknownAPIKey)):
            load(case.api_key, case.version)
        return
    schema = load(case.api_key, case.version)
    read, write = entity_reader(schema), entity_writer(schema)
    codec = codec_for(case.message, case.version)
    form = wire_form(case.message, case.version)
    for _ in range(ROUNDS):
        message = tame_messages.message(case)
        frame = codec.encode(message)
        theirs, size = read(frame, 0)
        assert size == len(frame)
        assert_same(form, message, theirs)
        stream = io.BytesIO()
        write(stream, theirs)
        assert stream.getvalue() == frame
