"""The source of a client's tokens, by Kafka's keys and librdkafka's."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lowtide.admin.settings import ClientSettings, SettingsError
from lowtide.runtime.https import Url
from lowtide.runtime.tls import TlsSettings
from lowtide.runtime.token_source import TokenSource

OAUTH = "org.apache.kafka.common.security.oauthbearer."
STORE = 'ssl.truststore.type="PEM" ssl.truststore.location="/ca"'
MODULE = f"{OAUTH}OAuthBearerLoginModule required"
COMMON = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
URL, FILE = "https://issuer.example/token", "file:/run/token"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
ID, SECRET = "sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.credentials.client.secret"


def of(properties: dict[str, str]) -> ClientSettings:
    return ClientSettings.of(COMMON | properties)


def test_a_file() -> None:
    handler = {"sasl.login.callback.handler.class": f"{OAUTH}OAuthBearerLoginCallbackHandler"}
    module = {"sasl.jaas.config": f"{MODULE};", "sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}FileJwtRetriever"}
    found = of({ENDPOINT: FILE} | handler | module)
    assert found.tokens == TokenSource(url=Url("file", "", 0, "/run/token"))
    assert found.sasl is not None
    assert (found.sasl.mechanism, found.unused_keys) == ("OAUTHBEARER", ())


@pytest.mark.parametrize(
    "properties",
    [
        {ID: "me", SECRET: "geheim", "sasl.oauthbearer.scope": "a", "sasl.jaas.config": f"{MODULE} {STORE};"},
        {"sasl.jaas.config": f'{MODULE} clientId="me" clientSecret="geheim" scope="a" {STORE};'},
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "geheim",
            "sasl.oauthbearer.scope": "a",
            "https.ca.location": "/ca",
        },
    ],
)
def test_an_endpoint(properties: dict[str, str]) -> None:
    found = of({ENDPOINT: URL} | properties)
    url, tls = Url("https", "issuer.example", 443, "/token"), TlsSettings(authorities_file="/ca")
    assert found.tokens == TokenSource(url=url, client_id="me", client_secret="geheim", scope="a", tls=tls)
    assert found.unused_keys == ()
    assert "geheim" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(found)


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({}, f"^sasl.mechanism is OAUTHBEARER: {ENDPOINT} must give the source of tokens"),
        ({ENDPOINT: "http://issuer.example/"}, f"{ENDPOINT} is 'http://issuer.example/': it is not encrypted"),
        ({ENDPOINT: URL}, f"{ID} and .client.secret"),
        ({ENDPOINT: URL, ID: "me"}, "must identify the client to the endpoint"),
        (
            {ENDPOINT: FILE, "sasl.login.callback.handler.class": "com.example.Handler"},
            "allowed are .*OAuthBearerLoginCallbackHandler",
        ),
        (
            {ENDPOINT: FILE, "sasl.oauthbearer.method": "default"},
            "sasl.oauthbearer.method is 'default': allowed are oidc",
        ),
        (
            {ENDPOINT: FILE, "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"},
            "allowed are client_credentials",
        ),
        (
            {ENDPOINT: FILE, "sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}JwtBearerJwtRetriever"},
            "allowed are .*FileJwtRetriever",
        ),
        (
            {ENDPOINT: FILE, "sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}ClientCredentialsJwtRetriever"},
            "it does not fit",
        ),
        ({ENDPOINT: URL, "sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}FileJwtRetriever"}, "it does not fit"),
        (
            {ENDPOINT: FILE, "sasl.jaas.config": f'{MODULE} unsecuredLoginStringClaim_sub="geheim";'},
            "has the option unsecuredLogin",
        ),
        (
            {ENDPOINT: FILE, "sasl.jaas.config": 'a.PlainLoginModule required password="geheim";'},
            "its module is a.PlainLoginModule",
        ),
        ({ENDPOINT: FILE, "sasl.jaas.config": "geheim"}, "sasl.jaas.config is invalid"),
        (
            {ENDPOINT: FILE, "sasl.jaas.config": f"{MODULE} ssl.truststore.location=/ca.jks;"},
            "its trust store is not PEM",
        ),
    ],
)
def test_what_cannot_be_is_refused_without_a_secret(properties: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        of(properties)
    assert "geheim" not in str(caught.value)


def test_tokens_belong_to_oauthbearer_alone() -> None:
    found = ClientSettings.of({"bootstrap.servers": "a:1", ENDPOINT: FILE})
    assert found.tokens is None
    assert found.unused_keys == (ENDPOINT,)
