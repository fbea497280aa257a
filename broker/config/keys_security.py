"""A broker's keys for TLS, SASL, delegation tokens and authorization, as in Apache Kafka 4.4, ordered by subject."""

from __future__ import annotations

import re
from typing import Final

from lowtide.broker.config.key import ConfigKey, Matching, OneOf, Range, Type, at_least

_BOOLEAN, _SHORT, _INT, _LONG, _DOUBLE = Type.BOOLEAN, Type.SHORT, Type.INT, Type.LONG, Type.DOUBLE
_STRING, _LIST, _CLASS, _PASSWORD = Type.STRING, Type.LIST, Type.CLASS, Type.PASSWORD
_PROTOCOLS: Final = OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's authorizer. Its name selects Lowtide's, which decides alike."""

_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."


def _kafkas(*classes: str) -> Matching:
    """Returns Kafka's classes for OAUTHBEARER. Their names select Lowtide's own code: Java classes cannot be loaded."""
    return Matching(
        "|".join(re.escape(f"{_OAUTH}{each}") for each in classes), " or ".join(f"{_OAUTH}{each}" for each in classes)
    )


# fmt: off
SECURITY_KEYS: Final[tuple[ConfigKey, ...]] = (
    # Who may do what.
    ConfigKey("authorizer.class.name", _STRING, "", Matching(f"|{re.escape(STANDARD_AUTHORIZER)}", f"empty, or {STANDARD_AUTHORIZER}"),
              "The authorizer. If empty, every client can do everything. Kafka's class name selects Lowtide's own "
              "authorizer, which has the same rules; other classes cannot be loaded."),
    ConfigKey("super.users", _STRING, "", Matching(r"( *(;|$)| *[^:; ][^:;]*:[^;]+(;|$))*", "Type:name, several separated by semicolons"),
              "The principals that can do everything regardless of ACLs, such as User:admin;User:broker."),
    ConfigKey("allow.everyone.if.no.acl.found", _BOOLEAN, "false", None, "Whether every client can use a resource that no ACL matches."),
    ConfigKey("principal.builder.class", _CLASS, "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", None,
              "The class that builds the principal of a connection.", enforced=False),
    ConfigKey("security.inter.broker.protocol", _STRING, "PLAINTEXT", _PROTOCOLS, "The security protocol between brokers."),
    ConfigKey("security.providers", _STRING, None, None, "The classes that provide security algorithms.", enforced=False),
    ConfigKey("connection.failed.authentication.delay.ms", _INT, "100", at_least(0), "The time before a connection is closed after failed authentication."),
    ConfigKey("connections.max.reauth.ms", _LONG, "0", None, "The time after which a client must authenticate again; 0 means never."),

    # Delegation tokens.
    ConfigKey("delegation.token.secret.key", _PASSWORD, None, None,
              "The secret that signs delegation tokens; it must be the same on all brokers. If not set, delegation tokens are disabled."),
    ConfigKey("delegation.token.max.lifetime.ms", _LONG, "604800000", at_least(1), "The maximum lifetime of a delegation token, including renewals."),
    ConfigKey("delegation.token.expiry.time.ms", _LONG, "86400000", at_least(1), "The time after which a delegation token expires unless it is renewed."),
    ConfigKey("delegation.token.expiry.check.interval.ms", _LONG, "3600000", at_least(1),
              "The interval at which the controller removes expired delegation tokens."),

    # TLS.
    ConfigKey("ssl.client.auth", _STRING, "none", OneOf(("required", "requested", "none")), "Whether clients must present a certificate."),
    ConfigKey("ssl.protocol", _STRING, "TLSv1.3", None, "The TLS version for new connections.", enforced=False),
    ConfigKey("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3", None, "The TLS versions that are enabled."),
    ConfigKey("ssl.cipher.suites", _LIST, "", None, "The cipher suites that are enabled; all if empty."),
    ConfigKey("ssl.provider", _STRING, None, None, "The Java security provider for TLS.", enforced=False),
    ConfigKey("ssl.secure.random.implementation", _STRING, None, None, "The Java random number generator for TLS.", enforced=False),
    ConfigKey("ssl.engine.factory.class", _CLASS, None, None, "The class that creates TLS engines.", enforced=False),
    ConfigKey("ssl.keystore.type", _STRING, "JKS", None, "The format of the key store."),
    ConfigKey("ssl.keystore.location", _STRING, None, None, "The file of the key store."),
    ConfigKey("ssl.keystore.password", _PASSWORD, None, None, "The password of the key store."),
    ConfigKey("ssl.keystore.key", _PASSWORD, None, None, "The private key in PEM format."),
    ConfigKey("ssl.keystore.certificate.chain", _PASSWORD, None, None, "The certificate chain in PEM format."),
    ConfigKey("ssl.key.password", _PASSWORD, None, None, "The password of the private key."),
    ConfigKey("ssl.keymanager.algorithm", _STRING, "SunX509", None, "The algorithm of the Java key manager.", enforced=False),
    ConfigKey("ssl.truststore.type", _STRING, "JKS", None, "The format of the trust store."),
    ConfigKey("ssl.truststore.location", _STRING, None, None, "The file of the trust store."),
    ConfigKey("ssl.truststore.password", _PASSWORD, None, None, "The password of the trust store."),
    ConfigKey("ssl.truststore.certificates", _PASSWORD, None, None, "The trusted certificates in PEM format."),
    ConfigKey("ssl.trustmanager.algorithm", _STRING, "PKIX", None, "The algorithm of the Java trust manager.", enforced=False),
    ConfigKey("ssl.endpoint.identification.algorithm", _STRING, "https", None,
              "How the host name in a server's certificate is checked; empty disables the check."),
    ConfigKey("ssl.principal.mapping.rules", _STRING, "DEFAULT", None, "The rules that map the distinguished name of a client certificate to a principal."),
    ConfigKey("ssl.allow.dn.changes", _BOOLEAN, "false", None, "Whether a renewed certificate can have a different subject."),
    ConfigKey("ssl.allow.san.changes", _BOOLEAN, "false", None, "Whether a renewed certificate can lack a subject alternative name of the previous one."),

    # SASL.
    ConfigKey("sasl.enabled.mechanisms", _LIST, "GSSAPI", None, "The SASL mechanisms that are enabled."),
    ConfigKey("sasl.mechanism.inter.broker.protocol", _STRING, "GSSAPI", None, "The SASL mechanism between brokers."),
    ConfigKey("sasl.mechanism.controller.protocol", _STRING, "GSSAPI", None, "The SASL mechanism for KRaft controllers.", enforced=False),
    ConfigKey("sasl.jaas.config", _PASSWORD, None, None, "The JAAS login module and its options."),
    ConfigKey("sasl.server.callback.handler.class", _CLASS, None, _kafkas("OAuthBearerValidatorCallbackHandler", "secured.OAuthBearerValidatorCallbackHandler"),
              "The class that validates tokens. Kafka's classes for OAUTHBEARER select Lowtide's own validation, which is the default."),
    ConfigKey("sasl.client.callback.handler.class", _CLASS, None, None, "The class of the SASL client callback handler.", enforced=False),
    ConfigKey("sasl.login.callback.handler.class", _CLASS, None, _kafkas("OAuthBearerLoginCallbackHandler", "secured.OAuthBearerLoginCallbackHandler"),
              "The class that retrieves this broker's tokens. Kafka's classes for OAUTHBEARER select Lowtide's own retrieval, which is the default."),
    ConfigKey("sasl.login.class", _CLASS, None, None, "The class of the SASL login.", enforced=False),
    ConfigKey("sasl.server.max.receive.size", _INT, "524288", None, "The maximum size of a message during authentication."),
    ConfigKey("sasl.login.connect.timeout.ms", _INT, None, None, "The timeout for connecting to the authentication provider.", enforced=False),
    ConfigKey("sasl.login.read.timeout.ms", _INT, None, None, "The timeout for reading from the authentication provider.", enforced=False),
    ConfigKey("sasl.login.retry.backoff.ms", _LONG, "100", None, "The initial time before a failed login is retried.", enforced=False),
    ConfigKey("sasl.login.retry.backoff.max.ms", _LONG, "10000", None, "The maximum time before a failed login is retried.", enforced=False),
    ConfigKey("sasl.login.refresh.buffer.seconds", _SHORT, "300", None, "The minimum time before expiry at which a login is refreshed.", enforced=False),
    ConfigKey("sasl.login.refresh.min.period.seconds", _SHORT, "60", None, "The minimum time between two refreshes of a login.", enforced=False),
    ConfigKey("sasl.login.refresh.window.factor", _DOUBLE, "0.8", None, "The fraction of a login's lifetime after which it is refreshed.", enforced=False),
    ConfigKey("sasl.login.refresh.window.jitter", _DOUBLE, "0.05", None, "The random variation of the refresh time.", enforced=False),

    # Kerberos.
    ConfigKey("sasl.kerberos.service.name", _STRING, None, None, "The Kerberos principal name of Kafka.", enforced=False),
    ConfigKey("sasl.kerberos.kinit.cmd", _STRING, "/usr/bin/kinit", None, "The path of the kinit command.", enforced=False),
    ConfigKey("sasl.kerberos.min.time.before.relogin", _LONG, "60000", None, "The minimum time between two logins.", enforced=False),
    ConfigKey("sasl.kerberos.principal.to.local.rules", _LIST, "DEFAULT", None, "The rules that map a Kerberos principal to a short name.", enforced=False),
    ConfigKey("sasl.kerberos.ticket.renew.jitter", _DOUBLE, "0.05", None, "The random variation of the renewal time.", enforced=False),
    ConfigKey("sasl.kerberos.ticket.renew.window.factor", _DOUBLE, "0.8", None,
              "The fraction of a ticket's lifetime after which it is renewed.", enforced=False),

    # OAuth.
    ConfigKey("sasl.oauthbearer.token.endpoint.url", _STRING, None, None,
              "The URL from which this broker gets its own tokens: file:/path or https://host/path."),
    ConfigKey("sasl.oauthbearer.client.credentials.client.id", _STRING, None, None, "The client ID for requesting tokens."),
    ConfigKey("sasl.oauthbearer.client.credentials.client.secret", _PASSWORD, None, None, "The client secret for requesting tokens."),
    ConfigKey("sasl.oauthbearer.scope", _STRING, None, None, "The scope for requesting tokens."),
    ConfigKey("sasl.oauthbearer.scope.claim.name", _STRING, "scope", None, "The claim that contains the scope."),
    ConfigKey("sasl.oauthbearer.sub.claim.name", _STRING, "sub", None, "The claim that contains the principal."),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", _INT, "30", at_least(0), "The accepted difference between the clocks of the broker and the token issuer."),
    ConfigKey("sasl.oauthbearer.expected.audience", _LIST, "", None,
              "The accepted audiences of tokens; required unless sasl.oauthbearer.allow.unverified.audience is true."),
    ConfigKey("sasl.oauthbearer.expected.issuer", _STRING, None, None,
              "The accepted issuer of tokens; required unless sasl.oauthbearer.allow.unverified.issuer is true."),
    ConfigKey("sasl.oauthbearer.allow.unverified.audience", _BOOLEAN, "false", None, "Whether tokens for any audience are accepted if none is expected."),
    ConfigKey("sasl.oauthbearer.allow.unverified.issuer", _BOOLEAN, "false", None, "Whether tokens of any issuer are accepted if none is expected."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", _STRING, None, None, "The URL of the public keys that verify tokens: file:/path or https://host/path."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", _LONG, "3600000", at_least(100), "The interval at which the public keys are refreshed."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", _LONG, "100", at_least(1),
              "The initial time before a failed refresh of the public keys is retried."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", _LONG, "10000", at_least(1),
              "The maximum time before a failed refresh of the public keys is retried."),
    ConfigKey("sasl.oauthbearer.jwt.retriever.class", _CLASS, f"{_OAUTH}DefaultJwtRetriever", _kafkas("DefaultJwtRetriever", "FileJwtRetriever", "ClientCredentialsJwtRetriever"),
              "The class that retrieves tokens. Kafka's classes select Lowtide's own retrieval."),
    ConfigKey("sasl.oauthbearer.jwt.validator.class", _CLASS, f"{_OAUTH}DefaultJwtValidator", _kafkas("DefaultJwtValidator", "BrokerJwtValidator"),
              "The class that validates tokens. Kafka's classes select Lowtide's own validation."),
    ConfigKey("sasl.oauthbearer.assertion.algorithm", _STRING, "RS256", OneOf(("ES256", "RS256"), any_case=True),
              "The algorithm that signs assertions.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.claim.aud", _STRING, None, None, "The audience of assertions.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.claim.exp.seconds", _INT, "300", Range(0, 86400), "The time for which an assertion is valid.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.claim.iss", _STRING, None, None, "The issuer of assertions.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.claim.jti.include", _BOOLEAN, "false", None, "Whether each assertion has a unique ID.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.claim.nbf.seconds", _INT, "60", Range(0, 3600),
              "The time before its creation from which an assertion is valid.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.claim.sub", _STRING, None, None, "The subject of assertions.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.file", _STRING, None, None, "The file with a ready-made assertion.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.private.key.file", _STRING, None, None, "The file of the private key that signs assertions.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.private.key.passphrase", _PASSWORD, None, None,
              "The passphrase of the private key that signs assertions.", enforced=False),
    ConfigKey("sasl.oauthbearer.assertion.template.file", _STRING, None, None, "The file with the template of assertions.", enforced=False),
)
# fmt: on
