"""The compiled, the generated and the interpreted codec are equal, for every API and version."""

from __future__ import annotations

import random
from bisect import bisect_left
from functools import partial
from typing import IO, Any

import construct
import pytest

from lowtide.protocol import native
from lowtide.protocol.compiler import Codec, codec_for, plain_codec, shape_of
from lowtide.protocol.constructs import CountedArray, Entity, TaggedFields
from lowtide.protocol.errors import ProtocolError, TooManyRowsError
from lowtide.protocol.messages.delete_records import DeleteRecordsRequest
from lowtide.protocol.primitives import unsigned_varint
from lowtide.protocol.schema import wire_form
from tests.examples import examples, rounds
from tests.reference_codec import reference_codec

from .conftest import Case, RandomMessages, each_case

pytestmark = pytest.mark.seeds

ROUNDS = rounds(12)
MUTATIONS = examples(60)


def codecs(case: Any) -> tuple[Codec[Any], Codec[Any]]:
    """Returns the codec that is used, compiled where that was built, and the one in generated Python."""
    return codec_for(case.message, case.version), plain_codec(case.message, case.version)


def decoded(codec: Codec[Any], frame: bytes) -> Any:
    """Returns the message, or None if it is refused; any other exception fails the test."""
    try:
        return codec.decode(frame, 0, len(frame))
    except ProtocolError:
        return None


def are_alike(one: Any, other: Any) -> bool:
    """Returns whether both are equal; a NaN in a field of floating point equals itself here."""
    return one == other or repr(one) == repr(other)


@each_case
def test_same_bytes_and_same_values(case: Case, seed: str) -> None:
    """Encoding, encoding in parts and decoding agree with the reference, and decoding gives back what was encoded."""
    random_messages = RandomMessages(seed)
    reference = reference_codec(case.message, case.version)
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        frame = reference.encode(message)
        for codec in codecs(case):
            assert codec.encode(message) == frame
            assert b"".join(codec.encode_parts(message)) == frame
            got = codec.decode(frame, 0, len(frame))
            assert got == reference.decode(frame, 0, len(frame))
            assert codec.encode(got) == frame


@pytest.mark.newest
@each_case
def test_a_frame_in_the_middle_of_a_buffer(case: Case, seed: str) -> None:
    """The codec reads from `start` to `end` of bytes, a bytearray or a memoryview, whole or in part."""
    random_messages = RandomMessages(seed)
    message = random_messages.message(case)
    for codec in codecs(case):
        frame = codec.encode(message)
        padded = b"\x01\x02\x03" + frame + b"\x04" * 40
        want = codec.decode(frame, 0, len(frame))
        for buffer in (padded, bytearray(padded), memoryview(padded), memoryview(bytearray(padded))):
            assert codec.decode(buffer, 3, 3 + len(frame)) == want
        assert codec.decode(memoryview(padded)[3:], 0, len(frame)) == want


@pytest.mark.newest
@each_case
def test_a_limit_of_rows(case: Case, seed: str) -> None:
    """All forms count the same rows, and refuse a message that has one more than the limit."""
    random_messages = RandomMessages(seed)
    codec, plain = codecs(case)
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        frame = codec.encode(message)
        rows = bisect_left(range(len(frame)), True, key=partial(is_taken, plain, frame))
        assert is_taken(plain, frame, rows)
        assert not rows or not is_taken(plain, frame, rows - 1)
        assert is_taken(codec, frame, rows)
        assert not rows or not is_taken(codec, frame, rows - 1)


def is_taken(codec: Codec[Any], frame: bytes, rows_max: int) -> bool:
    """Returns whether the message has at most so many rows."""
    try:
        codec.decode(frame, 0, len(frame), rows_max)
    except TooManyRowsError:
        return False
    return True


