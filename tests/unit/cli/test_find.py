"""How `lowtide records find` reads what to find, and shortens what was found."""

from __future__ import annotations

import io
from pathlib import Path
from unittest.mock import patch

import pytest

from lowtide.cli.find import KeyFormat, selector_of, shortened
from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.protocol.offset_ranges import OffsetRange


class StandardInput:
    """Standard input with some bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize(
    ("content", "key_format", "keys"),
    [
        (b"one\ntwo\n", KeyFormat.TEXT, {b"one", b"two"}),
        (b"\none\r\n\n two \none", KeyFormat.TEXT, {b"one", b" two "}),
        ("müde\n".encode(), KeyFormat.TEXT, {"müde".encode()}),
        (b"\xef\xbb\xbfone\ntwo\n", KeyFormat.TEXT, {b"one", b"two"}),
        (b"00ff\n6b\n", KeyFormat.HEX, {b"\x00\xff", b"k"}),
        (b"AP8=\n", KeyFormat.BASE64, {b"\x00\xff"}),
    ],
)
def test_each_line_is_a_key(content: bytes, key_format: KeyFormat, keys: set[bytes], tmp_path: Path) -> None:
    """Protects people whose keys are given in a file, or by another program."""
    with patch("sys.stdin", StandardInput(content)):
        assert selector_of([], "-", None, key_format).keys == keys
    (tmp_path / "keys").write_bytes(content)
    assert selector_of([], str(tmp_path / "keys"), None, key_format).keys == keys


@pytest.mark.parametrize(
    ("content", "key_format", "reason"),
    [
        (b"", KeyFormat.TEXT, "standard input has no key"),
        (b"\n\n", KeyFormat.TEXT, "standard input has no key"),
        (b"\xff\xfe", KeyFormat.TEXT, "is not UTF-8"),
        (b"6b\nsecret", KeyFormat.HEX, "line 2 is not hex"),
        (b"secret!", KeyFormat.BASE64, "line 1 is not base64"),
        (b"".join(b"secret%d\n" % number for number in range(1001)), KeyFormat.TEXT, "1001 keys"),
        (b"x" * (1 << 20) + b"y", KeyFormat.TEXT, "more than 1048576 bytes"),
        (b"\n" * (5 << 20), KeyFormat.TEXT, "more than 4194304 bytes"),
    ],
)
def test_bad_keys_are_refused_without_repeating_them(content: bytes, key_format: KeyFormat, reason: str) -> None:
    """Protects the person, whose key must not get into logs of terminals and jobs."""
    with patch("sys.stdin", StandardInput(content)), pytest.raises(CommandError, match=reason) as caught:
        selector_of([], "-", None, key_format)
    assert caught.value.code == ExitCode.MISUSED
    assert "secret" not in str(caught.value)


def test_a_header_has_a_name_and_a_value() -> None:
    """Protects values with an equals sign, and empty ones."""
    assert selector_of([], None, "who=a=b", KeyFormat.TEXT).header == ("who", b"a=b")
    assert selector_of([], None, "who=", KeyFormat.TEXT).header == ("who", b"")
    with pytest.raises(CommandError, match="NAME=VALUE"):
        selector_of([], None, "who", KeyFormat.TEXT)
    assert "who" not in repr(selector_of([], None, "who=x", KeyFormat.TEXT))


def test_offsets_are_shortened() -> None:
    """Protects the table from a row of a thousand offsets."""
    assert shortened([]) == ""
    assert shortened([OffsetRange(3, 3), OffsetRange(7, 9)]) == "3, 7-9"
    assert shortened([OffsetRange(each * 2, each * 2) for each in range(9)]) == "0, 2, 4, 6, …"
    assert shortened([OffsetRange(1, 1)], has_more=True) == "1, …"
