"""Samples of a soak: times by spans, minutes for the published file, pieces of several folders and machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import samples
from tests.soak.history import KeptHistory
from tests.soak.kept import SoakFolder, add_line, lines
from tests.soak.report import latencies, report
from tests.soak.samples import (
    Piece,
    Sample,
    by_minute,
    joined,
    pieces_of,
    published,
    quantile_ms,
    read_published,
    span_of,
)


def test_a_quantile_is_the_end_of_its_span():
    times = {span_of(1.0): 98, span_of(30.0): 1, span_of(1000.0): 1}
    assert quantile_ms(times, 0.5) == 1.0
    assert quantile_ms(times, 0.99) == pytest.approx(32, rel=0.2)
    assert quantile_ms(times, 0.999) == pytest.approx(1024, rel=0.2)
    assert quantile_ms({}, 0.5) is None


@pytest.mark.parametrize("milliseconds", [0.01, 0.25, 0.3, 1.0, 7.7, 123.4, 60_000.0])
def test_a_time_is_at_most_the_end_of_its_span(milliseconds: float):
    end = quantile_ms({span_of(milliseconds): 1}, 1.0)
    assert end is not None
    assert milliseconds <= end * 1.000001
    assert end <= max(milliseconds, samples.SHORTEST_MS) * 2**0.25 * 1.000001


def piece(soak: str, number: int, began: str, minutes: int = 3) -> Piece:
    rows = [
        Sample(
            number,
            second,
            {"broker 3 resident MiB": 70.0 + second / 60, **({"late": 1.0} if second > 60 else {})},
            {"8": 2},
            {"restarts": second},
        )
        for second in range(15, minutes * 60 + 1, 15)
    ]
    return Piece(soak, number, began, "1a2b3c", "ab, 2 cores, CPU", ["broke"] if number == 2 else [], rows)


def test_minutes_have_means_sums_and_the_last_counts():
    rows = by_minute(piece("ab", 1, "").samples)
    assert [row.seconds for row in rows] == [60, 120, 180]
    assert rows[0].figures == {"broker 3 resident MiB": pytest.approx(70.62, abs=0.01)}
    assert (rows[0].times, rows[0].counts, rows[1].figures["late"]) == ({"8": 8}, {"restarts": 60}, 1.0)


def test_published_pieces_are_read_as_they_were(tmp_path: Path):
    file = tmp_path / "soak.jsonl"
    before = [piece("ab", 1, "2026-01-01"), piece("cd", 2, "2026-01-02")]
    file.write_bytes(published(before))
    after = read_published(file)
    assert [(each.soak, each.piece, each.began, each.commit, each.machine, each.failed) for each in after] == [
        (each.soak, each.piece, each.began, each.commit, each.machine, each.failed) for each in before
    ]
    assert [each.samples for each in after] == [
        [Sample(row.piece, row.seconds, row.figures, row.times, each.counts) for row in by_minute(each.samples)]
        for each in before
    ]
    assert published(after) == file.read_bytes(), "it may be published again"


def test_the_published_file_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(samples, "MINUTES_KEPT", 5)
    text = published([piece("ab", number, f"2026-01-0{number}") for number in (1, 2, 3)])
    assert text.count(b'"type":"piece"') == 1
    assert b"2026-01-03" in text


def test_a_piece_that_is_published_and_here_counts_once():
    mine, other = piece("ab", 1, "2026-01-02", minutes=4), piece("cd", 1, "2026-01-01")
    assert joined([other, piece("ab", 1, "2026-01-02")], [mine]) == [other, mine]


def test_a_folder_continues_after_a_line_was_cut(tmp_path: Path):
    folder = SoakFolder(tmp_path)
    assert folder.begin_piece() == 1
    add_line(folder.samples, Sample(1, 15, {"a": 1.0}))
    with folder.samples.open("ab") as file:
        file.write(b'{"piece":1,"sec')
    folder = SoakFolder(tmp_path)
    assert folder.begin_piece() == 2
    add_line(folder.samples, Sample(2, 15, {"a": 2.0}))
    folder.failed("broke")
    assert [row.piece for row in lines(folder.samples, Sample)] == [1, 2]
    assert [(each.piece, each.failed) for each in pieces_of(folder)] == [(1, []), (2, ["broke"])]
    with folder.locked(), pytest.raises(BlockingIOError), SoakFolder(tmp_path).locked():
        pass


def test_a_history_continues_after_a_kill(tmp_path: Path):
    path = tmp_path / "history.jsonl"
    first = KeptHistory("t-0", path)
    first.on_send([b"a", b"b"], 1, 0, ordered=False)
    first.on_acknowledged(0, [b"a", b"b"])
    first.on_send([b"c"], 1, 2, ordered=False)
    first.on_delete(1)
    first.on_delete_acknowledged(1, 1)
    first.close()
    with path.open("ab") as file:
        file.write(b'["sent", [1, 3], ["d')
    second = KeptHistory("t-0", path)
    assert (second.sent, second.acknowledged) == (first.sent, {0: b"a", 1: b"b"})
    assert (second.acknowledged_delete, second.requested_delete, second.acknowledged_end) == (1, 1, 2)
    second.on_send([b"e"], 1, 3, ordered=False)
    second.close()
    third = KeptHistory("t-0", path)
    third.close()
    assert list(third.sent) == [b"a", b"b", b"c", b"e"]
    with pytest.raises(AssertionError, match="D1"):
        third.on_read({0: b"a"}, start=0, deleted_before=1)


def test_the_report_says_that_machines_were_joined():
    pieces = [piece("ab", 1, "2026-01-01", minutes=60), piece("cd", 2, "2026-01-02", minutes=60)]
    rows = report(pieces, "broker 3 ")
    assert rows[0].startswith(
        "2.00 hours in 2 pieces on 1 machines, 1 commits. Pieces are joined by their samples: each has"
    )
    assert rows[1] == "7,200 restarts"
    assert "broke" in "\n".join(rows)
    assert [row.split(" | ")[1:] for row in latencies(pieces)[2:3]] == [["1.0", "1.0", "1.0", "1.0 |"]]
