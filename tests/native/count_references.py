"""`python count_references.py MODULE CASES`: calls every function of a compiled module, and counts references of shared
objects.

It runs under any Python, which needs no other package. CASES is a pickle: for each function a list of argument tuples
that it answers. Those of a method of `Codec` begin with the arguments of the codec. From them come the bad ones: each
argument replaced by something else, one too few and one too many, and damaged bytes. A call that keeps or loses a
reference to None, True, False, a small integer, the empty tuple or an empty string is an error, after many calls of the
same kind.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CALLS = 16
"""Of each kind, to find a difference."""

MORE_CALLS = 500
"""Enough to be sure: the interpreter gives up a few dozen references to None in its first second."""

DAMAGED_EVERY = 7
"""Every seventh byte of a request is damaged, and the request is cut there."""

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
CODEC_ARGUMENTS = 2
"""Before the arguments of a method of `Codec`. Only the case named `Codec` has bad ones of them."""

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
    except (AttributeError, BufferError, OverflowError, RuntimeError, TypeError, ValueError) as error:
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
        if isinstance(argument, SimpleNamespace):
            for name, wrong in ((name, wrong) for name in vars(argument) for wrong in WRONG):
                yield (*arguments[:place], SimpleNamespace(**(vars(argument) | {name: wrong})), *arguments[place + 1 :])
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


def use_codec(module: Any, shape: Any, plain: Any, frame: bytes, message: Any) -> list[Any]:
    """Decodes and encodes, however bad the shape is."""
    codec = module.Codec(shape, plain)
    return [attempt(codec.decode, (frame, 0, len(frame))), attempt(codec.encode_parts, (message,))]


def method(module: Any, name: str) -> Callable[..., Any]:
    def call(shape: Any, plain: Any, *arguments: Any) -> Any:
        return getattr(module.Codec(shape, plain), name)(*arguments)

    return call


def check_function(
    name: str, function: Callable[..., Any], cases: list[tuple[Any, ...]], *, unchanged: int = 0
) -> None:
    """The first `unchanged` arguments have no bad ones."""
    for arguments in cases:
        # Many functions write into their arguments: each call has copies.
        packed = pickle.dumps(arguments)
        answer = function(*pickle.loads(packed))
        assert (answer is None) == (name in RETURNS_NONE), f"{name} answers {answer} for {arguments}"
        watch(f"{name}{arguments}", lambda packed=packed: attempt(function, pickle.loads(packed)))  # type: ignore[misc]
        for bad in bad_arguments(arguments[unchanged:]):
            copy = pickle.dumps((*arguments[:unchanged], *bad))
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
    methods = {f"Codec.{name}": name for name in dir(module.Codec) if not name.startswith("__")}
    known, cased = {*functions, *methods}, {*cases, *SYNCS}
    assert known == cased, f"without a case, or not in the module: {sorted(known ^ cased)}"
    for name, arguments in cases.items():
        if name in methods:
            check_function(name, method(module, methods[name]), arguments, unchanged=CODEC_ARGUMENTS)
        else:
            function = partial(use_codec, module) if name == "Codec" else getattr(module, name)
            check_function(name, function, arguments)
    check_syncs(module)


if __name__ == "__main__":
    main(Path(sys.argv[1]), pickle.loads(Path(sys.argv[2]).read_bytes()))
