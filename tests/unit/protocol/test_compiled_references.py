"""The compiled module keeps and loses no references, under whichever Python it was built, and under whichever it runs.

Built under one version and run by another is what an editable tree of two environments once did to a broker: headers of
3.12 return None without a reference, and 3.11 counts it.
"""

from __future__ import annotations

import itertools
import operator
import pickle
import shutil
import subprocess
import sys
import sysconfig
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.protocol import native
from lowtide.protocol.headers import request_header
from lowtide.storage.compaction.offset_map import OffsetMap
from tests.pythons import installed
from tests.unit.test_version import HOOK

from .test_compiled_produce import FRAME_MAX, ONE, batch_of, framed, request_of
from .test_compiled_walk import payload_of

ROOT = Path(__file__).resolve().parents[3]
COUNTER = ROOT / "tests/native/count_references.py"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
QUICK_FLAGS = tuple("-O0" if flag == "-O2" else flag for flag in HOOK.FLAGS)
RUN_TIMEOUT_S = 300
SECRET = bytes(16)
TYPES = (itertools.chain,) * 3
"""Takes any number of arguments, keeps them, and is there under every Python."""

PLAIN = operator.methodcaller
"""Gives a function of a name that refuses what it is called with."""

ROW = ("o", False, SimpleNamespace, ("n", "t"), (("i",), ("s", True, True)), None)
NUMBERS = tuple((letter,) for letter in "b?hHiqdu")
NESTED = ("o", True, SimpleNamespace, ("k",), (("b",),), ())
TAGS = (
    (0, "flag", False, None, ("?",)),
    (1, "nested", None, operator.not_, NESTED),
    (2, "rows", None, None, ("a", True, True, (("h",),), 2)),
)
"""A default that isn't written, a struct of which a function decides, and rows."""


def shape(*, compact: bool) -> tuple[Any, ...]:
    """Returns a shape with fields of each kind; the compact form has tagged fields."""
    counted = (
        ("s", True, compact),
        ("y", True, compact),
        ("v", True, compact),
        ("a", True, compact, (ROW,), 5),
        NESTED,
    )
    fields = (*NUMBERS, *counted)
    names = tuple(sys.intern(f"f{number}") for number in range(len(fields)))
    return "o", False, SimpleNamespace, names, fields, TAGS if compact else None


def message(*, full: bool) -> SimpleNamespace:
    """Returns a message of `shape`, in which what may be null is there or not."""
    rows = [SimpleNamespace(n=3, t="x"), SimpleNamespace(n=4, t=None)]
    counted = ("text", b"bytes", b"records", rows, SimpleNamespace(k=1)) if full else (None,) * 5
    values = (1, True, 2, 3, 4, 5, 0.5, bytes(16), *counted)
    tags = {"flag": full, "nested": SimpleNamespace(k=2) if full else None, "rows": [1] if full else None}
    return SimpleNamespace(**{f"f{number}": value for number, value in enumerate(values)}, **tags)


def codec_cases() -> dict[str, list[tuple[Any, ...]]]:
    """Returns those of `Codec`, whose frames need the compiled module."""
    assert native.compiled is not None
    cases: dict[str, list[tuple[Any, ...]]] = {}
    for compact, full in ((False, True), (True, True), (True, False)):
        made = shape(compact=compact), PLAIN
        sent = message(full=full)
        frame = native.compiled.Codec(*made).encode(sent)
        request = request_header(0, 9 if compact else 3, 7, "c" if full else None) + frame
        for name, arguments in {
            "": (frame, sent),
            ".decode": (frame, 0, len(frame)),
            ".encode": (sent,),
            ".encode_frame": (7, sent, compact),
            ".encode_parts": (sent,),
            ".read_request": (request, 0, len(request), 10, compact),
        }.items():
            cases.setdefault(f"Codec{name}", []).append((*made, *arguments))
    return cases


def column(values: list[bytes | None]) -> tuple[Any, ...]:
    ends = [sum(len(value or b"") for value in values[:count]) for count in range(len(values) + 1)]
    validity = sum((value is not None) << number for number, value in enumerate(values)).to_bytes(1, "little")
    return array("i", ends).tobytes(), b"".join(value or b"" for value in values), validity, 0


