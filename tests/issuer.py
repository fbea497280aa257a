"""An issuer of tokens for tests: a key pair, its public key set, and tokens that are wrong in one point."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import Any

from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry, serialize_compact

SUBJECT, AUDIENCE, ISSUER = "alice", "kafka", "https://issuer.example/"
LIFETIME_S = 300


def new_key(algorithm: str) -> Key:
    """A key pair for an algorithm."""
    if algorithm.startswith("E"):
        curves = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
        return ECKey.generate_key(curves[algorithm]) if algorithm in curves else OKPKey.generate_key("Ed25519")
    return RSAKey.generate_key(2048)


class AnyAlgorithm(JWSRegistry):
    """Signs whatever is asked for, without the library's warnings."""

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]

    def check_header(self, header: Any) -> None:
        pass


class Issuer:
    """Signs tokens with one key."""

    def __init__(self, key_id: str | None = "one", algorithm: str = "ES256") -> None:
        self.key_id, self.algorithm = key_id, algorithm
        self.key = new_key(algorithm)

    @property
    def public(self) -> dict[str, Any]:
        """The public key as a member of a set."""
        member: dict[str, Any] = dict(self.key.as_dict(private=False)) | {"use": "sig"}
        return member if self.key_id is None else member | {"kid": self.key_id}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """What a token says; None takes a claim away."""
        now_s = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": SUBJECT,
            "aud": AUDIENCE,
            "iat": now_s,
            "exp": now_s + LIFETIME_S,
            "scope": "read",
        }
        return {name: value for name, value in (claims | changes).items() if value is not None}

    def token(self, **changes: Any) -> str:
        """A token that holds, but for what is changed."""
        return self.sign(self.claims(**changes))

    def sign(self, claims: Any, **header: Any) -> str:
        """A token with any payload and any header."""
        named = {"kid": self.key_id} if self.key_id is not None else {}
        complete = {"alg": self.algorithm, "typ": "JWT"} | named | header
        return serialize_compact(complete, json.dumps(claims), self.key, registry=AnyAlgorithm())


def key_set(*issuers: Issuer) -> bytes:
    """The set of their public keys."""
    return json.dumps({"keys": [each.public for each in issuers]}).encode()


def encoded(part: bytes) -> str:
    """A part of a token."""
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def by_hand(header: Any, claims: Any, secret: bytes | None = None) -> str:
    """A token that no library makes: without a signature, or signed with a secret by HS256."""
    text = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{text}.{'' if secret is None else encoded(hmac.digest(secret, text.encode(), 'sha256'))}"


def genuine(issuer: Issuer) -> dict[str, str]:
    """Tokens that are a login, by what is special about them."""
    now_s = int(time.time())
    return {
        "an ordinary one": issuer.token(),
        "several audiences": issuer.token(aud=["shop", AUDIENCE]),
        "several scopes": issuer.token(scope=["read", "write"]),
        "scopes in one text": issuer.token(scope="read write"),
        "no scope": issuer.token(scope=None),
        "a scope that is a number": issuer.token(scope=7),
        "a time with a fraction": issuer.token(exp=now_s + 60.5),
        "expired within the skew": issuer.token(iat=now_s - 100, exp=now_s - 10),
        "not valid yet within the skew": issuer.token(nbf=now_s + 10),
        "issued in the future": issuer.token(iat=now_s + 100),
        "white space around its subject": issuer.token(sub=f" {SUBJECT} "),
        "claims of its own": issuer.token(groups=["a"] * 100, email="a@example.org", nested={"a": [1, {"b": None}]}),
        "headers of its own": issuer.sign(issuer.claims(), nonce="x", x5t="y", typ="at+jwt"),
    }


def forgeries(issuer: Issuer) -> dict[str, str]:
    """Tokens that must be refused, by what is wrong with them: CVE-2026-110985, CVE-2026-33557 and similar."""
    now_s = int(time.time())
    claims, mallory = issuer.claims(), Issuer(issuer.key_id, issuer.algorithm)
    pem, member = issuer.key.as_pem(private=False), json.dumps(issuer.public).encode()
    head, payload, signature = issuer.token().split(".")
    other = encoded(json.dumps({"alg": "RS256", "kid": issuer.key_id}).encode())
    return {
        "not signed": by_hand({"alg": "none"}, claims),
        "not signed, with a key id": by_hand({"alg": "None", "kid": issuer.key_id}, claims),
        "without its signature": f"{head}.{payload}.",
        "signed by another key": mallory.token(),
        "signed by a key that it brings along": mallory.sign(claims, jwk=mallory.public),
        "signed with the public key as secret": by_hand({"alg": "HS256", "kid": issuer.key_id}, claims, pem),
        "signed with the key's JSON as secret": by_hand({"alg": "HS256", "kid": issuer.key_id}, claims, member),
        "changed after it was signed": f"{head}.{encoded(json.dumps(claims | {'sub': 'admin'}).encode())}.{signature}",
        "of an algorithm that its key is not for": f"{other}.{payload}.{signature}",
        "with a header that must be understood": issuer.sign(claims, crit=["exp"], exp=1),
        "expired": issuer.token(iat=now_s - 600, exp=now_s - 60),
        "not valid yet": issuer.token(nbf=now_s + 60),
        "of the wrong issuer": issuer.token(iss="https://mallory.example/"),
        "of no issuer": issuer.token(iss=None),
        "of a list of issuers": issuer.token(iss=[ISSUER]),
        "with a list of subjects": issuer.token(sub=["alice"]),
        "with a number as subject": issuer.token(sub=7),
        "without a subject": issuer.token(sub=None),
        "with an empty subject": issuer.token(sub=" \t"),
        "for another audience": issuer.token(aud="shop"),
        "for an audience that is no text": issuer.token(aud=[{"kafka": 1}]),
        "for no audience": issuer.token(aud=None),
        "without exp": issuer.token(exp=None),
        "with exp as a text": issuer.token(exp=str(now_s + 300)),
        "with exp in milliseconds": issuer.token(exp=(now_s + 300) * 1000),
        "without iat": issuer.token(iat=None),
        "with iat as a truth": issuer.token(iat=True),
        "with a list for its claims": issuer.sign([claims]),
        "with a scope twice": issuer.token(scope=["a", " a"]),
    }
