"""Messages read and written a part at a time have the rows of the whole ones, for every API whose requests are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from lowtide.broker.network.request_parts import CUTS, CutRequest, Split, split_for
from lowtide.protocol.api_keys import API
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError, TooManyRowsError
from lowtide.protocol.row_decoder import RowDecoder, RowLimits, Tails
from lowtide.protocol.row_encoder import RowEncoder, row_levels

from .conftest import Case

SPLITS = [
    split
    for key in sorted(CUTS)
    for version in range(API[key].min_version, API[key].max_version + 1)
    if (split := split_for(key, version)) is not None
]
ROUNDS = 15
PART_ROWS = 3


def flat(message: Any, fields: tuple[str, ...], around: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The innermost rows, each with those around it; a row without any counts as one."""
    if not fields:
        yield (*around, message)
        return
    rows = getattr(message, fields[0])
    bare = replace(message, **{fields[0]: []})
    if not rows:
        yield (*around, bare)
    for row in rows or ():
        yield from flat(row, fields[1:], (*around, bare))


def parts_of(
    decode: RowDecoder, frame: bytes, field: str, tails: Tails, rows_max: int = 10**6
) -> tuple[list[Any], Any, int]:
    steps, parts = decode(frame, 0, len(frame), RowLimits(rows_max, 10**6, PART_ROWS), tails), []
    try:
        while True:
            part = next(steps)
            parts += [] if part is None else [part]
    except StopIteration as end:
        message, rows = end.value
    return [*parts, getattr(message, field)], message, rows


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split.key.name}-v{split.version}")
def test_the_parts_of_a_request_are_the_request(split: Split, random_messages) -> None:
    """Each has the fields of the whole; malformed bytes are refused as in one piece."""
    case = Case(split.key, API[split.key].request, split.version)
    decode, codec, rng = split.decoder(), codec_for(case.message, case.version), random.Random(str(case))
    field = split.fields[0]
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        frame = codec.encode(message)
        want = codec.decode(frame, 0, len(frame))
        tails: Tails = []
        _, _, rows = parts_of(decode, frame, field, tails)
        parts, last, again = parts_of(decode, frame, field, tails)
        assert rows == again
        if split.apart:
            others, only, found = parts_of(split.decoder_apart(), frame, split.apart[0], [])
            assert (found, getattr(only, field), getattr(last, split.apart[0])) == (rows, [], [])
            wanted_apart = list(flat(want, split.apart))
            want = replace(want, **{split.apart[0]: []})
            kept = [replace(want, **{field: [], split.apart[0]: other}) for other in others if other]
            assert not kept or [row for each in kept for row in flat(each, split.apart)] == [
                (replace(row[0], **{field: []}), *row[1:]) for row in wanted_apart
            ]
        assert getattr(want, field) or last == want
        requests = [replace(last, **{field: part}) for part in parts if part]
        assert not requests or [row for part in requests for row in flat(part, split.fields)] == list(
            flat(want, split.fields)
        )
        if rows:
            with pytest.raises(TooManyRowsError):
                parts_of(decode, frame, field, [], rows - 1)
        broken = bytearray(frame)
        for place in range(rng.randrange(1, 4) if frame else 0):
            broken[rng.randrange(len(frame))] = place
        try:
            codec.decode_counted(bytes(broken), 0, len(broken), 10**6)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                parts_of(decode, bytes(broken), field, [])
        else:
            parts_of(decode, bytes(broken), field, [])


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split.key.name}-v{split.version}")
def test_the_joined_parts_of_an_answer_are_the_answer(split: Split, random_messages) -> None:
    """Whether they were parted between rows or within one.

    A row that lacks rows may be one with the row before, which has its name.
    """
    case = Case(split.key, API[split.key].response, split.version)
    fields = split.cut.answer_fields
    codec, levels, rng = (
        codec_for(case.message, case.version),
        row_levels(case.message, case.version, fields),
        random.Random(str(case)),
    )
    for _ in range(ROUNDS):
        message = random_messages.message(case)
        if getattr(message, fields[0]) is None:
            continue
        encoder = RowEncoder(levels)
        for part in parted(message, fields, rng):
            for _ in encoder.add(part):
                pass
        joined = b"".join(encoder.finish())
        got, want = (
            list(flat(each, fields)) for each in (codec.decode(joined, 0, len(joined)), decoded(codec, message))
        )
        assert [row for row in got if len(row) > len(fields)] == [row for row in want if len(row) > len(fields)]


def decoded(codec: Any, message: Any) -> Any:
    frame = codec.encode(message)
    return codec.decode(frame, 0, len(frame))


def parted(message: Any, fields: tuple[str, ...], rng: random.Random) -> Iterator[Any]:
    """The message with some of its rows, then with the next ones; now and then one row is in both."""
    rows = list(getattr(message, fields[0]))
    while len(rows) > 1 or (rows and len(fields) > 1 and len(getattr(rows[0], fields[1]) or ()) > 1):
        inner = (getattr(rows[0], fields[1]) or []) if len(fields) > 1 else []
        if len(inner) > 1 and rng.random() < 0.7:
            yield replace(message, **{fields[0]: [replace(rows[0], **{fields[1]: inner[:1]})]})
            rows[0] = replace(rows[0], **{fields[1]: inner[1:]})
        else:
            count = rng.randrange(1, len(rows) + 1)
            yield replace(message, **{fields[0]: rows[:count]})
            del rows[:count]
    yield replace(message, **{fields[0]: rows})


def read_in_parts(split: Split, frame: bytes) -> tuple[CutRequest, list[Any]]:
    """A request that was read in parts, and all that was read of it."""
    request = CutRequest(split, (memoryview(frame), 0, len(frame)), RowLimits(10**6, 10**6, PART_ROWS), lambda: 1)
    rows = list(request.look())
    return request, [rows, request.bare, request.rows, request.size, list(request.parts()), list(request.apart())]


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split.key.name}-v{split.version}")
def test_what_is_behind_a_request_that_is_cut_is_passed_over(split: Split, random_messages) -> None:
    case = Case(split.key, API[split.key].request, split.version)
    codec = codec_for(case.message, case.version)
    for tail in (b"\0", b"\1" * 40):
        frame = codec.encode(random_messages.message(case))
        exact, want = read_in_parts(split, frame)
        longer, found = read_in_parts(split, frame + tail)
        assert (exact.has_surplus, longer.has_surplus) == (False, True)
        assert found == want
