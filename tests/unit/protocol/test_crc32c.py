"""CRC-32C: every form gives what a table gives, for every kind of buffer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol import crc32c as module
from lowtide.protocol.native import compiled
from tests.examples import examples

COMPILED = compiled.crc32c if compiled is not None else None
FORMS = [
    pytest.param(COMPILED, id="compiled", marks=pytest.mark.skipif(not COMPILED, reason="it is not there")),
    pytest.param(module.plain_form(), id="plain"),
]
RUN_ENDS = (0, 8, 128, 256, 384, 385, 3 * 1024, 3 * 1024 + 384 + 15, 33_000)
"""Sizes at which the compiled form begins or ends to sum three runs of bytes at the same time."""


def remainder(register: int) -> int:
    for _ in range(8):
        register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register


TABLE = [remainder(byte) for byte in range(256)]


def by_table(data: bytes, value: int = 0) -> int:
    register = value ^ 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ TABLE[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=examples(100))
@given(
    size=st.sampled_from(RUN_ENDS).flatmap(lambda end: st.integers(max(0, end - 9), end + 9)),
    skipped=st.integers(0, 8),
    value=st.integers(0, 2**32 - 1),
    random=st.randoms(use_true_random=False),
)
def test_a_checksum_is_that_of_a_table(form, size, skipped, value, random):
    """Bytes at any address, in a buffer that may change, after bytes with any checksum."""
    buffer = bytearray(random.randbytes(skipped + size))
    part = memoryview(buffer)[skipped:]
    expected = by_table(bytes(part), value)
    assert form(part, value) == expected
    assert form(bytes(part), value) == expected
    cut = random.randint(0, size)
    assert form(part[cut:], form(part[:cut], value)) == expected


@pytest.mark.parametrize("form", FORMS)
def test_known_checksums(form):
    """Those of RFC 3720, appendix B.4."""
    for data, expected in (
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ):
        assert form(data) == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrong", [(), ("text",), (None,), (7,), (b"", "x"), (b"", 0, 0)])
def test_other_arguments_are_refused(form, wrong):
    with pytest.raises(TypeError):
        form(*wrong)


@pytest.mark.skipif(not COMPILED, reason="it is not there")
@pytest.mark.parametrize("value", [-1, 2**32, 2**64])
def test_a_checksum_of_more_than_32_bits_is_refused(value):
    with pytest.raises(OverflowError):
        COMPILED(b"x", value)  # type: ignore[misc]


def test_the_compiled_form_is_used_if_it_is_there():
    assert COMPILED is None or module.crc32c is COMPILED
