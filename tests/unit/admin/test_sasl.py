"""SASL as a client: the exchanges of the RFCs byte for byte, brokers that cheat, and the questions with which a connection begins."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from lowtide.admin import AuthenticationFailedError, BrokerAnsweredError, ClientSettings, UnsupportedVersionError
from lowtide.admin.exchange import decode_response, encode_request
from lowtide.admin.opening import Session, open_session
from lowtide.admin.sasl import ITERATIONS_MAX, tokens
from lowtide.admin.settings import SaslSettings
from lowtide.protocol.api_keys import API_ASKED, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import response_header
from lowtide.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

PENCIL = SaslSettings(mechanism="SCRAM-SHA-256", username="user", password="pencil")


def ended(exchange: Any, received: bytes) -> bool:
    try:
        exchange.send(received)
    except StopIteration:
        return True
    return False


def test_plain_is_the_token_of_rfc_4616():
    exchange = tokens(SaslSettings(mechanism="PLAIN", username="tim", password="tanstaaftanstaaf"), "n")
    assert next(exchange) == b"\0tim\0tanstaaftanstaaf"
    assert ended(exchange, b"")
    with pytest.raises(AuthenticationFailedError):
        next(tokens(SaslSettings(mechanism="PLAIN", username="a\0b", password=""), "n"))


def test_scram_is_the_exchange_of_rfc_7677():
    """The example of its section 3, whose nonces and salt are known."""
    exchange = tokens(PENCIL, "rOprNGfwEbeRWgbNEkqO")
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    combined = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    proof = exchange.send(b"r=" + combined + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert proof == b"c=biws,r=" + combined + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert ended(exchange, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(("mechanism", "name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_scram_proves_the_password_to_who_keeps_only_its_keys(mechanism: str, name: str):
    """A server as RFC 5802 describes one, that stores what it has to; the name needs escaping."""
    salted = hashlib.pbkdf2_hmac(name, "pässword".encode(), b"salt", 5000)
    stored, server_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest(), hmac.digest(salted, b"Server Key", name)
    exchange = tokens(SaslSettings(mechanism=mechanism, username="a=b,c", password="pässword"), "abc")
    first = next(exchange)
    assert first == b"n,,n=a=3Db=2Cc,r=abc"
    challenge = b"r=abcdef,s=" + base64.b64encode(b"salt") + b",i=5000"
    without, _, proof = exchange.send(challenge).rpartition(b",p=")
    signed = b",".join((first[3:], challenge, without))
    key = bytes(left ^ right for left, right in zip(base64.b64decode(proof), hmac.digest(stored, signed, name), strict=True))
    assert hashlib.new(name, key).digest() == stored
    assert ended(exchange, b"v=" + base64.b64encode(hmac.digest(server_key, signed, name)))


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=abc,s=c2FsdA==,i=4096",
        b"r=abcd,s=,i=4096",
        b"r=abcd,s=c2FsdA==,i=4095",
        b"r=abcd,s=c2FsdA==,i=%d" % (ITERATIONS_MAX + 1),
        b"r=abcd,s=c2FsdA==,i=9999999999999999999999",
        b"r=abcd,s=c2FsdA==,i=-5",
        b"r=abcd,s=c2FsdA==",
        b"r=abcd,s=*,i=4096",
        b"m=x,r=abcd,s=c2FsdA==,i=4096",
        b"r=abcd" * 20_000,
    ],
)
def test_brokers_that_cheat_are_left(challenge: bytes):
    """A nonce that isn't ours, too few iterations, or so many that we would compute for minutes."""
    exchange = tokens(PENCIL, "abc")
    next(exchange)
    with pytest.raises(AuthenticationFailedError):
        exchange.send(challenge)


@pytest.mark.parametrize("final", [b"v=AAAA", b"", b"x=1", b"e=invalid-proof"])
def test_a_broker_that_does_not_know_the_password_is_left(final: bytes):
    exchange = tokens(PENCIL, "abc")
    next(exchange)
    exchange.send(b"r=abcd,s=c2FsdA==,i=4096")
    with pytest.raises(AuthenticationFailedError):
        exchange.send(final)


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "GSSAPI"])
def test_mechanisms_that_are_missing_say_so(mechanism: str):
    with pytest.raises(AuthenticationFailedError, match="not supported yet"):
        tokens(SaslSettings(mechanism=mechanism), "n")


# ---------------------------------------------------------------------- how a connection begins
def versions(but: dict[ApiKey, tuple[int, int]] | None = None) -> ApiVersionsResponse:
    ranges = {key: (spec.min_version, spec.max_version) for key, spec in API_ASKED.items()} | (but or {})
    return ApiVersionsResponse(error_code=0, api_keys=[ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in ranges.items()])


