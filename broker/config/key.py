"""What one configuration key is: its name, type, default, what it allows, and a sentence about it.

Texts become values here and nowhere else. Guards: a value that a key doesn't allow never gets further; the error names
key, value and what is allowed, and never shows a secret.

Source: Kafka's configuration types (ConfigDef): numbers are 16, 32 and 64 bits wide, texts are trimmed, lists are
separated by commas.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, TypeAlias

import msgspec

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A key's value: a list is a tuple of its members, None is "not set"."""

HIDDEN: Final = "[hidden]"
"""Stands for a secret, as in Kafka."""

LISTENER_PREFIX: Final = "listener.name."
"""Begins the names of keys that hold for one listener."""

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_BITS: Final = {"short": 16, "int": 32, "long": 64}


class ConfigError(ValueError):
    """A configuration that cannot be: one sentence that names the key, the value and what is allowed."""


class ImpossibleTogetherError(ConfigError):
    """Values that are possible each, but not with each other. `keys` are the keys that say them."""

    def __init__(self, message: str, *keys: str) -> None:
        """`message` is a sentence without its full stop."""
        super().__init__(message)
        self.keys = keys


class Type(Enum):
    """How a key's text is read."""

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
    """Whose key it is."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"


class Range(msgspec.Struct, frozen=True):
    """Numbers from `least` to `most`, both inclusive; None is no bound. `extra` is allowed outside of them."""

    least: float | None = None
    most: float | None = None
    extra: int | None = None

    def accepts(self, value: float) -> bool:
        """Whether the number is allowed."""
        if value == self.extra:
            return True
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def describe(self) -> str:
        """What is allowed, to follow "a number"."""
        bounds = f"from {self.least} to {self.most}"
        if self.most is None:
            bounds = f"of at least {self.least}"
        elif self.least is None:
            bounds = f"of at most {self.most}"
        return bounds if self.extra is None else f"{bounds}, or {self.extra}"


class OneOf(msgspec.Struct, frozen=True):
    """One of these texts; for a list, each member is one of them."""

    values: tuple[str, ...]
    any_case: bool = False

    def accepts(self, value: str) -> bool:
        """Whether the text is allowed."""
        return value in self.values or (self.any_case and value.lower() in {each.lower() for each in self.values})


class Matching(msgspec.Struct, frozen=True):
    """Texts that a pattern matches as a whole; for a list, each member. `means` says it in words."""

    pattern: str
    means: str
    members_max: int | None = None
    """How many members a list may have."""

    def accepts(self, value: str) -> bool:
        """Whether the text is allowed."""
        return re.fullmatch(self.pattern, value) is not None


class Only(msgspec.Struct, frozen=True):
    """One value, which means that nothing is done: what any other asks for isn't there, as `because` says."""

    value: bool | int
    because: str

    def accepts(self, value: float) -> bool:
        """Whether it is that value."""
        return value == self.value

    def describe(self) -> str:
        """What is allowed, and why nothing else is."""
        return f"only {value_text(self.value)}, for {self.because}"


Allowed: TypeAlias = Range | OneOf | Matching | Only | None

NO_TIERED_STORAGE: Final = "this broker has no tiered storage"
"""Why keys about it may have no other value than their default."""


def at_least(least: float) -> Range:
    """Numbers from `least` (inclusive) on."""
    return Range(least)


class ConfigKey(msgspec.Struct, frozen=True):
    """One key. `default` is the text of its default, None when it has none."""

    name: str
    type: Type
    default: str | None
    allowed: Allowed
    doc: str
    """One short sentence."""
    enforced: bool = False
    """Whether Lowtide does what the key says. Others are checked, kept and described, and named in a warning when they are given."""
    internal: bool = False
    """A key that Apache Kafka has for its own tests."""
    scope: Scope = Scope.BROKER
    broker_key: str | None = None
    """For a topic's or group's key: the broker's key that gives its default."""

    def parse(self, text: str) -> Value:
        """Read a text.

        Errors: ConfigError, a sentence without its full stop and without the text's source.
        """
        trimmed = text.strip()
        value = _READERS[self.type](trimmed, self.type)
        if value is None or not self._accepts(value):
            shown = HIDDEN if self.type is Type.PASSWORD else trimmed
            message = f"{self.name}={shown} is not possible: allowed is {self.describe_allowed()}"
            raise ConfigError(message)
        if isinstance(value, tuple) and isinstance(self.allowed, OneOf):
            return tuple(dict.fromkeys(value))  # Saying a choice twice says no more.
        return value

    @property
    def default_value(self) -> Value:
        """The default, read."""
        return None if self.default is None else self.parse(self.default)

    def describe_allowed(self) -> str:
        """What may stand there, in words."""
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
    """Write a value as Kafka writes it: `true`, `a,b`, a number; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _java_double(value) if isinstance(value, float) else str(value)


_PLAIN_DOUBLES: Final = (1e-3, 1e7)
_DOUBLE_DIGITS: Final = 18
"""One more than any double needs after its point."""


def _java_double(value: float) -> str:
    """The number as Java writes it: with a point, and with an E outside of the range that it writes plainly."""
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
    """The value of a key whose type is a number."""
    assert isinstance(value, int), value
    return value
