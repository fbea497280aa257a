"""How clients log in at a listener with SASL, and as whom this broker logs in at another one.

Guards: a listener with SASL has mechanisms that work here, each with what it needs. No message shows a password.
Sources: Kafka's `JaasContext`, `SaslConfigs`, `BrokerSecurityConfigs`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.config.key import LISTENER_PREFIX, ImpossibleTogetherError, Value
from lowtide.broker.config.listener_keys import ListenerKeys
from lowtide.protocol.jaas import JaasError, LoginModule, parse_jaas

if TYPE_CHECKING:
    from lowtide.broker.config.oauth_settings import OAuthSettings
    from lowtide.runtime.token_source import TokenSource

JAAS: Final = "sasl.jaas.config"
HANDLER: Final = "sasl.server.callback.handler.class"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    OAUTHBEARER: "oauthbearer.OAuthBearerLoginModule",
}
"""Those that work, and the login module that each needs, in its package."""

ENABLED: Final = "sasl.enabled.mechanisms"
LOGIN_KEYS: Final = frozenset({ENABLED, JAAS})
"""What can be set of a listener's logins while a broker runs: the keys that Kafka lists so and that have an effect here."""

_IN_NAMES: Final = frozenset(name.lower() for name in MECHANISMS)
"""The mechanisms as they stand in the names of keys."""

_USER: Final = "user_"
"""Begins the option of PLAIN's line that names a user."""

_NOT_HERE: Final = {"GSSAPI": "Kerberos (GSSAPI, the default) is not supported"}


class OwnLogin(msgspec.Struct, frozen=True):
    """As whom this broker logs in: by name and password, or by tokens. `repr` doesn't show the password."""

    username: str = ""
    password: str = ""
    tokens: TokenSource | None = None

    def __repr__(self) -> str:
        return f"OwnLogin({self.username!r})"


class MechanismSettings(msgspec.Struct, frozen=True):
    """One mechanism of a listener. `repr` shows no password."""

    name: str
    lifetime_ms: int
    """How long a login holds; 0 is for ever."""
    users: Mapping[str, str]
    """PLAIN's users and their passwords."""
    own: OwnLogin | None
    """As whom this broker logs in by it."""
    oauth: OAuthSettings | None = None
    """How OAUTHBEARER's tokens are checked."""

    def __repr__(self) -> str:
        return f"MechanismSettings({self.name!r}, users={len(self.users)})"


class SaslListener(msgspec.Struct, frozen=True):
    """How clients log in at one listener."""

    mechanisms: tuple[MechanismSettings, ...]
    receive_bytes_max: int
    """The largest frame before the login."""
    failure_delay_ms: int

    def mechanism(self, name: str) -> MechanismSettings | None:
        """One of the mechanisms, by its name."""
        return next((each for each in self.mechanisms if each.name == name), None)


