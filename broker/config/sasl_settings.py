"""SASL settings of a listener: how clients log in, and how this broker logs in to others.

Guards: a listener with SASL has supported mechanisms with all that they need. No message shows a password. Sources:
Kafka's `JaasContext`, `SaslConfigs`, `BrokerSecurityConfigs`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.config.key import LISTENER_PREFIX, InvalidKeysError, Value
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
"""The supported mechanisms, and the login module that each needs, in its package."""

ENABLED: Final = "sasl.enabled.mechanisms"
LOGIN_KEYS: Final = frozenset({ENABLED, JAAS})
"""The login settings of a listener that can change at runtime: those that Kafka lists and that take effect here."""

_IN_NAMES: Final = frozenset(name.lower() for name in MECHANISMS)

_USER: Final = "user_"
"""The prefix of the option in PLAIN's JAAS line that names a user."""

_NOT_HERE: Final = {"GSSAPI": "Kerberos (GSSAPI, the default) is not supported"}


class OwnLogin(msgspec.Struct, frozen=True):
    """How this broker logs in: with name and password, or with tokens. `repr` hides the password."""

    username: str = ""
    password: str = ""
    tokens: TokenSource | None = None

    def __repr__(self) -> str:
        return f"OwnLogin({self.username!r})"


class MechanismSettings(msgspec.Struct, frozen=True):
    """One mechanism of a listener. `repr` hides passwords."""

    name: str
    lifetime_ms: int
    """The lifetime of a login; 0 means forever."""
    users: Mapping[str, str]
    own: OwnLogin | None
    """This broker's own login with the mechanism."""
    oauth: OAuthSettings | None = None

    def __repr__(self) -> str:
        return f"MechanismSettings({self.name!r}, users={len(self.users)})"


class SaslListener(msgspec.Struct, frozen=True):
    """How clients log in at one listener."""

    mechanisms: tuple[MechanismSettings, ...]
    receive_bytes_max: int
    """The maximum size of a frame before the login."""
    failure_delay_ms: int

    def mechanism(self, name: str) -> MechanismSettings | None:
        return next((each for each in self.mechanisms if each.name == name), None)


