"""Settings for the tokens of OAUTHBEARER, with the keys of Kafka's clients and of librdkafka.

Imported only if a client uses this mechanism. Sources: KIP-768, KIP-1139, the list of librdkafka's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.admin.client_properties import ClientProperties, SettingsError
from lowtide.protocol.jaas import JaasError, parse_jaas
from lowtide.runtime.https import UrlError, parse_url
from lowtide.runtime.tls import TlsSettings
from lowtide.runtime.token_source import TokenSource

URL: Final = "sasl.oauthbearer.token.endpoint.url"
JAAS: Final = "sasl.jaas.config"
RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"

_CLASSES: Final = "org.apache.kafka.common.security.oauthbearer."
_FILE: Final = f"{_CLASSES}FileJwtRetriever"
_RETRIEVERS: Final = (f"{_CLASSES}DefaultJwtRetriever", _FILE, f"{_CLASSES}ClientCredentialsJwtRetriever")
_HANDLERS: Final = (f"{_CLASSES}OAuthBearerLoginCallbackHandler", f"{_CLASSES}secured.OAuthBearerLoginCallbackHandler")
_OPTIONS: Final = (
    "clientId",
    "clientSecret",
    "scope",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
)


def token_source(given: ClientProperties) -> TokenSource:
    """Reads where tokens come from. Errors: SettingsError for invalid or missing settings."""
    given.choice("sasl.login.callback.handler.class", _HANDLERS)
    given.choice("sasl.oauthbearer.method", ("oidc",))
    given.choice("sasl.oauthbearer.grant.type", ("client_credentials",))
    retriever = given.choice(RETRIEVER, _RETRIEVERS)
    options = _options(given)
    text = given.get(URL)
    if not text:
        raise SettingsError(
            f"sasl.mechanism is OAUTHBEARER: {URL} must give the source of tokens, as file:/path or https://host/path."
        )
    try:
        url = parse_url(text)
    except UrlError as error:
        raise given.error(URL, f"it {error}") from None
    if retriever in _RETRIEVERS[1:] and (retriever == _FILE) != url.is_file:
        raise given.error(RETRIEVER, f"it does not fit {URL}, which is {text!r}")
    client_id = given.get("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id") or options.get(
        "clientId", ""
    )
    secret = given.secret("sasl.oauthbearer.client.credentials.client.secret") or given.secret(
        "sasl.oauthbearer.client.secret"
    )
    secret = secret or options.get("clientSecret", "")
    if not url.is_file and not (client_id and secret):
        raise SettingsError(
            "sasl.mechanism is OAUTHBEARER: sasl.oauthbearer.client.credentials.client.id and .client.secret "
            f"(or clientId and clientSecret of {JAAS}) must identify the client to the endpoint."
        )
    return TokenSource(
        url=url,
        client_id=client_id,
        client_secret=secret,
        scope=given.get("sasl.oauthbearer.scope") or options.get("scope", ""),
        tls=TlsSettings(
            authorities_file=given.get("https.ca.location") or options.get("ssl.truststore.location") or None,
            authorities_text=given.get("https.ca.pem") or options.get("ssl.truststore.certificates") or None,
        ),
    )


def _options(given: ClientProperties) -> Mapping[str, str]:
    """Returns the options of the login module, if there is one. Errors: SettingsError."""
    text = given.get(JAAS)
    if text is None:
        return {}
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise given.error(JAAS, str(error), secret=True) from None
    if module.simple_name != "OAuthBearerLoginModule":
        raise given.error(JAAS, f"its module is {module.name}, but sasl.mechanism is OAUTHBEARER", secret=True)
    strange = sorted(module.options.keys() - set(_OPTIONS))
    if strange:
        raise given.error(JAAS, f"it has the option {strange[0]}: allowed are {', '.join(_OPTIONS)}", secret=True)
    if module.options.get("ssl.truststore.location") and module.options.get("ssl.truststore.type") != "PEM":
        raise given.error(JAAS, "its trust store is not PEM, the only readable format", secret=True)
    return module.options
