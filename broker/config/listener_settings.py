"""The security of each listener, from its protocol: TLS, SASL, both or neither.

Guards: a setting that asks for a login or for encryption, and that no listener would apply, is refused, so that no
listener is open by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from lowtide.broker.config.http_listeners import HTTPS, HttpListener
from lowtide.broker.config.key import LISTENER_PREFIX, InvalidKeysError, Value
from lowtide.broker.config.listeners import ConfiguredListener
from lowtide.broker.config.sasl_settings import SaslListener, sasl_listener
from lowtide.broker.config.tls_settings import TlsListener, tls_listener

_ASK_FOR_LOGINS: Final = (
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "connections.max.reauth.ms",
    "sasl.server.callback.handler.class",
    "sasl.oauthbearer.jwks.endpoint.url",
)
_ASK_FOR_TLS: Final = (
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
)


class SecuredListener(msgspec.Struct, frozen=True):
    """The security settings of one listener."""

    sasl: SaslListener | None = None
    tls: TlsListener | None = None


def secured_listeners(
    values: Mapping[str, Value],
    given: Collection[str],
    listeners: tuple[ConfiguredListener, ...],
    of_http: tuple[HttpListener, ...] = (),
) -> Mapping[str, SecuredListener]:
    """Returns the settings of listeners with TLS or SASL by name; all HTTPS listeners share one name.

    Errors: InvalidKeysError.
    """
    with_sasl = {listener.name for listener in listeners if listener.protocol.startswith("SASL")}
    with_tls = {listener.name for listener in listeners if listener.protocol.endswith("SSL")}
    found = {
        listener.name: SecuredListener(
            sasl=sasl_listener(values, given, listener.name) if listener.name in with_sasl else None,
            tls=tls_listener(values, given, listener.name) if listener.name in with_tls else None,
        )
        for listener in listeners
        if listener.name in with_sasl | with_tls
    }
    if any(each.is_encrypted for each in of_http):
        if any(each.name == HTTPS for each in listeners):
            message = f"the name {HTTPS} is reserved for https:// addresses in http.listeners: rename it in listeners"
            raise InvalidKeysError(message, "listeners", "http.listeners")
        with_tls.add(HTTPS)
        found[HTTPS] = SecuredListener(tls=tls_listener(values, given, HTTPS))
    _refuse_unheeded(values, given, _ASK_FOR_LOGINS, with_sasl, "SASL")
    _refuse_unheeded(values, given, (*_ASK_FOR_TLS, "ssl.client.auth"), with_tls, "TLS")
    return found


def _refuse_unheeded(
    values: Mapping[str, Value], given: Collection[str], keys: Collection[str], heeding: Collection[str], what: str
) -> None:
    """Refuses keys that no listener applies, because none has SASL or TLS. Errors: InvalidKeysError."""
    for name in given:
        prefixed, _, rest = (
            name.removeprefix(LISTENER_PREFIX).partition(".") if name.startswith(LISTENER_PREFIX) else ("", "", name)
        )
        if not any(rest == key or rest.endswith(f".{key}") for key in keys) or values[name] in (
            None,
            "",
            (),
            0,
            "none",
        ):
            continue
        if (prefixed.upper() in heeding) if prefixed else heeding:
            continue
        where = f"the listener {prefixed.upper()} has no {what}" if prefixed else f"no listener has {what}"
        wanted = "SASL_SSL or SASL_PLAINTEXT" if what == "SASL" else "SSL or SASL_SSL"
        message = (
            f"{name} requires {what}, but {where}: set {wanted} in listener.security.protocol.map, or remove the key"
        )
        raise InvalidKeysError(message, name, "listeners")
