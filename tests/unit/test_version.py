"""The version of a build: from a tag, between tags, without git."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build_hook() -> ModuleType:
    """`hatch_build.py`, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = build_hook()


def git(folder: Path, *arguments: str) -> None:
    author = [
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    ]
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("tag", "distance", "expected"),
    [
        ("v1.2.3", 0, "1.2.3"),
        ("v1.2.3", 4, "1.2.4.dev4+gabc"),
        ("v1.3.0rc1", 0, "1.3.0rc1"),
        ("v1.3.0rc1", 2, "1.3.0.dev2+gabc"),
    ],
)
def test_a_version_follows_its_tag(tag: str, distance: int, expected: str):
    """A build between tags sorts before the next release."""
    assert HOOK.version_after(tag, distance, "gabc") == expected


@pytest.mark.parametrize("tag", ["v1.2", "v1.2.3-final", "vnext"])
def test_a_tag_of_another_form_fails_the_build(tag: str):
    """A wheel must not get a version that pip cannot compare."""
    with pytest.raises(ValueError, match=tag):
        HOOK.version_after(tag, 0, "gabc")


def test_a_folder_without_git_has_a_version(tmp_path: Path):
    """An unpacked archive and a Docker build context have no .git; a repository around them is ignored."""
    inner = tmp_path / "inner"
    inner.mkdir()
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "outer")
    git(tmp_path, "tag", "v9.9.9")
    assert HOOK.version(inner) == f"{HOOK.NEXT_VERSION}.dev0"


def test_git_gives_the_version(tmp_path: Path):
    """Before the first tag, on it, and after it."""
    git(tmp_path, "init")
    assert HOOK.version(tmp_path) == f"{HOOK.NEXT_VERSION}.dev0"
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    assert HOOK.version(tmp_path).startswith(f"{HOOK.NEXT_VERSION}.dev1+g")
    git(tmp_path, "tag", "v2.0.0")
    git(tmp_path, "tag", "unrelated")
    assert HOOK.version(tmp_path) == "2.0.0"
    git(tmp_path, "commit", "--allow-empty", "-m", "second")
    assert HOOK.version(tmp_path).startswith("2.0.1.dev1+g")


def test_the_command_does_not_depend_on_who_built_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's Python and that of python.org gave wheels with other bytes."""
    commands = []
    for given in ("gcc -shared", "x86_64-linux-gnu-gcc -shared -Wl,-O1 -Wl,-Bsymbolic-functions -g -fwrapv -O2"):
        monkeypatch.setenv("CC", "cc")
        monkeypatch.setattr(HOOK.sysconfig, "get_config_var", {"LDSHARED": given, "CFLAGS": ""}.get)
        commands.append(HOOK.link_command())
    assert commands == [["cc", "-shared"], ["cc", "-shared"]]


def test_a_module_that_could_not_be_loaded_is_not_built(tmp_path: Path) -> None:
    """What calls a function that nothing declares: it links, and no broker could load it."""
    command = HOOK.link_command()
    if shutil.which(command[0]) is None:
        pytest.skip("there is no compiler")
    source = tmp_path / "module.c"
    for text, code in (("int called(void) { return 1; }\n", 0), ("int calls(void) { return missing(); }\n", 1)):
        source.write_text(text)
        done = subprocess.run(
            [*command, *HOOK.FLAGS, str(source), "-o", str(tmp_path / "module.so")], capture_output=True, check=False
        )
        assert done.returncode == code, (text, done.stderr)
