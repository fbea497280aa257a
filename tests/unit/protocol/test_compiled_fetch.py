"""Fetch as the compiled module reads and answers it, against the plain form.

For any bytes: what the compiled form reads the plain form accepts, with the same fields. WALK_EXAMPLES=100000 runs them
longer.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.api_keys import API, ApiKey, request_header_is_flexible, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import parts_writer, read_request_header, request_header
from lowtide.protocol.messages.fetch import (
    NO_HIGH_WATERMARK,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from lowtide.protocol.schema import NO_ROWS
from lowtide.protocol.types import ZERO_TOPIC_ID

from .columns import needs_compiled
from .test_compiled_commit import CHANGES, CUTS, IDS, INT32, INT64, LONG, NAMES, compiled_read, damaged, plain_decoded

FIRST_VERSION, LAST_VERSION, ROWS_MAX, NAME_BYTES_MAX, FRAME_BYTES_MAX = 4, 18, 64, 2**15 - 1, 2**31 - 1
VERSIONS, LIMITS = st.integers(FIRST_VERSION, LAST_VERSION), st.integers(0, 2**31 - 1)
TOPIC_ID = b"i" * 16
ROWS = st.lists(st.tuples(LIMITS, INT32, INT64, INT32, INT64, LIMITS), max_size=4)
TOPICS = st.lists(st.tuples(NAMES.filter(bool), IDS.filter(any), ROWS), max_size=3)
FIELDS = st.fixed_dictionaries(
    {
        "client_id": st.none() | NAMES,
        "replica_id": INT32,
        "replica_epoch": st.none() | INT64,
        "max_wait_ms": INT32,
        "min_bytes": INT32,
        "max_bytes": LIMITS,
        "isolation_level": st.integers(0, 1),
        "session_id": INT32,
        "session_epoch": INT32,
        "rack_id": NAMES,
    }
)
ONE_ROW, NO_STATE = (0, 1, 2, 3, 4, 5), bytes(4 + 8 + 1)
ONE_TOPIC = [("t", TOPIC_ID, [ONE_ROW])]


def partition_of(version: int, row: tuple[int, ...], **tagged: Any) -> FetchPartition:
    number, leader_epoch, offset, last_epoch, log_start, bytes_max = row
    return FetchPartition(
        partition=number,
        current_leader_epoch=leader_epoch if version >= 9 else -1,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch if version >= 12 else -1,
        log_start_offset=log_start if version >= 5 else -1,
        partition_max_bytes=bytes_max,
        **tagged,
    )


def topic_of(version: int, name: str, topic_id: bytes, rows: list[Any]) -> FetchTopic:
    partitions = [row if isinstance(row, FetchPartition) else partition_of(version, row) for row in rows]
    if version >= 13:
        return FetchTopic(topic_id=topic_id, partitions=partitions)
    return FetchTopic(topic=name, partitions=partitions)


def fetch_of(version: int, topics: list[Any] | None = None, **fields: Any) -> bytes:
    """A request, without the length before it. With a `replica_epoch` versions that can say so say who asks."""
    given = {"max_wait_ms": 100, "min_bytes": 1} | fields
    client_id, replica_epoch = given.pop("client_id", "c"), given.pop("replica_epoch", None)
    if version >= 15:
        replica_id = given.pop("replica_id", -1)
        given["replica_state"] = (
            None if replica_epoch is None else ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch)
        )
    for name in ("session_id", "session_epoch") if version < 7 else ():
        given.pop(name, None)
    if version < 11:
        given.pop("rack_id", None)
    request = FetchRequest(
        **given, topics=[topic_of(version, *topic) for topic in (ONE_TOPIC if topics is None else topics)]
    )
    return request_header(ApiKey.FETCH, version, 7, client_id) + codec_for(FetchRequest, version).encode(request)


def plain_fetch(frame: bytes) -> Any:
    """What the plain form reads, in the order of `SmallFetch`: of a request that has nothing but this."""
    decoded = plain_decoded(ApiKey.FETCH, frame)
    if decoded is None:
        return None
    version, correlation_id, request = decoded
    assert request.cluster_id is None
    assert not request.forgotten_topics_data
    assert request.isolation_level in {0, 1}
    state = request.replica_state or ReplicaState()
    rows = [(topic, row) for topic in request.topics for row in topic.partitions]
    assert all((row.replica_directory_id, row.high_watermark) == (ZERO_TOPIC_ID, NO_HIGH_WATERMARK) for _, row in rows)
    return (
        version, correlation_id, read_request_header(frame, 0, len(frame))[3],
        state.replica_id if version >= 15 else request.replica_id, state.replica_epoch,
        request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level == 1,
        request.session_id, request.session_epoch, request.rack_id,
        tuple(
            (
                topic.topic_id if version >= 13 else topic.topic, row.partition, row.current_leader_epoch, row.fetch_offset,
                row.last_fetched_epoch, row.log_start_offset, row.partition_max_bytes,
            )
            for topic, row in rows
        ),
    )  # fmt: skip


@needs_compiled
@LONG
@given(VERSIONS, TOPICS, FIELDS)
@example(4, [("t", TOPIC_ID, [ONE_ROW] * ROWS_MAX)], {})
@example(12, [(f"t{number}", TOPIC_ID, [ONE_ROW]) for number in range(ROWS_MAX)], {})
@example(
    18,
    [("t", bytes([1 + number]) * 16, [ONE_ROW]) for number in range(ROWS_MAX)],
    {"replica_id": 3, "replica_epoch": 5},
)
@example(12, [("t" * NAME_BYTES_MAX, TOPIC_ID, [ONE_ROW])], {"rack_id": "r" * NAME_BYTES_MAX})
def test_usual_fetches_are_read_as_by_the_plain_form(version: int, topics: list[Any], fields: dict[str, Any]) -> None:
    frame = fetch_of(version, topics, **fields)
    read = compiled_read("read_fetch", frame)
    assert read is not None
    assert read == plain_fetch(frame)
    assert len(read[12]) == sum(len(rows) for _, _, rows in topics)


@needs_compiled
@pytest.mark.parametrize("version", range(FIRST_VERSION, LAST_VERSION + 1))
def test_each_version_is_read(version: int) -> None:
    """What it lacks is -1, or 0 for the session."""
    frame = fetch_of(
        version, replica_id=8, replica_epoch=9, session_id=10, session_epoch=11, max_bytes=12, isolation_level=1, rack_id="r"
    )  # fmt: skip
    session = (10, 11) if version >= 7 else (0, -1)
    row = (
        TOPIC_ID if version >= 13 else "t", 0, 1 if version >= 9 else -1, 2, 3 if version >= 12 else -1, 4 if version >= 5 else -1, 5,
    )  # fmt: skip
    assert compiled_read("read_fetch", frame) == (
        version, 7, "c", 8, 9 if version >= 15 else -1, 100, 1, 12, True, *session, "r" if version >= 11 else "", (row,),
    )  # fmt: skip


@needs_compiled
@LONG
@given(VERSIONS, TOPICS, FIELDS, CHANGES, CUTS)
def test_whatever_is_read_of_damaged_fetches_the_plain_form_accepts(
    version: int, topics: list[Any], fields: dict[str, Any], changes: list[tuple[int, int]], cut: int
) -> None:
    frame = damaged(fetch_of(version, topics, **fields), changes, cut)
    read = compiled_read("read_fetch", frame)
    assert read is None or read == plain_fetch(frame)


def forgetting(version: int) -> bytes:
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
    return fetch_of(version, forgotten_topics_data=[ForgottenTopic(**topic, partitions=[0])])


def tagged_row(version: int, **tagged: Any) -> bytes:
    return fetch_of(version, [("t", TOPIC_ID, [partition_of(version, ONE_ROW, **tagged)])])


def ending(version: int, end: str, *, instead: str, topics: list[Any] | None = None) -> bytes:
    """A request that has other bytes, in hex, instead of those that it ends in."""
    frame, old = fetch_of(version, topics or []), bytes.fromhex(instead)
    assert frame.endswith(old)
    return frame.removesuffix(old) + bytes.fromhex(end)


NO_ROW, STATE = [("t", TOPIC_ID, [])], NO_STATE.hex()
UNUSUAL: dict[str, bytes] = {
    "another isolation level": fetch_of(4, isolation_level=2),
    "an isolation level below 0": fetch_of(4, isolation_level=-1),
    "fewer bytes than none": fetch_of(4, max_bytes=-1),
    "fewer bytes of a partition than none": fetch_of(4, [("t", TOPIC_ID, [(*ONE_ROW[:5], -1)])]),
    "a partition below 0": fetch_of(4, [("t", TOPIC_ID, [(-1, *ONE_ROW[1:])])]),
    "a partition that leaves the session": forgetting(7),
    "a partition that leaves it, compact": forgetting(12),
    "a partition that leaves it, by id": forgetting(13),
    "a cluster id": fetch_of(12, cluster_id="c"),
    "a cluster id, where a tag is known": fetch_of(15, cluster_id="c"),
    "a cluster id, and who asks": fetch_of(15, cluster_id="c", replica_id=3, replica_epoch=5),
    "the replica's directory": tagged_row(17, replica_directory_id=TOPIC_ID),
    "the replica's high watermark": tagged_row(18, high_watermark=5),
    "an unknown tag": ending(12, "01 05 00", instead="00"),
    "an unknown tag, where one is known": ending(15, "01 05 00", instead="00"),
    "an unknown tag of a topic": ending(12, "01 01 0500 010100", instead="01 00 010100", topics=NO_ROW),
    "an unknown tag of a partition": ending(12, "01 0500 00 010100", instead="00 00 010100", topics=ONE_TOPIC),
    "an unknown tag of the header": fetch_of(12).replace(b"c\0", b"c\1\5\0", 1),
    "who asks, before there is a tag for it": ending(14, "01 01 0d" + STATE, instead="00"),
    "who asks, with an unknown tag": ending(15, "01 01 0f" + STATE[:-2] + "01 0500", instead="00"),
    "who asks, with more bytes": ending(15, "01 01 0e" + STATE + "00", instead="00"),
    "who asks, with fewer bytes": ending(15, "01 01 0c" + STATE, instead="00"),
    "who asks, without the tag that follows": ending(15, "01 01 0d" + STATE[:-2] + "01", instead="00"),
    "an unknown tag, as large as who asks": ending(15, "01 05 0d" + STATE, instead="00"),
    "no tag of a topic, though it has one": ending(12, "01 01 010100", instead="01 00 010100", topics=NO_ROW),
    "no tag of a partition, though it has one": ending(12, "01 00 010100", instead="00 00 010100", topics=ONE_TOPIC),
    "many partitions": fetch_of(4, [("t", TOPIC_ID, [ONE_ROW] * (ROWS_MAX + 1))]),
    "many partitions of two topics": fetch_of(13, [("t", b"%d" % number * 16, [ONE_ROW] * 33) for number in (1, 2)]),
    "many topics": fetch_of(12, [("t", TOPIC_ID, [])] * (ROWS_MAX + 1)),
    "nameless": fetch_of(4, [("", TOPIC_ID, [ONE_ROW])]),
    "nameless, compact": fetch_of(12, [("", TOPIC_ID, [ONE_ROW])]),
    "no topic id": fetch_of(13, [("t", ZERO_TOPIC_ID, [ONE_ROW])]),
    "a topic beyond ASCII": fetch_of(4, [("straße", TOPIC_ID, [ONE_ROW])]),
    "a topic beyond ASCII, compact": fetch_of(12, [("straße", TOPIC_ID, [ONE_ROW])]),
    "a rack beyond ASCII": fetch_of(11, rack_id="straße"),
    "a client id beyond ASCII": fetch_of(4, client_id="straße"),
    "null topics": ending(4, "ffffffff", instead="00000000"),
    "null topics, compact": ending(12, "00 010100", instead="01 010100"),
    "null partitions": ending(4, "ffffffff", instead="00000000", topics=NO_ROW),
    "null partitions, compact": ending(12, "00 00 010100", instead="01 00 010100", topics=NO_ROW),
    "nothing forgotten, as null": ending(7, "ffffffff", instead="00000000"),
    "nothing forgotten, as null, compact": ending(12, "00 0100", instead="01 0100"),
    "a null rack": ending(11, "ffff", instead="0000"),
    "a null rack, compact": ending(12, "00 00", instead="01 00"),
    "a length of more bytes than it takes": ending(12, "8100 010100", instead="01 010100"),
    "more bytes": fetch_of(4) + b"\0",
    "more bytes, compact": fetch_of(12) + b"\0",
    "another API": b"\0\2" + fetch_of(4)[2:],
    "an old version": b"\0\1\0\3" + fetch_of(4)[4:],
    "a new version": b"\0\1\0\x13" + fetch_of(18)[4:],
    "nothing": b"",
}  # fmt: skip


@needs_compiled
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_plain_form(name: str) -> None:
    assert compiled_read("read_fetch", UNUSUAL[name]) is None


@needs_compiled
@pytest.mark.parametrize(
    "arguments", [(b"", 0, 1), (b"abc", 2, 1), (b"abc", -1, 2), ("abc", 0, 3), (b"abc", None, 3), (b"abc", 0, 2**70)]
)
def test_places_beyond_the_buffer_are_not_read(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.read_fetch(*arguments) is None


SIZES = st.just(0) | st.integers(0, 300) | st.sampled_from([126, 127, 128, 16_382, 16_383, 16_384])
ANSWERED_ROWS = st.lists(st.tuples(INT32, INT64, INT64, INT64, SIZES), min_size=1, max_size=3)
ANSWERED_NAMES = st.text(max_size=20) | NAMES
ANSWERED_TOPICS = st.lists(
    st.tuples(ANSWERED_NAMES, IDS, ANSWERED_ROWS), max_size=4, unique_by=(lambda topic: topic[0], lambda topic: topic[1])
)  # fmt: skip
MANY_TOPICS = [(f"t{number}", bytes([number]) * 16, [(number, 5, 4, 3, number % 3)]) for number in range(ROWS_MAX)]


def records_of(row: tuple[int, ...]) -> bytes:
    """So many bytes, which aren't those of another partition."""
    return struct.pack(">i", row[0])[-1:] * row[-1]


