"""What a release says about itself and about what it needs."""

from __future__ import annotations

import email.message
import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.test_version import build_hook

ROOT = Path(__file__).resolve().parents[2]
BUILT_WITH = (3, 11)
"""The Python of the list of licences: others need some packages more or less."""


def module_of(name: str) -> ModuleType:
    """A module of packaging/, which is not part of the package."""
    spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


LICENCES = module_of("licences")
HOOK = build_hook()
README = (ROOT / "README.md").read_text(encoding="utf-8")


def links(text: str) -> list[str]:
    """Where the links and pictures of a text in Markdown lead."""
    return [first or second for first, second in re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', text)]


def about(**fields: str | list[str]) -> email.message.Message:
    message = email.message.Message()
    for name, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            message[name.replace("_", "-")] = value
    return message


def test_the_list_of_licences_is_that_of_the_packages():
    """After a change of dependencies: `make licences`. A forbidden licence is an error here already."""
    if not all(importlib.util.find_spec(each) for each in ("pyspark", "pyiceberg", "grpc")):
        pytest.skip("some extras are not installed")
    shown, expected = (ROOT / "docs/licences.md").read_text(encoding="utf-8"), LICENCES.page()
    if sys.version_info[:2] == BUILT_WITH:
        assert shown == expected
    else:
        licences = [row.split(" | ")[:2] for row in shown.splitlines() if row.startswith("| ")]
        assert [
            row for row in expected.splitlines() if row.startswith("| ") and row.split(" | ")[:2] not in licences
        ] == []


@pytest.mark.parametrize(
    ("name", "metadata", "expected"),
    [
        ("a", about(License_Expression="MIT OR Apache-2.0"), "MIT OR Apache-2.0"),
        ("a", about(License="Apache 2.0"), "Apache-2.0"),
        ("a", about(License="a long text", Classifier=["License :: OSI Approved :: MIT License"]), "MIT"),
        ("lz4", about(Classifier=["License :: OSI Approved :: BSD License"]), "BSD-3-Clause"),
        ("certifi", about(License="MPL-2.0"), "MPL-2.0"),
    ],
)
def test_a_licence_is_found(name: str, metadata: email.message.Message, expected: str):
    assert LICENCES.licence_of(name, metadata) == expected


@pytest.mark.parametrize(
    "metadata",
    [
        about(),
        about(License="LGPL-2.1-or-later"),
        about(License_Expression="MIT AND GPL-3.0-only"),
        about(License="MPL-2.0"),
        about(License="", Classifier=["License :: OSI Approved :: GNU Lesser General Public License v2 or later"]),
        about(Classifier=["License :: OSI Approved :: MIT License", "License :: OSI Approved :: BSD License"]),
    ],
)
def test_another_licence_is_refused(metadata: email.message.Message):
    """One that is not on the list, and one that nobody can tell."""
    with pytest.raises(ValueError, match="the licence of a is unknown or not allowed"):
        LICENCES.licence_of("a", metadata)


def test_a_package_is_followed_to_what_it_needs():
    found = LICENCES.needed(["aiohttp"])
    assert {"aiohttp", "yarl", "multidict"} <= found.keys()
    assert "multidict" in found["yarl"].requires
    assert found["yarl"].version in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_a_package_that_is_not_there_is_an_error():
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        LICENCES.needed(["no-package-of-this-name"])


def test_a_release_can_be_built_in_a_folder_with_a_space(monkeypatch: pytest.MonkeyPatch):
    """The compiler is a package of the environment there; the build failed with half of its path."""
    monkeypatch.setattr(sys, "executable", "/a folder/lowtide/.venv/bin/python")
    monkeypatch.setenv("CC", module_of("wheels").compiler("aarch64", Path("/a folder/headers")))
    assert HOOK.link_command()[:4] == ["/a folder/lowtide/.venv/bin/python", "-m", "ziglang", "cc"]
    assert {"aarch64-linux-gnu.2.17", "-I/a folder/headers"} <= set(HOOK.link_command())


def test_a_release_can_be_built_with_the_python_of_debian(tmp_path: Path):
    """Its headers include pyconfig.h by the name of the processor, from a folder that the compiler does not search."""
    file = tmp_path / "include/x86_64-linux-gnu/python3.11/pyconfig.h"
    file.parent.mkdir(parents=True)
    file.write_text("#define SIZEOF_LONG 8")
    module_of("wheels").copy_configuration(tmp_path / "include/python3.11", tmp_path / "headers")
    for processor in ("x86_64", "aarch64"):
        copied = tmp_path / f"headers/{processor}-linux-gnu/python3.11/pyconfig.h"
        assert copied.read_text() == "#define SIZEOF_LONG 8"


def test_works_of_others_in_the_wheel_are_known():
    """The SBOM has them, the page of licences names them, and the wheel's licence expression covers them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    works = {each.name: each for each in LICENCES.contained()}
    assert set(works) == {"uplot", "v3"}
    assert {each.licence for each in works.values()} == set(project["license"].split(" AND "))
    assert all(str(each.file.parent.relative_to(ROOT)) in LICENCES.PAGE for each in works.values())
    vendored = {path for path in (ROOT / "console/static/vendor").iterdir() if path.suffix == ".LICENSE"}
    assert vendored == {ROOT / each for each in project["license-files"]} - {ROOT / "LICENSE"}
    assert works["uplot"].version.count(".") == 2


def test_all_extras_are_for_users():
    """The packages of development are in groups, which the metadata of a wheel do not have."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras) == set(LICENCES.EXTRAS)


def test_the_description_links_to_the_repository_of_the_release():
    """A package index shows README.md alone: its relative links led nowhere there."""
    shown = HOOK.description(README, "https://example.org/lowtide", "v1.2.3")
    assert links(README)
    assert [link for link in links(shown) if not link.startswith("https://example.org/lowtide/")] == []
    files = {link.removeprefix("https://example.org/lowtide/") for link in links(shown)}
    assert {"blob/v1.2.3/docs/quick-start.md", "blob/v1.2.3/LICENSE", "raw/v1.2.3/docs/console-erase.gif"} <= files
    expected = {
        f"{'raw' if link.endswith('.gif') else 'blob'}/v1.2.3/{link}" if ":" not in link else link
        for link in links(README)
    }
    assert files == expected


def test_the_description_of_an_unknown_repository_has_no_dead_link():
    """It says where the pages are instead."""
    shown = HOOK.description(README, "", "HEAD")
    assert links(shown) == []
    assert "<img" not in shown
    assert "the folder `docs`" in shown
    for words in ("Is it for me? has the limits", "Quick start, examples, clusters"):
        assert words in shown


@pytest.mark.parametrize(
    ("version", "commit"), [("1.2.3", "v1.2.3"), ("0.1.0.dev7+g1a2b3c4", "1a2b3c4"), ("0.1.0.dev0", "HEAD")]
)
def test_links_lead_to_the_commit_of_the_version(version: str, commit: str):
    """The pages of another version may say something else."""
    assert HOOK.commit_name(version) == commit
    urls = HOOK.project_urls("https://example.org/lowtide", commit)
    assert urls["Changelog"] == f"https://example.org/lowtide/blob/{commit}/CHANGELOG.md"
    for file in ("docs/index.md", "CHANGELOG.md", "SECURITY.md"):
        assert (ROOT / file).is_file()
        assert any(url.endswith(file) for url in urls.values())
