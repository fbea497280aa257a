"""A broker refuses to start with security settings that it cannot enforce.

Guards: an operator who asks for protection never gets an open service. Keys that take effect (`ConfigKey.enforced`) are
accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.config.key import (
    HIDDEN,
    LISTENER_PREFIX,
    ConfigKey,
    InvalidKeysError,
    Type,
    Value,
    value_text,
)
from lowtide.broker.config.keys_security import SECURITY_KEYS, STANDARD_AUTHORIZER
from lowtide.broker.config.keys_server import SERVER_KEYS

_POLICIES: Final = ("alter.config.policy.class.name", "client.quota.callback.class", "create.topic.policy.class.name")
"""Classes that would validate requests: Lowtide loads no Java classes."""

_KEYS: Final = {
    key.name: key
    for key in (*SECURITY_KEYS, *SERVER_KEYS)
    if not key.enforced and (key in SECURITY_KEYS or key.name in _POLICIES)
}


def check_security(values: Mapping[str, Value], given: Mapping[str, object]) -> None:
    """Refuses every setting that asks for protection which Lowtide does not provide.

    `given` has the names that are set, in any form that `broker_key` accepts. The default and an empty value ask for
    nothing. Rules of an authorizer without an authorizer are refused too. Errors: InvalidKeysError.
    """
    for name in ("super.users", "allow.everyone.if.no.acl.found"):
        if name in given and values[name] and not values["authorizer.class.name"]:
            raise InvalidKeysError(f"{name} has no effect without authorizer.class.name={STANDARD_AUTHORIZER}", name)
    if values["lowtide.audit.log"] == "file" and not values["lowtide.audit.file"]:
        raise InvalidKeysError(
            "lowtide.audit.log=file needs lowtide.audit.file, the path of the file", "lowtide.audit.log"
        )
    for name in given:
        key = _KEYS.get(name) or _of_a_listener(name)
        if key is None:
            continue
        value = values[name]
        if not value or value == key.default_value:
            continue
        text = HIDDEN if key.type is Type.PASSWORD else value_text(value)
        message = (
            f"{name}={text} asks for protection that Lowtide does not support, and is refused so that no listener is "
            "open by mistake: "
            "remove it, and restrict network access to the listeners"
        )
        raise InvalidKeysError(message, name)


def _of_a_listener(name: str) -> ConfigKey | None:
    """Returns the key that `listener.name.<listener>.[<SASL mechanism>.]<key>` overrides; None for another name."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    rest = name[len(LISTENER_PREFIX) :].partition(".")[2]
    return _KEYS.get(rest) or _KEYS.get(rest.partition(".")[2])