def login_listener(name: str) -> str | None:
    """Returns the listener of a dynamic login key; None for any other key."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    prefixed, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism, _, key = rest.partition(".")
    is_one = rest == ENABLED or (key == JAAS and mechanism in _IN_NAMES)
    return prefixed.upper() if is_one and prefixed == prefixed.lower() else None


def check_login_key(values: Mapping[str, Value], given: Collection[str], name: str) -> None:
    """Checks the login module that a key sets, even if its mechanism is not enabled.

    Errors: InvalidKeysError.
    """
    listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism, _, key = rest.partition(".")
    if key == JAAS and name in given:
        _login_module(ListenerKeys(values, given, listener), mechanism.upper())


def sasl_listener(values: Mapping[str, Value], given: Collection[str], listener_name: str) -> SaslListener:
    """Returns the SASL settings of a listener. Errors: InvalidKeysError."""
    keys = ListenerKeys(values, given, listener_name)
    names = tuple(dict.fromkeys(name.upper() for name in keys.texts(ENABLED)))
    for name in names or ("none",):
        if name not in MECHANISMS:
            reason = _NOT_HERE.get(name, f"{name} is not a supported mechanism")
            message = (
                f"{keys.given_name(ENABLED) or ENABLED}={','.join(names)} is invalid at the listener "
                f"{listener_name}: {reason}; "
                f"allowed are {', '.join(MECHANISMS)}"
            )
            raise InvalidKeysError(message, keys.given_name(ENABLED) or ENABLED, "listeners")
    for key in (JAAS, HANDLER):
        if key in given:
            message = f"{key} needs a listener and a mechanism in its name: use {keys.own_name(key, names[0])}"
            raise InvalidKeysError(message, key)
    return SaslListener(
        tuple(_mechanism(keys, name) for name in names),
        keys.number("sasl.server.max.receive.size"),
        keys.number("connection.failed.authentication.delay.ms"),
    )


def inter_broker_login(values: Mapping[str, Value], listener_name: str, sasl: SaslListener) -> tuple[str, OwnLogin]:
    """Returns the mechanism and user of this broker's logins at the listener for brokers.

    Errors: InvalidKeysError.
    """
    key = "sasl.mechanism.inter.broker.protocol"
    name = str(values[key]).upper()
    mechanism = sasl.mechanism(name)
    if mechanism is None:
        enabled = ", ".join(each.name for each in sasl.mechanisms)
        message = (
            f"{key}={name} is invalid, because brokers log in at the listener {listener_name}: allowed is one of "
            f"{enabled}"
        )
        raise InvalidKeysError(message, key, "inter.broker.listener.name")
    if mechanism.own is None:
        prefix = f"listener.name.{listener_name.lower()}.{name.lower()}."
        jaas, url = (
            f"{prefix}{JAAS} must have username and password",
            f"{prefix}sasl.oauthbearer.token.endpoint.url must be set",
        )
        needed = url if name == OAUTHBEARER else jaas
        message = f"{needed}: brokers log in to each other by {name} at the listener {listener_name}"
        raise InvalidKeysError(message, key, f"{prefix}{JAAS}")
    return name, mechanism.own


def _mechanism(keys: ListenerKeys, name: str) -> MechanismSettings:
    module = _login_module(keys, name)
    users, own, lifetime_ms = {}, None, keys.number("connections.max.reauth.ms", name)
    handler = _of_the_mechanism(keys, HANDLER, name)
    if name == OAUTHBEARER:
        from lowtide.broker.config.oauth_settings import oauth_settings  # noqa: PLC0415 - slow, and rarely needed

        oauth = oauth_settings(keys, module)
        return MechanismSettings(
            name, lifetime_ms, {}, None if oauth.own is None else OwnLogin(tokens=oauth.own), oauth
        )
    if handler is not None:
        raise InvalidKeysError(f"{handler} is not possible for {name}: Java classes cannot be loaded", handler)
    if module is not None:
        options = module.options
        users = (
            {option[len(_USER) :]: secret for option, secret in options.items() if option.startswith(_USER)}
            if name == "PLAIN"
            else {}
        )
        if options.get("tokenauth", "").lower() == "true":
            key = keys.own_name(JAAS, name)
            message = f"{key} has tokenauth, but a broker cannot log in with a delegation token, which expires"
            raise InvalidKeysError(message, key)
        if options.get("username"):
            own = OwnLogin(options["username"], options.get("password", ""))
    elif name == "PLAIN":
        example = '`PlainLoginModule required user_alice="...";`'
        message = f"{keys.own_name(JAAS, name)} is missing: it defines the users of {name}, as in {example}"
        raise InvalidKeysError(message, ENABLED, "listeners")
    return MechanismSettings(name, lifetime_ms, users, own)


def _login_module(keys: ListenerKeys, mechanism: str) -> LoginModule | None:
    """Returns the parsed JAAS line of a mechanism, or None. Errors: InvalidKeysError."""
    key = _of_the_mechanism(keys, JAAS, mechanism)
    if key is None:
        return None
    try:
        module = parse_jaas(keys.text(JAAS, mechanism))
    except JaasError as error:
        raise InvalidKeysError(f"{key}=[hidden] is invalid: {error}", key) from None
    if module.simple_name != MECHANISMS[mechanism].rpartition(".")[2]:
        message = (
            f"{key} names the login module {module.name}, which is not possible for {mechanism}: allowed is "
            f"org.apache.kafka.common.security.{MECHANISMS[mechanism]}"
        )
        raise InvalidKeysError(message, key)
    return module


def _of_the_mechanism(keys: ListenerKeys, key: str, mechanism: str) -> str | None:
    """Returns the full name of a key that needs a listener and a mechanism; None if it is not set.

    Errors: InvalidKeysError.
    """
    name = keys.given_name(key, mechanism)
    if name not in (None, keys.own_name(key, mechanism)):
        raise InvalidKeysError(f"{name} needs a mechanism in its name: use {keys.own_name(key, mechanism)}", str(name))
    return name
