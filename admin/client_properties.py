"""Reads the properties of a client. Errors name the source, the key and the value."""

from __future__ import annotations

from collections.abc import Mapping


class SettingsError(ValueError):
    """Invalid settings: a sentence that names the source, the key and the value."""


class ClientProperties:
    """Properties with their sources. Notes which keys are used."""

    def __init__(self, given: Mapping[str, tuple[str, str]]) -> None:
        self._given = given
        self._used: set[str] = set()

    def get(self, *keys: str) -> str | None:
        """Returns the value of the first given key, without surrounding white space."""
        self._used.update(keys)
        for key in keys:
            if key in self._given:
                return self._given[key][0].strip()
        return None

    def secret(self, key: str) -> str | None:
        """Returns the value unchanged: white space may belong to a password."""
        self._used.add(key)
        return self._given[key][0] if key in self._given else None

    def error(self, key: str, allowed: str, *, secret: bool = False) -> SettingsError:
        """Returns the error for the value of `key`. A secret value is not shown."""
        value, source = self._given[key]
        return SettingsError(f"{source}: {key} is {'invalid' if secret else repr(value)}: {allowed}.")

    def choice(self, key: str, allowed: tuple[str, ...]) -> str | None:
        """Returns a value that must be one of some words, in any case. Errors: SettingsError."""
        value = self.get(key)
        if value is None:
            return None
        for choice in allowed:
            if choice.upper() == value.upper():
                return choice
        raise self.error(key, f"allowed are {', '.join(allowed)}")

    def unused(self) -> tuple[str, ...]:
        """Returns the given keys that no method has read."""
        return tuple(key for key in self._given if key not in self._used)
