"""The documentation agrees with the code: keys, API versions, links, and examples in Python."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from lowtide.broker.config.broker_config import BROKER_KEYS
from lowtide.broker.config.topic_config import TOPIC_KEYS_BY_NAME
from lowtide.cli.keys import configuration_page
from lowtide.cli.metrics import metrics_page
from lowtide.protocol.api_keys import API, api_name
from tests.each import each

ROOT = Path(__file__).resolve().parents[2]
KIPS = (ROOT / "docs/kips.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NO_HANDLERS = ("__init__", "registry", "share_access", "state_rows")
HANDLERS = sorted(path for path in (ROOT / "broker/handlers").rglob("*.py") if path.stem not in NO_HANDLERS)


def section(title: str) -> str:
    return KIPS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def served() -> dict[str, str]:
    return {api_name(key): f"{spec.min_version}-{spec.max_version}" for key, spec in API.items()}


def test_the_page_of_keys_is_what_the_table_says():
    """`lowtide keys > docs/configuration.md` prints it."""
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == configuration_page()


def test_the_page_of_metrics_is_what_the_registry_says():
    """`lowtide metrics > docs/metrics.md` prints it."""
    assert (ROOT / "docs/metrics.md").read_text(encoding="utf-8") == metrics_page()


def test_keys_without_effect_are_all_named():
    """Users that migrate from Apache Kafka find here what is missing."""
    named = re.findall(r"`([a-z0-9._]+)`", section("Configuration keys without effect"))
    of_topics = [name for name, key in TOPIC_KEYS_BY_NAME.items() if not key.enforced and not key.internal]
    of_brokers = [name for name, key in BROKER_KEYS.items() if not key.enforced and not key.internal]
    assert sorted(named) == sorted(of_topics + of_brokers)


def test_the_table_of_tools_names_each_that_is_tried() -> None:
    """`make interop` runs every script of the table, and no other."""
    rows = re.findall(r"^\| (`kafka-[^|]+) \|", section("Kafka's command-line tools"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)}
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests" / "interop").glob("test_*.py"))]
    tried = {name for text in texts for name in re.findall(r'(?:run|call|watch)\(\s*"(kafka-[a-z0-9-]+)"', text)}
    assert named == tried | {"kafka-dump-log"}, "the last one is run by `dump`"


def test_the_table_of_apis_is_what_is_served():
    """Each API has its versions, and no other API is listed."""
    rows = re.findall(r"^\| (\w+) \| (\d+-\d+) \|", section("APIs"), re.MULTILINE)
    assert dict(rows) == served()


@each("path", HANDLERS)
def test_a_handler_begins_with_what_it_does(path: Path):
    """API and versions, behaviour, errors and KIPs are at its top, and the versions are those that are served."""
    text = path.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    first = re.match(r"(\w+): v(\d+)-v(\d+)[.,]", text)
    assert first is not None, "the first line is `Name: vLOW-vHIGH.`"
    assert served()[first[1]] == f"{first[2]}-{first[3]}"
    assert "\nBehaviour: " in text
    assert "\nErrors: " in text
    kips = re.search(r"^KIPs: ([0-9, ]+)\.$", text, re.MULTILINE)
    assert kips is not None
    listed = re.search(rf"^\| {first[1]} \| [^|]+ \| ([0-9, ]+) \|(.*)$", section("APIs"), re.MULTILINE)
    assert listed is not None
    missing = {number for number in kips[1].split(", ") if not re.search(rf"\b{number}\b", listed[1] + listed[2])}
    assert not missing, f"docs/kips.md doesn't name KIPs {missing} beside {first[1]}"


def test_every_api_has_a_handler():
    """An API that is declared and not served would be documented in vain."""
    names = {path.read_text(encoding="utf-8").partition('"""')[2].partition(":")[0] for path in HANDLERS}
    assert names == set(served())


