"""Lines that become records: the three forms, and what is no record."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.cli.outcome import CommandError
from lowtide.cli.produce import LINE_BYTES_MAX, lines_of
from lowtide.cli.record_format import Form, record_value
from lowtide.cli.record_lines import LineError, LineForm, LineReader
from lowtide.protocol.key_hash import murmur2, partition_of_key
from lowtide.protocol.records import Record

NOW_MS = 1_600_000_000_000


def read(line: bytes, form: LineForm = LineForm.TEXT, **options):
    return LineReader(form=form, **options).read(line, NOW_MS)


@pytest.mark.parametrize(
    ("line", "options", "expected"),
    [
        (b"a value", {}, (NOW_MS, None, b"a value", [])),
        (b"\xff\x00", {"key": "k"}, (NOW_MS, b"k", b"\xff\x00", [])),
        (b"k::v:w", {"separator": "::"}, (NOW_MS, b"k", b"v:w", [])),
        (b"v", {"headers": ["a=b=c", "d="]}, (NOW_MS, None, b"v", [(b"a", b"b=c"), (b"d", b"")])),
        (b"00ff", {"form": LineForm.HEX, "key": "6b"}, (NOW_MS, b"k", b"\x00\xff", [])),
        (b"6b 00", {"form": LineForm.HEX, "separator": " "}, (NOW_MS, b"k", b"\x00", [])),
        (b'{"value": null, "key": "k"}', {"form": LineForm.JSON}, (NOW_MS, b"k", None, [])),
        (b'{"value": [1, "\xc3\xa4"], "timestamp": 7}', {"form": LineForm.JSON}, (7, None, '[1,"ä"]'.encode(), [])),
        (
            b'{"value": "", "headers": [{"name": "h", "value": 1}]}',
            {"form": LineForm.JSON},
            (NOW_MS, None, b"", [(b"h", b"1")]),
        ),
    ],
)
def test_a_line_is_a_record(line, options, expected):
    assert read(line, **options) == expected


@pytest.mark.parametrize("form", [Form.TEXT, Form.JSON])
def test_what_show_prints_is_what_produce_reads(form):
    """Records of texts, or of JSON with `--format json`, are copied from topic to topic."""
    record = Record(7, NOW_MS, b"UA", b'{"flight":1}', [(b"h", b"v")])
    line = msgspec.json.encode(record_value(record, form))
    assert read(line, LineForm.JSON) == (NOW_MS, b"UA", b'{"flight":1}', [(b"h", b"v")])


@pytest.mark.parametrize(
    ("line", "options", "reason"),
    [
        (b"no colon", {"separator": ":"}, "it lacks the separator ':'"),
        (b"0g", {"form": LineForm.HEX}, "it must be hex digits, two for each byte"),
        (b"\xe4\xe4", {"form": LineForm.HEX}, "it must be hex digits"),
        (b"value", {"form": LineForm.JSON}, "it is not JSON"),
        (b'{"value": 1', {"form": LineForm.JSON}, "it is not JSON"),
        (b'{"value": "\xff"}', {"form": LineForm.JSON}, "it is not JSON (it is not UTF-8 text)"),
        (b'{"value": ' + b"[" * 100_000, {"form": LineForm.JSON}, "it is not JSON (it is nested too deeply)"),
        (b'"text"', {"form": LineForm.JSON}, 'it must be an object with "value"'),
        (b'{"key": 1}', {"form": LineForm.JSON}, 'it must be an object with "value"'),
        (b'{"value": 1, "vlaue": 2}', {"form": LineForm.JSON}, 'it must be an object with "value"'),
        (b'{"value": 1, "timestamp": "now"}', {"form": LineForm.JSON}, '"timestamp" must be milliseconds since 1970'),
        (b'{"value": 1, "timestamp": -1}', {"form": LineForm.JSON}, '"timestamp" must be milliseconds since 1970'),
        (b'{"value": 1, "headers": {"a": "b"}}', {"form": LineForm.JSON}, '"headers" must be a list of objects'),
        (
            b'{"value": 1, "headers": [{"name": 1, "value": "b"}]}',
            {"form": LineForm.JSON},
            '"headers" must be a list of objects',
        ),
    ],
)
def test_a_line_that_is_no_record_is_named(line, options, reason):
    """With its number, and no more of it than fits into a message."""
    reader = LineReader(**{"form": LineForm.TEXT, **options})
    with pytest.raises(LineError, match=r"^line 1, '.*', is not a record: ") as caught:
        reader.read(line, NOW_MS)
    assert reason in str(caught.value)
    with pytest.raises(LineError, match="^line 2, ") as caught:
        reader.read(line[:1] + b"\x80" * 10_000, NOW_MS)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"separator": ":", "key": "k"}, "--separator and --key exclude each other"),
        ({"separator": ":", "form": LineForm.JSON}, "--separator and --format json exclude each other"),
        ({"separator": ""}, "--separator is empty"),
        ({"headers": ["novalue"]}, "--header novalue is invalid: it must be NAME=TEXT"),
        ({"key": "xy", "form": LineForm.HEX}, "--key xy is invalid: it must be hex digits"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        LineReader(**{"form": LineForm.TEXT, **options})


@pytest.mark.parametrize("piece", [1, 2, 3, 100])
def test_lines_are_whole_however_they_come(piece):
    text = b"one\r\n\ntwo\nlast"
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    assert [line for lines in lines_of(pieces) for line in lines] == [b"one", b"", b"two", b"last"]
    assert list(lines_of([])) == []
    assert list(lines_of([b"whole\n"])) == [[b"whole"]]


def test_a_line_has_a_limit():
    """Of a file without line ends no more is held in memory."""
    held = 0

    def endless():
        nonlocal held
        while True:
            held += 1 << 20
            yield b"x" * (1 << 20)

    with pytest.raises(CommandError, match="a line is longer than"):
        list(lines_of(endless()))
    assert held <= LINE_BYTES_MAX + (1 << 20)


@pytest.mark.parametrize(
    ("key", "signed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_a_key_has_the_hash_that_kafkas_own_test_expects(key, signed):
    """Source: Kafka's UtilsTest.testMurmur2."""
    assert murmur2(key) == signed % (1 << 32)
    assert partition_of_key(key, 7) == (signed & 0x7FFF_FFFF) % 7
