"""A configuration key: its name, type, default, allowed values and description.

Texts are parsed here and nowhere else. Guards: an invalid value is refused with an error that names the key, the value
and what is allowed, and never shows a secret.

Source: Kafka's configuration types (ConfigDef): numbers have 16, 32 or 64 bits, texts are trimmed, and lists are
separated by commas.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, TypeAlias

import msgspec

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""The value of a key: a list is a tuple of its members, None means not set."""

HIDDEN: Final = "[hidden]"
"""Replaces a secret, as in Kafka."""

LISTENER_PREFIX: Final = "listener.name."
"""The prefix of keys for one listener."""

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_BITS: Final = {"short": 16, "int": 32, "long": 64}


class ConfigError(ValueError):
    """An invalid configuration: one sentence with the key, the value and what is allowed."""


class InvalidKeysError(ConfigError):
    """Raised for values that contradict each other, or that another key rules out. `keys` are these keys."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


class Type(Enum):
    """How a key's text is parsed."""

    BOOLEAN = "boolean"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    CLASS = "class"
    PASSWORD = "password"  # noqa: S105  the name of a type, not a secret


class Scope(Enum):
    """What a key belongs to."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"


class Range(msgspec.Struct, frozen=True):
    """Numbers from `least` to `most`, both inclusive; None is no bound. `extra` is allowed in addition."""

    least: float | None = None
    most: float | None = None
    extra: int | None = None

    def accepts(self, value: float) -> bool:
        if value == self.extra:
            return True
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def describe(self) -> str:
        bounds = f"from {self.least} to {self.most}"
        if self.most is None:
            bounds = f"of at least {self.least}"
        elif self.least is None:
            bounds = f"of at most {self.most}"
        return bounds if self.extra is None else f"{bounds}, or {self.extra}"


class OneOf(msgspec.Struct, frozen=True):
    """One of these texts; in a list, each member is one of them."""

    values: tuple[str, ...]
    any_case: bool = False

    def accepts(self, value: str) -> bool:
        return value in self.values or (self.any_case and value.lower() in {each.lower() for each in self.values})


class Matching(msgspec.Struct, frozen=True):
    """Texts that a pattern matches as a whole; in a list, each member. `means` describes them."""

    pattern: str
    means: str
    members_max: int | None = None

    def accepts(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value) is not None


class Only(msgspec.Struct, frozen=True):
    """The only value allowed, because of `because`."""

    value: bool | int
    because: str

    def accepts(self, value: float) -> bool:
        return value == self.value

    def describe(self) -> str:
        return f"only {value_text(self.value)}, for {self.because}"


Allowed: TypeAlias = Range | OneOf | Matching | Only | None

NO_TIERED_STORAGE: Final = "this broker has no tiered storage"
"""Why keys of tiered storage allow only their default."""


def at_least(least: float) -> Range:
    """Returns the range of numbers from `least` (inclusive)."""
    return Range(least)


class ConfigKey(msgspec.Struct, frozen=True):
    """One key. `default` is the text of its default, None if it has none."""

    name: str
    type: Type
    default: str | None
    allowed: Allowed
    doc: str
    """One or two short sentences."""
    enforced: bool = True
    """Whether the key takes effect. Other keys are checked, stored and described, and cause a warning when set."""
    internal: bool = False
    """Whether Apache Kafka has the key only for its own tests."""
    scope: Scope = Scope.BROKER
    broker_key: str | None = None
    """For a key of a topic or group: the broker's key that is its default."""

    def parse(self, text: str) -> Value:
        """Parses a text.

        Errors: ConfigError, a sentence without its full stop and without the source of the text.
        """
        trimmed = text.strip()
        value = _READERS[self.type](trimmed, self.type)
        if value is None or not self._accepts(value):
            shown = HIDDEN if self.type is Type.PASSWORD else trimmed
            raise ConfigError(f"{self.name}={shown} is invalid: allowed is {self.describe_allowed()}")
        if isinstance(value, tuple) and isinstance(self.allowed, OneOf):
            return tuple(dict.fromkeys(value))  # Duplicates have no meaning.
        return value

    @property
    def default_value(self) -> Value:
        return None if self.default is None else self.parse(self.default)

    def describe_allowed(self) -> str:
        allowed = self.allowed
        words = _WORDS[self.type]
        if isinstance(allowed, Range):
            return f"{words} {allowed.describe()}"
        if isinstance(allowed, Only):
            return allowed.describe()
        if isinstance(allowed, OneOf):
            values = ", ".join(allowed.values)
            return f"a list of any of {values}" if self.type is Type.LIST else f"one of {values}"
        if isinstance(allowed, Matching):
            return allowed.means
        return words

    def _accepts(self, value: Value) -> bool:
        allowed = self.allowed
        if allowed is None:
            return True
        if isinstance(allowed, Range | Only):
            assert isinstance(value, int | float), self.name
            return allowed.accepts(value)
        if isinstance(value, tuple):
            too_many = (
                isinstance(allowed, Matching) and allowed.members_max is not None and len(value) > allowed.members_max
            )
            return not too_many and all(allowed.accepts(member) for member in value)
        assert isinstance(value, str), self.name
        return allowed.accepts(value)


def value_text(value: Value) -> str:
    """Formats a value as Kafka does: `true`, `a,b`, a number, or an empty text for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _java_double(value) if isinstance(value, float) else str(value)


_PLAIN_DOUBLES: Final = (1e-3, 1e7)
_DOUBLE_DIGITS: Final = 18
"""One more than the decimal digits of any double."""


def _java_double(value: float) -> str:
    """Formats a number as Java does: with a decimal point, and in scientific notation outside its plain range."""
    if value == 0 or _PLAIN_DOUBLES[0] <= abs(value) < _PLAIN_DOUBLES[1]:
        return str(value)
    texts = (f"{value:.{digits}e}" for digits in range(1, _DOUBLE_DIGITS))
    mantissa, _, exponent = next(text for text in texts if float(text) == value).partition("e")
    return f"{mantissa}E{int(exponent)}"


def _read_boolean(text: str, _: Type) -> Value:
    return {"true": True, "false": False}.get(text.lower())


def _read_whole_number(text: str, number: Type) -> Value:
    if _WHOLE_NUMBER.fullmatch(text) is None:
        return None
    value = int(text)
    limit = 1 << (_BITS[number.value] - 1)
    return value if -limit <= value < limit else None


def _read_number(text: str, _: Type) -> Value:
    return float(text) if _NUMBER.fullmatch(text) else None


def _read_text(text: str, _: Type) -> Value:
    return text


def _read_list(text: str, _: Type) -> Value:
    return tuple(member.strip() for member in text.split(",")) if text else ()


_READERS: Final = {
    Type.BOOLEAN: _read_boolean,
    Type.SHORT: _read_whole_number,
    Type.INT: _read_whole_number,
    Type.LONG: _read_whole_number,
    Type.DOUBLE: _read_number,
    Type.STRING: _read_text,
    Type.LIST: _read_list,
    Type.CLASS: _read_text,
    Type.PASSWORD: _read_text,
}

_WORDS: Final = {
    Type.BOOLEAN: "true or false",
    Type.SHORT: "a whole number of 16 bits",
    Type.INT: "a whole number of 32 bits",
    Type.LONG: "a whole number of 64 bits",
    Type.DOUBLE: "a number",
    Type.STRING: "a text",
    Type.LIST: "a list, separated by commas",
    Type.CLASS: "a class name",
    Type.PASSWORD: "a secret",
}


def number(value: Value) -> int:
    """Returns the value of an integer key."""
    assert isinstance(value, int), value
    return value
