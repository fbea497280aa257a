"""The exchange at the start of a connection: versions, login, refusals, and every pair of state and event."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.client.opening import (
    Ask,
    ClientSession,
    ExpectedBroker,
    Opening,
    OpeningEvent,
    OpeningState,
    Step,
)
from lowtide.protocol.client.refused import ClientFailure, ClientFailureKind
from lowtide.protocol.client.sasl import ClientSaslSettings
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.each import each

PLAIN = ClientSaslSettings(mechanism="PLAIN", username="u", password="p")
SCRAM = ClientSaslSettings(mechanism="SCRAM-SHA-256", username="u", password="p")
NO_TOKEN = SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"")
MECHANISMS = SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])


def versions(but: dict[ApiKey, tuple[int, int]] | None = None) -> ApiVersionsResponse:
    ranges = {key: (spec.min_version, spec.max_version) for key, spec in API.items()} | (but or {})
    return ApiVersionsResponse(
        error_code=0, api_keys=[ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in ranges.items()]
    )


def play(sasl: ClientSaslSettings | None, *answers: Any) -> tuple[list[Ask], Step]:
    """The requests, and the final step."""
    opening = Opening(sasl, "nonce")
    asked: list[Ask] = []
    step = opening.begin()
    for answer in answers:
        assert isinstance(step, Ask), "it sends no further request"
        asked.append(step)
        step = opening.on_answer(answer)
    assert not isinstance(step, Ask), "it sends a further request"
    return asked, step


def session_of(*answers: Any) -> ClientSession:
    _, step = play(None, *answers)
    assert isinstance(step, ClientSession)
    return step


def test_versions_are_asked_for_and_nothing_else_without_sasl():
    asked, session = play(None, versions())
    assert [type(ask.request) for ask in asked] == [ApiVersionsRequest]
    assert isinstance(session, ClientSession)
    assert session.versions.choose(SaslAuthenticateRequest) == 2
    assert session.usable_ms is None


@pytest.mark.parametrize(("named", "second"), [(None, 0), (0, 0), (4, 4), (9, 4)])
def test_an_older_broker_is_asked_again_in_its_newest_version(named: int | None, second: int):
    """Since Kafka 2.4 brokers name their versions in that answer (KIP-511)."""
    rows = [] if named is None else [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=named)]
    asked, _ = play(None, ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=rows), versions())
    assert [ask.version for ask in asked] == [5, second]


def test_the_expected_broker_is_named_and_another_one_refuses():
    """KIP-1242: the client then bootstraps again."""
    opening = Opening(PLAIN, "nonce", ExpectedBroker("c", 3))
    step = opening.begin()
    assert isinstance(step, Ask)
    assert isinstance(step.request, ApiVersionsRequest)
    assert (step.request.cluster_id, step.request.node_id) == ("c", 3)
    failure = opening.on_answer(ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=[]))
    assert isinstance(failure, ClientFailure)
    assert failure.kind is ClientFailureKind.MISROUTED
    assert "not broker 3 of cluster c" in failure.reason


def test_a_version_is_one_that_both_support():
    spoken = session_of(versions({ApiKey.METADATA: (3, 7), ApiKey.FETCH: (90, 99), ApiKey.PRODUCE: (0, -1)})).versions
    kinds = {key: spec.request for key, spec in API.items()}
    assert spoken.choose(kinds[ApiKey.METADATA]) == 7
    assert spoken.choose(kinds[ApiKey.METADATA], at_most=5) == 5
    for key, at_least, words in (
        (
            ApiKey.METADATA,
            8,
            "the broker supports Metadata in versions 3 to 7, but the request needs 8 to 13",
        ),
        (ApiKey.FETCH, 0, "the broker supports Fetch in versions 90 to 99, but the request needs 4 to 18"),
        (ApiKey.PRODUCE, 0, "the broker does not support Produce"),
    ):
        assert spoken.choose(kinds[key], at_least=at_least) == ClientFailure(ClientFailureKind.VERSION, words)


@pytest.mark.parametrize("at_least", [0, 2, 4])
@each("low", range(6))
@each("high", range(6))
def test_the_chosen_version_is_in_both_ranges_and_the_highest(low: int, high: int, at_least: int):
    """Compared with the definition, for versions 0 to 2 of a request and every possible range of a broker."""
    spoken = session_of(versions({ApiKey.SASL_AUTHENTICATE: (low, high)})).versions
    both = {version for version in range(low, high + 1) if at_least <= version <= 2}
    chosen = spoken.choose(SaslAuthenticateRequest, at_least=at_least)
    assert chosen == max(both) if both else isinstance(chosen, ClientFailure)


@pytest.mark.parametrize(("lifetime_ms", "usable_ms"), [(10_000, 8500), (0, None)])
def test_logging_in(lifetime_ms: int, usable_ms: int | None):
    logged_in = SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=lifetime_ms
    )
    asked, session = play(PLAIN, versions(), MECHANISMS, logged_in)
    assert asked[1].request == SaslHandshakeRequest(mechanism="PLAIN")
    assert asked[2].request == SaslAuthenticateRequest(auth_bytes=b"\0u\0p")
    assert isinstance(session, ClientSession)
    assert session.usable_ms == usable_ms


@pytest.mark.parametrize(
    ("sasl", "answers", "kind", "words"),
    [
        (
            PLAIN,
            [SaslHandshakeResponse(error_code=33, mechanisms=["A", "B"])],
            ClientFailureKind.AUTHENTICATION,
            "mechanism PLAIN; it has A, B",
        ),
        (PLAIN, [SaslHandshakeResponse(error_code=34, mechanisms=[])], ClientFailureKind.AUTHENTICATION, "has no SASL"),
        (
            PLAIN,
            [SaslHandshakeResponse(error_code=-1, mechanisms=[])],
            ClientFailureKind.ANSWER,
            "SaslHandshake was refused",
        ),
        (
            PLAIN,
            [MECHANISMS, SaslAuthenticateResponse(error_code=58, error_message="Bad password", auth_bytes=b"")],
            ClientFailureKind.AUTHENTICATION,
            "u cannot log in with PLAIN: Bad password",
        ),
        (SCRAM, [MECHANISMS, NO_TOKEN], ClientFailureKind.AUTHENTICATION, "invalid SCRAM message"),
        (ClientSaslSettings(mechanism="GSSAPI"), [], ClientFailureKind.AUTHENTICATION, "not supported"),
        (
            ClientSaslSettings(mechanism="PLAIN", username="a\0b"),
            [MECHANISMS],
            ClientFailureKind.AUTHENTICATION,
            "zero character",
        ),
    ],
)
def test_being_refused(sasl: ClientSaslSettings, answers: list[Any], kind: ClientFailureKind, words: str):
    _, refused = play(sasl, versions(), *answers)
    assert isinstance(refused, ClientFailure)
    assert refused.kind is kind
    assert words in refused.reason


@pytest.mark.parametrize(
    ("sasl", "answer", "kind", "words"),
    [
        (
            None,
            ApiVersionsResponse(error_code=34, api_keys=[]),
            ClientFailureKind.AUTHENTICATION,
            "set security.protocol to SASL_PLAINTEXT",
        ),
        (None, ApiVersionsResponse(error_code=-1, api_keys=[]), ClientFailureKind.ANSWER, "refused ApiVersions"),
        (
            PLAIN,
            ("SASL_HANDSHAKE", (0, -1)),
            ClientFailureKind.AUTHENTICATION,
            "has no SASL: set another security.protocol",
        ),
        (PLAIN, ("SASL_HANDSHAKE", (0, 0)), ClientFailureKind.VERSION, "SaslHandshake in versions 0 to 0"),
    ],
)
def test_a_broker_that_cannot_be_used(
    sasl: ClientSaslSettings | None, answer: Any, kind: ClientFailureKind, words: str
):
    answered = versions({ApiKey[answer[0]]: answer[1]}) if isinstance(answer, tuple) else answer
    _, refused = play(sasl, answered)
    assert isinstance(refused, ClientFailure)
    assert (refused.kind, words in refused.reason) == (kind, True)


# ---------------------------------------------------------------------- states and events
ACCEPTED = {
    OpeningState.ASKING_VERSIONS: OpeningState.CHOOSING_MECHANISM,
    OpeningState.ASKING_OLD_VERSIONS: OpeningState.CHOOSING_MECHANISM,
    OpeningState.CHOOSING_MECHANISM: OpeningState.LOGGING_IN,
    OpeningState.LOGGING_IN: OpeningState.OPEN,
}
CODES = {
    event: ErrorCode.UNKNOWN_SERVER_ERROR if event is OpeningEvent.OTHER else event.value for event in OpeningEvent
}


def answer_with(state: OpeningState, code: int) -> Any:
    if state is OpeningState.CHOOSING_MECHANISM:
        return SaslHandshakeResponse(error_code=code, mechanisms=[])
    if state is OpeningState.LOGGING_IN:
        return SaslAuthenticateResponse(error_code=code, error_message=None, auth_bytes=b"")
    return versions() if code == ErrorCode.NONE else ApiVersionsResponse(error_code=code, api_keys=[])


def opening_at(state: OpeningState) -> Opening:
    opening = Opening(PLAIN)
    if state is OpeningState.ASKING_OLD_VERSIONS:
        opening.on_answer(answer_with(opening.state, ErrorCode.UNSUPPORTED_VERSION))
    elif state is OpeningState.REFUSED:
        opening.on_answer(answer_with(opening.state, ErrorCode.UNKNOWN_SERVER_ERROR))
    while opening.state is not state:
        opening.on_answer(answer_with(opening.state, ErrorCode.NONE))
    return opening


@pytest.mark.parametrize(("state", "event"), list(itertools.product(OpeningState, OpeningEvent)))
def test_every_pair_of_state_and_event(state: OpeningState, event: OpeningEvent):
    opening = opening_at(state)
    answer = answer_with(state, CODES[event])
    if state not in ACCEPTED:
        with pytest.raises(AssertionError):
            opening.on_answer(answer)
        assert opening.state is state
        return
    step = opening.on_answer(answer)
    if event is OpeningEvent.ACCEPTED:
        expected = ACCEPTED[state]
    elif (state, event) == (OpeningState.ASKING_VERSIONS, OpeningEvent.UNSUPPORTED_VERSION):
        expected = OpeningState.ASKING_OLD_VERSIONS
    else:
        expected = OpeningState.REFUSED
    assert opening.state is expected
    assert type(step) is {OpeningState.OPEN: ClientSession, OpeningState.REFUSED: ClientFailure}.get(expected, Ask)
    assert {(at, what) for at, row in Opening.TABLE.items() for what in row} == set(
        itertools.product(ACCEPTED, OpeningEvent)
    )
