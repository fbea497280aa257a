"""What a release says about itself and about what it needs."""

from __future__ import annotations

import email.message
import importlib.metadata
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

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


def test_the_extras_for_users_are_listed():
    """All others are for development."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    development = {"browser", "coverage", "demo", "dev", "docs", "kubernetes", "packaging", "power", "readers"}
    assert set(extras) == {*LICENCES.EXTRAS, *development}
