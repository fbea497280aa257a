"""The JSON file of deletes.

Its form, and that an error in it is reported with line, key and reason before anything is deleted.
"""

from __future__ import annotations

import json

import pytest

from lowtide.cli.offset_file import FILE_BYTES_MAX, OffsetFileError, parse_offset_file, read_offset_file
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem

ROW = '{"topic": "t", "partition": 0, "offset": 5}'


def row(topic: str = '"t"', partition: str = "0", offset: str = "5") -> str:
    return f'{{"partitions": [{{"topic": {topic}, "partition": {partition}, "offset": {offset}}}]}}'


def refusal(content: str | bytes) -> str:
    with pytest.raises(OffsetFileError) as refused:
        parse_offset_file(content.encode() if isinstance(content, str) else content, "f.json")
    return str(refused.value)


def test_the_file_of_kafkas_tool_is_read():
    """With and without a version, keys in any order, an offset of -1 for the high watermark."""
    rows = '{"topic": "foo", "partition": 1, "offset": 1},\n {"offset": -1, "partition": 0, "topic": "b.a_r-"}'
    content = f'{{"partitions":\n  [{rows}],\n "version":1\n}}'
    expected = {TopicPartition("foo", 1): 1, TopicPartition("b.a_r-", 0): -1}
    assert parse_offset_file(content.encode(), "f.json") == expected
    assert parse_offset_file(content.replace(',\n "version":1', "").encode(), "f.json") == expected


def test_an_empty_list_deletes_nothing():
    assert parse_offset_file(b'{"partitions": [], "version": 1}', "f.json") == {}


def test_the_output_of_json_libraries_is_read():
    """Escapes, indentation, the largest values."""
    row = {"topic": "t", "partition": 2**31 - 1, "offset": 2**63 - 1}
    content = json.dumps({"version": 1, "partitions": [row]}, indent=1).replace('"t"', '"\\u0074"')
    assert parse_offset_file(content.encode(), "f.json") == {TopicPartition("t", 2**31 - 1): 2**63 - 1}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "f.json line 1, column 1: Expecting value."),
        (" \n ", "f.json line 2, column 2: Expecting value."),
        (b"\xef\xbb\xbf{}", "f.json line 1, column 1: Unexpected UTF-8 BOM"),
        (b'{\n"\xff"}', "f.json line 2: byte 3 is 0xff, which is not UTF-8."),
        ("not json", "f.json line 1, column 1: Expecting value."),
        ("[]", 'line 1: it must be an object with the key "partitions".'),
        ("{}", 'line 1: it must be an object with the key "partitions".'),
        (ROW, 'line 1: it must be an object with the key "partitions".'),
        ('{"partitions": [' + ROW, "column 60: Expecting ',' delimiter."),
        ('{"partitions": [' + ROW + "]", "Expecting ',' delimiter."),
        ('{"partitions": [' + ROW + "]} x", "Extra data."),
        ('{"partitions": [' + ROW + ",]}", "f.json line 1, column 6"),
        ('{"version": 2, "partitions": []}', '"version" is 2: only 1 is supported.'),
        ('{"version": 1.0, "partitions": []}', '"version" is 1.0: only 1 is supported.'),
        ('{"version": true, "partitions": []}', '"version" is true: only 1 is supported.'),
        ('{"version": 1, "version": 1, "partitions": []}', 'the key "version" is repeated.'),
        ('{"partitions": ' + ROW + "}", '"partitions" is ["t", 0]: it must be a list.'),
        ('{"partitions": null}', '"partitions" is null: it must be a list.'),
        ('{"partitions": [7]}', "the list contains 7: it must contain objects with topic, partition, offset."),
        ('{"partitions": [{"partitions": []}]}', 'the list contains {"partitions": []}: it must contain objects'),
        ('{"partitons": []}', 'the key "partitons" is unknown: the keys are version, partitions.'),
        (
            '{"partitions": [\n' + ROW + ",\n" + ROW + "\n]}",
            "line 3, partition 2 of the list: partition 0 of topic t is repeated.",
        ),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', 'the key "offset" is missing.'),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "offset": 1, "offset": 2}]}',
            'the key "offset" is repeated.',
        ),
        ('{"partitions": [{"topic": "t", "partition": 0, "offset": 1, "why": 2}]}', 'the key "why" is unknown'),
        ('{"partitions": [{"topic": "t", "partition": 0 "offset": 1}]}', "Expecting ',' delimiter."),
        ('{"partitions": [{"topic" "t"}]}', "Expecting ':' delimiter."),
        ('{"partitions": [{topic: "t"}]}', "Expecting property name enclosed in double quotes."),
        ('{"partitions": [{"topic": "t\nu"}]}', "Invalid control character at."),
        ('{"partitions": [{"topic": "\\x"}]}', "Invalid \\escape"),
        (row(topic="7"), '"topic" is 7: it must be a string of 1 to 249 letters'),
        (row(topic="9" * 5000), '"topic" is Infinity: it must be a string'),
        (row(topic='""'), '"topic" is "": it must be a string of 1 to 249 letters'),
        (row(topic='"a b"'), '"topic" is "a b": it must'),
        (row(partition="-1"), '"partition" is -1: it must be a whole number from 0 to 2147483647.'),
        (row(partition="2147483648"), '"partition" is 2147483648: it must be'),
        ("[" * 100_000, "f.json"),
    ],
)
def test_a_file_with_an_error_is_refused(content, sentence):
    assert sentence in refusal(content)


