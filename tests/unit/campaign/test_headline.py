"""The numbers at the head of the README are those of the sums in the tree."""

from __future__ import annotations

from tests.campaign import evidence, headline


def line(kind: str, violations: list[str] | None = None, **counts: int) -> evidence.Sum:
    return evidence.Sum(
        ledger="a",
        kind=kind,
        commit="1a2b3c",
        runs=1,
        seeds=counts.pop("seeds", 1),
        cpu_seconds=1.0,
        states=0,
        last="2026-01-02T03:04:05Z",
        faults={name.replace("_", " "): count for name, count in counts.items()},
        violations=violations or [],
    )


def test_the_readme_has_the_numbers_of_the_evidence():
    """`make campaign ARGS=--publish` writes both."""
    text = headline.README.read_text(encoding="utf-8")
    assert headline.headline(evidence.load()) in " ".join(text.split())
    assert headline.with_headline(text, headline.headline(evidence.load())) == text


def test_numbers_are_added_over_kinds():
    lines = [
        line("cluster", seeds=40),
        line("drawn faults", ["R1: lost"], seeds=2),
        line("transfers", SIGKILL_of_a_broker=3),
        line("kill", SIGKILL_of_a_broker=4),
        line("a kind of an earlier version", seeds=1000),
    ]
    sentence = headline.headline(lines)
    assert "42 simulated clusters, 7 killed brokers, 0 power cuts" in sentence
    assert "Last violation: 2026-01-02" in sentence
    assert "No violation was found" in headline.headline(lines[2:])
    assert "acknowledged deletes" not in sentence


def test_deletes_are_added_over_all_kinds_that_count_them():
    lines = [line("cluster", acknowledged_delete=1000), line("one broker", acknowledged_delete=20), line("kill")]
    assert "1,020 acknowledged deletes were checked since 2026-01-02." in headline.headline(lines)
    assert lines[0].fault_count() == 0


def test_open_findings_are_counted():
    rows = "| seen | by |\n|---|---|\n| one | a |\n| two | b |\n"
    assert headline.open_count(f"# V\n\n## Open\n\nText.\n\n{rows}\n## Records\n\n{rows}") == 2
    assert headline.open_count(f"# V\n\n## Records\n\n{rows}") == 0


def test_only_the_sentence_of_the_readme_changes():
    text = "# Title\n\n<!-- written by make campaign ARGS=--publish -->\nold\nlines\n\nThe rest\n\nof it.\n"
    long = "word " * 60
    changed = headline.with_headline(text, long)
    assert changed.startswith("# Title\n\n<!-- written by make campaign ARGS=--publish -->\nword")
    assert changed.endswith("word\n\nThe rest\n\nof it.\n")
    assert max(map(len, changed.splitlines())) <= 120
