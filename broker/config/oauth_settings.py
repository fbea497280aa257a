"""How a listener checks tokens of OAUTHBEARER: where the issuer's public keys are, what tokens must say; and where a broker gets its own.

Guards: without keys to verify signatures by nothing is accepted, so a listener without a key source is refused (Kafka's default accepts
unsigned tokens there). What is fetched is on a list of allowed URLs, and is encrypted or on this machine.

Loaded where OAUTHBEARER is enabled, and nowhere else. Sources: KIP-255, KIP-768, Kafka's `OAuthBearerUtils.validateUrl`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.broker.config.key import ImpossibleTogetherError
from lowtide.broker.config.listener_keys import ListenerKeys
from lowtide.broker.security.jwt_claims import TokenRules
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
"""Of the login module: how the endpoints' certificates are checked, and whom tokens are given to, as in Kafka."""

_UNFIT: Final = {True: "ClientCredentialsJwtRetriever", False: "FileJwtRetriever"}
"""The class that gets no tokens from a file, and the one that gets them from nowhere else."""


class KeySource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the keys are, and how often they are fetched."""

    url: Url
    text: str
    """The URL as it is configured."""
    tls: TlsSettings
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_ms_max: int


class OAuthSettings(msgspec.Struct, frozen=True):
    """How tokens are checked at one listener."""

    keys: KeySource
    rules: TokenRules
    own: TokenSource | None = None
    """Where this broker gets the tokens that it logs in with."""


def oauth_settings(keys: ListenerKeys, module: LoginModule | None) -> OAuthSettings:
    """What holds at a listener; `module` is its login module, if one is given. Errors: ImpossibleTogetherError."""
    if not keys.text(JWKS_URL, MECHANISM):
        message = (
            f"{keys.own_name(JWKS_URL, MECHANISM)} is missing: it names the keys that tokens are verified by, without which {MECHANISM} "
            "would accept everybody's"
        )
        raise ImpossibleTogetherError(message, "sasl.enabled.mechanisms", "listeners")
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
    return OAuthSettings(source, rules, _own(keys, module))


def allowed_url(keys: ListenerKeys, key: str) -> Url:
    """The URL that a key names. Errors: ImpossibleTogetherError where it can't be, or is not on the list."""
    text, name = keys.text(key, MECHANISM), keys.given_name(key, MECHANISM) or key
    try:
        url = parse_url(text)
    except UrlError as error:
        message = f"{name}={text} is not possible: it {error}"
        raise ImpossibleTogetherError(message, name) from None
    if text not in keys.texts(ALLOWED_URLS):
        message = f"{name}={text} is not possible: allowed are the URLs that {ALLOWED_URLS} lists, and this one is not among them"
        raise ImpossibleTogetherError(message, name, ALLOWED_URLS)
    return url


def _own(keys: ListenerKeys, module: LoginModule | None) -> TokenSource | None:
    """Errors: ImpossibleTogetherError."""
    if not keys.text(ENDPOINT_URL, MECHANISM):
        return None
    url, options = allowed_url(keys, ENDPOINT_URL), {} if module is None else module.options
    prefix = "sasl.oauthbearer.client.credentials.client"
    client_id = keys.text(f"{prefix}.id", MECHANISM) or options.get(_ID, "")
    secret = keys.text(f"{prefix}.secret", MECHANISM) or options.get(_SECRET, "")
    retriever = "sasl.oauthbearer.jwt.retriever.class"
    if keys.text(retriever, MECHANISM).endswith(_UNFIT[url.is_file]):
        name = str(keys.given_name(retriever, MECHANISM))
        message = f"{name}={keys.text(retriever, MECHANISM)} is not possible with {ENDPOINT_URL}={keys.text(ENDPOINT_URL, MECHANISM)}"
        raise ImpossibleTogetherError(message, name)
    if not url.is_file and not (client_id and secret):
        name = keys.own_name(f"{prefix}.id", MECHANISM)
        message = f"{name} and its .secret must be set: the endpoint of {ENDPOINT_URL} gives tokens to those it knows"
        raise ImpossibleTogetherError(message, keys.given_name(ENDPOINT_URL, MECHANISM) or ENDPOINT_URL)
    scope = keys.text("sasl.oauthbearer.scope", MECHANISM) or options.get(_SCOPE, "")
    return TokenSource(url=url, client_id=client_id, client_secret=secret, scope=scope, tls=_tls(keys, module))


def _claim(keys: ListenerKeys, key: str) -> str:
    """Errors: ImpossibleTogetherError."""
    claim = keys.text(key, MECHANISM)
    if not claim:
        name = keys.given_name(key, MECHANISM) or key
        message = f"{name} is empty: allowed is the name of a claim"
        raise ImpossibleTogetherError(message, name)
    return claim


def _tls(keys: ListenerKeys, module: LoginModule | None) -> TlsSettings:
    """Whose certificates are trusted at the endpoint: those of the login module, or the system's.

    Errors: ImpossibleTogetherError.
    """
    options = {} if module is None else module.options
    name = keys.own_name("sasl.jaas.config", MECHANISM)
    strange = sorted(options.keys() - set(_OPTIONS))
    if strange:
        message = f"{name} has the option {strange[0]}, which is not possible for {MECHANISM}: allowed are {', '.join(_OPTIONS)}"
        raise ImpossibleTogetherError(message, name)
    location, text = options.get(_STORE_LOCATION), options.get(_STORE_TEXT)
    if (location or text) and options.get(_STORE_TYPE) != "PEM":
        message = f"{name} has a trust store that is not {_STORE_TYPE}=PEM: allowed is PEM"
        raise ImpossibleTogetherError(message, name)
    return TlsSettings(authorities_file=location or None, authorities_text=text or None)
