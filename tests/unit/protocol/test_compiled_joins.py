"""JoinGroup and SyncGroup as the compiled module reads and answers them, against the plain form.

For any bytes: what the compiled form reads the plain form accepts, with the same fields. WALK_EXAMPLES=100000 runs them
longer.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.api_keys import API, ApiKey, request_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import read_request_header, request_header
from lowtide.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

from .columns import needs_compiled
from .test_compiled_commit import CHANGES, CUTS, INT32, LONG, NAMES, compiled_read, damaged, plain_decoded, plain_frame

SOME_NAMES, TEXTS = NAMES.filter(bool), st.text(max_size=20) | NAMES
CONTENTS = st.binary(max_size=20) | st.sampled_from([bytes(126), bytes(127), bytes(128), bytes(20_000)])
PROTOCOLS_MAX, MEMBERS_MAX, CONTENT_BYTES_MAX = 8, 64, 1 << 20
JOIN_VERSIONS, SYNC_VERSIONS = st.integers(2, 9), st.integers(0, 5)
PROTOCOLS = st.lists(st.tuples(NAMES, CONTENTS), min_size=1, max_size=3)
ASSIGNMENTS = st.lists(st.tuples(NAMES, CONTENTS), max_size=3)


def join_of(version: int, protocols: list[tuple[str, bytes]] | None = None, **fields: Any) -> bytes:
    """A request, without the length before it."""
    client_id = fields.pop("client_id", "c")
    given = {
        "group_id": "g",
        "session_timeout_ms": 10,
        "rebalance_timeout_ms": 20,
        "member_id": "m",
        "protocol_type": "p",
    } | fields
    if version < 5:
        given.pop("group_instance_id", None)
    if version < 8:
        given.pop("reason", None)
    rows = [
        JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in [("a", b"b")] if protocols is None
    ]
    rows += [JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols or ()]
    request = JoinGroupRequest(**given, protocols=rows)
    return request_header(11, version, 7, client_id) + codec_for(JoinGroupRequest, version).encode(request)


def sync_of(version: int, assignments: list[tuple[str, bytes]] | None = None, **fields: Any) -> bytes:
    given = {"group_id": "g", "generation_id": 1, "member_id": "m", "protocol_type": "p", "protocol_name": "a"} | fields
    if version < 3:
        given.pop("group_instance_id", None)
    if version < 5:
        given |= {"protocol_type": None, "protocol_name": None}
    rows = [SyncGroupRequestAssignment(member_id=name, assignment=content) for name, content in assignments or ()]
    request = SyncGroupRequest(**given, assignments=rows)
    return request_header(14, version, 7, "c") + codec_for(SyncGroupRequest, version).encode(request)


def plain_join(frame: bytes) -> Any:
    decoded = plain_decoded(ApiKey.JOIN_GROUP, frame)
    if decoded is None:
        return None
    version, correlation_id, request = decoded
    client_id = read_request_header(frame, 0, len(frame))[3]
    assert request.group_id
    assert request.member_id
    return (
        version, correlation_id, client_id, request.group_id, request.session_timeout_ms, request.rebalance_timeout_ms, request.member_id,
        request.group_instance_id, request.protocol_type, tuple((row.name, row.metadata) for row in request.protocols),
    )  # fmt: skip


def plain_sync(frame: bytes) -> Any:
    decoded = plain_decoded(ApiKey.SYNC_GROUP, frame)
    if decoded is None:
        return None
    version, correlation_id, request = decoded
    assert request.group_id
    assert request.member_id
    assert version < 5 or None not in (request.protocol_type, request.protocol_name)
    return (
        version, correlation_id, request.group_id, request.generation_id, request.member_id, request.group_instance_id,
        request.protocol_type, request.protocol_name, tuple((row.member_id, row.assignment) for row in request.assignments),
    )  # fmt: skip


@needs_compiled
@LONG
@given(
    JOIN_VERSIONS,
    PROTOCOLS,
    st.fixed_dictionaries(
        {
            "client_id": st.none() | NAMES,
            "group_id": SOME_NAMES,
            "session_timeout_ms": INT32,
            "rebalance_timeout_ms": INT32,
            "member_id": SOME_NAMES,
            "group_instance_id": st.none() | NAMES,
            "protocol_type": NAMES,
            "reason": st.none() | NAMES,
        }
    ),
)
@example(5, [(str(number), b"") for number in range(PROTOCOLS_MAX)], {})
@example(9, [("a", bytes(CONTENT_BYTES_MAX))], {})
def test_usual_joins_are_read_as_by_the_plain_form(version: int, protocols: list[Any], fields: dict[str, Any]) -> None:
    frame = join_of(version, protocols, **fields)
    read = compiled_read("read_join", frame)
    assert read is not None
    assert read == plain_join(frame)


@needs_compiled
@LONG
@given(
    SYNC_VERSIONS,
    ASSIGNMENTS,
    st.fixed_dictionaries(
        {
            "group_id": SOME_NAMES,
            "generation_id": INT32,
            "member_id": SOME_NAMES,
            "group_instance_id": st.none() | NAMES,
            "protocol_type": NAMES,
            "protocol_name": NAMES,
        }
    ),
)
@example(2, [(str(number), b"") for number in range(MEMBERS_MAX)], {})
@example(5, [("a", bytes(CONTENT_BYTES_MAX))], {})
def test_usual_syncs_are_read_as_by_the_plain_form(
    version: int, assignments: list[Any], fields: dict[str, Any]
) -> None:
    frame = sync_of(version, assignments, **fields)
    read = compiled_read("read_sync", frame)
    assert read is not None
    assert read == plain_sync(frame)


@needs_compiled
@LONG
@given(
    JOIN_VERSIONS.map(join_of)
    | SYNC_VERSIONS.map(lambda version: sync_of(version, [("m", b"x")]))
    | st.builds(join_of, JOIN_VERSIONS, PROTOCOLS, group_instance_id=st.none() | NAMES)
    | st.builds(sync_of, SYNC_VERSIONS, ASSIGNMENTS, group_instance_id=st.none() | NAMES),
    CHANGES,
    CUTS,
)
def test_whatever_is_read_of_damaged_requests_the_plain_form_accepts(
    frame: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    frame = damaged(frame, changes, cut)
    for name, plain in (("read_join", plain_join), ("read_sync", plain_sync)):
        read = compiled_read(name, frame)
        if read is not None:
            assert read == plain(frame)


UNUSUAL: dict[str, tuple[str, bytes]] = {
    "a first join": ("read_join", join_of(5, member_id="")),
    "a join without a group": ("read_join", join_of(5, group_id="")),
    "an old join": ("read_join", join_of(1)),
    "a join that speaks nothing": ("read_join", join_of(5, [])),
    "a join that speaks much": ("read_join", join_of(5, [(str(number), b"") for number in range(PROTOCOLS_MAX + 1)])),
    "a join that says much": ("read_join", join_of(5, [("a", bytes(CONTENT_BYTES_MAX + 1))])),
    "a join beyond ASCII": ("read_join", join_of(5, member_id="straße")),
    "a reason beyond ASCII": ("read_join", join_of(9, reason="straße")),
    "a client id beyond ASCII": ("read_join", join_of(5, client_id="straße")),
    "a join with more bytes": ("read_join", join_of(5) + b"\0"),
    "another API": ("read_join", sync_of(5)),
    "no join": ("read_join", b""),
    "a sync without a group": ("read_sync", sync_of(3, group_id="")),
    "a sync without a member": ("read_sync", sync_of(3, member_id="")),
    "a sync without a type": ("read_sync", sync_of(5, protocol_type=None)),
    "a sync without a protocol": ("read_sync", sync_of(5, protocol_name=None)),
    "a sync of many": ("read_sync", sync_of(3, [(str(number), b"") for number in range(MEMBERS_MAX + 1)])),
    "a sync that says much": ("read_sync", sync_of(3, [("a", bytes(CONTENT_BYTES_MAX + 1))])),
    "a sync beyond ASCII": ("read_sync", sync_of(3, [("straße", b"")])),
    "a sync with more bytes": ("read_sync", sync_of(3) + b"\0"),
    "still another API": ("read_sync", join_of(5)),
    "no sync": ("read_sync", b""),
}


@needs_compiled
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_plain_form(name: str) -> None:
    assert compiled_read(*UNUSUAL[name]) is None


@needs_compiled
@pytest.mark.parametrize("name", ["read_join", "read_sync"])
@pytest.mark.parametrize(
    "arguments", [(b"", 0, 1), (b"abc", 2, 1), (b"abc", -1, 2), ("abc", 0, 3), (b"abc", None, 3), (b"abc", 0, 2**70)]
)
def test_places_beyond_the_buffer_are_not_read(name: str, arguments: tuple[Any, ...]) -> None:
    assert getattr(native.compiled, name)(*arguments) is None


@needs_compiled
@LONG
@given(
    JOIN_VERSIONS, INT32, INT32, st.none() | TEXTS, TEXTS, TEXTS, st.booleans(), TEXTS,
    st.lists(st.tuples(TEXTS, st.none() | TEXTS, CONTENTS), max_size=3),
)  # fmt: skip
@example(2, 1, 1, "t", "p", "l", False, "m", [(str(number), None, b"x") for number in range(MEMBERS_MAX)])
@example(9, 1, 1, None, "p", "l", True, "m", [(str(number), "i", b"x") for number in range(MEMBERS_MAX)])
def test_joins_are_answered_as_by_the_plain_form(
    version: int,
    correlation_id: int,
    generation_id: int,
    protocol_type: str | None,
    protocol_name: str,
    leader: str,
    skips: bool,
    member_id: str,
    members: list[tuple[str, str | None, bytes]],
) -> None:
    assert native.compiled is not None
    skips = skips and version >= 9
    found = native.compiled.join_answer(
        version, correlation_id, generation_id, protocol_type, protocol_name, leader, skips, member_id, tuple(members)
    )  # fmt: skip
    rows = [
        JoinGroupResponseMember(
            member_id=name, group_instance_id=instance_id if version >= 5 else None, metadata=metadata
        )
        for name, instance_id, metadata in members
    ]
    answer = JoinGroupResponse(
        error_code=0,
        generation_id=generation_id,
        protocol_type=protocol_type if version >= 7 else None,
        protocol_name=protocol_name,
        leader=leader,
        skip_assignment=skips,
        member_id=member_id,
        members=rows,
    )
    assert found == plain_frame(ApiKey.JOIN_GROUP, version, correlation_id, answer)


@needs_compiled
@LONG
@given(SYNC_VERSIONS, INT32, st.none() | TEXTS, st.none() | TEXTS, CONTENTS)
@example(5, 1, None, None, bytes(CONTENT_BYTES_MAX))
def test_syncs_are_answered_as_by_the_plain_form(
    version: int, correlation_id: int, protocol_type: str | None, protocol_name: str | None, assignment: bytes
) -> None:
    assert native.compiled is not None
    found = native.compiled.sync_answer(version, correlation_id, protocol_type, protocol_name, assignment)
    named = {"protocol_type": protocol_type, "protocol_name": protocol_name} if version >= 5 else {}
    answer = SyncGroupResponse(error_code=0, **named, assignment=assignment)
    assert found == plain_frame(ApiKey.SYNC_GROUP, version, correlation_id, answer)


JOINED = (9, 1, 1, "t", "p", "l", False, "m", ())
SYNCED = (5, 1, "t", "p", b"x")


@needs_compiled
@pytest.mark.parametrize(
    "changed",
    [
        {0: 1}, {0: 10}, {0: -1}, {1: 2**31}, {2: "1"}, {3: b"t"}, {3: "t" * 40_000}, {3: "\ud800"}, {4: 1}, {5: None}, {7: None},
        {0: 6, 4: None}, {0: 8, 6: True}, {8: []}, {8: (("m", None),)}, {8: (("m", None, "x"),)}, {8: ((None, None, b""),)},
        {8: (("m", None, bytes(CONTENT_BYTES_MAX + 1)),)}, {8: (("m", None, b""),) * (MEMBERS_MAX + 1)}, {8: ("m",)},
    ],
)  # fmt: skip
def test_joins_that_no_member_could_have_are_not_answered(changed: dict[int, Any]) -> None:
    assert native.compiled is not None
    assert native.compiled.join_answer(*JOINED) is not None
    assert native.compiled.join_answer(*(changed.get(place, value) for place, value in enumerate(JOINED))) is None


@needs_compiled
@pytest.mark.parametrize(
    "changed", [{0: 6}, {0: -1}, {1: None}, {2: 1}, {3: b"p"}, {4: None}, {4: "x"}, {4: bytes(CONTENT_BYTES_MAX + 1)}]
)
def test_syncs_that_no_member_could_have_are_not_answered(changed: dict[int, Any]) -> None:
    assert native.compiled is not None
    assert native.compiled.sync_answer(*SYNCED) is not None
    assert native.compiled.sync_answer(*(changed.get(place, value) for place, value in enumerate(SYNCED))) is None


@needs_compiled
def test_the_versions_are_those_that_are_served() -> None:
    """A new one would be read as another: the forms have to be compared for it first."""
    for key, version in ((ApiKey.JOIN_GROUP, 9), (ApiKey.SYNC_GROUP, 5)):
        assert API[key].max_version == version
    assert [request_header_is_flexible(ApiKey.JOIN_GROUP, version) for version in (5, 6)] == [False, True]
    assert [request_header_is_flexible(ApiKey.SYNC_GROUP, version) for version in (3, 4)] == [False, True]
