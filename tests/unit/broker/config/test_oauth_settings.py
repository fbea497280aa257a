"""OAUTHBEARER settings of listeners: Kafka's keys with their prefixes, and the messages for invalid ones."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import ConfigError, load_config
from lowtide.broker.config.oauth_settings import ALLOWED_URLS, OAuthSettings
from lowtide.broker.config.sasl_settings import OwnLogin
from lowtide.broker.security.jwt_claims import TokenRules
from lowtide.runtime.https import Url
from lowtide.runtime.tls import TlsSettings
from lowtide.runtime.token_source import TokenSource

URL = "https://issuer.example/keys"
PREFIX = "listener.name.outside.oauthbearer."
OAUTH = "org.apache.kafka.common.security.oauthbearer."
LISTENER = {
    "listeners": "PLAINTEXT://:9092,OUTSIDE://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:SASL_SSL",
    "listener.name.outside.ssl.keystore.type": "PEM",
    "listener.name.outside.ssl.keystore.location": "/server.pem",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
}
UNVERIFIED = {f"sasl.oauthbearer.allow.unverified.{claim}": "true" for claim in ("audience", "issuer")}
SOURCE = {f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": URL, ALLOWED_URLS: URL} | UNVERIFIED
OWN_URL, OWN_ID = f"{PREFIX}sasl.oauthbearer.token.endpoint.url", f"{PREFIX}sasl.oauthbearer.client.credentials.client"
JAAS, HANDLER = f"{PREFIX}sasl.jaas.config", f"{PREFIX}sasl.server.callback.handler.class"


def settings(changes: dict[str, str], without: str = "") -> OAuthSettings:
    given = {name: text for name, text in (LISTENER | SOURCE | changes).items() if name != without}
    sasl = load_config(settings=given).secured_listeners["OUTSIDE"].sasl
    assert sasl is not None
    mechanism = sasl.mechanism("OAUTHBEARER")
    assert mechanism is not None
    assert mechanism.oauth is not None
    return mechanism.oauth


def test_a_key_source_is_enough() -> None:
    found = settings({})
    assert found.keys.url == Url("https", "issuer.example", 443, "/keys")
    assert (found.keys.refresh_ms, found.keys.retry_backoff_ms, found.keys.retry_backoff_ms_max) == (
        3_600_000,
        100,
        10_000,
    )
    assert found.rules == TokenRules()


@pytest.mark.parametrize("claim", ["audience", "issuer"])
def test_tokens_for_others_are_accepted_only_on_purpose(claim: str) -> None:
    """As since Kafka 4.4: a broker that expects no issuer or no audience does not start."""
    allowing = f"sasl.oauthbearer.allow.unverified.{claim}"
    with pytest.raises(ConfigError, match=rf"expected.{claim} is missing.*{allowing}=true"):
        settings({allowing: "false"})
    settings({allowing: "false", f"sasl.oauthbearer.expected.{claim}": "lake"})
    settings({allowing: "false", f"{PREFIX}{allowing}": "true"})


def test_kafkas_keys_at_their_three_places() -> None:
    changes = {
        "sasl.oauthbearer.expected.audience": "kafka,,lake",
        "listener.name.outside.sasl.oauthbearer.expected.issuer": "https://issuer.example/",
        "sasl.oauthbearer.expected.issuer": "https://other.example/",
        f"{PREFIX}sasl.oauthbearer.clock.skew.seconds": "5",
        f"{PREFIX}sasl.oauthbearer.sub.claim.name": "email",
        f"{PREFIX}sasl.oauthbearer.scope.claim.name": "scp",
        f"{PREFIX}sasl.oauthbearer.jwks.endpoint.refresh.ms": "60000",
        f"{PREFIX}sasl.oauthbearer.jwt.validator.class": f"{OAUTH}BrokerJwtValidator",
        HANDLER: f"{OAUTH}OAuthBearerValidatorCallbackHandler",
        JAAS: f'{OAUTH}OAuthBearerLoginModule required ssl.truststore.type="PEM" ssl.truststore.location="/ca.pem";',
    }
    found = settings(changes)
    expected = TokenRules(
        audiences=("kafka", "lake"),
        issuer="https://issuer.example/",
        skew_s=5,
        subject_claim="email",
        scope_claim="scp",
    )
    assert found.rules == expected
    assert (found.keys.refresh_ms, found.keys.tls.authorities_file) == (60_000, "/ca.pem")


def test_where_a_broker_gets_its_own_tokens() -> None:
    """As KIP-768 and KIP-1139 have it."""
    assert settings({}).own is None
    retriever = {f"{PREFIX}sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}FileJwtRetriever"}
    of_a_file = settings({OWN_URL: "file:/run/token", ALLOWED_URLS: f"{URL},file:/run/token"} | retriever).own
    assert of_a_file == TokenSource(url=Url("file", "", 0, "/run/token"))
    store = 'ssl.truststore.type="PEM" ssl.truststore.certificates="pem"'
    endpoint = {OWN_URL: f"{URL}/token", ALLOWED_URLS: f"{URL},{URL}/token"}
    login = {
        JAAS: f'{OAUTH}OAuthBearerLoginModule required clientId="broker" clientSecret="geheim" scope="a b" {store};'
    }
    expected = TokenSource(
        url=Url("https", "issuer.example", 443, "/keys/token"),
        client_id="broker",
        client_secret="geheim",
        scope="a b",
        tls=TlsSettings(authorities_text="pem"),
    )
    assert settings(endpoint | login).own == expected
    assert "geheim" not in repr(settings(endpoint | login))
    keys = {f"{OWN_ID}.id": "other", f"{OWN_ID}.secret": "s", f"{PREFIX}sasl.oauthbearer.scope": "c"}
    found = settings(endpoint | login | keys).own
    assert found is not None
    assert (found.client_id, found.client_secret, found.scope) == ("other", "s", "c")


def test_brokers_log_in_to_each_other_with_tokens() -> None:
    between = (
        LISTENER
        | SOURCE
        | {"inter.broker.listener.name": "OUTSIDE", "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}
    )
    with pytest.raises(ConfigError, match=f"{OWN_URL} must be set: brokers log in to each other by OAUTHBEARER"):
        load_config(settings=between)
    config = load_config(settings=between | {OWN_URL: "file:/run/token", ALLOWED_URLS: f"{URL},file:/run/token"})
    assert config.inter_broker_login == (
        "OAUTHBEARER",
        OwnLogin(tokens=TokenSource(url=Url("file", "", 0, "/run/token"))),
    )


def test_the_mechanism_may_stand_beside_others() -> None:
    changes = {"sasl.enabled.mechanisms": "SCRAM-SHA-512,oauthbearer", f"{PREFIX}connections.max.reauth.ms": "1000"}
    sasl = load_config(settings=LISTENER | SOURCE | changes).secured_listeners["OUTSIDE"].sasl
    assert sasl is not None
    assert [(each.name, each.lifetime_ms) for each in sasl.mechanisms] == [("SCRAM-SHA-512", 0), ("OAUTHBEARER", 1000)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": ""}, "jwks.endpoint.url is missing: without the keys"),
        ({ALLOWED_URLS: ""}, f"={URL} is invalid: {ALLOWED_URLS} does not list it"),
        ({ALLOWED_URLS: f"{URL}/"}, "does not list it"),
        (
            {f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "http://issuer.example/keys"},
            "is not encrypted: allowed is https",
        ),
        (
            {f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "ldap://issuer.example/keys"},
            "is neither https://host/path nor file:/path",
        ),
        ({f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "file:keys.json"}, "names no file"),
        (
            {HANDLER: f"{OAUTH}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"},
            "allowed is .*OAuthBearerValidatorCallback",
        ),
        ({HANDLER: "com.example.Handler"}, "com.example.Handler is invalid: allowed is org.apache.kafka"),
        (
            {"sasl.server.callback.handler.class": f"{OAUTH}OAuthBearerValidatorCallbackHandler"},
            f"a mechanism in its name: use {HANDLER}",
        ),
        (
            {"listener.name.outside.sasl.server.callback.handler.class": f"{OAUTH}OAuthBearerValidatorCallbackHandler"},
            f"needs a mechanism in its name: use {HANDLER}",
        ),
        (
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.outside.scram-sha-512.sasl.server.callback.handler.class": (
                    f"{OAUTH}OAuthBearerValidatorCallbackHandler"
                ),
            },
            "is not possible for SCRAM-SHA-512: Java classes cannot be loaded",
        ),
        (
            {f"{PREFIX}sasl.oauthbearer.jwt.validator.class": f"{OAUTH}ClientJwtValidator"},
            "allowed is .*DefaultJwtValidator or .*BrokerJwt",
        ),
        ({f"{PREFIX}sasl.oauthbearer.sub.claim.name": ""}, "sub.claim.name is empty: allowed is the name of a claim"),
        ({f"{PREFIX}sasl.oauthbearer.clock.skew.seconds": "-1"}, "allowed is a whole number of 32 bits of at least 0"),
        (
            {JAAS: f'{OAUTH}OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="a";'},
            "has the option unsecuredLoginStringClaim_sub",
        ),
        (
            {JAAS: f'{OAUTH}OAuthBearerLoginModule required ssl.truststore.location="/ca.jks";'},
            "a trust store that is not .*PEM",
        ),
        (
            {JAAS: "org.apache.kafka.common.security.plain.PlainLoginModule required;"},
            "allowed is .*oauthbearer.OAuthBearerLoginModule",
        ),
        ({OWN_URL: "https://issuer.example/token"}, "does not list it"),
        ({OWN_URL: f"{URL}", f"{OWN_ID}.id": "a"}, "client.id and its .secret must be set"),
        (
            {OWN_URL: URL, f"{PREFIX}sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}FileJwtRetriever"},
            "FileJwtRetriever is invalid with sasl.oauthbearer.token.endpoint.url=https",
        ),
        (
            {f"{PREFIX}sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}JwtBearerJwtRetriever"},
            "allowed is .*ClientCredentialsJwtRetriever",
        ),
        (
            {f"{PREFIX}sasl.login.callback.handler.class": "com.example.Handler"},
            "allowed is .*OAuthBearerLoginCallbackHandler",
        ),
        ({f"{PREFIX}sasl.oauthbearer.assertion.file": "/x"}, "protection that Lowtide does not support"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings(changes)


def test_a_listener_without_a_key_source_is_refused() -> None:
    """CVE-2026-110985: Kafka takes unsigned tokens there."""
    with pytest.raises(
        ConfigError, match=r"listener.name.outside.oauthbearer.sasl.oauthbearer.jwks.endpoint.url is missing"
    ):
        settings({}, without=f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url")


@pytest.mark.parametrize(
    "name",
    ["sasl.oauthbearer.jwks.endpoint.url", "listener.name.plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url"],
)
def test_keys_that_no_listener_asks_for_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} requires SASL"):
        load_config(settings={"listeners": "PLAINTEXT://:9092", name: URL})
