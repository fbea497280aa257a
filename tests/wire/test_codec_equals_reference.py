"""The compiled codec equals the construct interpreter: same bytes, values and refusals in every version."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator
from typing import IO, Any

import construct
import pytest

from lowtide.protocol.compiler import Codec, codec_for, reference_codec
from lowtide.protocol.constructs import Blob, CountedArray, Entity, TaggedFields
from lowtide.protocol.errors import ProtocolError, TooManyRowsError
from lowtide.protocol.first_rows import first_rows
from lowtide.protocol.messages.delete_records import DeleteRecordsRequest
from lowtide.protocol.primitives import unsigned_varint
from lowtide.protocol.schema import wire_form
from tests.examples import examples

ROUNDS = 12
MUTATIONS = examples(60)


def decoded(codec: Codec[Any], frame: bytes) -> Any:
    """The message, or None if it is refused; any other exception fails the test."""
    try:
        return codec.decode(frame, 0, len(frame))
    except ProtocolError:
        return None


def are_alike(one: Any, other: Any) -> bool:
    """Whether both are the same; a field of floating point may hold what does not equal itself."""
    return one == other or repr(one) == repr(other)


def test_same_bytes_and_same_values(case, random_messages) -> None:
    """Encoding, encoding in parts and decoding agree with the reference, and decoding gives back what was encoded."""
    codec, reference = codec_for(case.message, case.version), reference_codec(case.message, case.version)
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        frame = reference.encode(message)
        assert codec.encode(message) == frame
        assert b"".join(codec.encode_parts(message)) == frame
        got = codec.decode(frame, 0, len(frame))
        assert got == reference.decode(frame, 0, len(frame))
        assert codec.encode(got) == frame


def test_a_frame_in_the_middle_of_a_buffer(case, random_messages) -> None:
    """The codec reads from `start` to `end` of bytes, a bytearray or a memoryview, whole or in part."""
    codec = codec_for(case.message, case.version)
    message = random_messages.message(case)
    frame = codec.encode(message)
    padded = b"\x01\x02\x03" + frame + b"\x04" * 40
    want = codec.decode(frame, 0, len(frame))
    for buffer in (padded, bytearray(padded), memoryview(padded), memoryview(bytearray(padded))):
        assert codec.decode(buffer, 3, 3 + len(frame)) == want
    assert codec.decode(memoryview(padded)[3:], 0, len(frame)) == want


def run(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    """The result of a generator, and how often it yields before."""
    yields = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, yields
        yields += 1


@pytest.mark.newest
def test_forms_that_count_and_yield_agree(case, random_messages) -> None:
    """With a row limit and in slices the result is the same, and one row fewer exceeds the limit."""
    codec, rng = codec_for(case.message, case.version), random.Random(str(case))
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        frame = codec.encode(message)
        got = codec.decode(frame, 0, len(frame))
        (sliced, rows), _ = run(codec.decode_sliced(frame, 0, len(frame), len(frame)))
        assert sliced == got
        assert codec.decode_counted(frame, 0, len(frame), rows) == got
        if rows:
            with pytest.raises(TooManyRowsError):
                codec.decode_counted(frame, 0, len(frame), rows - 1)
            with pytest.raises(TooManyRowsError):
                run(codec.decode_sliced(frame, 0, len(frame), rows - 1))
        parts, _ = run(codec.encode_sliced(message))
        assert b"".join(parts) == frame
        broken = bytearray(frame)
        for place in range(rng.randrange(4) if frame else 0):
            broken[rng.randrange(len(frame))] = place
        expected = decoded(codec, bytes(broken))
        try:
            assert codec.decode_counted(broken, 0, len(broken), len(broken)) == expected
            assert run(codec.decode_sliced(broken, 0, len(broken), len(broken)))[0][0] == expected
        except ProtocolError:
            assert expected is None


def without_bytes(form: Entity, value: Any) -> Any:
    """The message without what `first_rows` skips: fields of bytes, records and tags."""
    return form.make(**{name: plain_value(content, getattr(value, name)) for name, content in form.fields})


def plain_value(content: Any, value: Any) -> Any:
    if value is None or isinstance(content, Blob):
        return None if value is None else b""
    if isinstance(content, CountedArray):
        return [plain_value(content.element, each) for each in value]
    return without_bytes(content, value) if isinstance(content, Entity) else value


@pytest.mark.newest
def test_the_first_rows_are_those_of_the_message(case, random_messages) -> None:
    """All rows if there is room; no error before the last row that is read; invalid bytes are refused as such."""
    codec, form, rng = (
        codec_for(case.message, case.version),
        wire_form(case.message, case.version),
        random.Random(str(case)),
    )
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        frame = codec.encode(message)
        (got, rows), _ = run(codec.decode_sliced(frame, 0, len(frame), len(frame)))
        assert run(first_rows(form, b"\x07" + frame, 1, 1 + len(frame), rows))[0] == without_bytes(form, got)
        run(first_rows(form, frame, 0, len(frame), rng.randrange(rows + 1)))
        broken = bytearray(frame)
        for place in range(rng.randrange(1, 4) if frame else 0):
            broken[rng.randrange(len(frame))] = place
        with contextlib.suppress(ProtocolError):
            run(first_rows(form, broken, 0, len(broken), rows))


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
    """Put `NoisyTags` into every struct of the tree."""
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
def test_unknown_tags_are_passed_over(case, random_messages, request) -> None:
    """Tagged fields of a later Kafka change nothing for us, wherever in the message they stand (KIP-482)."""
    codec = codec_for(case.message, case.version)
    noisy = wire_form(case.message, case.version)
    make_noisy(noisy, random.Random(request.node.name))
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        plain, frame = codec.encode(message), noisy.build(message)
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
@pytest.mark.seeds
def test_mutations_are_read_or_refused_alike(case, random_messages, request) -> None:
    """For any input of a broken or hostile peer, both codecs read the same or both refuse with a ProtocolError."""
    rng = random.Random(request.node.name)
    codec, reference = codec_for(case.message, case.version), reference_codec(case.message, case.version)
    for _ in range(4):
        frame = codec.encode(random_messages.message(case))
        for _ in range(MUTATIONS // 4):
            wrong = mutated(frame, rng)
            assert are_alike(decoded(codec, wrong), decoded(reference, wrong)), wrong.hex()


def test_the_reference_is_a_construct() -> None:
    """The declarations can be used with the construct library's own tools, and have the list of versions."""
    form = wire_form(DeleteRecordsRequest, 0)
    assert isinstance(form, construct.Construct)
    assert form.parse(bytes(8)) == DeleteRecordsRequest(topics=[], timeout_ms=0)
    with pytest.raises(ValueError, match="0 to 3, not 4"):
        wire_form(DeleteRecordsRequest, 4)
