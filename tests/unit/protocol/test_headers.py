"""Request and response headers: which form belongs to which version, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.api_keys import API, ApiKey, request_header_is_flexible, response_header_is_flexible
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import (
    read_request_header,
    read_response_header,
    request_header,
    response_header,
)

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)

RANGES = {
    0: (3, 13, 9),
    1: (4, 18, 12),
    2: (1, 11, 6),
    3: (0, 13, 9),
    8: (2, 10, 8),
    9: (1, 10, 6),
    10: (0, 6, 3),
    11: (0, 9, 6),
    12: (0, 4, 4),
    13: (0, 5, 4),
    14: (0, 5, 4),
    15: (0, 6, 5),
    16: (0, 5, 3),
    17: (0, 1, 2),
    18: (0, 5, 3),
    19: (2, 7, 5),
    20: (1, 6, 4),
    21: (0, 3, 2),
    22: (0, 5, 2),
    23: (2, 4, 4),
    24: (0, 5, 3),
    25: (0, 4, 3),
    26: (0, 5, 3),
    27: (1, 2, 1),
    28: (0, 6, 3),
    29: (1, 3, 2),
    30: (1, 3, 2),
    31: (1, 3, 2),
    32: (1, 4, 4),
    33: (0, 2, 2),
    34: (1, 2, 2),
    35: (1, 5, 2),
    36: (0, 2, 2),
    37: (0, 3, 2),
    38: (1, 3, 2),
    39: (1, 2, 2),
    40: (1, 2, 2),
    41: (1, 3, 2),
    42: (0, 3, 2),
    43: (0, 2, 2),
    44: (0, 1, 1),
    45: (0, 1, 0),
    46: (0, 0, 0),
    47: (0, 0, 1),
    48: (0, 1, 1),
    49: (0, 1, 1),
    50: (0, 0, 0),
    51: (0, 0, 0),
    55: (0, 2, 0),
    57: (0, 2, 0),
    60: (0, 2, 0),
    61: (0, 0, 0),
    64: (0, 0, 0),
    65: (0, 0, 0),
    66: (0, 2, 0),
    68: (0, 1, 0),
    69: (0, 1, 0),
    71: (0, 0, 0),
    72: (0, 0, 0),
    74: (0, 1, 0),
    75: (0, 0, 0),
    76: (1, 1, 0),
    77: (1, 1, 0),
    78: (1, 2, 0),
    79: (1, 2, 0),
    83: (0, 0, 0),
    84: (0, 0, 0),
    85: (0, 1, 0),
    86: (0, 0, 0),
    87: (0, 1, 0),
    90: (0, 1, 0),
    91: (0, 0, 0),
    88: (0, 1, 0),
    89: (0, 1, 0),
    92: (0, 0, 0),
    93: (0, 0, 0),
    58: (0, 0, 0),
    32_001: (1, 1, 1),
    **dict.fromkeys(range(32_002, 32_008), (0, 0, 0)),
    32_008: (0, 1, 0),
    32_009: (0, 1, 0),
    **dict.fromkeys(range(32_010, 32_014), (0, 0, 0)),
}
"""Lowest, highest and first flexible version by API key, written by hand."""


def test_a_header_by_hand() -> None:
    """The layout of both versions, byte by byte."""
    assert request_header(0, 8, 7, "kcat").hex(" ") == "00 00 00 08 00 00 00 07 00 04 6b 63 61 74"
    assert request_header(0, 9, 7, "kcat").hex(" ") == "00 00 00 09 00 00 00 07 00 04 6b 63 61 74 00"
    assert request_header(0, 9, 7, None).hex(" ") == "00 00 00 09 00 00 00 07 ff ff 00"
    assert response_header(7, False).hex(" ") == "00 00 00 07"
    assert response_header(7, True).hex(" ") == "00 00 00 07 00"


@given(
    api_key=st.integers(0, 100),
    version=st.integers(0, 30),
    correlation_id=INT32,
    client_id=st.none() | st.text(max_size=40),
    body=st.binary(),
)
def test_what_a_client_writes_the_broker_reads(api_key, version, correlation_id, client_id, body) -> None:
    """Also for APIs and versions that the broker does not serve: it must be able to refuse them."""
    frame = b"\xaa" + request_header(api_key, version, correlation_id, client_id) + body
    for buffer in (frame, bytearray(frame), memoryview(frame)):
        got = read_request_header(buffer, 1, len(frame))
        assert got == (api_key, version, correlation_id, client_id, len(frame) - len(body))


@given(correlation_id=INT32, flexible=st.booleans(), body=st.binary())
def test_what_the_broker_answers_the_client_reads(correlation_id, flexible, body) -> None:
    """The body begins after the header."""
    frame = response_header(correlation_id, flexible) + body
    assert read_response_header(frame, 0, len(frame), flexible=flexible) == (correlation_id, len(frame) - len(body))


def test_unknown_header_tags_are_skipped() -> None:
    """A later client may put tagged fields into the header (KIP-482)."""
    frame = request_header(0, 9, 7, "x")[:-1] + bytes.fromhex("02 05 01 ff 8101 00") + b"body"
    assert read_request_header(frame, 0, len(frame))[4] == len(frame) - 4
    answer = bytes.fromhex("00000007 01 05 01 ff") + b"body"
    assert read_response_header(answer, 0, len(answer), flexible=True) == (7, 8)


@pytest.mark.parametrize("version", [8, 9])
def test_every_truncation_is_refused(version) -> None:
    """A header that does not fit its frame is refused, though the buffer continues behind `end`."""
    frame = request_header(0, version, 7, "client")
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            read_request_header(frame, 0, end)
        with pytest.raises(ProtocolError):
            read_request_header(frame[:end], 0, end)


@pytest.mark.parametrize(
    "text",
    [
        "0000 0008 00000007 fffe",
        "0000 0008 00000007 7fff 61",
        "0000 0008 00000007 0001 ff",
        "0000 0009 00000007 0000 01 05 09 00",
        "0000 0009 00000007 0000 ffffffffff01",
    ],
    ids=["negative", "over-long", "not UTF-8", "tag beyond the frame", "endless varint"],
)
def test_a_bad_header_is_refused(text) -> None:
    """The error is always a ProtocolError."""
    frame = bytes.fromhex(text)
    with pytest.raises(ProtocolError):
        read_request_header(frame, 0, len(frame))


def test_a_cut_response_header_is_refused() -> None:
    """Without its correlation id, or without its tags."""
    for text, flexible in (("000000", False), ("00000007", True), ("00000007 01 05 09", True)):
        frame = bytes.fromhex(text)
        with pytest.raises(ProtocolError):
            read_response_header(frame, 0, len(frame), flexible=flexible)


def test_which_header_is_flexible() -> None:
    """From the first flexible version on, except responses to ApiVersions (KIP-511)."""
    assert [request_header_is_flexible(ApiKey.PRODUCE, version) for version in (8, 9, 13)] == [False, True, True]
    assert [response_header_is_flexible(ApiKey.PRODUCE, version) for version in (8, 9, 13)] == [False, True, True]
    assert [request_header_is_flexible(ApiKey.API_VERSIONS, version) for version in (2, 3, 99)] == [False, True, True]
    assert [response_header_is_flexible(ApiKey.API_VERSIONS, version) for version in (2, 3, 99)] == [
        False,
        False,
        False,
    ]
    assert not request_header_is_flexible(31_000, 9)


def test_request_and_response_have_the_same_versions() -> None:
    """`ApiSpec` has one range and one first flexible version for both; the keys are those of the protocol guide."""
    for key, spec in API.items():
        assert spec.key is key
        assert (spec.response.VERSIONS.low, spec.response.VERSIONS.high) == (spec.min_version, spec.max_version)
        assert spec.response.FLEXIBLE.low == spec.request.FLEXIBLE.low == spec.first_flexible_version
    ranges = {int(key): (spec.min_version, spec.max_version, spec.first_flexible_version) for key, spec in API.items()}
    assert ranges == RANGES
    assert API[0] is API[ApiKey.PRODUCE]
