"""SCRAM, the broker's side, against our own client; and that an exchange shows nothing of which users there are."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping

import pytest

from lowtide.broker.security.delegation_tokens import SALT_BYTES
from lowtide.broker.security.exchange import Challenge, LoginFailure, LoginSuccess
from lowtide.broker.security.scram import TOKEN_BYTES_MAX, ScramExchange, ScramState, TokenOwner
from lowtide.protocol.client.sasl import ClientSaslExchange, ClientSaslSettings
from lowtide.protocol.scram import (
    SCRAM_MECHANISMS,
    ChallengeForm,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)

SALT = b"saltsaltsaltsaltsaltsalt"
ALL = list(SCRAM_MECHANISMS)


class Kept:
    """Credentials of a few users."""

    def __init__(
        self, mechanism: ScramMechanism, *, salt: bytes = SALT, iterations: int = 4096, **passwords: str
    ) -> None:
        self.secret = b"secret"
        self.users = {
            user: credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)
            for user, password in passwords.items()
        }

    def of(self, _mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self.users.get(user)

    def forms(self, _mechanism: ScramMechanism) -> Mapping[ChallengeForm, int]:
        return Counter(each.form for each in self.users.values())


class KeptTokens(Kept):
    """Credentials of tokens, all of one owner; one that has ended has none."""

    owner: TokenOwner | None = TokenOwner("alice", 5_000)

    def forms(self, _mechanism: ScramMechanism) -> Mapping[ChallengeForm, int]:
        return {}

    def owner_of(self, _token_id: str) -> TokenOwner | None:
        return self.owner


NO_TOKENS = KeptTokens(ScramMechanism.SHA_256)


def log_in(
    name: str, user: str, password: str, kept: Kept, tokens: KeptTokens | None = None
) -> LoginSuccess | LoginFailure:
    """A login of our own client, by token where there are some; an accepted one has shown the broker's proof to it."""
    server = ScramExchange(SCRAM_MECHANISMS[name], kept, tokens or NO_TOKENS, "servernonce")
    settings = ClientSaslSettings(mechanism=name, username=user, password=password, by_token=tokens is not None)
    client = ClientSaslExchange(settings, "clientnonce")
    token = client.step(None)
    while True:
        assert token is not None
        outcome = server.step(token)
        if isinstance(outcome, LoginFailure):
            return outcome
        answer = client.step(outcome.token)
        if isinstance(outcome, LoginSuccess):
            assert answer is None
            return outcome
        token = answer


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "zoë"])
def test_the_right_password_is_accepted_and_the_broker_proves_that_it_has_it(name: str, user: str) -> None:
    kept = Kept(SCRAM_MECHANISMS[name], **{user: "pencil"})
    assert log_in(name, user, "pencil", kept) == LoginSuccess(user, log_in(name, user, "pencil", kept).token)
    assert log_in(name, user, "Pencil", kept) == LoginFailure("the user is unknown, or the password is wrong", user)


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_user_fails_where_a_wrong_password_does(name: str) -> None:
    kept = Kept(SCRAM_MECHANISMS[name], alice="pencil")
    assert log_in(name, "mallory", "pencil", kept) == LoginFailure(
        "the user is unknown, or the password is wrong", "mallory"
    )


@pytest.mark.parametrize("name", ALL)
def test_the_client_of_a_token_is_its_owner_while_it_lasts(name: str) -> None:
    """A token's id and a user's name are apart; a token that ends during the exchange logs no client in."""
    users, tokens = Kept(SCRAM_MECHANISMS[name], alice="pencil"), KeptTokens(SCRAM_MECHANISMS[name], token="hmac")
    accepted = log_in(name, "token", "hmac", users, tokens)
    assert isinstance(accepted, LoginSuccess)
    assert (accepted.user, accepted.lifetime_ms) == ("alice", 5_000)
    for user, password, kept in (
        ("token", "other", tokens),
        ("alice", "pencil", tokens),
        ("other", "hmac", tokens),
        ("token", "hmac", None),
    ):
        assert log_in(name, user, password, users, kept) == LoginFailure(
            "the user is unknown, or the password is wrong", user
        )
    tokens.owner = None
    assert log_in(name, "token", "hmac", users, tokens) == LoginFailure("the token has ended meanwhile", "token")


