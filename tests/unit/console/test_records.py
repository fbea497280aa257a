"""Records are shown unchanged, up to a limit, for any contents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.console.answers import RefusedError
from lowtide.console.records import HEADERS_MAX, SHOWN_BYTES_MAX, content, records_page
from lowtide.console.searches import search_request
from tests.unit.admin.searched_log import TOPIC, Log, LogClient


def page(log: Log, **given: Any) -> dict[str, Any]:
    client: Any = LogClient({0: log})
    return asyncio.run(records_page(client, {"topic": TOPIC, "partition": 0, **given}))


def log_of(*values: bytes | None) -> Log:
    log = Log()
    headers = [(b"h", b"v")] * (HEADERS_MAX + 5)
    log.append([(1000 + index, b"k", value, headers) for index, value in enumerate(values)])
    return log


def test_rows_are_those_that_are_asked_for():
    found = page(log_of(b"a", b"b", b"c", b"d"), place="offset", value="1", count=2)
    rows = found["records"]
    assert [row["offset"] for row in rows] == [1, 2]
    assert (found["first"], found["next"], found["complete"]) == (1, 3, True)
    assert rows[0]["value"]["text"] == "b"
    assert len(rows[0]["headers"]) == HEADERS_MAX
    assert rows[0]["headers_left_out"] == 5


def test_the_newest_rows_come_in_their_order():
    found = page(log_of(b"a", b"b", b"c", b"d"), place="before", value="3", count=2)
    assert [row["offset"] for row in found["records"]] == [1, 2]
    assert (found["first"], found["next"], found["log_start"], found["high_watermark"]) == (1, 3, 0, 4)


def test_a_damaged_batch_is_said():
    log = log_of(b"a" * 100)
    damaged = bytearray(log.batches[0].content)
    damaged[-1] ^= 1
    log.batches[0] = log.batches[0]._replace(content=bytes(damaged))
    with pytest.raises(RefusedError, match="its CRC is wrong"):
        page(log)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"where": "a >"}, 'The filter "a >" is not JMESPath: it ends too early.'),
        ({"header": "=x"}, "The header '=x' must be NAME=VALUE, or NAME for any value."),
        ({"order": "up"}, "order must be one of newest, oldest."),
        ({"time": "yesterday-ish"}, "yesterday-ish"),
        ({"offsets": {"a": 1}}, "partition must be a whole number"),
        ({"offsets": {}}, "offsets must be an object"),
        ({"text": 7}, "text must be a string"),
        ({"count": 10_000}, "count must be a whole number from 1 to 200."),
    ],
)
def test_a_bad_search_is_refused_with_a_sentence(given: dict[str, Any], sentence: str):
    with pytest.raises(RefusedError) as caught:
        search_request({"topic": TOPIC, **given})
    assert sentence in caught.value.sentence
    assert caught.value.sentence.endswith(".")


def test_bytes_come_in_every_form_that_they_have():
    assert content(None) is None
    assert content(b"\xff\x00") == {"bytes": 2, "hex": "ff00"}
    assert content(b"<b>") == {"bytes": 3, "hex": "3c623e", "text": "<b>"}
    assert content(b'{"a":1}') == {"bytes": 7, "hex": b'{"a":1}'.hex(), "text": '{"a":1}', "json": '{\n  "a": 1\n}'}


@pytest.mark.parametrize("value", [b"[" * 5000, b'{"a":' + b"9" * 5000 + b"}", b"[1,", b"{", b"[\xed\xa0\x80]"])
def test_what_is_no_readable_json_is_a_text_or_bytes(value: bytes):
    assert "json" not in (content(value) or {})


def test_a_long_value_is_cut():
    shown = content(b"x" * (SHOWN_BYTES_MAX + 1))
    assert shown is not None
    assert shown["bytes"] == SHOWN_BYTES_MAX + 1
    assert len(shown["text"]) == SHOWN_BYTES_MAX
    assert len(shown["hex"]) == 2 * SHOWN_BYTES_MAX