@functools.cache
def anchors(page: Path) -> set[str]:
    """Where links into a page can lead."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-") for title in titles}


@each("page", PAGES)
def test_links_lead_somewhere(page: Path):
    """When a file moves or a heading changes, links to it must change. mkdocs sees no page outside docs/."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_files_that_pages_name_exist():
    """`storage/log/log.py` in a page is a file; so are programs and tests in commands."""
    for page in PAGES:
        for name in re.findall(
            r"`((?:admin|broker|cli|console|docs|examples|metadata|pipeline|protocol|replication|runtime|simulation|storage|testing|tests|verification|demo)/[\w/]+\.\w+)`",
            page.read_text(),
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
        for name in re.findall(r"(?<![\w/.-])(?:tests|bench|demo|examples|packaging)/[\w./-]*\.py", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def names_in(path: Path) -> set[str]:
    """Functions, classes and values of a module, and `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        if isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {
                target.id
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                if isinstance(target, ast.Name)
            }
    return found


def named_code() -> list[tuple[str, str, str]]:
    """Names on pages of the form `folder/module.py:Class.method`: page, path, name."""
    pattern = re.compile(r"`([\w/]+\.py):([A-Za-z_][\w.]*)`")
    return [
        (str(page.relative_to(ROOT)), path, name)
        for page in PAGES
        for path, name in pattern.findall(page.read_text(encoding="utf-8"))
    ]


@each("named", named_code())
def test_functions_that_pages_name_exist(named: tuple[str, str, str]):
    """A page that explains a failure names the function; when it is renamed, the page must change."""
    _page, path, name = named
    assert (ROOT / path).exists(), path
    assert name in names_in(ROOT / path), f"{path} has no {name}"


def test_methods_that_pages_name_without_a_module_exist():
    """`ReplicaManager.settled`: some module has that class, and in it that name."""
    folders = (
        "admin",
        "broker",
        "console",
        "metadata",
        "pipeline",
        "protocol",
        "replication",
        "runtime",
        "simulation",
        "storage",
        "testing",
        "verification",
    )
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]
    pages = [page for page in PAGES if page.name != "configuration.md"]
    named = {
        found
        for page in pages
        for found in re.findall(r"`([A-Z][a-z]\w+)\.([a-z_]\w+)`", page.read_text(encoding="utf-8"))
    }
    assert named
    for kind, name in named:
        homes = [source for source in sources if re.search(rf"^class {kind}\b", source, re.MULTILINE)]
        assert any(
            re.search(rf"\bdef {name}\b|^    {name}(:| =)|self\.{name}\b", home, re.MULTILINE) for home in homes
        ), f"{kind}.{name}"


def test_folders_of_tests_that_pages_name_exist():
    """`tests/unit/broker/config/` in a page is a folder."""
    for page in PAGES:
        for name in re.findall(r"`(tests/[\w/]+/)`", page.read_text(encoding="utf-8")):
            assert (ROOT / name).is_dir(), f"{page.name}: {name}"


def test_the_glossary_is_short():
    """Ten words that Kafka has no word for; every other one is Kafka's."""
    rows = re.findall(r"^\| ([a-z ]+) \| [A-Z]", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert 5 <= len(rows) <= 10
    assert rows == sorted(rows)


def test_modules_in_the_tables_of_rooms_exist():
    """The tables name modules without their folders."""
    folders = (
        "admin",
        "broker",
        "console",
        "metadata",
        "pipeline",
        "protocol",
        "replication",
        "runtime",
        "simulation",
        "storage",
        "testing",
        "verification",
    )
    modules = {path.stem for folder in folders for path in (ROOT / folder).rglob("*.py")}
    named = [
        (page.name, name)
        for page in (ROOT / "docs/rooms").glob("*.md")
        for row in re.findall(r"^\|.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        for name in re.findall(r"`([a-z_]+)`", row)
    ]
    assert len(named) > 100
    assert [(page, name) for page, name in named if name not in modules] == []


def test_every_room_has_a_page():
    """A folder of the package, and each folder within `broker` and `storage`."""
    rooms = {path.parent for layer in ("broker", "storage") for path in (ROOT / layer).glob("*/__init__.py")}
    layers = {path.resolve() for path in (ROOT / "src/lowtide").iterdir() if path.is_symlink()}
    rooms |= {path for path in layers if path.name not in ("broker", "cli", "storage")}
    index = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    assert [str(room.relative_to(ROOT)) for room in rooms if f"`{room.relative_to(ROOT)}/`" not in index] == []


def test_each_rule_of_deletion_has_tests_that_name_it():
    """The table answers which test fails without a rule; each file in it mentions the rule."""
    invariants = (ROOT / "docs/invariants.md").read_text(encoding="utf-8")
    page = (ROOT / "docs/rooms/replication.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (DR\d) \| (.+) \|$", page, re.MULTILINE))
    assert list(rows) == re.findall(r"\*\*(DR\d)\*\*", invariants)
    of_files = {
        "tests/model/test_journal.py": "tests/model/journal.py",
        "tests/model/test_registration.py": "tests/model/registration.py",
    }
    for rule, row in rows.items():
        for name in re.findall(r"`(tests/[\w/]+\.py)`", row):
            text = (ROOT / of_files.get(name, name)).read_text(encoding="utf-8")
            assert re.search(rf"\b{rule}\b", text) or _is_between(text, int(rule[2:])), (rule, name)


def _is_between(text: str, number: int) -> bool:
    """`rules DR1 to DR6` names all between."""
    return any(int(first) <= number <= int(last) for first, last in re.findall(r"DR(\d) to DR(\d)", text))


def test_the_questions_about_failures_have_pages_of_that_title():
    """A reader finds the page by its title, and the page names code and tests."""
    expected = {
        "Where is a delete acknowledged?",
        "A follower returns with an old log start",
        "A leader dies with deletes parked",
        "A disk fills",
        "etcd is restored from a backup",
        "A topic is created again under its name",
    }
    pages = {
        page: page.read_text(encoding="utf-8") for page in (ROOT / "docs/when").glob("*.md") if page.stem != "index"
    }
    assert {text.splitlines()[0].removeprefix("# ") for text in pages.values()} == expected
    named = named_code()
    for page, text in pages.items():
        assert len([1 for name, _, _ in named if name == str(page.relative_to(ROOT))]) >= 5, page.name
        tests = re.findall(r"`(tests/[\w/]+\.py)`", text)
        assert tests, page.name
        assert all((ROOT / test).exists() for test in tests), page.name


def examples(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_examples_in_pages_are_python():
    """They are copied unchanged. (The client tests check their behaviour.)"""
    blocks = [(page.name, block) for page in PAGES for block in examples(page)]
    assert {"quick-start.md", "clusters.md", "durability.md", "testing.md"} <= {name for name, _ in blocks}
    for name, block in blocks:
        compile(block, name, "exec")


def test_the_readme_is_short():
    """What, why, two commands, one quick start, where next: the rest is in docs/."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_page_is_in_the_navigation():
    """Only the lab notes are left out. `make docs` checks the links; this needs no MkDocs."""
    listed = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(page for page in pages if not page.startswith("lab/"))


def test_make_help_explains_every_target():
    """A public target has a sentence; the two of the README are there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split())
    explained = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    asked = [
        "help",
        "run",
        "test",
        "check",
        "fmt",
        "lint",
        "types",
        "layers",
        "sim",
        "chaos",
        "clients",
        "interop",
        "bench",
        "demo",
        "clean",
    ]
    assert explained >= set(asked)
    assert phony - explained == {"kcat", "etcd", "java", "chromium"}
