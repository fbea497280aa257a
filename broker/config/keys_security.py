"""A broker's keys about TLS, SASL, tokens and authorization, as facts of Apache Kafka 4.3.

A table: its order is by subject.
"""

from __future__ import annotations

import re
from typing import Final

from lowtide.broker.config.key import ConfigKey, Matching, OneOf, Range, Type, at_least

_BOOLEAN, _SHORT, _INT, _LONG, _DOUBLE = Type.BOOLEAN, Type.SHORT, Type.INT, Type.LONG, Type.DOUBLE
_STRING, _LIST, _CLASS, _PASSWORD = Type.STRING, Type.LIST, Type.CLASS, Type.PASSWORD
_PROTOCOLS: Final = OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's authorizer. Its name stands for Lowtide's, which decides alike."""

_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."


def _kafkas(*classes: str) -> Matching:
    """Classes of Kafka's for OAUTHBEARER, whose names stand for Lowtide's own code: no Java class can be loaded."""
    return Matching(
        "|".join(re.escape(f"{_OAUTH}{each}") for each in classes), " or ".join(f"{_OAUTH}{each}" for each in classes)
    )


# fmt: off
SECURITY_KEYS: Final[tuple[ConfigKey, ...]] = (
    # Who may do what.
    ConfigKey("authorizer.class.name", _STRING, "", Matching(f"|{re.escape(STANDARD_AUTHORIZER)}", f"empty, or {STANDARD_AUTHORIZER}"),
              "What decides who may do what. Empty: every client may do everything. Kafka's class name means Lowtide's own authorizer, which "
              "has the same rules; other classes can't be loaded.", enforced=True),
    ConfigKey("super.users", _STRING, "", Matching(r"( *(;|$)| *[^:; ][^:;]*:[^;]+(;|$))*", "Type:name, several separated by semicolons"),
              "Principals that may do everything, whatever the rules say, such as User:admin;User:broker.", enforced=True),
    ConfigKey("allow.everyone.if.no.acl.found", _BOOLEAN, "false", None,
              "Whether every client may use a resource that no rule is about.", enforced=True),
    ConfigKey("principal.builder.class", _CLASS, "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", None,
              "A class that says who a connection is."),
    ConfigKey("security.inter.broker.protocol", _STRING, "PLAINTEXT", _PROTOCOLS, "How brokers talk to each other.", enforced=True),
    ConfigKey("security.providers", _STRING, None, None, "Classes that bring security algorithms."),
    ConfigKey("connection.failed.authentication.delay.ms", _INT, "100", at_least(0), "How long a refused client waits before it is closed.", enforced=True),
    ConfigKey("connections.max.reauth.ms", _LONG, "0", None, "After how long a client must authenticate again; 0 is never.", enforced=True),

    # Delegation tokens.
    ConfigKey("delegation.token.secret.key", _PASSWORD, None, None,
              "What the passwords of delegation tokens are computed with; the same on all brokers. Without it there are no tokens.", enforced=True),
    ConfigKey("delegation.token.max.lifetime.ms", _LONG, "604800000", at_least(1),
              "How long a token lasts at most, renewals included.", enforced=True),
    ConfigKey("delegation.token.expiry.time.ms", _LONG, "86400000", at_least(1), "How long a token lasts without a renewal.", enforced=True),
    ConfigKey("delegation.token.expiry.check.interval.ms", _LONG, "3600000", at_least(1),
              "How often the controller removes tokens that have ended.", enforced=True),

    # TLS.
    ConfigKey("ssl.client.auth", _STRING, "none", OneOf(("required", "requested", "none")), "Whether clients show a certificate.", enforced=True),
    ConfigKey("ssl.protocol", _STRING, "TLSv1.3", None, "The TLS version that connections begin with."),
    ConfigKey("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3", None, "The TLS versions that are taken.", enforced=True),
    ConfigKey("ssl.cipher.suites", _LIST, "", None, "The ciphers that are taken; all when empty.", enforced=True),
    ConfigKey("ssl.provider", _STRING, None, None, "The Java provider of TLS."),
    ConfigKey("ssl.secure.random.implementation", _STRING, None, None, "The Java source of randomness for TLS."),
    ConfigKey("ssl.engine.factory.class", _CLASS, None, None, "A class that makes TLS engines."),
    ConfigKey("ssl.keystore.type", _STRING, "JKS", None, "The format of the key store.", enforced=True),
    ConfigKey("ssl.keystore.location", _STRING, None, None, "The file of the key store.", enforced=True),
    ConfigKey("ssl.keystore.password", _PASSWORD, None, None, "The secret of the key store.", enforced=True),
    ConfigKey("ssl.keystore.key", _PASSWORD, None, None, "The private key itself.", enforced=True),
    ConfigKey("ssl.keystore.certificate.chain", _PASSWORD, None, None, "The certificates themselves.", enforced=True),
    ConfigKey("ssl.key.password", _PASSWORD, None, None, "The secret of the private key.", enforced=True),
    ConfigKey("ssl.keymanager.algorithm", _STRING, "SunX509", None, "The Java algorithm that handles keys."),
    ConfigKey("ssl.truststore.type", _STRING, "JKS", None, "The format of the trust store.", enforced=True),
    ConfigKey("ssl.truststore.location", _STRING, None, None, "The file of the trust store.", enforced=True),
    ConfigKey("ssl.truststore.password", _PASSWORD, None, None, "The secret of the trust store.", enforced=True),
    ConfigKey("ssl.truststore.certificates", _PASSWORD, None, None, "The trusted certificates themselves.", enforced=True),
    ConfigKey("ssl.trustmanager.algorithm", _STRING, "PKIX", None, "The Java algorithm that handles trust."),
    ConfigKey("ssl.endpoint.identification.algorithm", _STRING, "https", None, "How a server's name is checked; empty is not at all.", enforced=True),
    ConfigKey("ssl.principal.mapping.rules", _STRING, "DEFAULT", None, "How a certificate's name becomes a principal.", enforced=True),
    ConfigKey("ssl.allow.dn.changes", _BOOLEAN, "false", None, "Whether a renewed certificate may have another subject.", enforced=True),
    ConfigKey("ssl.allow.san.changes", _BOOLEAN, "false", None, "Whether a renewed certificate may lack an alternative name of the old one.", enforced=True),

    # SASL.
    ConfigKey("sasl.enabled.mechanisms", _LIST, "GSSAPI", None, "The mechanisms that are taken.", enforced=True),
    ConfigKey("sasl.mechanism.inter.broker.protocol", _STRING, "GSSAPI", None, "The mechanism between brokers.", enforced=True),
    ConfigKey("sasl.mechanism.controller.protocol", _STRING, "GSSAPI", None, "The mechanism to the controllers of KRaft."),
    ConfigKey("sasl.jaas.config", _PASSWORD, None, None, "The login modules, in Java's format.", enforced=True),
    ConfigKey("sasl.server.callback.handler.class", _CLASS, None, _kafkas("OAuthBearerValidatorCallbackHandler", "secured.OAuthBearerValidatorCallbackHandler"),
              "A class that checks tokens. Kafka's for OAUTHBEARER means Lowtide's own check, which is the default.", enforced=True),
    ConfigKey("sasl.client.callback.handler.class", _CLASS, None, None, "A class that answers a client's questions."),
    ConfigKey("sasl.login.callback.handler.class", _CLASS, None, _kafkas("OAuthBearerLoginCallbackHandler", "secured.OAuthBearerLoginCallbackHandler"),
              "A class that gets this broker's tokens. Kafka's for OAUTHBEARER means Lowtide's own way, which is the default.", enforced=True),
    ConfigKey("sasl.login.class", _CLASS, None, None, "A class that logs in."),
    ConfigKey("sasl.server.max.receive.size", _INT, "524288", None, "The largest message of a handshake.", enforced=True),
    ConfigKey("sasl.login.connect.timeout.ms", _INT, None, None, "How long connecting for a login may take."),
    ConfigKey("sasl.login.read.timeout.ms", _INT, None, None, "How long a login's answer may take."),
    ConfigKey("sasl.login.retry.backoff.ms", _LONG, "100", None, "How long a failed login rests at first."),
    ConfigKey("sasl.login.retry.backoff.max.ms", _LONG, "10000", None, "How long a failed login rests at most."),
    ConfigKey("sasl.login.refresh.buffer.seconds", _SHORT, "300", None, "How long before its end a login is refreshed at the latest."),
    ConfigKey("sasl.login.refresh.min.period.seconds", _SHORT, "60", None, "How long a login rests before it is refreshed."),
    ConfigKey("sasl.login.refresh.window.factor", _DOUBLE, "0.8", None, "After which part of its life a login is refreshed."),
    ConfigKey("sasl.login.refresh.window.jitter", _DOUBLE, "0.05", None, "How much that varies."),

    # Kerberos.
    ConfigKey("sasl.kerberos.service.name", _STRING, None, None, "The name of Kafka's service."),
    ConfigKey("sasl.kerberos.kinit.cmd", _STRING, "/usr/bin/kinit", None, "The program that gets tickets."),
    ConfigKey("sasl.kerberos.min.time.before.relogin", _LONG, "60000", None, "How long to rest between logins."),
    ConfigKey("sasl.kerberos.principal.to.local.rules", _LIST, "DEFAULT", None, "How a principal becomes a short name."),
    ConfigKey("sasl.kerberos.ticket.renew.jitter", _DOUBLE, "0.05", None, "How much the time of renewal varies."),
    ConfigKey("sasl.kerberos.ticket.renew.window.factor", _DOUBLE, "0.8", None, "After which part of its life a ticket is renewed."),

    # OAuth.
    ConfigKey("sasl.oauthbearer.token.endpoint.url", _STRING, None, None, "Where this broker gets the tokens that it logs in with: file:/path, or https://host/path.", enforced=True),
    ConfigKey("sasl.oauthbearer.client.credentials.client.id", _STRING, None, None, "The name to ask for tokens with.", enforced=True),
    ConfigKey("sasl.oauthbearer.client.credentials.client.secret", _PASSWORD, None, None, "The secret to ask for tokens with.", enforced=True),
    ConfigKey("sasl.oauthbearer.scope", _STRING, None, None, "The scope to ask for.", enforced=True),
    ConfigKey("sasl.oauthbearer.scope.claim.name", _STRING, "scope", None, "The claim that holds the scope.", enforced=True),
    ConfigKey("sasl.oauthbearer.sub.claim.name", _STRING, "sub", None, "The claim that holds the principal.", enforced=True),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", _INT, "30", at_least(0), "How far clocks may differ.", enforced=True),
    ConfigKey("sasl.oauthbearer.expected.audience", _LIST, "", None, "Who a token must be made for. Empty: tokens that name an audience are refused.", enforced=True),
    ConfigKey("sasl.oauthbearer.expected.issuer", _STRING, None, None, "Who a token must be made by; any issuer when empty.", enforced=True),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", _STRING, None, None, "Where the keys that verify tokens are: file:/path, or https://host/path.", enforced=True),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", _LONG, "3600000", at_least(100), "How often those keys are fetched.", enforced=True),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", _LONG, "100", at_least(1), "How long a failed fetch of keys rests at first.", enforced=True),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", _LONG, "10000", at_least(1), "How long a failed fetch of keys rests at most.", enforced=True),
    ConfigKey("sasl.oauthbearer.jwt.retriever.class", _CLASS, f"{_OAUTH}DefaultJwtRetriever",
              _kafkas("DefaultJwtRetriever", "FileJwtRetriever", "ClientCredentialsJwtRetriever"),
              "A class that gets tokens. Kafka's mean Lowtide's own way.", enforced=True),
    ConfigKey("sasl.oauthbearer.jwt.validator.class", _CLASS, f"{_OAUTH}DefaultJwtValidator", _kafkas("DefaultJwtValidator", "BrokerJwtValidator"),
              "A class that checks tokens. Kafka's means Lowtide's own check.", enforced=True),
    ConfigKey("sasl.oauthbearer.assertion.algorithm", _STRING, "RS256", OneOf(("ES256", "RS256"), any_case=True),
              "How an assertion is signed."),
    ConfigKey("sasl.oauthbearer.assertion.claim.aud", _STRING, None, None, "Who an assertion is for."),
    ConfigKey("sasl.oauthbearer.assertion.claim.exp.seconds", _INT, "300", Range(0, 86400), "How long an assertion is valid."),
    ConfigKey("sasl.oauthbearer.assertion.claim.iss", _STRING, None, None, "Who an assertion is by."),
    ConfigKey("sasl.oauthbearer.assertion.claim.jti.include", _BOOLEAN, "false", None, "Whether an assertion has a number of its own."),
    ConfigKey("sasl.oauthbearer.assertion.claim.nbf.seconds", _INT, "60", Range(0, 3600), "How long before now an assertion is valid."),
    ConfigKey("sasl.oauthbearer.assertion.claim.sub", _STRING, None, None, "Whom an assertion is about."),
    ConfigKey("sasl.oauthbearer.assertion.file", _STRING, None, None, "A file with a ready assertion."),
    ConfigKey("sasl.oauthbearer.assertion.private.key.file", _STRING, None, None, "The file of the key that signs assertions."),
    ConfigKey("sasl.oauthbearer.assertion.private.key.passphrase", _PASSWORD, None, None, "The secret of that key."),
    ConfigKey("sasl.oauthbearer.assertion.template.file", _STRING, None, None, "The template file of assertions."),
)
# fmt: on
