"""A broker's keys about authorization, TLS, SASL and delegation tokens, as facts of Apache Kafka 4.3.

A table: its order is by subject.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config_key import ConfigKey, OneOf, Range, Type, at_least

_BOOLEAN, _SHORT, _INT, _LONG, _DOUBLE = Type.BOOLEAN, Type.SHORT, Type.INT, Type.LONG, Type.DOUBLE
_STRING, _LIST, _CLASS, _PASSWORD = Type.STRING, Type.LIST, Type.CLASS, Type.PASSWORD

# fmt: off
SECURITY_KEYS: Final[tuple[ConfigKey, ...]] = (
    # Who may do what.
    ConfigKey("authorizer.class.name", _STRING, "", None, "The class that decides who may do what; empty is no authorization."),
    ConfigKey("principal.builder.class", _CLASS, "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", None,
              "The class that tells from a connection who is at its other end."),
    ConfigKey("security.inter.broker.protocol", _STRING, "PLAINTEXT", OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
              "The security protocol between brokers, where inter.broker.listener.name isn't set."),
    ConfigKey("security.providers", _STRING, None, None, "Classes that bring further security algorithms."),
    ConfigKey("connection.failed.authentication.delay.ms", _INT, "100", at_least(0),
              "How long a connection whose login failed waits to be closed."),
    ConfigKey("connections.max.reauth.ms", _LONG, "0", None, "After how long a client must log in again; 0 is never."),

    # Delegation tokens.
    ConfigKey("delegation.token.secret.key", _PASSWORD, None, None,
              "The secret that delegation tokens are signed with; without it there are none."),
    ConfigKey("delegation.token.expiry.time.ms", _LONG, "86400000", at_least(1), "How long a token is good until it must be renewed."),
    ConfigKey("delegation.token.max.lifetime.ms", _LONG, "604800000", at_least(1), "How long a token can be renewed at all."),
    ConfigKey("delegation.token.expiry.check.interval.ms", _LONG, "3600000", at_least(1),
              "How often tokens that are too old are looked for."),

    # TLS.
    ConfigKey("ssl.protocol", _STRING, "TLSv1.3", None, "The TLS version, or family, that connections are made with."),
    ConfigKey("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3", None, "The TLS versions that are allowed."),
    ConfigKey("ssl.cipher.suites", _LIST, "", None, "The cipher suites that are allowed; empty is Java's choice."),
    ConfigKey("ssl.client.auth", _STRING, "none", OneOf(("required", "requested", "none")),
              "Whether clients must, may or needn't show a certificate."),
    ConfigKey("ssl.endpoint.identification.algorithm", _STRING, "https", None,
              "How a server's name is checked against its certificate; empty is not at all."),
    ConfigKey("ssl.principal.mapping.rules", _STRING, "DEFAULT", None, "How a certificate's name becomes a user's name."),
    ConfigKey("ssl.keystore.type", _STRING, "JKS", None, "The format of the key store."),
    ConfigKey("ssl.keystore.location", _STRING, None, None, "The file of the key store."),
    ConfigKey("ssl.keystore.password", _PASSWORD, None, None, "The key store's password."),
    ConfigKey("ssl.keystore.key", _PASSWORD, None, None, "The private key as a text, in PEM."),
    ConfigKey("ssl.keystore.certificate.chain", _PASSWORD, None, None, "The certificates of that key as a text, in PEM."),
    ConfigKey("ssl.key.password", _PASSWORD, None, None, "The password of the private key."),
    ConfigKey("ssl.keymanager.algorithm", _STRING, "SunX509", None, "How Java's key manager works."),
    ConfigKey("ssl.truststore.type", _STRING, "JKS", None, "The format of the trust store."),
    ConfigKey("ssl.truststore.location", _STRING, None, None, "The file of the trust store."),
    ConfigKey("ssl.truststore.password", _PASSWORD, None, None, "The trust store's password."),
    ConfigKey("ssl.truststore.certificates", _PASSWORD, None, None, "The trusted certificates as a text, in PEM."),
    ConfigKey("ssl.trustmanager.algorithm", _STRING, "PKIX", None, "How Java's trust manager works."),
    ConfigKey("ssl.allow.dn.changes", _BOOLEAN, "false", None,
              "Whether a new certificate may have another distinguished name than the old one."),
    ConfigKey("ssl.allow.san.changes", _BOOLEAN, "false", None,
              "Whether a new certificate may have other alternative names than the old one."),
    ConfigKey("ssl.engine.factory.class", _CLASS, None, None, "A class that makes the TLS engines."),
    ConfigKey("ssl.provider", _STRING, None, None, "The Java provider of TLS."),
    ConfigKey("ssl.secure.random.implementation", _STRING, None, None, "The Java source of random numbers for TLS."),

    # SASL.
    ConfigKey("sasl.enabled.mechanisms", _LIST, "GSSAPI", None, "The SASL mechanisms that clients may use."),
    ConfigKey("sasl.mechanism.inter.broker.protocol", _STRING, "GSSAPI", None, "The SASL mechanism between brokers."),
    ConfigKey("sasl.mechanism.controller.protocol", _STRING, "GSSAPI", None, "The SASL mechanism towards controllers."),
    ConfigKey("sasl.jaas.config", _PASSWORD, None, None, "The login module and its options, in the format of JAAS."),
    ConfigKey("sasl.server.max.receive.size", _INT, "524288", None, "The largest request that is read before the login is done."),
    ConfigKey("sasl.server.callback.handler.class", _CLASS, None, None, "A class that answers a login's questions on the server's side."),
    ConfigKey("sasl.client.callback.handler.class", _CLASS, None, None, "A class that answers a login's questions on the client's side."),
    ConfigKey("sasl.login.class", _CLASS, None, None, "A class that logs the broker itself in."),
    ConfigKey("sasl.login.callback.handler.class", _CLASS, None, None,
              "A class that answers the questions when the broker itself logs in."),
    ConfigKey("sasl.login.connect.timeout.ms", _INT, None, None, "How long connecting to the login provider may take."),
    ConfigKey("sasl.login.read.timeout.ms", _INT, None, None, "How long the login provider's answer may take."),
    ConfigKey("sasl.login.retry.backoff.ms", _LONG, "100", None, "How long to rest at first before another attempt to log in."),
    ConfigKey("sasl.login.retry.backoff.max.ms", _LONG, "10000", None, "How long to rest at most before another attempt to log in."),
    ConfigKey("sasl.login.refresh.window.factor", _DOUBLE, "0.8", None, "At which part of its lifetime a credential is renewed."),
    ConfigKey("sasl.login.refresh.window.jitter", _DOUBLE, "0.05", None, "By which part of its lifetime that moment varies at random."),
    ConfigKey("sasl.login.refresh.min.period.seconds", _SHORT, "60", None, "How long lies at least between two renewals."),
    ConfigKey("sasl.login.refresh.buffer.seconds", _SHORT, "300", None, "How long before its end a credential is renewed at the latest."),

    # Kerberos.
    ConfigKey("sasl.kerberos.service.name", _STRING, None, None, "The name of the Kerberos service that brokers run as."),
    ConfigKey("sasl.kerberos.kinit.cmd", _STRING, "/usr/bin/kinit", None, "The program that gets a ticket."),
    ConfigKey("sasl.kerberos.min.time.before.relogin", _LONG, "60000", None, "How many ms lie at least between two logins."),
    ConfigKey("sasl.kerberos.principal.to.local.rules", _LIST, "DEFAULT", None, "How a Kerberos principal becomes a user's name."),
    ConfigKey("sasl.kerberos.ticket.renew.jitter", _DOUBLE, "0.05", None, "By which part the moment of renewal varies at random."),
    ConfigKey("sasl.kerberos.ticket.renew.window.factor", _DOUBLE, "0.8", None, "At which part of its lifetime a ticket is renewed."),

    # OAuth: what the broker asks of a client's token.
    ConfigKey("sasl.oauthbearer.expected.audience", _LIST, "", None, "The audiences that a token may be made out to."),
    ConfigKey("sasl.oauthbearer.expected.issuer", _STRING, None, None, "The issuer that a token must come from."),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", _INT, "30", None, "How far the provider's clock may be off."),
    ConfigKey("sasl.oauthbearer.scope.claim.name", _STRING, "scope", None, "The claim that holds a token's scope."),
    ConfigKey("sasl.oauthbearer.sub.claim.name", _STRING, "sub", None, "The claim that holds a token's subject."),
    ConfigKey("sasl.oauthbearer.jwt.validator.class", _CLASS, "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator", None,
              "The class that checks tokens."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", _STRING, None, None, "Where the provider's public keys are."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", _LONG, "3600000", None, "How often those keys are read again."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", _LONG, "100", None,
              "How long to rest at first before those keys are asked for again."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", _LONG, "10000", None,
              "How long to rest at most before those keys are asked for again."),

    # OAuth: how the broker itself gets a token.
    ConfigKey("sasl.oauthbearer.token.endpoint.url", _STRING, None, None, "Where tokens are got."),
    ConfigKey("sasl.oauthbearer.jwt.retriever.class", _CLASS, "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever", None,
              "The class that gets tokens."),
    ConfigKey("sasl.oauthbearer.scope", _STRING, None, None, "The scope to ask for."),
    ConfigKey("sasl.oauthbearer.client.credentials.client.id", _STRING, None, None, "The id the broker is known by at the provider."),
    ConfigKey("sasl.oauthbearer.client.credentials.client.secret", _PASSWORD, None, None, "The secret that goes with that id."),
    ConfigKey("sasl.oauthbearer.assertion.file", _STRING, None, None,
              "A file with a finished assertion; the other assertion keys then don't count."),
    ConfigKey("sasl.oauthbearer.assertion.template.file", _STRING, None, None, "A file with further headers and claims of the assertion."),
    ConfigKey("sasl.oauthbearer.assertion.algorithm", _STRING, "RS256", OneOf(("ES256", "RS256"), any_case=True),
              "The algorithm the assertion is signed with."),
    ConfigKey("sasl.oauthbearer.assertion.private.key.file", _STRING, None, None, "The file of the private key that signs the assertion."),
    ConfigKey("sasl.oauthbearer.assertion.private.key.passphrase", _PASSWORD, None, None, "The passphrase of that file."),
    ConfigKey("sasl.oauthbearer.assertion.claim.aud", _STRING, None, None, "The audience that the assertion names."),
    ConfigKey("sasl.oauthbearer.assertion.claim.iss", _STRING, None, None, "The issuer that the assertion names."),
    ConfigKey("sasl.oauthbearer.assertion.claim.sub", _STRING, None, None, "The subject that the assertion names."),
    ConfigKey("sasl.oauthbearer.assertion.claim.exp.seconds", _INT, "300", Range(0, 86400),
              "How long the assertion is good from its making on."),
    ConfigKey("sasl.oauthbearer.assertion.claim.nbf.seconds", _INT, "60", Range(0, 3600),
              "How long before its making the assertion is already good."),
    ConfigKey("sasl.oauthbearer.assertion.claim.jti.include", _BOOLEAN, "false", None, "Whether the assertion gets an id of its own."),
)
# fmt: on