@pytest.mark.parametrize(
    ("extensions", "is_by_token"),
    [
        ("", False),
        (",tokenauth=true", True),
        (",tokenauth=TRUE,x=y", True),
        (",x=y,tokenauth=true", True),
        (",tokenauth=false", False),
        (",tokenauth=truer", False),
        (",x=tokenauth=true", False),
    ],
)
def test_the_extension_says_that_a_name_is_a_tokens(extensions: str, is_by_token: bool) -> None:
    tokens = KeptTokens(ScramMechanism.SHA_256, salt=b"T" * 24, both="hmac")
    exchange = ScramExchange(ScramMechanism.SHA_256, Kept(ScramMechanism.SHA_256, both="pencil"), tokens, "xyz")
    outcome = exchange.step(f"n,,n=both,r=abc{extensions}".encode())
    assert isinstance(outcome, Challenge)
    assert (base64.b64encode(b"T" * 24) in outcome.token) == is_by_token


def test_the_challenge_of_an_unknown_token_is_like_those_of_known_ones() -> None:
    """Whatever the credentials of users are like."""
    users = Kept(ScramMechanism.SHA_256, salt=b"short", iterations=8192, alice="pencil")
    tokens = KeptTokens(ScramMechanism.SHA_256, salt=b"T" * SALT_BYTES, token="hmac")
    known, unknown, again = (challenge(each, users, tokens=tokens) for each in ("token", "other", "other"))
    assert (len(known[b"s"]), known[b"i"]) == (len(unknown[b"s"]), unknown[b"i"])
    assert unknown[b"s"] == again[b"s"]


def challenge(user: str, kept: Kept, nonce: str = "xyz", *, tokens: KeptTokens | None = None) -> dict[bytes, bytes]:
    """The attributes that a user is challenged with, or a token."""
    first = f"n,,n={user},r=abc{',tokenauth=true' if tokens else ''}"
    outcome = ScramExchange(ScramMechanism.SHA_256, kept, tokens or NO_TOKENS, nonce).step(first.encode())
    assert isinstance(outcome, Challenge)
    return {part[:1]: part[2:] for part in outcome.token.split(b",")}


@pytest.mark.parametrize(("salt", "iterations"), [(b"\x00\xff" * 8, 4096), (b"1q2w3e4r5t6z7u8i9o0p", 8192)])
def test_the_challenge_of_an_unknown_user_is_like_those_of_known_ones(salt: bytes, iterations: int) -> None:
    """And always the same: a salt that changes would show that it is made up."""
    kept = Kept(ScramMechanism.SHA_256, salt=salt, iterations=iterations, alice="pencil")
    known, unknown, again = challenge("alice", kept), challenge("mallory", kept), challenge("mallory", kept, "uvw")
    assert unknown[b"s"] == again[b"s"] != challenge("eve", kept)[b"s"]
    assert (len(known[b"s"]), known[b"i"]) == (len(unknown[b"s"]), unknown[b"i"])
    mocked = base64.b64decode(unknown[b"s"])
    assert mocked.isalnum() == salt.isalnum()
    kept.secret = b"another"
    assert challenge("mallory", kept)[b"s"] != unknown[b"s"]


def forms_of(kept: Kept, count: int = 1_000) -> dict[str, tuple[int, bytes]]:
    """What unknown users are challenged with: the bytes of the salt, and the iterations."""
    asked = {f"unknown-{number}": challenge(f"unknown-{number}", kept) for number in range(count)}
    return {name: (len(base64.b64decode(found[b"s"])), found[b"i"]) for name, found in asked.items()}


def test_no_form_of_a_challenge_shows_that_there_is_a_user() -> None:
    """Users whose salts and iterations differ: unknown users get each form as often as users have it."""
    kept = Kept(ScramMechanism.SHA_256)
    for number in range(8):
        salt, iterations = (b"s" * 24, 4096) if number < 6 else (b"t" * 16, 8192)
        kept.users[f"user-{number}"] = ScramCredential(salt, b"", b"", iterations)
    drawn = Counter(forms_of(kept).values())
    assert set(drawn) == {(24, b"4096"), (16, b"8192")}
    assert 650 < drawn[24, b"4096"] < 850


def test_a_new_user_changes_few_challenges_of_unknown_ones() -> None:
    """Otherwise a change would show which users there are not."""
    kept = Kept(ScramMechanism.SHA_256)
    for number in range(100):
        kept.users[f"user-{number}"] = ScramCredential(b"s" * (16 + 8 * (number % 2)), b"", b"", 4096)
    before = forms_of(kept)
    kept.users["new"] = ScramCredential(b"s" * 16, b"", b"", 4096)
    after = forms_of(kept)
    assert sum(before[name] != after[name] for name in before) < 20


