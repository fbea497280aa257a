"""Filters in JMESPath, with bounded work: a filter runs where other requests wait.

    >>> late = Expression("delay > `60` && carrier == 'UA'")
    >>> late.is_true({"delay": 90, "carrier": "UA"}), late.is_true({"delay": "unknown"})
    (True, False)
    >>> Expression("delay >")
    Traceback (most recent call last):
    ...
    ValueError: the filter "delay >" is not JMESPath: it ends too early

Source: the specification of JMESPath (jmespath.org). A value fails the filter if the result is false, null or empty, or
if a function does not accept its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jmespath import exceptions, functions, parser, visitor  # type: ignore[import-untyped]

LENGTH_MAX: Final = 1_000
"""The longest expression, in characters."""

DEPTH_MAX: Final = 50
COPIES_MAX: Final = 8
"""How often an expression may repeat the value in its result. Without a limit, `[@,@]|[@,@]|…` doubles it each time."""

STEPS_MAX: Final = 2_000
"""The steps for one value, which take two to five milliseconds."""

CHEAP_ITEMS: Final = 16
"""So many items of a list, or characters, that a function reads or returns count as one step."""

_CHAINED: Final = frozenset(
    {"subexpression", "pipe", "index_expression", "projection", "value_projection", "filter_projection"}
)
_SIZED: Final = (str, list, dict)


class TooMuchWorkError(Exception):
    """The value is too large for the expression."""


class Expression:
    """A compiled expression. Its `repr` has no content."""

    def __init__(self, text: str) -> None:
        """Compiles an expression. Errors: ValueError."""
        if len(text) > LENGTH_MAX:
            raise ValueError(f"the filter has {len(text)} characters: at most {LENGTH_MAX} are allowed")
        shown = f'the filter "{text}"'
        try:
            self._tree = parser.Parser().parse(text).parsed
            copies = _copies(self._tree, 0)
        except exceptions.EmptyExpressionError:
            raise ValueError("the filter is empty") from None
        except exceptions.IncompleteExpressionError:
            raise ValueError(f"{shown} is not JMESPath: it ends too early") from None
        except exceptions.LexerError as error:
            raise ValueError(f"{shown} is not JMESPath: {_reason(error.message)}") from None
        except exceptions.ParseError as error:
            where = f"at character {error.lex_position + 1}"
            raise ValueError(f"{shown} is not JMESPath: {error.token_value!r} is unexpected {where}") from None
        except _UnfitExpressionError as error:
            raise ValueError(f"{shown} {error}") from None
        except RecursionError:
            raise ValueError(f"{shown} is nested too deeply") from None
        if copies > COPIES_MAX:
            raise ValueError(f"{shown} repeats the value too often")

    def __repr__(self) -> str:
        return "Expression()"

    def is_true(self, value: Any) -> bool:
        """Returns whether the expression holds for a value. Errors: TooMuchWorkError."""
        interpreter = _Interpreter()
        try:
            return bool(interpreter.is_true(interpreter.visit(self._tree, value)))
        except (exceptions.JMESPathError, TypeError, ValueError, OverflowError, RecursionError):
            return False  # A function or a comparison does not accept the types that this value has.


class _UnfitExpressionError(Exception):
    """The expression has something that is not allowed."""


class _Functions(functions.Functions):  # type: ignore[misc]
    """The functions of JMESPath, with bounded results."""

    @functions.signature({"types": ["string"]}, {"types": ["array-string"]})  # type: ignore[untyped-decorator]
    def _func_join(self, separator: str, array: list[str]) -> str:
        if len(separator) * len(array) + sum(map(len, array)) > STEPS_MAX * CHEAP_ITEMS:
            raise TooMuchWorkError
        return separator.join(array)


_FUNCTIONS: Final = _Functions()
_OPTIONS: Final = visitor.Options(custom_functions=_FUNCTIONS)


class _Interpreter(visitor.TreeInterpreter):  # type: ignore[misc]
    """An interpreter that stops after `STEPS_MAX` steps."""

    def __init__(self) -> None:
        super().__init__(_OPTIONS)
        self._left = STEPS_MAX

    def visit(self, node: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._use(1)
        return super().visit(node, *args, **kwargs)

    def visit_function_expression(self, node: Mapping[str, Any], value: Any) -> Any:
        arguments = [self.visit(child, value) for child in node["children"]]
        for each in arguments:
            self._use_items(each)
        result = _FUNCTIONS.call_function(node["value"], arguments)
        self._use_items(result)
        return result

    def visit_flatten(self, node: Mapping[str, Any], value: Any) -> Any:
        result = super().visit_flatten(node, value)
        self._use_items(result)
        return result

    def visit_slice(self, node: Mapping[str, Any], value: Any) -> Any:
        result = super().visit_slice(node, value)
        self._use_items(result)
        return result

    def is_true(self, result: Any) -> bool:
        """Returns whether a result counts as true."""
        return bool(self._is_true(result))

    def _use_items(self, value: Any) -> None:
        if isinstance(value, _SIZED):
            self._use(len(value) // CHEAP_ITEMS)

    def _use(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooMuchWorkError


def _copies(node: Any, depth: int) -> int:
    """Returns how often the result of a node may contain its value.

    Errors: _UnfitExpressionError for what is too deep, or for an unknown function.
    """
    if not isinstance(node, dict):
        return 1
    if depth > DEPTH_MAX:
        raise _UnfitExpressionError("is nested too deeply")
    children = [_copies(each, depth + 1) for each in node["children"]]
    kind = node["type"]
    if kind == "function_expression":
        _check_function(node["value"], len(children))
    if kind in _CHAINED:
        product = 1
        for each in children:
            product *= each
        return min(product, COPIES_MAX + 1)
    if kind in ("multi_select_list", "multi_select_dict", "function_expression"):
        return min(sum(children), COPIES_MAX + 1)
    return max(children, default=1)


def _check_function(name: str, count: int) -> None:
    """Checks that a function exists and takes so many arguments. Errors: _UnfitExpressionError."""
    known = _FUNCTIONS.FUNCTION_TABLE.get(name)
    if known is None:
        raise _UnfitExpressionError(f"calls the unknown function {name}()")
    wanted = len(known["signature"])
    is_variadic = bool(known["signature"]) and known["signature"][-1].get("variadic", False)
    if count < wanted or (count > wanted and not is_variadic):
        least = "at least " if is_variadic else ""
        raise _UnfitExpressionError(f"calls {name}() with {count} arguments instead of {least}{wanted}")


def _reason(message: str) -> str:
    text = " ".join(str(message).split())
    return text[:1].lower() + text[1:200]
