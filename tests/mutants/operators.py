"""The mutants of a module: each is one small change of one function. Pure: source text in, code objects out.

| what | becomes |
|---|---|
| a comparison | its neighbour: `<` and `<=`, `>` and `>=`, `==` and `!=`, `is` and `is not`, `in` and `not in` |
| an operand of `and` and `or` | left out |
| a condition that is neither, and `not x` | its opposite |
| `+`, `-`, `*`, `//`, `%`, `<<`, `>>`, `&`, also in `+=` | another operator |
| `min`, `max` | the other |
| a number, a truth value | the next number, the other value |
| a call whose result is not used, an assignment to an attribute or an element | left out |
| `+=`, `del`, `raise`, `return` without a value | left out |
| `continue`, `break` | `break`, `continue` |

Not mutated: what runs when a module is imported (tables, limits, defaults), assertions, texts, lines of a log. A mutant
is known by its function, the changed text before and after, and a number among equal ones, so that it keeps its name
when lines are added elsewhere.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

FunctionKey = tuple[str, int]
"""Qualified name and first line (that of its first decorator) of a function that isn't inside another one."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
CALLED_INSTEAD = {"min": "max", "max": "min"}
LOGS = ("log", "logger", "_log", "_logger")
"""Names of what writes lines of a log."""

TEXT_CHARACTERS = 160
CO_OPTIMIZED = 0x1
"""Code of functions has this flag (module `inspect`), that of classes hasn't."""


@dataclass(frozen=True)
class _Change:
    """Replace `old` by `new` in the tree, whose `statement` it is in or is."""

    statement: ast.stmt
    old: ast.AST
    new: ast.AST


@dataclass(frozen=True)
class Mutant:
    """One change. `key` is its name within the module; `lines` are those of which a test must run one to see it."""

    function: FunctionKey
    key: str
    lines: frozenset[int]
    tree: ast.Module
    change: _Change

    def code(self, file: str) -> CodeType:
        """Of its function, changed. `file` is the name of the module's file in its code."""
        return function_codes(compile(with_change(self.tree, self.change), file, "exec", dont_inherit=True))[
            self.function
        ]


def mutants(source: str) -> list[Mutant]:
    """Returns all mutants of a module, by line."""
    tree = ast.parse(source)
    found, seen = list[Mutant](), Counter[str]()
    for qualified, function in functions(tree):
        line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        for change in changes(function):
            name = f"{qualified}: {text_of(change.old)} -> {text_of(change.new)}"
            seen[name] += 1
            key = name if seen[name] == 1 else f"{name} ({seen[name]})"
            place = change.statement if isinstance(change.old, ast.stmt) else change.old
            lines = frozenset(range(place.lineno, (place.end_lineno or place.lineno) + 1))  # type: ignore[attr-defined]
            found.append(Mutant((qualified, line), key, lines, tree, change))
    return found


def text_of(node: ast.AST) -> str:
    """The change in one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 3]}..."


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Those of the module and of its classes; what is inside of one belongs to it."""

    def inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for statement in body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield f"{prefix}{statement.name}", statement
                case ast.ClassDef():
                    yield from inside(statement.body, f"{prefix}{statement.name}.")
                case ast.If(body=then, orelse=otherwise) if not prefix:
                    yield from inside([*then, *otherwise], prefix)

    return inside(tree.body, "")


def with_change(tree: ast.Module, change: _Change) -> ast.Module:
    """Returns a copy of the tree."""
    memo = {id(change.old): ast.copy_location(copy.deepcopy(change.new), change.old)}
    return ast.fix_missing_locations(copy.deepcopy(tree, memo))


def function_codes(module: CodeType) -> dict[FunctionKey, CodeType]:
    """Returns the code of the functions of a module and of its classes."""
    found: dict[FunctionKey, CodeType] = {}
    for code in module.co_consts:
        if isinstance(code, CodeType):
            if code.co_flags & CO_OPTIMIZED:
                found[code.co_qualname, code.co_firstlineno] = code
            else:
                found |= function_codes(code)
    return found


def changes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[_Change]:
    """Of a function's body, and of the functions in it."""
    for statement in function.body:
        yield from _of_statement(statement)


