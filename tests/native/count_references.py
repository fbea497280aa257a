"""`python count_references.py MODULE CASES`: calls every function of a compiled module, and counts references of shared
objects.

It runs under any Python, which needs no other package. CASES is a pickle: for each function a list of argument tuples
that it answers. From them come the bad ones: each argument replaced by something else, one too few and one too many,
and damaged bytes. A call that keeps or loses a reference to None, True, False, a small integer, the empty tuple or an
empty string is an error, after many calls of the same kind.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

CALLS = 16
"""Of each kind, to find a difference."""

MORE_CALLS = 500
"""Enough to be sure: the interpreter gives up a few dozen references to None in its first second."""

DAMAGED_EVERY = 7
"""Of the bytes of a request each seventh one is damaged, and it is cut there."""

SHARED: list[Any] = [
    None,
    True,
    False,
    *range(-5, 40),
    (),
    "",
    b"",
    *"abcgiklmnptvwx",
    *(bytes([letter]) for letter in b"abckvwx"),
]
"""Numbers and names in the cases are of these. The interpreter has one object for each."""

SPARE = [[each] * 10_000 for each in SHARED]
"""With these references no object is freed before the error is reported."""

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    3,
    2**70,
    1.5,
    "x",
    "\ud800",
    b"",
    b"\xff" * 40,
    bytearray(3),
    (),
    (None, None),
    [],
    [None],
    {},
)
RETURNS_NONE = {"copy_keys", "wait_synced", "close_syncs"}
SYNCS = ("close_syncs", "open_syncs", "submit_sync", "take_synced", "wait_synced")


def load(path: Path) -> Any:
    name = path.name.partition(".")[0]
    spec = spec_from_loader(name, ExtensionFileLoader(name, str(path)))
    assert spec is not None
    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def counts() -> list[int]:
    return [sys.getrefcount(each) for each in SHARED]


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except (TypeError, ValueError, OverflowError, BufferError, RuntimeError) as error:
        return error


def changed(call: Callable[[], object], calls: int) -> list[tuple[Any, int]]:
    """Calls it so often.

    Returns the shared objects of which a reference was kept or lost in about each call, and how many.
    """
    before = counts()
    for _ in range(calls):
        call()
    return [
        (shared, now - then)
        for shared, then, now in zip(SHARED, before, counts(), strict=True)
        if abs(now - then) >= calls // 2
    ]


def watch(what: str, call: Callable[[], object]) -> None:
    """Errors: AssertionError if it keeps or loses a reference."""
    if changed(call, CALLS):
        assert not (found := changed(call, MORE_CALLS)), f"{what}: {MORE_CALLS} calls have changed references: {found}"


def bad_arguments(arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield arguments[:-1]
    yield (*arguments, None)
    for place, argument in enumerate(arguments):
        for wrong in WRONG:
            yield (*arguments[:place], wrong, *arguments[place + 1 :])
        if isinstance(argument, tuple):
            for inner in bad_arguments(argument):
                yield (*arguments[:place], inner, *arguments[place + 1 :])
        if isinstance(argument, bytes):
            for at in range(0, len(argument), DAMAGED_EVERY):
                for damaged in (
                    argument[:at],
                    argument[:at] + b"\xff" + argument[at + 1 :],
                    argument[:at] + b"\0" + argument[at + 1 :],
                ):
                    yield (*arguments[:place], damaged, *arguments[place + 1 :])
        if isinstance(argument, int) and not isinstance(argument, bool):
            for changed in (argument - 1, argument + 1, argument // 2):
                yield (*arguments[:place], changed, *arguments[place + 1 :])


def check_function(name: str, function: Callable[..., Any], cases: list[tuple[Any, ...]]) -> None:
    for arguments in cases:
        # Many functions write into their arguments: each call has copies.
        packed = pickle.dumps(arguments)
        answer = function(*pickle.loads(packed))
        assert (answer is None) == (name in RETURNS_NONE), f"{name} answers {answer} for {arguments}"
        watch(f"{name}{arguments}", lambda packed=packed: attempt(function, pickle.loads(packed)))  # type: ignore[misc]
        for bad in bad_arguments(arguments):
            copy = pickle.dumps(bad)
            watch(f"{name}{bad}", lambda copy=copy: attempt(function, pickle.loads(copy)))  # type: ignore[misc]


def check_syncs(module: Any) -> None:
    """The functions of the thread that syncs files, if there is one: with each other, and with bad arguments."""
    descriptor = os.open(os.devnull, os.O_RDONLY)

    def synced() -> None:
        opened = module.open_syncs()
        if opened is not None:
            syncs = opened[0]
            assert module.submit_sync(syncs, descriptor)
            module.wait_synced(syncs)
            assert len(module.take_synced(syncs)) == 1
            attempt(module.submit_sync, (syncs, None))
            module.close_syncs(syncs)
            attempt(module.take_synced, (syncs,))

    watch("a thread that syncs files", synced)
    for name in SYNCS:
        for arguments in ((), *((wrong,) for wrong in WRONG), *((wrong, descriptor) for wrong in WRONG)):
            watch(
                f"{name}{arguments}",
                lambda name=name, arguments=arguments: attempt(getattr(module, name), arguments),  # type: ignore[misc]
            )
    os.close(descriptor)


def main(path: Path, cases: dict[str, list[tuple[Any, ...]]]) -> None:
    gc.disable()  # It would free objects of before while others are counted.
    module = load(path)
    functions = {name for name in dir(module) if callable(getattr(module, name)) and not name.startswith("__")}
    assert functions == {*cases, *SYNCS}, (
        f"without a case, or not in the module: {sorted(functions ^ {*cases, *SYNCS})}"
    )
    for name, arguments in cases.items():
        check_function(name, getattr(module, name), arguments)
    check_syncs(module)


if __name__ == "__main__":
    main(Path(sys.argv[1]), pickle.loads(Path(sys.argv[2]).read_bytes()))
