"""The language of declarations: version ranges, nullability, tags, and the mistakes that it detects."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.schema import (
    ApiMessage,
    Bytes,
    Int16,
    Int32,
    Message,
    Nullable,
    String,
    Tagged,
    Uuid,
    Versions,
    versions,
    wire_form,
)
from tests.reference_codec import reference_codec


class Inner(Message, kw_only=True):
    """A nested struct with a later field and a tag."""

    number: Int32 = 0
    later: Annotated[Int16, Versions("2+")] = 7
    note: Annotated[String | None, Tagged(3, "1+")] = None


@versions("0-3", flexible="1+")
class Sample(ApiMessage, kw_only=True):
    """All features of the language that no message uses yet, such as plain bytes and lists of ids."""

    gone: Annotated[Int32, Versions("0-1")] = 9
    blob: Annotated[Bytes | None, Nullable("2+")]
    ids: list[Uuid] = msgspec.field(default_factory=list)
    inner: Inner
    extra: Annotated[Inner | None, Tagged(0, "3+")] = None


SAMPLE = Sample(gone=5, blob=b"xyz", ids=[bytes(16), bytes(range(16))], inner=Inner(number=1, later=2, note="n"))


def test_version_ranges() -> None:
    """Both ends are inclusive."""
    assert [version in Versions("2-4") for version in (1, 2, 4, 5)] == [False, True, True, False]
    assert [version in Versions("3+") for version in (2, 3, 30_000)] == [False, True, True]
    assert [version in Versions("7") for version in (6, 7, 8)] == [False, True, False]
    assert 0 not in Versions("none")
    assert "3" not in Versions("0+")


@pytest.mark.parametrize("codec_of", [codec_for, reference_codec])
def test_each_version_by_hand(codec_of) -> None:
    """The bytes of each version: absent fields, compact encodings, tags of nested structs."""
    ids = bytes(16).hex() + bytes(range(16)).hex()
    written = {version: codec_of(Sample, version).encode(SAMPLE).hex(" ") for version in range(4)}
    assert written[0] == bytes.fromhex("00000005 00000003 78797a 00000002" + ids + "00000001").hex(" ")
    assert written[1] == bytes.fromhex("00000005 04 78797a 03" + ids + "00000001 01 03 02 026e 00").hex(" ")
    assert written[2] == bytes.fromhex("04 78797a 03" + ids + "00000001 0002 01 03 02 026e 00").hex(" ")
    assert written[3] == written[2]


@pytest.mark.parametrize("codec_of", [codec_for, reference_codec])
def test_absent_fields_take_their_defaults(codec_of) -> None:
    """A field that the version lacks is not read: it has the default of the declaration."""
    got = {}
    for version in range(4):
        codec = codec_of(Sample, version)
        frame = codec.encode(SAMPLE)
        got[version] = codec.decode(frame, 0, len(frame))
    assert (got[0].gone, got[0].inner.later, got[0].inner.note) == (5, 7, None)
    assert (got[1].gone, got[1].inner.later, got[1].inner.note) == (5, 7, "n")
    assert (got[2].gone, got[2].inner.later, got[2].inner.note) == (9, 2, "n")
    assert all(type(message.blob) is bytes and message.ids == SAMPLE.ids for message in got.values())


@pytest.mark.parametrize("codec_of", [codec_for, reference_codec])
def test_null_depends_on_the_version(codec_of) -> None:
    """`X | None` with `Nullable("2+")` may be null from version 2 on, and not before."""
    null = msgspec.structs.replace(SAMPLE, blob=None)
    codec = codec_of(Sample, 2)
    frame = codec.encode(null)
    assert codec.decode(frame, 0, len(frame)).blob is None
    with pytest.raises(ProtocolError):
        codec_of(Sample, 1).decode(b"\x00\x00\x00\x00" + frame, 0, len(frame) + 4)
    with pytest.raises(Exception, match="null|NoneType"):
        codec_of(Sample, 1).encode(null)


@pytest.mark.parametrize("codec_of", [codec_for, reference_codec])
def test_a_tagged_struct_with_tags_of_its_own(codec_of) -> None:
    """The inner section does not affect the outer one."""
    codec = codec_of(Sample, 3)
    message = msgspec.structs.replace(SAMPLE, extra=Inner(number=-1, note="deep"))
    frame = codec.encode(message)
    got = codec.decode(frame, 0, len(frame))
    assert got.extra == message.extra
    assert got.inner == message.inner


def test_codecs_are_compiled_once() -> None:
    """Compilation costs about a millisecond; a connection may ask each time."""
    assert codec_for(Sample, 1) is codec_for(Sample, 1)
    with pytest.raises(ValueError, match="Sample has the versions 0 to 3, not 4"):
        codec_for(Sample, 4)


class Place(Message, kw_only=True):
    """A struct that may be null, with a text, so that its length is not fixed, and a tag."""

    name: String
    number: Int32
    note: Annotated[String | None, Tagged(3, "1+")] = None


@versions("0-2", flexible="1+")
class Page(ApiMessage, kw_only=True):
    """A struct that may be null: after fields of fixed width, before others, and as the element of a list."""

    limit: Int16
    start: Annotated[Place | None, Nullable("0-1")]
    end: Int16
    others: list[Place | None] = msgspec.field(default_factory=list)


PLACE = Place(name="a", number=5)


@pytest.mark.parametrize("codec_of", [codec_for, reference_codec])
@pytest.mark.parametrize(
    ("version", "page", "written"),
    [
        (0, Page(limit=1, start=None, end=2), "0001 ff 0002 00000000"),
        (
            0,
            Page(limit=1, start=PLACE, end=2, others=[None, PLACE]),
            "0001 01 0001 61 00000005 0002 00000002 ff 01 0001 61 00000005",
        ),
        (1, Page(limit=1, start=None, end=2), "0001 ff 0002 01 00"),
        (
            1,
            Page(limit=1, start=PLACE, end=2, others=[PLACE, None]),
            "0001 01 02 61 00000005 00 0002 03 01 02 61 00000005 00 ff 00",
        ),
        (
            1,
            Page(limit=1, start=Place(name="", number=5, note="n"), end=2),
            "0001 01 01 00000005 01 03 02 02 6e 0002 01 00",
        ),
        (2, Page(limit=1, start=PLACE, end=2), "0001 02 61 00000005 00 0002 01 00"),
    ],
)
def test_a_struct_that_may_be_null(codec_of, version, page, written) -> None:
    """A byte before it marks null; in versions without null there is no such byte. Every cut is detected."""
    codec = codec_of(Page, version)
    frame = bytes.fromhex(written)
    assert codec.encode(page) == frame
    assert codec.decode(frame, 0, len(frame)) == page
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            codec.decode(frame, 0, end)


@pytest.mark.parametrize("codec_of", [codec_for, reference_codec])
@pytest.mark.parametrize("mark", ["00", "02", "fe", "80", "7f"])
def test_a_mark_of_neither_null_nor_struct_is_refused(codec_of, mark) -> None:
    """No writer uses such a mark; Kafka would guess."""
    frame = bytes.fromhex(f"0001 {mark} 02 61 00000005 00 0002 01 00")
    with pytest.raises(ProtocolError):
        codec_of(Page, 1).decode(frame, 0, len(frame))


@versions("0-1", flexible="none")
class WithoutDefault(ApiMessage, kw_only=True):
    """Wrong: absent in version 1, without a default."""

    number: Annotated[Int32, Versions("0")]


@versions("0-1", flexible="1+")
class TaggedTooEarly(ApiMessage, kw_only=True):
    """Wrong: a tag in a version that has no tags."""

    number: Annotated[Int32, Tagged(0, "0+")] = 0


@versions("0", flexible="none")
class NullNumber(ApiMessage, kw_only=True):
    """Wrong: a number cannot be null on this wire."""

    number: Int32 | None = None


@pytest.mark.parametrize(
    ("message", "version", "reason"),
    [(WithoutDefault, 1, "has no default"), (TaggedTooEarly, 0, "not flexible"), (NullNumber, 0, "cannot be null")],
)
def test_a_wrong_declaration_is_noticed(message, version, reason) -> None:
    """Our own mistakes fail at the first use; the tests over all versions use every declaration."""
    with pytest.raises(AssertionError, match=reason):
        wire_form(message, version)
