"""The value of a key at one listener: what is set for the listener and mechanism, else for the listener, else for all.

    listener.name.<listener>.<mechanism>.<key>     listener.name.<listener>.<key>     <key>

Listener and mechanism are in small letters there. Source: Kafka's `AbstractConfig.valuesWithPrefixOverride`,
`ListenerName.configPrefix`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lowtide.broker.config.key import LISTENER_PREFIX, Value


class ListenerKeys:
    """The keys of a broker as they hold at one listener."""

    def __init__(self, values: Mapping[str, Value], given: Collection[str], listener_name: str) -> None:
        self._values = values
        self._given = given
        self._prefix = f"{LISTENER_PREFIX}{listener_name.lower()}."

    def given_name(self, key: str, mechanism: str = "") -> str | None:
        """The name under which a key was given that holds here; None where its default holds."""
        names = (f"{self._prefix}{mechanism.lower()}.{key}" if mechanism else "", f"{self._prefix}{key}", key)
        return next((name for name in names if name in self._given), None)

    def value(self, key: str, mechanism: str = "") -> Value:
        """The value that holds here."""
        return self._values[self.given_name(key, mechanism) or key]

    def text(self, key: str, mechanism: str = "") -> str:
        """The value of a key whose type is a text; empty where nothing is set."""
        value = self.value(key, mechanism)
        assert value is None or isinstance(value, str), key
        return value or ""

    def texts(self, key: str, mechanism: str = "") -> tuple[str, ...]:
        """The value of a key whose type is a list."""
        value = self.value(key, mechanism)
        assert isinstance(value, tuple), key
        return value

    def number(self, key: str, mechanism: str = "") -> int:
        """The value of a key whose type is a whole number."""
        value = self.value(key, mechanism)
        assert isinstance(value, int), key
        return value

    def own_name(self, key: str, mechanism: str = "") -> str:
        """How a key is given for this listener alone, for messages."""
        return f"{self._prefix}{mechanism.lower()}.{key}" if mechanism else f"{self._prefix}{key}"