def proof(first: bytes, server_first: bytes, without_proof: bytes, password: str = "pencil") -> bytes:
    """A right proof over any messages."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, 4096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), b",".join((first, server_first, without_proof)), "sha256")
    return without_proof + b",p=" + base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


def outcome_of(nonce: bytes, binding: bytes, header: bytes = b"n,,") -> LoginSuccess | LoginFailure | Challenge:
    """The end of an exchange with a right proof."""
    exchange = ScramExchange(ScramMechanism.SHA_256, Kept(ScramMechanism.SHA_256, alice="pencil"), NO_TOKENS, "xyz")
    first = b"n=alice,r=abc"
    answer = exchange.step(header + first)
    assert isinstance(answer, Challenge)
    return exchange.step(proof(first, answer.token, b"c=" + base64.b64encode(binding) + b",r=" + nonce))


def test_the_nonce_and_the_channel_binding_of_the_proof_are_compared() -> None:
    """A proof that is right but was made for another exchange, or for another beginning of it (CVE-2024-56128)."""
    assert isinstance(outcome_of(b"abcxyz", b"n,,"), LoginSuccess)
    assert outcome_of(b"abcuvw", b"n,,") == LoginFailure("the nonce is not that of this exchange", "alice")
    assert outcome_of(b"abc", b"n,,") == LoginFailure("the nonce is not that of this exchange", "alice")
    assert outcome_of(b"abcxyz", b"y,,") == LoginFailure("the channel binding is not that of the first token", "alice")
    assert isinstance(outcome_of(b"abcxyz", b"n,a=alice,", b"n,a=alice,"), LoginSuccess)
    assert isinstance(outcome_of(b"abcabcxyz", b"n,,"), LoginSuccess), "librdkafka before 2.6.1 (librdkafka 4895)"
    assert isinstance(outcome_of(b"abcabcuvw", b"n,,"), LoginFailure)
    assert isinstance(outcome_of(b"abcabcabcxyz", b"n,,"), LoginFailure)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"y,,n=alice,r=abc", "channel binding"),
        (b"p=tls-unique,,n=alice,r=abc", "channel binding"),
        (b"n,a=bob,n=alice,r=abc", "act for another user"),
        (b"n,,m=x,n=alice,r=abc", "must be understood"),
        (b"n,,n=al=2cice,r=abc", "can't be read"),
        (b"n,,n=\xff,r=abc", "can't be read"),
        (b"n,,n=,r=abc", "not one of SCRAM"),
        (b"n,,n=alice,r=", "not one of SCRAM"),
        (b"n,,n=alice,r=a\x00c", "not one of SCRAM"),
        (b"", "not one of SCRAM"),
        (b"n,,n=alice,r=" + b"a" * TOKEN_BYTES_MAX, "not one of SCRAM"),
        (b"n,a=alice,n=alice,r=abc,tokenauth=true", ""),
    ],
)
def test_a_first_token_is_read_strictly(first: bytes, reason: str) -> None:
    exchange = ScramExchange(ScramMechanism.SHA_256, Kept(ScramMechanism.SHA_256, alice="pencil"), NO_TOKENS, "xyz")
    outcome = exchange.step(first)
    if not reason:
        assert isinstance(outcome, Challenge)
        return
    assert isinstance(outcome, LoginFailure)
    assert reason in outcome.reason
    assert exchange.state is ScramState.ENDED


@pytest.mark.parametrize(
    "token", [b"", b"c=biws,r=abcxyz", b"c=biws,r=abcxyz,p=", b"c=biws,r=abcxyz,p=!!!", b"p=AAAA,c=biws,r=abcxyz"]
)
def test_a_proof_that_is_none_is_refused(token: bytes) -> None:
    exchange = ScramExchange(ScramMechanism.SHA_256, Kept(ScramMechanism.SHA_256, alice="pencil"), NO_TOKENS, "xyz")
    exchange.step(b"n,,n=alice,r=abc")
    assert isinstance(exchange.step(token), LoginFailure)


def test_no_text_shows_a_key() -> None:
    credential = Kept(ScramMechanism.SHA_256, alice="pencil").users["alice"]
    assert repr(credential) == "ScramCredential(iterations=4096)"
