"""A response that is made of parts, such as one for each group of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from lowtide.broker.pending import Answer, Pending

ResponseT = TypeVar("ResponseT")


class JoinedParts(Generic[ResponseT]):
    """A response that `make` returns when all its parts have arrived."""

    def __init__(self, make: Callable[[], ResponseT], parts: int = 1) -> None:
        self.pending: Pending[ResponseT] = Pending()
        self._make = make
        self._left = parts

    def expect(self, count: int) -> None:
        """Waits for more parts."""
        self._left += count

    def arrived(self) -> None:
        """Counts a part."""
        self._left -= 1
        if not self._left and not self.pending.done:
            self.pending.complete(self._make())

    def answer(self) -> Answer[ResponseT]:
        """Returns the response, or the promise of it. This is the last part: all others have begun."""
        self.arrived()
        return self.pending.response if self.pending.done and self.pending.response is not None else self.pending