def login_listener(name: str) -> str | None:
    """The listener whose logins this key is about, where it can be set while a broker runs; None for any other key."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    prefixed, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism, _, key = rest.partition(".")
    is_one = rest == ENABLED or (key == JAAS and mechanism in _IN_NAMES)
    return prefixed.upper() if is_one and prefixed == prefixed.lower() else None


def check_login_key(values: Mapping[str, Value], given: Collection[str], name: str) -> None:
    """Check the login module that a key sets, also of a mechanism that is not enabled yet.

    Errors: ImpossibleTogetherError.
    """
    listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism, _, key = rest.partition(".")
    if key == JAAS and name in given:
        _login_module(ListenerKeys(values, given, listener), mechanism.upper())


def sasl_listener(values: Mapping[str, Value], given: Collection[str], listener_name: str) -> SaslListener:
    """How clients log in at this listener. Errors: ImpossibleTogetherError."""
    keys = ListenerKeys(values, given, listener_name)
    names = tuple(dict.fromkeys(name.upper() for name in keys.texts(ENABLED)))
    for name in names or ("none",):
        if name not in MECHANISMS:
            reason = _NOT_HERE.get(name, f"{name} is no mechanism that is known here")
            message = (
                f"{keys.given_name(ENABLED) or ENABLED}={','.join(names)} is not possible at the listener {listener_name}: {reason}; "
                f"allowed are {', '.join(MECHANISMS)}"
            )
            raise ImpossibleTogetherError(message, keys.given_name(ENABLED) or ENABLED, "listeners")
    for key in (JAAS, HANDLER):
        if key in given:
            message = (
                f"{key} is not possible without a listener and a mechanism: allowed is {keys.own_name(key, names[0])}"
            )
            raise ImpossibleTogetherError(message, key)
    return SaslListener(
        tuple(_mechanism(keys, name) for name in names),
        keys.number("sasl.server.max.receive.size"),
        keys.number("connection.failed.authentication.delay.ms"),
    )


def inter_broker_login(values: Mapping[str, Value], listener_name: str, sasl: SaslListener) -> tuple[str, OwnLogin]:
    """By which mechanism, and as whom, this broker logs in at the listener of brokers.

    Errors: ImpossibleTogetherError.
    """
    key = "sasl.mechanism.inter.broker.protocol"
    name = str(values[key]).upper()
    mechanism = sasl.mechanism(name)
    if mechanism is None:
        enabled = ", ".join(each.name for each in sasl.mechanisms)
        message = f"{key}={name} is not possible, for brokers log in at the listener {listener_name}: allowed is one of {enabled}"
        raise ImpossibleTogetherError(message, key, "inter.broker.listener.name")
    if mechanism.own is None:
        prefix = f"listener.name.{listener_name.lower()}.{name.lower()}."
        jaas, url = (
            f"{prefix}{JAAS} must have username and password",
            f"{prefix}sasl.oauthbearer.token.endpoint.url must be set",
        )
        needed = url if name == OAUTHBEARER else jaas
        message = f"{needed}: brokers log in to each other by {name} at the listener {listener_name}"
        raise ImpossibleTogetherError(message, key, f"{prefix}{JAAS}")
    return name, mechanism.own


def _mechanism(keys: ListenerKeys, name: str) -> MechanismSettings:
    """One mechanism of a listener. Errors: ImpossibleTogetherError."""
    module = _login_module(keys, name)
    users, own, lifetime_ms = {}, None, keys.number("connections.max.reauth.ms", name)
    handler = _of_the_mechanism(keys, HANDLER, name)
    if name == OAUTHBEARER:
        from lowtide.broker.config.oauth_settings import oauth_settings  # noqa: PLC0415 - takes long, and few brokers need it

        oauth = oauth_settings(keys, module)
        return MechanismSettings(
            name, lifetime_ms, {}, None if oauth.own is None else OwnLogin(tokens=oauth.own), oauth
        )
    if handler is not None:
        message = f"{handler} is not possible for {name}: no Java class can be loaded, and Lowtide's own check is not replaceable"
        raise ImpossibleTogetherError(message, handler)
    if module is not None:
        options = module.options
        users = (
            {option[len(_USER) :]: secret for option, secret in options.items() if option.startswith(_USER)}
            if name == "PLAIN"
            else {}
        )
        if options.get("tokenauth", "").lower() == "true":
            key = keys.own_name(JAAS, name)
            message = f"{key} has tokenauth, which is not possible: a broker logs in for as long as it runs, and a delegation token ends"
            raise ImpossibleTogetherError(message, key)
        if options.get("username"):
            own = OwnLogin(options["username"], options.get("password", ""))
    elif name == "PLAIN":
        example = '`PlainLoginModule required user_alice="...";`'
        message = f"{keys.own_name(JAAS, name)} is missing: it names the users of {name}, as in {example}"
        raise ImpossibleTogetherError(message, ENABLED, "listeners")
    return MechanismSettings(name, lifetime_ms, users, own)


def _login_module(keys: ListenerKeys, mechanism: str) -> LoginModule | None:
    """The line of a mechanism; None where it has none. Errors: ImpossibleTogetherError."""
    key = _of_the_mechanism(keys, JAAS, mechanism)
    if key is None:
        return None
    try:
        module = parse_jaas(keys.text(JAAS, mechanism))
    except JaasError as error:
        message = f"{key}=[hidden] is not possible: {error}"
        raise ImpossibleTogetherError(message, key) from None
    if module.simple_name != MECHANISMS[mechanism].rpartition(".")[2]:
        message = (
            f"{key} names the login module {module.name}, which is not possible for {mechanism}: allowed is "
            f"org.apache.kafka.common.security.{MECHANISMS[mechanism]}"
        )
        raise ImpossibleTogetherError(message, key)
    return module


def _of_the_mechanism(keys: ListenerKeys, key: str, mechanism: str) -> str | None:
    """The name under which a key is given that needs a listener and a mechanism; None where it isn't.

    Errors: ImpossibleTogetherError.
    """
    name = keys.given_name(key, mechanism)
    if name not in (None, keys.own_name(key, mechanism)):
        message = f"{name} is not possible without a mechanism: allowed is {keys.own_name(key, mechanism)}"
        raise ImpossibleTogetherError(message, str(name))
    return name
