"""The schema of a new table is chosen by a sample of its topic."""

from __future__ import annotations

import pytest

from lowtide.pipeline.options import OptionError
from lowtide.pipeline.table.sampling import chosen_kind
from tests.unit.admin.schemas.registry_server import schema_registry

OBJECT = b'{"a":1}'


def framed(number):
    return b"\0" + number.to_bytes(4, "big") + b'{"a":1}'


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([OBJECT] * 9 + [b"x"], "json"),
        ([OBJECT] * 8 + [b"x"] * 2, "raw"),
        ([b"[1]"], "raw"),
        ([b"\0\0\0\0\1x"], "raw"),
        ([b'{"a":' * 100_000], "raw"),
    ],
)
def test_without_a_registry(values, kind):
    assert chosen_kind(values) == kind


@pytest.mark.parametrize(("kind", "chosen"), [("AVRO", "avro"), ("PROTOBUF", "protobuf"), ("JSON", "json")])
def test_the_registry_says_what_its_schemas_are(registry, kind, chosen):
    number = registry.register("s", "{}", kind)
    settings = (("url", registry.url),)
    assert chosen_kind([framed(number)] * 20 + [b"x"], settings) == chosen
    assert chosen_kind([framed(number)] * 20 + [b"x"] * 5, settings) == "raw"
    assert chosen_kind([framed(number + 1)] * 20, settings) == "raw"
    assert chosen_kind([OBJECT] * 20, settings) == "json"


def test_a_registry_that_refuses_is_told():
    with schema_registry("user:pass") as served, pytest.raises(OptionError, match="status 401 Unauthorized"):
        chosen_kind([framed(1)], (("url", served.url),))
