"""OAUTHBEARER settings of a listener: the issuer's public keys, the rules for tokens, and the broker's own tokens.

Guards: a listener without a source of public keys is refused, because signatures could not be verified (Kafka's default
accepts unsigned tokens). URLs must be on a list of allowed URLs, and encrypted or local.

Imported only where OAUTHBEARER is enabled. Sources: KIP-255, KIP-768, Kafka's `OAuthBearerUtils.validateUrl`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.broker.config.key import InvalidKeysError
from lowtide.broker.config.listener_keys import ListenerKeys
from lowtide.broker.security.jwt_claims import TokenRules, unchecked
from lowtide.broker.security.oauth_bearer import MECHANISM
from lowtide.protocol.jaas import LoginModule
from lowtide.runtime.https import Url, UrlError, parse_url
from lowtide.runtime.tls import TlsSettings
from lowtide.runtime.token_source import TokenSource

ALLOWED_URLS: Final = "lowtide.sasl.oauthbearer.allowed.urls"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"

ENDPOINT_URL: Final = "sasl.oauthbearer.token.endpoint.url"

_STORE_TYPE, _STORE_LOCATION, _STORE_TEXT = (
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
)
_ID, _SECRET, _SCOPE = "clientId", "clientSecret", "scope"
_OPTIONS: Final = (_STORE_TYPE, _STORE_LOCATION, _STORE_TEXT, _ID, _SECRET, _SCOPE)
"""Options of the login module, as in Kafka: trust for the endpoints' certificates, and client credentials."""

_UNFIT: Final = {True: "ClientCredentialsJwtRetriever", False: "FileJwtRetriever"}
"""The retriever class that contradicts a file URL, and the one that contradicts any other URL."""


class KeySource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the public keys, and how often they are fetched."""

    url: Url
    text: str
    tls: TlsSettings
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_ms_max: int


class OAuthSettings(msgspec.Struct, frozen=True):
    """How tokens are validated at one listener."""

    keys: KeySource
    rules: TokenRules
    own: TokenSource | None = None


def oauth_settings(keys: ListenerKeys, module: LoginModule | None) -> OAuthSettings:
    """Returns the settings of a listener; `module` is its login module, if any. Errors: InvalidKeysError."""
    if not keys.text(JWKS_URL, MECHANISM):
        name = keys.own_name(JWKS_URL, MECHANISM)
        message = f"{name} is missing: without the keys that verify tokens, {MECHANISM} would accept any token"
        raise InvalidKeysError(message, "sasl.enabled.mechanisms", "listeners")
    source = KeySource(
        url=allowed_url(keys, JWKS_URL),
        text=keys.text(JWKS_URL, MECHANISM),
        tls=_tls(keys, module),
        refresh_ms=keys.number("sasl.oauthbearer.jwks.endpoint.refresh.ms", MECHANISM),
        retry_backoff_ms=keys.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", MECHANISM),
        retry_backoff_ms_max=keys.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", MECHANISM),
    )
    rules = TokenRules(
        audiences=tuple(filter(None, keys.texts("sasl.oauthbearer.expected.audience", MECHANISM))),
        issuer=keys.text("sasl.oauthbearer.expected.issuer", MECHANISM),
        skew_s=keys.number("sasl.oauthbearer.clock.skew.seconds", MECHANISM),
        subject_claim=_claim(keys, "sasl.oauthbearer.sub.claim.name"),
        scope_claim=_claim(keys, "sasl.oauthbearer.scope.claim.name"),
    )
    for claim in unchecked(rules):
        allowing = f"sasl.oauthbearer.allow.unverified.{claim}"
        if keys.value(allowing, MECHANISM) is not True:
            name = keys.own_name(f"sasl.oauthbearer.expected.{claim}", MECHANISM)
            message = f"{name} is missing: tokens for others would be accepted; {allowing}=true allows that"
            raise InvalidKeysError(message, name, allowing)
    return OAuthSettings(source, rules, _own(keys, module))


def allowed_url(keys: ListenerKeys, key: str) -> Url:
    """Returns the URL of a key. Errors: InvalidKeysError if it is invalid or not on the list."""
    text, name = keys.text(key, MECHANISM), keys.given_name(key, MECHANISM) or key
    try:
        url = parse_url(text)
    except UrlError as error:
        raise InvalidKeysError(f"{name}={text} is invalid: it {error}", name) from None
    if text not in keys.texts(ALLOWED_URLS):
        raise InvalidKeysError(f"{name}={text} is invalid: {ALLOWED_URLS} does not list it", name, ALLOWED_URLS)
    return url


def _own(keys: ListenerKeys, module: LoginModule | None) -> TokenSource | None:
    if not keys.text(ENDPOINT_URL, MECHANISM):
        return None
    url, options = allowed_url(keys, ENDPOINT_URL), {} if module is None else module.options
    prefix = "sasl.oauthbearer.client.credentials.client"
    client_id = keys.text(f"{prefix}.id", MECHANISM) or options.get(_ID, "")
    secret = keys.text(f"{prefix}.secret", MECHANISM) or options.get(_SECRET, "")
    retriever = "sasl.oauthbearer.jwt.retriever.class"
    if keys.text(retriever, MECHANISM).endswith(_UNFIT[url.is_file]):
        name = str(keys.given_name(retriever, MECHANISM))
        message = (
            f"{name}={keys.text(retriever, MECHANISM)} is invalid with "
            f"{ENDPOINT_URL}={keys.text(ENDPOINT_URL, MECHANISM)}"
        )
        raise InvalidKeysError(message, name)
    if not url.is_file and not (client_id and secret):
        name = keys.own_name(f"{prefix}.id", MECHANISM)
        message = f"{name} and its .secret must be set: the endpoint of {ENDPOINT_URL} requires client credentials"
        raise InvalidKeysError(message, keys.given_name(ENDPOINT_URL, MECHANISM) or ENDPOINT_URL)
    scope = keys.text("sasl.oauthbearer.scope", MECHANISM) or options.get(_SCOPE, "")
    return TokenSource(url=url, client_id=client_id, client_secret=secret, scope=scope, tls=_tls(keys, module))


def _claim(keys: ListenerKeys, key: str) -> str:
    claim = keys.text(key, MECHANISM)
    if not claim:
        name = keys.given_name(key, MECHANISM) or key
        raise InvalidKeysError(f"{name} is empty: allowed is the name of a claim", name)
    return claim


def _tls(keys: ListenerKeys, module: LoginModule | None) -> TlsSettings:
    """Returns the trusted certificates for the endpoint: those of the login module, or the system's.

    Errors: InvalidKeysError.
    """
    options = {} if module is None else module.options
    name = keys.own_name("sasl.jaas.config", MECHANISM)
    strange = sorted(options.keys() - set(_OPTIONS))
    if strange:
        message = (
            f"{name} has the option {strange[0]}, which is not possible for {MECHANISM}: allowed are "
            f"{', '.join(_OPTIONS)}"
        )
        raise InvalidKeysError(message, name)
    location, text = options.get(_STORE_LOCATION), options.get(_STORE_TEXT)
    if (location or text) and options.get(_STORE_TYPE) != "PEM":
        raise InvalidKeysError(f"{name} has a trust store that is not {_STORE_TYPE}=PEM: allowed is PEM", name)
    return TlsSettings(authorities_file=location or None, authorities_text=text or None)
