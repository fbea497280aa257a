"""Commands on pages, and the APIs that they list, are checked against the code."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from lowtide.broker.config.broker_config import broker_key, load_config
from lowtide.broker.config.keys_of_groups import KEYS_OF_GROUPS
from lowtide.broker.config.sources import from_environment, from_settings, merge
from lowtide.broker.config.topic_config import TOPIC_KEYS
from lowtide.protocol.api_keys import API, FIRST_OF_OURS, ApiKey, api_name
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.retention.retention_plan import Reason
from tests.each import each
from tests.unit.broker.declared import registry

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
KIPS, OPERATIONS = TEXTS["docs/kips.md"], TEXTS["docs/operations.md"]


def rows(title: str) -> list[list[str]]:
    """The cells of the table in a section of docs/kips.md, without its head."""
    section = KIPS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_versions_of_the_table_are_those_with_a_route():
    """They are the versions that are answered, not those that are declared."""
    served = registry()
    routed = {key: [version for version in range(-1, 40) if served.routes[key, version] is not None] for key in ApiKey}
    found = {api_name(key): f"{versions[0]}-{versions[-1]}" for key, versions in routed.items() if versions}
    assert found == {row[0]: row[1] for row in rows("APIs")}
    assert all(versions == list(range(versions[0], versions[-1] + 1)) for versions in routed.values() if versions)


def test_apis_of_lowtide_alone_are_not_advertised():
    """Clients' tables of API keys have only Kafka's."""
    served = registry()
    assert max(served.advertised) < FIRST_OF_OURS
    ours = [key for key in API if key >= FIRST_OF_OURS]
    assert [served.routes[key, API[key].max_version] is not None for key in ours] == [True] * 13
    assert all(f"{api_name(key)} (" in KIPS or f"({key})" in KIPS for key in ours)


def test_versions_that_are_advertised_and_refused_are_documented():
    """Only Produce has such versions; any other API needs a sentence too."""
    served = registry()
    wider = {key for key, versions in served.advertised.items() if versions.minimum < API[key].min_version}
    assert wider == {ApiKey.PRODUCE}
    assert f"Produce is advertised from version {served.advertised[ApiKey.PRODUCE].minimum}" in KIPS


def test_the_page_about_deletion_has_every_reason_in_its_order():
    """Each reason in a broker's log is explained there."""
    page = TEXTS["docs/retention.md"]
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [reason.value for reason in Reason]
    for default in (LogConfig().retention_ms, LogConfig().retention_bytes):
        assert f"| {default}, " in page


def test_each_kip_beside_an_api_is_explained_below():
    explained = {number for row in rows("KIPs") for number in re.findall(r"\d+", row[0])}
    named = {number for row in rows("APIs") for number in re.findall(r"\d+", row[2])}
    assert named
    assert named <= explained


@each("page", TEXTS)
def test_settings_that_pages_show_are_possible(page: str):
    """`--set key=value` and caps, of brokers, topics and groups; `key=value` is a placeholder."""
    others = {key.name: key for key in (*TOPIC_KEYS, *KEYS_OF_GROUPS)}
    for name, value in re.findall(r"--set ([a-z.]+)=([^\s`,;]+)", TEXTS[page]):
        assert (name, value) == ("key", "value") or (others.get(name) or broker_key(name)).parse(value) is not None
    for name, version in re.findall(r"--max-version ([A-Za-z]+)=(\d+)", TEXTS[page]):
        assert broker_key(f"lowtide.max.version.{name}").parse(version) == int(version)


def test_settings_of_topics_and_variables_in_pages_are_those_of_the_code():
    """The statements about flushing, and the spelling of variables."""
    topic_keys = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:flush|retention|segment|file)\.[a-z.]+)(?:=\d+)?`", TEXTS["docs/durability.md"]):
        assert f"| `{name}` |" in topic_keys, name
    variables = re.findall(r"`(LOWTIDE_[A-Z_]+)=([^`]+)` is `([a-z.]+)`", OPERATIONS)
    assert variables
    for variable, value, key in variables:
        assert list(from_environment({variable: value}, [key])) == [key]


def test_the_order_of_the_sources_is_as_the_page_lists_it():
    """From the weakest to the strongest."""
    listed = re.findall(r"^\d\. (a file|the environment|the command line)", OPERATIONS, re.MULTILINE)
    assert listed == ["a file", "the environment", "the command line"]
    environment = from_environment({"LOWTIDE_NUM_PARTITIONS": "2"}, ["num.partitions"])
    given = merge(from_settings(["num.partitions=1"]), environment, from_settings(["num.partitions=3"]))
    assert load_config(given=given).num_partitions == 3


def test_targets_that_pages_name_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    pattern = re.compile(r"(?:`|^    (?:\$ )?)make ([a-z-]+)", re.MULTILINE)
    named = {name for text in TEXTS.values() for name in pattern.findall(text)}
    assert {"run", "test", "demo"} <= named
    assert named <= targets


def test_the_changelog_has_the_form_of_one():
    """Keep a Changelog: versions, and in them kinds of changes."""
    text = TEXTS["CHANGELOG.md"]
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert kinds
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for title in re.findall(r"^## (.+)$", text, re.MULTILINE):
        assert re.fullmatch(r"Unreleased|\[?\d+\.\d+\.\d+\]? - \d{4}-\d\d-\d\d", title), title


def test_decisions_are_numbered_and_fit_a_page():
    """Context, choice, and what was given up."""
    pages = sorted((ROOT / "docs/adr").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Choice", "What we gave up"], page.name
        assert text.count("\n") <= 60, page.name
        assert text.startswith(f"# {int(page.name[:4])}. "), page.name


def test_a_letter_names_one_invariant():
    letters = re.findall(r"^- \*\*([A-Z]+\d+)\*\*", TEXTS["docs/invariants.md"], re.MULTILINE)
    assert letters
    assert [letter for letter, times in Counter(letters).items() if times > 1] == []


def test_letters_that_tests_use_are_explained():
    """`D5`, `DR3`, `S1` in a docstring stand for a rule of docs/invariants.md."""
    explained = set(re.findall(r"\*\*([A-Z]+\d+)\*\*", TEXTS["docs/invariants.md"]))
    used: dict[str, str] = {}
    for folder in ("tests", "testing", "storage", "broker", "replication", "metadata", "simulation"):
        for path in (ROOT / folder).rglob("*.py"):
            for docstring in re.findall(r'"""(.*?)"""', path.read_text(encoding="utf-8"), re.DOTALL):
                for letter in re.findall(r"(?<![\w-])(DR\d|[DRPSL]\d{1,2})(?=[ ,:;.)-])", docstring):
                    used[letter] = str(path.relative_to(ROOT))
    assert used
    assert {letter: path for letter, path in used.items() if letter not in explained} == {}