def _of_statement(statement: ast.stmt) -> Iterator[_Change]:
    if isinstance(statement, ast.Assert) or _is_text(statement) or _is_log_line(statement):
        return
    if instead := _instead_of(statement):
        yield _Change(statement, statement, instead)
    for name, value in ast.iter_fields(statement):
        if name in {"decorator_list", "args", "returns", "annotation"} or (
            isinstance(statement, ast.Raise) and name != "cause"
        ):
            continue
        for part in value if isinstance(value, list) else [value]:
            yield from _of_part(statement, part)


def _of_part(statement: ast.stmt, part: object) -> Iterator[_Change]:
    """A part of a statement: statements, expressions, or what holds them."""
    match part:
        case ast.stmt():
            yield from _of_statement(part)
        case ast.expr():
            if isinstance(statement, ast.If | ast.While) and part is statement.test:
                yield from _negated(statement, part)
            yield from _of_expression(statement, part)
        case ast.AST():
            for child in ast.iter_child_nodes(part):
                yield from _of_part(statement, child)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_log_line(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in LOGS
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Attribute(attr=name)))):
            return name in LOGS
    return False


def _instead_of(statement: ast.stmt) -> ast.stmt | None:
    """Returns the replacement for a statement that is left out; None for one that stays."""
    match statement:
        case ast.Continue():
            return ast.Break()
        case ast.Break():
            return ast.Continue()
        case (
            ast.Expr(value=ast.Call() | ast.Await())
            | ast.AugAssign()
            | ast.Delete()
            | ast.Raise()
            | ast.Return(value=None)
        ):
            return ast.Pass()
        case ast.Assign(targets=targets) if all(
            isinstance(target, ast.Attribute | ast.Subscript) for target in targets
        ):
            return ast.Pass()
        case ast.AnnAssign(target=ast.Attribute(), value=ast.expr()):
            return ast.Pass()
    return None


def _negated(statement: ast.stmt, test: ast.expr) -> Iterator[_Change]:
    """A condition without an operator."""
    if not isinstance(test, ast.BoolOp | ast.UnaryOp | ast.Constant) and not (
        isinstance(test, ast.Compare) and len(test.ops) == 1
    ):
        yield _Change(statement, test, ast.UnaryOp(op=ast.Not(), operand=copy.deepcopy(test)))


def _of_expression(statement: ast.stmt, node: ast.expr) -> Iterator[_Change]:
    """An expression, and those in it."""
    for new in _replacements(node):
        yield _Change(statement, node, new)
    match node:
        case ast.IfExp(test=test):
            yield from _negated(statement, test)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _negated(statement, value)
        case ast.JoinedStr():
            return
    for child in ast.iter_child_nodes(node):
        yield from _in_expression(statement, child)


def _in_expression(statement: ast.stmt, child: ast.AST) -> Iterator[_Change]:
    if isinstance(child, ast.expr):
        yield from _of_expression(statement, child)
    elif not isinstance(child, ast.arguments):
        for below in ast.iter_child_nodes(child):
            yield from _in_expression(statement, below)


def _replacements(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for place, operator in enumerate(ops):
                changed = [*ops[:place], COMPARISONS[type(operator)](), *ops[place + 1 :]]
                yield ast.Compare(left=copy.deepcopy(left), ops=changed, comparators=copy.deepcopy(comparators))
        case ast.BoolOp(op=op, values=values):
            for place in range(len(values)):
                rest = copy.deepcopy([*values[:place], *values[place + 1 :]])
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op=op, values=rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield copy.deepcopy(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS and not _makes_text(node):
            yield ast.BinOp(left=copy.deepcopy(left), op=OPERATORS[type(op)](), right=copy.deepcopy(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in CALLED_INSTEAD:
            yield ast.Call(
                func=ast.Name(id=CALLED_INSTEAD[name], ctx=ast.Load()),
                args=copy.deepcopy(args),
                keywords=copy.deepcopy(keywords),
            )
        case ast.Constant(value=bool() as value):
            yield ast.Constant(value=not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value=value + 1)


def _makes_text(node: ast.BinOp) -> bool:
    """Returns whether the result is a text, whose `%` and `+` are not mutated."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