def settings(**given: str) -> ClientSettings:
    return ClientSettings.of({"bootstrap.servers": "b:1"} | {key.replace("_", "."): value for key, value in given.items()})


PLAIN = settings(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")


def play(given: ClientSettings, *answers: Any) -> tuple[list[Any], Session]:
    """The requests that were asked, and the session at the end."""
    opening = open_session(given, "nonce")
    asked, answer = [], None
    for following in (*answers, None):
        try:
            asked.append(opening.send(answer))
        except StopIteration as done:
            return asked, done.value
        answer = following
    raise AssertionError("it asks for more")


def test_versions_are_asked_for_and_nothing_else_without_sasl():
    asked, session = play(settings(), versions())
    assert [type(ask.request) for ask in asked] == [ApiVersionsRequest]
    assert session.versions.choose(SaslAuthenticateRequest) == 2
    assert session.usable_ms is None


def test_a_broker_that_is_older_says_what_it_knows():
    """Its answer comes in version 0, whatever was asked; then it is asked in that."""
    refused = response_header(7, flexible=False) + codec_for(ApiVersionsResponse, 0).encode(ApiVersionsResponse(error_code=35, api_keys=[]))
    correlation_id, answer = decode_response(ApiVersionsRequest, 4, refused)
    assert (correlation_id, answer.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    asked, _ = play(settings(), answer, versions())
    assert [ask.version for ask in asked] == [4, 0]


def test_a_version_is_one_that_both_speak():
    _, session = play(settings(), versions({ApiKey.METADATA: (3, 7), ApiKey.FETCH: (90, 99)}))
    kinds = {key: spec.request for key, spec in API_ASKED.items()}
    assert session.versions.choose(kinds[ApiKey.METADATA]) == 7
    assert session.versions.choose(kinds[ApiKey.METADATA], at_most=5) == 5
    with pytest.raises(UnsupportedVersionError, match=r"Metadata in versions 3 to 7, and what was asked for needs one of 8 to 13"):
        session.versions.choose(kinds[ApiKey.METADATA], at_least=8)
    with pytest.raises(UnsupportedVersionError, match="Fetch in versions 90 to 99"):
        session.versions.choose(kinds[ApiKey.FETCH])


def test_logging_in():
    done = SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=10_000)
    asked, session = play(PLAIN, versions(), SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]), done)
    assert asked[1].request == SaslHandshakeRequest(mechanism="PLAIN")
    assert asked[2].request == SaslAuthenticateRequest(auth_bytes=b"\0u\0p")
    assert session.usable_ms == 8500


@pytest.mark.parametrize(
    ("answers", "kind", "words"),
    [
        ([SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-512"])], AuthenticationFailedError, "it has SCRAM-SHA-512"),
        ([SaslHandshakeResponse(error_code=34, mechanisms=[])], AuthenticationFailedError, "knows no SASL"),
        ([SaslHandshakeResponse(error_code=-1, mechanisms=[])], BrokerAnsweredError, "UNKNOWN_SERVER_ERROR"),
        (
            [
                SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]),
                SaslAuthenticateResponse(error_code=58, error_message="Bad password", auth_bytes=b""),
            ],
            AuthenticationFailedError,
            "u can't log in by PLAIN: Bad password",
        ),
    ],
)
def test_being_refused(answers: list[Any], kind: type[Exception], words: str):
    with pytest.raises(kind, match=words):
        play(PLAIN, versions(), *answers)


def test_a_broker_that_wants_sasl_is_understood():
    with pytest.raises(AuthenticationFailedError, match=r"security\.protocol"):
        play(settings(), ApiVersionsResponse(error_code=34, api_keys=[]))
    without = versions({ApiKey.SASL_HANDSHAKE: (0, -1)})
    with pytest.raises(AuthenticationFailedError, match=r"no SASL: security\.protocol"):
        play(PLAIN, without)


def test_requests_are_what_kafkas_protocol_says():
    """SaslHandshake version 1 and SaslAuthenticate version 2, byte for byte by the protocol guide."""
    assert encode_request(SaslHandshakeRequest(mechanism="PLAIN"), 1, 5, "me").hex() == "00000013001100010000000500026d650005504c41494e"
    encoded = encode_request(SaslAuthenticateRequest(auth_bytes=b"\0u\0p"), 2, 5, "me")
    assert encoded.hex() == "00000013002400020000000500026d6500050075007000"