def cases() -> dict[str, list[tuple[Any, ...]]]:
    """For each function arguments that it answers, with and without what may be null."""
    transactional = batch_of(ONE, (7, 0, 0), is_transactional=True)
    group = framed(*(request_of(9, batch_of(ONE, (5, 1, sequence))) for sequence in (0, 1)))
    single = framed(request_of(13, transactional, transactional_id="x", client_id=None))
    records = bytes(payload_of([(0, None, b"k", b"v", [(b"n", None), (b"n", b"c")]), (5, None, None, None, [])]))
    keyed = bytes(payload_of([(0, None, b"a", b"v", []), (1, None, b"b", None, []), (2, None, b"a", b"w", [])]))
    table = OffsetMap(1 << 16)
    empty = tuple(bytearray(4) if place in (3, 6) else bytearray() for place in range(8))
    lists = tuple(bytearray(4) if place in (1, 3, 6) else bytearray() for place in range(8))
    headers = (array("i", [0, 1, 1]).tobytes(), b"", b"\1", 0)
    rows = (
        2,
        array("q", [3, 4]).tobytes(),
        column([b"k", None]),
        column([b"v", None]),
        headers,
        column([b"n"]),
        column([None]),
    )
    batch = (records, 2, 0, 1, 0, None, 0, 10)
    return {
        "add_hashes": [(bytearray(), SECRET, keyed, 3)],
        "append_records": [(batch, 0, empty, 0, None), ((*batch[:5], 7, *batch[6:]), 0, empty, 0, lists)],
        "append_rows": [
            (bytearray(), rows, (None, 0, 2, 1000, 7)),
            (bytearray(), (*rows[:4], None, None, None), (None, 0, 2, 1000, 7)),
        ],
        "copy_keys": [(array("q", [7, 1] + [0] * 6), array("q", bytes(128)))],
        "crc32c": [(records,), (bytearray(40_000), 2**32 - 1)],
        "filter_pages": [((bytearray(8), bytearray(4)), 3), ((), 1)],
        "find_record": [(records, 2, 1, 0), (records, 2, 9, 0)],
        "hash_key": [(SECRET, b"key")],
        "match_header": [(records, 2, b"n", None), (records, 2, b"n", b"c")],
        "match_keys": [(keyed, 3, frozenset({b"a"}), 2)],
        "note_keys": [(array("q", bytes(128)), SECRET, keyed, 3, 1, 0, 5, 0)],
        "produce_answers": [(9, (1, 2), "t", 0, (5, 6), -1, 0), (13, (), b"i" * 16, 0, (), -1, 0)],
        "read_produce": [
            (TYPES, requests, 0, len(requests), FRAME_MAX, is_one)
            for requests, is_one in ((group, True), (group, False), (single, True))
        ],
        **codec_cases(),
        "plain_records": [(b"head", [(b"k", b"v"), (None, None)]), (b"head", [])],
        "retain": [(table._table, SECRET, keyed, 3, 1, 5, drops, shift) for drops, shift in ((False, None), (True, 7))],
        "sort_hashes": [(bytearray(8),)],
        "walk_records": [(records, 2), (keyed, 3)],
    }


@pytest.fixture(scope="module")
def pythons() -> dict[str, str]:
    """Programs of those versions that are on this machine."""
    found = {version: installed(version) for version in VERSIONS}
    return {version: program for version, program in found.items() if program is not None}


@pytest.mark.parametrize(
    ("version", "running"),
    [(VERSIONS[0], VERSIONS[:1]), *(pytest.param(each, VERSIONS, marks=pytest.mark.slow) for each in VERSIONS)],
)
@pytest.mark.slow
def test_no_reference_is_kept_or_lost(
    tmp_path: Path, pythons: dict[str, str], version: str, running: tuple[str, ...]
) -> None:
    """Built with the headers of one version, and run by all of these versions that are there."""
    if shutil.which(HOOK.link_command()[0]) is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("it can't be built here")
    if native.compiled is None:
        pytest.skip("the plain form is in use")
    if version not in pythons:
        pytest.skip(f"there is no Python {version}")
    include = subprocess.run(
        [pythons[version], "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(include, "Python.h").exists():
        pytest.skip(f"Python {version} has no headers")
    module = tmp_path / HOOK.MODULE
    assert HOOK.compile_module(module, ROOT, include, QUICK_FLAGS) is None
    (tmp_path / "cases").write_bytes(pickle.dumps(cases()))
    failed = []
    for name in (each for each in running if each in pythons):
        program = pythons[name]
        command = [program, "-I", str(COUNTER), str(module), str(tmp_path / "cases")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
        if done.returncode != 0:
            failed.append(f"run by {name}: {done.returncode}, {done.stderr[-2000:]}")
    assert not failed, "\n".join(failed)
