"""One test for many small cases. As a test of its own each would take longer to collect and report than to run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def each(argument: str, values: Iterable[T], name: Callable[[T], str] = str) -> Callable[[Callable[..., None]], Any]:
    """Calls a test with each value as `argument`. All values are tried; a failure names those that failed."""
    cases = list(values)
    assert cases, f"there is no {argument} to test with"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def run(**fixtures: Any) -> None:
            first, failed = None, []
            for case in cases:
                try:
                    test(**{argument: case}, **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    first = first or error
                    failed.append(name(case))
            if first is not None:
                first.add_note(f"failed with {argument}: {', '.join(failed)}")
                raise first

        known = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature([other for other in known if other.name != argument])  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return decorate
