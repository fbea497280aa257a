"""Reads the options of `format("lowtide")` from Spark's map, and reports invalid ones.

Names are those of Spark's Kafka source where it has them, in any case, as everywhere in Spark. An unknown option is
refused, so that a misspelt `trimLag` does not delete records that should stay. `kafka.*` goes to the client, and keys
that the client does not know are logged once.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar, overload

from lowtide.admin.settings import ClientSettings, SettingsError

log = logging.getLogger(__name__)

T = TypeVar("T")

KAFKA: Final = "kafka."
"""The prefix of the keys of Kafka's clients."""

_UNITS: Final = {
    "": 1,
    "ms": 1,
    "milliseconds": 1,
    "s": 1000,
    "seconds": 1000,
    "m": 60_000,
    "min": 60_000,
    "minutes": 60_000,
    "h": 3_600_000,
    "hours": 3_600_000,
    "d": 86_400_000,
    "days": 86_400_000,
}
_DURATION: Final = re.compile(r"(\d{1,15})\s*([a-z]*)")

_REFUSED: Final = {
    "key.deserializer": "keys are given as bytes: cast the column",
    "value.deserializer": "values are given as bytes: cast the column",
    "key.serializer": "keys are taken as bytes or strings: cast the column",
    "value.serializer": "values are taken as bytes or strings: cast the column",
    "enable.auto.commit": "Spark keeps the positions in its checkpoint, and commits none by itself",
    "auto.offset.reset": "startingOffsets says where a query begins",
    "interceptor.classes": "interceptors are Java classes",
}
"""Keys of Kafka's clients that have no meaning here. Source: Spark's KafkaSourceProvider.validateGeneralOptions."""


class OptionError(ValueError):
    """An option has an invalid value. The message names the option, its value and the reason."""


class Options:
    """The options that the user gave. Notes which ones were read."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._asked: dict[str, str] = {}

    def refuse(self, name: str, reason: str) -> NoReturn:
        """Raises OptionError for the value of an option."""
        raise OptionError(f"option {name} is {self._given.get(name.lower())!r}: {reason}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        """Returns the value without the white space around it, or None."""
        self._asked[name.lower()] = name
        value = self._given.get(name.lower())
        return None if value is None else value.strip()

    def flag(self, name: str, *, default: bool) -> bool:
        """Reads `true` or `false`. Errors: OptionError."""
        value = self.choice(name, ("true", "false"))
        return default if value is None else value == "true"

    def choice(self, name: str, allowed: Iterable[str]) -> str | None:
        """Reads one of the `allowed` words, in any case. Errors: OptionError."""
        value = self.text(name)
        if value is not None and value.lower() not in allowed:
            self.refuse(name, f"it must be {' or '.join(allowed)}")
        return None if value is None else value.lower()

    @overload
    def number(self, name: str, low: int, high: int = ..., *, default: int) -> int: ...

    @overload
    def number(self, name: str, low: int, high: int = ..., *, default: None = ...) -> int | None: ...

    def number(self, name: str, low: int, high: int = 2**63 - 1, *, default: int | None = None) -> int | None:
        """Reads a whole number from `low` to `high`, both inclusive. Errors: OptionError."""
        value = self.text(name)
        if value is None:
            return default
        if re.fullmatch(r"-?\d{1,19}", value) is None or not low <= int(value) <= high:
            self.refuse(name, f"it must be a whole number from {low}" + (f" to {high}" if high < 2**63 - 1 else " on"))
        return int(value)

    def duration_ms(self, name: str, *, default: int) -> int:
        """Reads a time such as `500ms`, `15m` or `10 minutes` in milliseconds. A plain number is in milliseconds.

        Errors: OptionError.
        """
        value = self.text(name)
        if value is None:
            return default
        parsed = parse_duration_ms(value)
        if parsed is None:
            self.refuse(name, "it must be a time such as 500ms, 30s, 15m, 2h or 7 days")
        return parsed

    def json(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Returns what `parse` returns for a JSON value.

        Errors: OptionError, also for a ValueError or TypeError of `parse`.
        """
        value = self.text(name)
        if value is None:
            return None
        try:
            return parse(json.loads(value))
        except json.JSONDecodeError as error:
            self.refuse(name, f"it is not valid JSON: {error.msg} at character {error.pos}")
        except (ValueError, TypeError) as error:
            self.refuse(name, str(error))

    def client_settings(self, taken: Iterable[str] = ()) -> ClientSettings:
        """Returns the client settings in `kafka.*`, without the keys that others have `taken`.

        Errors: OptionError.
        """
        keys = {name.removeprefix(KAFKA): name for name in self._given if name.startswith(KAFKA)}
        self._asked |= {name: name for name in keys.values()}
        for key, reason in _REFUSED.items():
            if key in keys:
                self.refuse(KAFKA + key, reason)
        if not self._given.get(f"{KAFKA}bootstrap.servers", "").strip():
            raise OptionError("option kafka.bootstrap.servers is missing: it names at least one broker as host:port")
        others = frozenset(taken)
        try:
            settings = ClientSettings.of(
                {key: self._given[name] for key, name in keys.items() if key not in others}, "the options kafka.*"
            )
        except SettingsError as error:
            raise OptionError(str(error)) from error
        if settings.unused_keys:
            log.warning("options without effect: %s", ", ".join(KAFKA + key for key in settings.unused_keys))
        return settings

    def check_all_known(self, others: Iterable[str] = ()) -> None:
        """Checks that every option was read or is one of `others`. Errors: OptionError."""
        names = {**self._asked, **{name.lower(): name for name in others}}
        for name in self._given:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; is {names[near[0]]} meant?" if near else ""
                self.refuse(name, f"there is no such option{hint}")


def parse_duration_ms(text: str) -> int | None:
    """Returns the milliseconds of a time such as `15m` or `10 minutes`, or None if the text is not a time."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        return None
    unit = match[2]
    factor = _UNITS.get(unit, _UNITS.get(f"{unit}s"))
    return None if factor is None else int(match[1]) * factor
