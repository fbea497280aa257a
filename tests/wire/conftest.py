"""Random messages, built from the construct tree, so that new fields are tested at once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lowtide.protocol.api_keys import API
from lowtide.protocol.constructs import Blob, CountedArray, Entity, NullableEntity, Text, fixed_format
from lowtide.protocol.schema import wire_form
from tests.each import each

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Gives tests of `each_case` every version; `make test` has only the newest of those marked so."""
    if "cases" in metafunc.fixturenames:
        newest = [case for case in CASES if case.version == case.message.VERSIONS.high]
        older = [case for case in CASES if case.version < case.message.VERSIONS.high]
        if metafunc.definition.get_closest_marker("newest") is not None:
            slow = pytest.param(older, id="older versions", marks=pytest.mark.slow)
            metafunc.parametrize("cases", [pytest.param(newest, id="newest versions"), slow])
        else:
            metafunc.parametrize("cases", [pytest.param(CASES, id="all versions")])


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


def each_case(test: Callable[[Case, str], None]) -> Callable[[list[Case]], None]:
    """Calls a test with each of its `cases`, and a seed for what is random in it: the same in each run."""

    def run(cases: list[Case]) -> None:
        def call(case: Case) -> None:
            test(case, f"{test.__name__}[{label(case)}]")

        each("case", cases, label)(call)()

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


def label(case: Case) -> str:
    """Returns what a failure calls a case."""
    return f"{case.message.__name__}-v{case.version}"
