"""Properties of a client as they were given, with where each comes from: reading them, and sentences about what can't be."""

from __future__ import annotations

from collections.abc import Mapping


class SettingsError(ValueError):
    """Settings that can't be: one sentence that names where they come from, the key and the value."""


class Given:
    """Properties with their sources; remembers which were asked for."""

    def __init__(self, given: Mapping[str, tuple[str, str]]) -> None:
        self._given = given
        self.asked: set[str] = set()

    def get(self, *keys: str) -> str | None:
        """The value of the first of these keys that was given, without white space around it."""
        self.asked.update(keys)
        for key in keys:
            if key in self._given:
                return self._given[key][0].strip()
        return None

    def secret(self, key: str) -> str | None:
        """The value as it is: white space around it may belong to a password."""
        self.asked.add(key)
        return self._given[key][0] if key in self._given else None

    def error(self, key: str, allowed: str, *, secret: bool = False) -> SettingsError:
        """A sentence about the value of `key`."""
        value, source = self._given[key]
        return SettingsError(f"{source}: {key} is {'not possible' if secret else repr(value)}: {allowed}.")

    def choice(self, key: str, allowed: tuple[str, ...]) -> str | None:
        """A value that has to be one of a few, in capitals or not. Errors: SettingsError."""
        value = self.get(key)
        if value is None:
            return None
        for choice in allowed:
            if choice.upper() == value.upper():
                return choice
        raise self.error(key, f"allowed are {', '.join(allowed)}")

    def unused(self) -> tuple[str, ...]:
        return tuple(key for key in self._given if key not in self.asked)
