r"""Patterns by which clients name what they can't list: topics that a member subscribes to, transactions that an administrator looks for.

The syntax is RE2's (KIP-848, KIP-1152), and a pattern means a whole name: `orders` doesn't match `orders-eu`, `orders.*` does. The time to
match grows with the name, whatever the pattern: there are no backreferences and no look-around.

Guards: what a client sends holds the loop for a few milliseconds at most. A pattern is bounded in its length and in the memory of its
compiled form; names are matched in steps that are the shorter the larger the pattern is. Measured on one core, a usual pattern is compiled
in 0.1 ms and decides on 100,000 topic names in 0.15 s; the worst that is let in takes 1 ms, and up to 3 ms for a name of 249 characters.

Does not: know who may see which name. The package that does the work is imported when the first pattern is met: most brokers never do.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final

from lowtide.protocol.errors import ErrorCode

PATTERN_BYTES_MAX: Final = 4096
"""The longest pattern. Kafka has no limit; this is room for a hundred names of topics."""

COMPILED_BYTES_MAX: Final = 128 * 1024
"""What a compiled pattern may take, with what it caches while it matches. A plain text of `PATTERN_BYTES_MAX` fits."""

STEP_INSTRUCTIONS: Final = 4096
"""Names in one step, times the instructions of the pattern: each name may have to be compared with each of them, letter by letter."""


class PatternError(ValueError):
    """A text is no pattern, or too large a one. Says why, in a few words that may go to the client."""


class NamePattern:
    """A pattern that was checked.

    Time for one name is bounded, as described above, and grows with the name's length.
    """

    __slots__ = ("_compiled", "step_names", "text")

    def __init__(self, text: str) -> None:
        """Check and compile `text`.

        Errors: PatternError.
        """
        self.text = text
        """As the client sent it."""
        self._compiled = _compile(text)
        self.step_names: int = max(1, STEP_INSTRUCTIONS // max(self._compiled.programsize, 1))
        """So many topic names take about as long as the loop may be held for one step of some work."""

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` is what the pattern says."""
        return self._compiled.fullmatch(name.encode()) is not None

    def matching(self, names: Iterable[str]) -> Generator[None, None, list[str]]:
        """The names that match, in their order; in steps, for `broker/slices.py`. `names` must not change meanwhile."""
        found: list[str] = []
        fullmatch = self._compiled.fullmatch
        left = self.step_names
        for name in names:
            if fullmatch(name.encode()) is not None:
                found.append(name)
            left -= 1
            if not left:
                left = self.step_names
                yield
        return found


def check_pattern(text: str) -> ErrorCode:
    """Whether `text` is a pattern. Errors: INVALID_REGULAR_EXPRESSION, also for one that is too large."""
    try:
        _compile(text)
    except PatternError:
        return ErrorCode.INVALID_REGULAR_EXPRESSION
    return ErrorCode.NONE


def _compile(text: str) -> Any:
    import re2  # noqa: PLC0415 - 8 ms and 3 MB, and hardly any broker needs it.

    try:
        pattern = text.encode()
    except UnicodeEncodeError as error:
        raise PatternError("it is not text") from error
    if len(pattern) > PATTERN_BYTES_MAX:
        raise PatternError(f"it is longer than {PATTERN_BYTES_MAX} bytes")
    options = re2.Options()
    options.max_mem = COMPILED_BYTES_MAX
    options.never_capture = True
    options.log_errors = False  # RE2 would write what a client sent to the broker's standard error.
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        raise PatternError(_reason(error)) from error
    re2.purge()  # The module would keep the last 128 patterns of all clients.
    return compiled


def _reason(error: Exception) -> str:
    text = error.args[0] if error.args else ""
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
