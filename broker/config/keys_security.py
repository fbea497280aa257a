"""A broker's keys about TLS, SASL, tokens and authorization, as facts of Apache Kafka 4.3. A table: its order is by subject."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, OneOf, Range, Type, at_least

_BOOLEAN, _SHORT, _INT, _LONG, _DOUBLE = Type.BOOLEAN, Type.SHORT, Type.INT, Type.LONG, Type.DOUBLE
_STRING, _LIST, _CLASS, _PASSWORD = Type.STRING, Type.LIST, Type.CLASS, Type.PASSWORD
_PROTOCOLS: Final = OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."

# fmt: off
SECURITY_KEYS: Final[tuple[ConfigKey, ...]] = (
    # Who may do what.
    ConfigKey("authorizer.class.name", _STRING, "", None, "A class that decides who may do what."),
    ConfigKey("principal.builder.class", _CLASS, "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", None,
              "A class that says who a connection is."),
    ConfigKey("security.inter.broker.protocol", _STRING, "PLAINTEXT", _PROTOCOLS, "How brokers talk to each other.", enforced=True),
    ConfigKey("security.providers", _STRING, None, None, "Classes that bring security algorithms."),
    ConfigKey("connection.failed.authentication.delay.ms", _INT, "100", at_least(0), "How long a refused client waits before it is closed."),
    ConfigKey("connections.max.reauth.ms", _LONG, "0", None, "After how long a client must authenticate again; 0 is never."),

    # Delegation tokens.
    ConfigKey("delegation.token.secret.key", _PASSWORD, None, None, "The secret that tokens are signed with."),
    ConfigKey("delegation.token.max.lifetime.ms", _LONG, "604800000", at_least(1), "How long a token can be renewed."),
    ConfigKey("delegation.token.expiry.time.ms", _LONG, "86400000", at_least(1), "How long a token lives between renewals."),
    ConfigKey("delegation.token.expiry.check.interval.ms", _LONG, "3600000", at_least(1), "How often dead tokens are looked for."),

    # TLS.
    ConfigKey("ssl.client.auth", _STRING, "none", OneOf(("required", "requested", "none")), "Whether clients show a certificate."),
    ConfigKey("ssl.protocol", _STRING, "TLSv1.3", None, "The TLS version that connections begin with."),
    ConfigKey("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3", None, "The TLS versions that are taken."),
    ConfigKey("ssl.cipher.suites", _LIST, "", None, "The ciphers that are taken; all when empty."),
    ConfigKey("ssl.provider", _STRING, None, None, "The Java provider of TLS."),
    ConfigKey("ssl.secure.random.implementation", _STRING, None, None, "The Java source of randomness for TLS."),
    ConfigKey("ssl.engine.factory.class", _CLASS, None, None, "A class that makes TLS engines."),
    ConfigKey("ssl.keystore.type", _STRING, "JKS", None, "The format of the key store."),
    ConfigKey("ssl.keystore.location", _STRING, None, None, "The file of the key store."),
    ConfigKey("ssl.keystore.password", _PASSWORD, None, None, "The secret of the key store."),
    ConfigKey("ssl.keystore.key", _PASSWORD, None, None, "The private key itself."),
    ConfigKey("ssl.keystore.certificate.chain", _PASSWORD, None, None, "The certificates themselves."),
    ConfigKey("ssl.key.password", _PASSWORD, None, None, "The secret of the private key."),
    ConfigKey("ssl.keymanager.algorithm", _STRING, "SunX509", None, "The Java algorithm that handles keys."),
    ConfigKey("ssl.truststore.type", _STRING, "JKS", None, "The format of the trust store."),
    ConfigKey("ssl.truststore.location", _STRING, None, None, "The file of the trust store."),
    ConfigKey("ssl.truststore.password", _PASSWORD, None, None, "The secret of the trust store."),
    ConfigKey("ssl.truststore.certificates", _PASSWORD, None, None, "The trusted certificates themselves."),
    ConfigKey("ssl.trustmanager.algorithm", _STRING, "PKIX", None, "The Java algorithm that handles trust."),
    ConfigKey("ssl.endpoint.identification.algorithm", _STRING, "https", None, "How a server's name is checked; empty is not at all."),
    ConfigKey("ssl.principal.mapping.rules", _STRING, "DEFAULT", None, "How a certificate's name becomes a principal."),
    ConfigKey("ssl.allow.dn.changes", _BOOLEAN, "false", None, "Whether a reloaded certificate may have another name."),
    ConfigKey("ssl.allow.san.changes", _BOOLEAN, "false", None, "Whether a reloaded certificate may have fewer other names."),

    # SASL.
    ConfigKey("sasl.enabled.mechanisms", _LIST, "GSSAPI", None, "The mechanisms that are taken."),
    ConfigKey("sasl.mechanism.inter.broker.protocol", _STRING, "GSSAPI", None, "The mechanism between brokers."),
    ConfigKey("sasl.mechanism.controller.protocol", _STRING, "GSSAPI", None, "The mechanism to the controllers of KRaft."),
    ConfigKey("sasl.jaas.config", _PASSWORD, None, None, "The login modules, in Java's format."),
    ConfigKey("sasl.server.callback.handler.class", _CLASS, None, None, "A class that answers a server's questions."),
    ConfigKey("sasl.client.callback.handler.class", _CLASS, None, None, "A class that answers a client's questions."),
    ConfigKey("sasl.login.callback.handler.class", _CLASS, None, None, "A class that answers a login's questions."),
    ConfigKey("sasl.login.class", _CLASS, None, None, "A class that logs in."),
    ConfigKey("sasl.server.max.receive.size", _INT, "524288", None, "The largest message of a handshake."),
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
    ConfigKey("sasl.oauthbearer.token.endpoint.url", _STRING, None, None, "Where tokens come from."),
    ConfigKey("sasl.oauthbearer.client.credentials.client.id", _STRING, None, None, "The name to ask for tokens with."),
    ConfigKey("sasl.oauthbearer.client.credentials.client.secret", _PASSWORD, None, None, "The secret to ask for tokens with."),
    ConfigKey("sasl.oauthbearer.scope", _STRING, None, None, "The scope to ask for."),
    ConfigKey("sasl.oauthbearer.scope.claim.name", _STRING, "scope", None, "The claim that holds the scope."),
    ConfigKey("sasl.oauthbearer.sub.claim.name", _STRING, "sub", None, "The claim that holds the principal."),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", _INT, "30", None, "How far clocks may differ."),
    ConfigKey("sasl.oauthbearer.expected.audience", _LIST, "", None, "Who a token must be made for."),
    ConfigKey("sasl.oauthbearer.expected.issuer", _STRING, None, None, "Who a token must be made by."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", _STRING, None, None, "Where the keys that verify tokens are."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", _LONG, "3600000", None, "How often those keys are fetched."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", _LONG, "100", None, "How long a failed fetch of keys rests at first."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", _LONG, "10000", None, "How long a failed fetch of keys rests at most."),
    ConfigKey("sasl.oauthbearer.jwt.retriever.class", _CLASS, f"{_OAUTH}DefaultJwtRetriever", None, "A class that gets tokens."),
    ConfigKey("sasl.oauthbearer.jwt.validator.class", _CLASS, f"{_OAUTH}DefaultJwtValidator", None, "A class that checks tokens."),
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
