"""The value of a key at one listener: as set for the listener and mechanism, else for the listener, else for all.

listener.name.<listener>.<mechanism>.<key>     listener.name.<listener>.<key>     <key>

Listener and mechanism are in lower case there. Source: Kafka's `AbstractConfig.valuesWithPrefixOverride`,
`ListenerName.configPrefix`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lowtide.broker.config.key import LISTENER_PREFIX, Value


class ListenerKeys:
    """The keys of a broker as they apply to one listener."""

    def __init__(self, values: Mapping[str, Value], given: Collection[str], listener_name: str) -> None:
        self._values = values
        self._given = given
        self._prefix = f"{LISTENER_PREFIX}{listener_name.lower()}."

    def given_name(self, key: str, mechanism: str = "") -> str | None:
        """Returns the name under which the applicable key was set; None if the default applies."""
        names = (f"{self._prefix}{mechanism.lower()}.{key}" if mechanism else "", f"{self._prefix}{key}", key)
        return next((name for name in names if name in self._given), None)

    def value(self, key: str, mechanism: str = "") -> Value:
        return self._values[self.given_name(key, mechanism) or key]

    def text(self, key: str, mechanism: str = "") -> str:
        """Returns the value of a text key; empty if not set."""
        value = self.value(key, mechanism)
        assert value is None or isinstance(value, str), key
        return value or ""

    def texts(self, key: str, mechanism: str = "") -> tuple[str, ...]:
        value = self.value(key, mechanism)
        assert isinstance(value, tuple), key
        return value

    def number(self, key: str, mechanism: str = "") -> int:
        value = self.value(key, mechanism)
        assert isinstance(value, int), key
        return value

    def own_name(self, key: str, mechanism: str = "") -> str:
        """Returns the name of the key that sets this listener only. Messages show it."""
        return f"{self._prefix}{mechanism.lower()}.{key}" if mechanism else f"{self._prefix}{key}"
