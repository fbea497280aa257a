"""The repository refers only to itself and to public sources.

A reference in a docstring or a page must be in the repository or public: a reader has nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "admin",
    "bench",
    "broker",
    "cli",
    "console",
    "demo",
    "docs",
    "examples",
    "metadata",
    "pipeline",
    "protocol",
    "replication",
)
FOLDERS += ("runtime", "simulation", "storage", "testing", "tests", "verification", ".ci")
TEXTS = {".py", ".c", ".h", ".md", ".toml", ".txt", ".cfg", ".sh", ".json", ".java", ""}

OUTSIDE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|Users|work|mnt|srv)/[\w.-]+")
"""A path on a developer's machine."""

ABOVE_THE_ROOT = re.compile(r"(?<![\w./])\.\./[a-z][\w-]*/")
"""A folder beside the repository, as opposed to a link of a page in `docs/`."""

KAFKA_NAMES = {
    "kafka-python",
    "kafka-go",
    "kafka-dump-log",
    "kafka-delete-records",
    "kafka-clients",
    "kafka-storage",
    "kafka-tools",
    "kafka-topics",
}
KAFKA_NAMES |= {
    "kafka-broker-api",
    "kafka-cluster",
    "kafka-configs",
    "kafka-console-consumer",
    "kafka-console-producer",
}
KAFKA_NAMES |= {
    "kafka-consumer-groups",
    "kafka-consumer-perf",
    "kafka-get-offsets",
    "kafka-leader-election",
    "kafka-log-dirs",
}
KAFKA_NAMES |= {
    "kafka-acls",
    "kafka-client-metrics",
    "kafka-delegation-tokens",
    "kafka-transactions",
    "kafka-server-start",
    "kafka-producer-perf",
    "kafka-reassign-partitions",
    "kafka-streams",
}
KAFKA_NAMES |= {
    "kafka-features",
    "kafka-metadata-quorum",
    "kafka-metadata-shell",
    "kafka-share",
    "kafka-groups",
    "kafka-jmx",
}
KAFKA_NAMES |= {
    "kafka-replica-verification",
    "kafka-verifiable",
    "kafka-run-class",
    "kafka-server",
    "kafka-e",
    "kafka-console-share",
}
KAFKA_NAMES |= {"kafka-broker", "kafka-controller"}  # jobs of Prometheus, as Confluent's boards name them
"""Names that begin with `kafka-` and are public packages or tools; up to two more words identify them."""

MAY_NAME_TODO = {"tests/unit/test_self_contained.py"}


def files() -> Iterator[Path]:
    """Every text file that belongs to the project; files that tools leave behind are skipped."""
    skipped = {"__pycache__", ".cache"}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXTS and not skipped & set(path.parts):
                yield path
    yield from (path for path in sorted(ROOT.glob("*")) if path.is_file() and path.suffix in {".md", ".toml", ".txt"})
    yield from (ROOT / name for name in ("Makefile", ".importlinter"))


CONTENTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files()}


def found(pattern: re.Pattern[str], *, but: frozenset[str] = frozenset()) -> list[str]:
    """`file:line match` of each match, except of the texts in `but`."""
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1} {match[0]}"
        for name, text in CONTENTS.items()
        for match in pattern.finditer(text)
        if match[0] not in but
    ]


def test_the_project_is_seen():
    """If the folders moved, the rules below would check nothing."""
    assert sum(name.endswith(".py") for name in CONTENTS) > 150
    assert "README.md" in CONTENTS


def test_no_path_on_a_developers_machine_is_named():
    assert found(OUTSIDE_PATH) == []


def test_no_folder_beside_the_repository_is_named():
    inside = frozenset(f"../{folder}/" for folder in FOLDERS)
    assert [line for line in found(ABOVE_THE_ROOT, but=inside) if not line.startswith("docs/")] == []


def test_a_named_page_exists():
    """A page in Markdown is cited by a name under which it can be opened."""
    pages = {name for name in CONTENTS if name.endswith(".md")}
    names = {Path(page).name for page in pages}
    cited = re.compile(r"(?<![\w/.*-])[\w./-]*\w\.md\b")
    assert [
        line
        for line in found(cited)
        if line.split(" ")[1] not in pages | names and Path(line.split(" ")[1]).name not in names
    ] == []


def test_sources_that_are_named_are_public():
    """Kafka's tools and packages are public; notes about Kafka outside the repository are not."""
    named = re.compile(r"(?<![\w/.-])kafka-[a-z]+(?:-[a-z]+)?")
    assert [line for line in found(named) if not any(line.split(" ")[1].startswith(name) for name in KAFKA_NAMES)] == []


def test_nothing_is_installed_by_a_name_that_no_index_has():
    """Until Lowtide is published, a stranger could publish a package of its name. It is installed from a path."""
    by_name = re.compile(r"pip install [^\n`]*?(?<![/.\w-])lowtide(?![-\w*.]).*")
    assert found(by_name) == []


def test_what_is_left_to_do_has_an_owner_and_an_issue():
    """`TODO(owner, #issue)`; what must be fixed is fixed at once."""
    unowned = re.compile(r"\bTODO\b(?!\(\w[\w -]*, #\d+\))|\bFIXME\b")
    assert [line for line in found(unowned) if line.split(":")[0] not in MAY_NAME_TODO] == []