@pytest.mark.newest
@pytest.mark.skipif(native.compiled is None, reason="there is no compiled module")
@each_case
def test_the_compiled_form_takes_what_is_sound(case: Case, seed: str) -> None:
    """Generated Python is needed for faults only: every sound message is decoded and encoded by the compiled module."""

    random_messages = RandomMessages(seed)

    def plain(name: str) -> Any:
        pytest.fail(f"the compiled form left {name} to generated Python")

    compiled = native.compiled.Codec(shape_of(wire_form(case.message, case.version)), plain)
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        frame = compiled.encode(message)
        assert compiled.decode(memoryview(frame), 0, len(frame)) == plain_codec(case.message, case.version).decode(
            frame, 0, len(frame)
        )
        assert b"".join(compiled.encode_frame(7, message, True)) == (
            (len(frame) + 5).to_bytes(4, "big") + b"\0\0\0\x07\0" + frame
        )


class NoisyTags(TaggedFields):
    """Builds sections with unknown tags, some of them empty, behind the known ones."""

    def __init__(self, inner: TaggedFields, rng: random.Random) -> None:
        super().__init__(list(inner.fields.values()))
        self._rng = rng

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        known = [
            (field.tag, field.content.build(getattr(obj, field.name)))
            for field in self.fields.values()
            if not field.is_absent(getattr(obj, field.name))
        ]
        unknown = [
            (tag, self._rng.randbytes(size))
            for tag, size in ((9, 0), (130, 5), (70_000, 200))
            if self._rng.random() < 0.4
        ]
        sections = known + unknown
        stream.write(unsigned_varint(len(sections)))
        for tag, content in sections:
            stream.write(unsigned_varint(tag) + unsigned_varint(len(content)) + content)
        return obj


def make_noisy(content: Any, rng: random.Random) -> None:
    """Puts `NoisyTags` into every struct of the tree."""
    if isinstance(content, CountedArray):
        make_noisy(content.element, rng)
    elif isinstance(content, Entity):
        for _, field in content.fields:
            make_noisy(field, rng)
        if content.tags is not None:
            for tagged in content.tags.fields.values():
                make_noisy(tagged.content, rng)
            content.tags = NoisyTags(content.tags, rng)


@pytest.mark.newest
@each_case
def test_unknown_tags_are_passed_over(case: Case, seed: str) -> None:
    """Unknown tagged fields of a later Kafka are ignored anywhere in a message (KIP-482)."""
    random_messages = RandomMessages(seed)
    noisy = wire_form(case.message, case.version)
    make_noisy(noisy, random.Random(seed))
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        frame = noisy.build(message)
        for codec in codecs(case):
            plain = codec.encode(message)
            assert codec.decode(frame, 0, len(frame)) == codec.decode(plain, 0, len(plain))


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """One to three small changes anywhere in the frame."""
    changed = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        where = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if where < len(changed):
                changed[where] ^= 1 << rng.randrange(8)
            case 1:
                changed[where:where] = rng.randbytes(rng.randint(1, 3))
            case 2:
                del changed[where : where + rng.randint(1, 4)]
            case 3:
                changed[where : where + 4] = rng.choice(
                    (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", bytes(4))
                )
            case _:
                changed[where : where + 1] = rng.choice(
                    (b"\x00", b"\x01", b"\x02", b"\x80\x00", b"\xff\xff\xff\xff\x0f", b"\xff")
                )
    return bytes(changed)


@pytest.mark.newest
@each_case
def test_mutations_are_read_or_refused_alike(case: Case, seed: str) -> None:
    """For any input, all codecs read the same message, or all raise ProtocolError."""
    random_messages = RandomMessages(seed)
    rng = random.Random(seed)
    reference = reference_codec(case.message, case.version)
    for _ in range(4):
        frame = reference.encode(random_messages.message(case))
        for _ in range(MUTATIONS // 4):
            wrong = mutated(frame, rng)
            for codec in codecs(case):
                assert are_alike(decoded(codec, wrong), decoded(reference, wrong)), wrong.hex()


def test_the_reference_is_a_construct() -> None:
    """The declarations can be used with the construct library's own tools, and have the list of versions."""
    form = wire_form(DeleteRecordsRequest, 0)
    assert isinstance(form, construct.Construct)
    assert form.parse(bytes(8)) == DeleteRecordsRequest(topics=[], timeout_ms=0)
    with pytest.raises(ValueError, match="0 to 3, not 4"):
        wire_form(DeleteRecordsRequest, 4)
