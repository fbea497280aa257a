"""Random messages, built from the construct tree, so that new fields are tested at once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lowtide.protocol.api_keys import API
from lowtide.protocol.constructs import Blob, CountedArray, Entity, NullableEntity, Text, fixed_format
from lowtide.protocol.schema import wire_form

if TYPE_CHECKING:
    from lowtide.protocol.constructs import AnyConstruct
    from lowtide.protocol.schema import ApiMessage

_RANGES = {"b": 7, "h": 15, "i": 31, "q": 63}
_SIZES = (0, 1, 2, 7, 7, 20, 125, 126, 127, 128, 300)
_LETTERS = "ab-_.é日\U0001f30a"
_TEXT = "".join(random.Random(1).choices(_LETTERS, k=2 * max(_SIZES)))
_COUNTS = (0, 1, 1, 2, 3)
_ERROR_CODES = range(-1, 120)


class Case(NamedTuple):
    """A message class at one version."""

    api_key: int
    message: type[ApiMessage]
    version: int


CASES = [
    Case(int(spec.key), message, version)
    for spec in API.values()
    for message in (spec.request, spec.response)
    for version in range(message.VERSIONS.low, message.VERSIONS.high + 1)
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests with the argument `case` for every version; `make test` has only the newest of those marked so."""
    if "case" in metafunc.fixturenames:
        is_long = metafunc.definition.get_closest_marker("newest") is not None
        metafunc.parametrize(
            "case",
            [
                pytest.param(case, marks=pytest.mark.slow)
                if is_long and case.version < case.message.VERSIONS.high
                else case
                for case in CASES
            ],
            ids=[f"{case.message.__name__}-v{case.version}" for case in CASES],
        )


class RandomMessages:
    """Builds messages with difficult values: nulls, empty and long strings, counts of one and of many, extreme numbers.

    With `is_tame` all values have a meaning: known error codes, times within the calendar.
    """

    def __init__(self, seed: str, *, is_tame: bool = False) -> None:
        self._random = random.Random(seed)
        self._is_tame = is_tame

    def message(self, case: Case) -> Any:
        """Returns a message of this class, in which fields that the version lacks have their defaults."""
        return self._entity(wire_form(case.message, case.version), depth=0)

    def _entity(self, entity: Entity, depth: int) -> Any:
        values = {name: self._value(content, name, depth) for name, content in entity.fields}
        for field in entity.tags.fields.values() if entity.tags else ():
            if self._random.random() < 0.4:
                values[field.name] = self._value(field.content, field.name, depth)
        return entity.make(**values)

    def _value(self, content: AnyConstruct, name: str, depth: int) -> Any:
        rng = self._random
        if isinstance(content, NullableEntity) and rng.random() < 0.4:
            return None
        if isinstance(content, Entity):
            return self._entity(content, depth)
        if isinstance(content, Text | Blob | CountedArray):
            if content.nullable and rng.random() < 0.2:
                return None
            if isinstance(content, CountedArray):
                count = rng.choice(_COUNTS) if depth or rng.random() < 0.9 else 140
                return [self._value(content.element, name, depth + 1) for _ in range(count)]
            size = rng.choice(_SIZES)
            if isinstance(content, Text):
                start = rng.randrange(max(_SIZES))
                return _TEXT[start : start + size]
            return rng.randbytes(size)
        return self._number(fixed_format(content), name)

    def _number(self, form: str | None, name: str) -> int | float | bool | bytes:
        rng = self._random
        if form == "d":
            return rng.choice((0.0, -1.5, 1e308, rng.random()))
        if form == "16s":
            return rng.randbytes(16)
        if form == "?":
            return rng.random() < 0.5
        assert form is not None
        if form == "H":
            return rng.choice((0, 1, (1 << 16) - 1, rng.randrange(1 << 16)))
        if self._is_tame and name.endswith("_ms"):
            return rng.randrange(1_000_000)
        if self._is_tame and name.endswith("error_code"):
            return rng.choice(_ERROR_CODES)
        limit = 1 << _RANGES[form]
        return rng.choice((0, -1, 1, limit - 1, -limit, rng.randrange(-limit, limit)))


@pytest.fixture
def random_messages(request: pytest.FixtureRequest) -> RandomMessages:
    """Random messages, equal in each run of the same test."""
    return RandomMessages(request.node.name)


@pytest.fixture
def tame_messages(request: pytest.FixtureRequest) -> RandomMessages:
    """Like `random_messages`, with values that have a meaning."""
    return RandomMessages(request.node.name, is_tame=True)