@pytest.mark.parametrize(
    "offset",
    [
        "5.5",
        "5.0",
        "1e3",
        "NaN",
        "Infinity",
        "-Infinity",
        "true",
        "null",
        "-2",
        "9223372036854775808",
        "9" * 5000,
    ],
)
def test_an_offset_is_a_whole_number(offset):
    """Numbers that could be rounded or have another meaning are refused."""
    sentence = refusal('{"partitions": [\n{"topic": "t", "partition": 0, "offset": ' + offset + "}]}")
    assert sentence.startswith('f.json line 2, partition 1 of the list: "offset" is ')
    assert sentence.endswith("it must be a whole number from -1 to 9223372036854775807.")
    assert len(sentence) < 200


@pytest.mark.parametrize("offset", ["05", "+5"])
def test_an_offset_has_the_form_of_a_json_number(offset):
    assert refusal(row(offset=offset)).startswith("f.json line 1, column ")


@pytest.mark.parametrize("offset", ['"5"', "[5]", "{}"])
def test_an_offset_is_no_text_or_list(offset):
    assert "it must be a whole number from -1" in refusal(row(offset=offset))


def test_a_file_cut_anywhere_is_refused():
    """A truncated copy never deletes a part."""
    content = b'{"version": 1, "partitions": [' + ROW.encode() + b', {"topic": "u", "partition": 1, "offset": 12}]}'
    for length in range(len(content)):
        assert refusal(content[:length])


def test_files_that_cannot_be_read_are_named():
    files = MemoryFileSystem()
    with pytest.raises(OffsetFileError, match=r"^gone\.json can't be read: No such file or directory\.$"):
        read_offset_file("gone.json", files)
    files.make_directories("folder")
    with pytest.raises(OffsetFileError, match=r"^folder can't be read"):
        read_offset_file("folder", files)


def test_a_file_that_is_too_large_is_not_read():
    """It is probably the wrong file; its bytes are not loaded."""
    files = MemoryFileSystem()
    file = files.open("large.json", write=True, create=True)
    file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(OffsetFileError, match="has 104857601 bytes: a file of offsets has at most 104857600"):
        read_offset_file("large.json", files)


def test_many_partitions_are_read():
    """Ten thousand, in the order of the file."""
    rows = [{"topic": f"t{number % 7}", "partition": number, "offset": number} for number in range(10_000)]
    found = parse_offset_file(json.dumps({"partitions": rows}).encode(), "f.json")
    assert list(found.items()) == [(TopicPartition(row["topic"], row["partition"]), row["offset"]) for row in rows]
