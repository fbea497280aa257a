"""The compiled module keeps and loses no references, under whichever Python it was built, and under whichever it runs.

Built under one version and run by another is what an editable tree of two environments once did to a broker: headers of
3.12 return None without a reference, and 3.11 counts it.
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sysconfig
from array import array
from pathlib import Path
from typing import Any

import pytest

from lowtide.storage.compaction.offset_map import OffsetMap
from tests.pythons import installed
from tests.unit.test_version import HOOK

from .test_compiled_commit import MEMBER, ONE_ROW, commit_of, heartbeat_of
from .test_compiled_delete import delete_of
from .test_compiled_fetch import ANSWERED, ID_ROW, fetch_of
from .test_compiled_joins import JOINED, SYNCED, join_of, sync_of
from .test_compiled_produce import batch_of, request_of, transactional
from .test_compiled_rounds import ONE
from .test_compiled_runs import framed
from .test_compiled_transactions import added_offsets, added_partitions, commit, end
from .test_compiled_walk import payload_of

ROOT = Path(__file__).resolve().parents[3]
COUNTER = ROOT / "tests/native/count_references.py"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
QUICK_FLAGS = tuple("-O0" if flag == "-O2" else flag for flag in HOOK.FLAGS)
RUN_TIMEOUT_S = 300
SECRET = bytes(16)
INSTANCE = MEMBER | {"group_instance_id": "i"}


def whole(*requests: bytes) -> list[tuple[Any, ...]]:
    """The arguments of a function that reads a request from a buffer."""
    return [(request, 0, len(request)) for request in requests]


def column(values: list[bytes | None]) -> tuple[Any, ...]:
    ends = [sum(len(value or b"") for value in values[:count]) for count in range(len(values) + 1)]
    validity = sum((value is not None) << number for number, value in enumerate(values)).to_bytes(1, "little")
    return array("i", ends).tobytes(), b"".join(value or b"" for value in values), validity, 0


def cases() -> dict[str, list[tuple[Any, ...]]]:
    """For each function arguments that it answers, with and without what may be null."""
    small, produced = batch_of(ONE), batch_of(ONE, (5, 1, 0))
    run, group = (
        framed(request_of(9, small), request_of(9, small)),
        framed(request_of(13, produced), request_of(13, batch_of(ONE, (6, 1, 0)))),
    )
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
        "append_records": [(batch, 0, empty, 0, None), ((*batch[:5], 7, *batch[6:]), 0, empty, 0, lists)],
        "append_rows": [
            (bytearray(), rows, (None, 0, 2, 1000, 7)),
            (bytearray(), (*rows[:4], None, None, None), (None, 0, 2, 1000, 7)),
        ],
        "copy_keys": [(array("q", [7, 1] + [0] * 6), array("q", bytes(128)))],
        "fetch_answer": [ANSWERED, (13, *ANSWERED[1:4], (ID_ROW,)), (*ANSWERED[:4], ())],
        "find_record": [(records, 2, 1, 0), (records, 2, 9, 0)],
        "hash_key": [(SECRET, b"key")],
        "join_answer": [(*JOINED[:8], (("m", None, b"x"), ("n", "i", b""))), (2, 1, 1, None, "p", "l", False, "m", ())],
        "note_keys": [(array("q", bytes(128)), SECRET, keyed, 3, 1, 0, 5, 0)],
        "offset_records": [(b"k", b"v", ((0, 5, -1), (1, 6, 2)))],
        "plain_records": [(b"head", [(b"k", b"v"), (None, None)]), (b"head", [])],
        "produce_answer": [(9, 1, "t", 0, 5, -1, 0), (13, 1, b"i" * 16, 0, 5, -1, 0)],
        "read_added_offsets": whole(*(added_offsets(version) for version in (0, 4))),
        "read_added_partitions": whole(added_partitions(3, [0, 1]), added_partitions(0, [0], client_id=None)),
        "read_commit": whole(
            *(commit_of(version, ONE_ROW, member) for version, member in ((2, None), (8, INSTANCE), (10, None)))
        ),
        "read_delete": whole(delete_of(2), delete_of(3, client_id=None, leader_only=True)),
        "read_end": whole(end(0), end(4, is_commit=False)),
        "read_fetch": whole(
            fetch_of(4, client_id=None), fetch_of(12, isolation_level=1), fetch_of(15, replica_epoch=3)
        ),
        "read_head": [
            (*each, bool(version))
            for version in (0, 1)
            for each in whole(request_of(8 + version, small, client_id=None))
        ],
        "read_heartbeat": whole(heartbeat_of(0, MEMBER), heartbeat_of(4, INSTANCE)),
        "read_join": whole(join_of(2, client_id=None), join_of(9, group_instance_id="i")),
        "read_produce": whole(
            request_of(3, small), request_of(13, transactional(ONE, None, "x"), transactional_id="x", client_id=None)
        ),
        "read_round": whole(run, group),
        "read_run": [(*each, 1 << 20) for each in whole(run)],
        "read_sync": whole(sync_of(0), sync_of(5, [("m", b"a")], group_instance_id="i")),
        "read_transactional_commit": whole(
            commit(0, ONE_ROW), commit(6, ONE_ROW, generation=1, member_id="m", instance_id="i")
        ),
        "retain": [(table._table, SECRET, keyed, 3, 1, 5, drops, shift) for drops, shift in ((False, None), (True, 7))],
        "run_answer": [(9, (1, 2), "t", 0, (5, 6), -1, 0), (13, (), b"i" * 16, 0, (), -1, 0)],
        "sync_answer": [SYNCED, (0, 1, None, None, b"")],
        "walk_records": [(records, 2), (keyed, 3)],
    }


@pytest.fixture(scope="module")
def pythons() -> dict[str, str]:
    """Programs of those versions that are on this machine."""
    found = {version: installed(version) for version in VERSIONS}
    return {version: program for version, program in found.items() if program is not None}


@pytest.mark.parametrize("version", VERSIONS)
def test_no_reference_is_kept_or_lost(tmp_path: Path, pythons: dict[str, str], version: str):
    """Built with the headers of one version and run by every version that is there."""
    if shutil.which(HOOK.link_command()[0]) is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("it can't be built here")
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
    for running, program in pythons.items():
        command = [program, "-I", str(COUNTER), str(module), str(tmp_path / "cases")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
        if done.returncode != 0:
            failed.append(f"run by {running}: {done.returncode}, {done.stderr[-2000:]}")
    assert not failed, "\n".join(failed)
