"""`lowtide erasures replay`: what it prints, and its exit codes for bad input."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from lowtide.admin.errors import AdminError
from lowtide.admin.receipts.ledger import Ledger, export_lines
from lowtide.admin.replay_plan import LedgerPlace, replay_plan
from lowtide.admin.replaying import Replay, ReplayedBeginning, ReplayedPartition
from lowtide.cli.main import main
from lowtide.cli.replay import gone, missing, notes, replay_value
from lowtide.protocol.erasure_ledger_records import NamedRun, encode_entry
from lowtide.protocol.types import TopicPartition, topic_id_text
from tests.unit.admin.ledger_rows import ERASURE, PLACE, TOPIC_ID, named

HERE = TopicPartition("flights", 0)
PLAN = replay_plan([named(), named(searched_to=990, committed_ms=-1)])
HEAD = b'{"cluster_id":"c"}\n'


def row(**changes) -> ReplayedPartition:
    return ReplayedPartition(
        **({"erasure_id": ERASURE, "partition": HERE, "named": 3, "found": 1, "others": 1} | changes)
    )


def replayed(*rows: ReplayedPartition, **changes) -> Replay:
    given = {"cluster_id": "c", "partitions": rows, "beginnings": [], "gone": [], "renamed": {}}
    return Replay(**(given | changes))


def started(start: int | AdminError) -> ReplayedBeginning:
    return ReplayedBeginning(erasure_id=UUID(int=1), partition=HERE, offset=50, log_start_offset=start)


def test_a_clean_replay_has_nothing_to_say():
    assert missing(replayed(row(erased_by=(1, 2)), beginnings=[started(50)])) == []
    assert gone(PLAN, replayed()) == []


def test_brokers_that_are_not_clean_are_named():
    [sentence] = missing(replayed(row(not_erased_by={2: "it is not live"})))
    assert sentence.startswith("Not erased yet at broker 2 (1 partition: it is not live): run the same command again")


def test_a_beginning_that_is_back_is_left_to_the_user():
    [sentence] = missing(replayed(beginnings=[started(7)]))
    assert "everything below 50 was erased, but the log begins at 7 now" in sentence
    assert sentence.endswith("lowtide records delete flights:0 --offset 50 --erase")
    [sentence] = missing(replayed(beginnings=[started(AdminError("no leader"))]))
    assert sentence == "flights-0: its log start is unknown: no leader."


def test_topics_that_are_gone_or_have_another_id_are_named():
    [sentence] = gone(PLAN, replayed(gone=[LedgerPlace(*PLACE)]))
    assert sentence.startswith(f"flights (id {topic_id_text(TOPIC_ID)}): the cluster doesn't have partition 0.")
    assert notes(PLAN, replayed(renamed={TOPIC_ID: "flights"})) == [
        f"flights: no topic has the id {topic_id_text(TOPIC_ID)}, so this one was searched.",
        "Not repeated, because they have no commit in the export: 1 part.",
    ]


def test_the_document_for_programs():
    found = replayed(
        row(erased_by=(1,), not_erased_by={2: "late"}), row(error=AdminError("no")), gone=[LedgerPlace(*PLACE)]
    )
    value = replay_value(PLAN, found, dry_run=False)
    assert value["partitions"][0] == {
        "erasure_id": str(ERASURE),
        "topic": "flights",
        "partition": 0,
        "named": 3,
        "found": 1,
        "absent": 1,
        "others": 1,
        "erased_by": [1],
        "not_erased_by": [{"broker": 2, "message": "late"}],
        "error": None,
    }
    assert value["partitions"][1]["error"] == {"message": "no"}
    assert value["gone"] == [{"topic": "flights", "topic_id": topic_id_text(TOPIC_ID), "partition": 0}]
    assert (value["not_committed"], value["dry_run"]) == (1, False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1 is not that of an export"),
        (b"{}\n", "line 1 is not that of an export"),
        (HEAD + b"nonsense\n", "line 2 is not that of an export"),
        (HEAD + b'{"key":"AAAA","value":"AAAA"}\n', "can't be read"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_export_is_refused(content: bytes | None, words: str, tmp_path: Path, capsys):
    """Before any broker is asked: there is none."""
    path = tmp_path / "ledger.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main(["erasures", "replay", "--from", str(path), "--yes", "-b", "127.0.0.1:1"]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": 9}, "9 is not a valid SelectorKind"),
        ({"records": [NamedRun(first_offset=-1, leader_epoch=0, timestamps=[0])]}, "negative offset -1"),
    ],
)
def test_an_export_with_invalid_values_is_refused(changes, words: str, tmp_path: Path, capsys):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(export_lines(Ledger("c", dict([encode_entry(named(**changes))])))))
    assert main(["erasures", "replay", "--from", str(path), "--yes", "-b", "127.0.0.1:1"]) == 2
    assert words in capsys.readouterr().err