def plain_answer(version: int, correlation_id: int, session_id: int, topics: list[Any], *, committed: bool) -> bytes:
    """As a broker writes it in the plain form."""
    responses = []
    for name, topic_id, rows in topics:
        partitions = [
            PartitionData(
                partition_index=row[0],
                error_code=0,
                high_watermark=row[1],
                last_stable_offset=row[2],
                log_start_offset=row[3] if version >= 5 else -1,
                aborted_transactions=NO_ROWS if committed else None,
                preferred_read_replica=-1,
                records=records_of(row),
            )
            for row in rows
        ]
        called = {"topic_id": topic_id} if version >= 13 else {"topic": name}
        responses.append(FetchableTopicResponse(**called, partitions=partitions))
    response = FetchResponse(session_id=session_id if version >= 7 else 0, responses=responses)
    encode, flexible = (
        codec_for(FetchResponse, version).encode_parts_counted,
        response_header_is_flexible(ApiKey.FETCH, version),
    )
    return b"".join(parts_writer(encode, flexible=flexible)(correlation_id, response))


@needs_compiled
@LONG
@given(VERSIONS, INT32, INT32, st.booleans(), ANSWERED_TOPICS)
@example(4, 1, 2, False, MANY_TOPICS)
@example(12, 1, 2, True, MANY_TOPICS)
@example(18, 1, 2, True, [("t", TOPIC_ID, [(number, 5, 4, 3, 1) for number in range(ROWS_MAX)])])
@example(11, 1, 2, True, [("t" * NAME_BYTES_MAX, TOPIC_ID, [(0, 5, 4, 3, 1 << 20)])])
@example(12, 1, 2, False, [("ß" * (NAME_BYTES_MAX // 2), TOPIC_ID, [(0, 5, 4, 3, (1 << 21) - 1)])])
def test_fetches_are_answered_as_by_the_plain_form(
    version: int, correlation_id: int, session_id: int, committed: bool, topics: list[Any]
) -> None:
    assert native.compiled is not None
    rows = tuple((topic_id if version >= 13 else name, *row) for name, topic_id, rows in topics for row in rows)
    pieces = native.compiled.fetch_answer(version, correlation_id, session_id, committed, rows)
    records = [records_of(row[1:]) for row in rows if row[-1]]
    assert pieces is not None
    assert len(pieces) == len(records) + 1
    found = pieces[0] + b"".join(part + piece for part, piece in zip(records, pieces[1:], strict=True))
    assert found == plain_answer(version, correlation_id, session_id, topics, committed=committed)


@needs_compiled
@pytest.mark.parametrize("version", range(FIRST_VERSION, LAST_VERSION + 1))
def test_the_largest_frame_is_answered_and_no_larger_one(version: int) -> None:
    """Its length is a signed number of four bytes."""
    assert native.compiled is not None

    def answered(size: int) -> tuple[bytes, ...] | None:
        assert native.compiled is not None
        topic: Any = TOPIC_ID if version >= 13 else "t"
        return native.compiled.fetch_answer(
            version, 1, 0, False, ((topic, 0, 5, 5, 0, 1 << 30), (topic, 1, 5, 5, 0, size))
        )

    some = answered(1 << 29)
    assert some is not None
    largest = FRAME_BYTES_MAX - (1 << 30) - (sum(map(len, some)) - 4)
    full = answered(largest)
    assert full is not None
    assert full[0][:4] == struct.pack(">i", FRAME_BYTES_MAX)
    assert answered(largest + 1) is None


ROW = ("t", 0, 5, 5, 0, 10)
ID_ROW = (TOPIC_ID, *ROW[1:])
ANSWERED = (12, 1, 0, False, (ROW,))


@needs_compiled
@pytest.mark.parametrize(
    "changed",
    [
        {0: 3}, {0: 19}, {0: -1}, {0: 2**16 + 12}, {0: "12"}, {0: None}, {1: 2**31}, {1: "1"}, {2: None}, {2: -(2**31) - 1},
        {4: [ROW]}, {4: None}, {4: (None,)}, {4: ("t",)}, {4: (ROW, None)}, {4: (list(ROW),)}, {4: (ROW[:5],)}, {4: ((),)},
        {4: (("t", "0", 5, 5, 0, 10),)}, {4: (("t", 0, None, 5, 0, 10),)}, {4: (("t", 0, 5, 5.0, 0, 10),)}, {4: (("t", 0, 5, 5, b"", 10),)},
        {4: (("t", 0, 5, 5, 0, "10"),)}, {4: (("t", 2**31, 5, 5, 0, 10),)}, {4: (("t", 0, 2**63, 5, 0, 10),)},
        {4: (("t", 0, 5, 2**63, 0, 10),)}, {4: (("t", 0, 5, 5, -(2**63) - 1, 10),)}, {4: (("t", 0, 5, 5, 0, 2**31),)},
        {4: (("t", 0, 5, 5, 0, -1),)}, {4: ((None, *ROW[1:]),)}, {4: (("\ud800", *ROW[1:]),)}, {4: (("t" * 2**15, *ROW[1:]),)},
        {4: (("ß" * 2**14, *ROW[1:]),)}, {4: (ID_ROW,)}, {0: 4, 4: (ID_ROW,)}, {0: 13}, {0: 18}, {0: 13, 4: (ID_ROW, ROW)},
        {0: 13, 4: ((TOPIC_ID[1:], *ROW[1:]),)}, {0: 13, 4: ((TOPIC_ID + b"i", *ROW[1:]),)}, {0: 13, 4: ((bytearray(TOPIC_ID), *ROW[1:]),)},
        {4: (ROW,) * (ROWS_MAX + 1)}, {4: ((*ROW[:5], 2**30),) * 2}, {4: ((*ROW[:5], 2**31 - 1),) * ROWS_MAX},
    ],
)  # fmt: skip
def test_answers_that_no_fetch_could_have_are_not_written(changed: dict[int, Any]) -> None:
    assert native.compiled is not None
    assert native.compiled.fetch_answer(*ANSWERED) is not None
    assert native.compiled.fetch_answer(13, *ANSWERED[1:4], (ID_ROW,)) is not None
    assert native.compiled.fetch_answer(*(changed.get(place, value) for place, value in enumerate(ANSWERED))) is None


def test_the_versions_are_those_that_are_served() -> None:
    """Versions that come to be served are read by the plain form, until the compiled one has them."""
    assert (API[ApiKey.FETCH].min_version, API[ApiKey.FETCH].max_version) == (FIRST_VERSION, LAST_VERSION)
    assert [request_header_is_flexible(ApiKey.FETCH, version) for version in (11, 12)] == [False, True]
    assert [response_header_is_flexible(ApiKey.FETCH, version) for version in (11, 12)] == [False, True]
