"""Pages and files for contributors: named tests, targets of the workflow and of the hooks exist."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from lowtide.metadata import keys

ROOT = Path(__file__).resolve().parents[2]
FIRST_CHECKED = "ff7b43f9"
"""The subjects of commits after this one are checked."""

SUBJECT_LENGTH = 72
RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs/security.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(("path", "name"), re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", RECIPES + SECURITY))
def test_a_test_that_a_page_names_exists(path: str, name: str):
    """A recipe is correct as long as its tests check it, and a defect is held off by the test beside it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("path", re.findall(r"`(tests/[\w/]+\.py)`", RECIPES + SECURITY))
def test_a_file_of_tests_that_a_page_names_exists(path: str):
    assert (ROOT / path).is_file()


def test_subjects_of_commits_are_short():
    """Amend the commit (`git commit --amend`, or `git rebase -i` if others follow)."""
    log = ["git", "log", "--format=%s", f"{FIRST_CHECKED}..HEAD"]
    done = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("these files are not from a clone with its history")
    assert [subject for subject in done.stdout.splitlines() if len(subject) > SUBJECT_LENGTH] == []


def test_the_five_recipes_are_there():
    assert re.findall(r"^### (.+)$", RECIPES, re.MULTILINE) == [
        "Add an API",
        "Add a configuration key",
        "Add a counter",
        "Add a metadata record",
        "Change a deletion rule",
    ]


def test_the_table_of_metadata_names_every_key():
    """The docstring of `metadata/keys.py` has the value and the lifetime of each key."""
    assert keys.__doc__ is not None
    names = {value.decode() for name, value in vars(keys).items() if name.isupper() and isinstance(value, bytes)}
    assert len(names) > 15
    assert [name for name in names if f"`{name}" not in keys.__doc__] == []


def test_the_workflow_runs_what_ci_runs():
    """`.ci/run` as it is, and targets of the Makefile."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    targets = {command.split()[1] for command in commands if command.startswith("make ")}
    assert targets
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").iterdir()), ids=lambda path: path.name)
def test_a_workflow_runs_nothing_that_others_can_change(path: Path):
    """Actions are named by commit, not by tag; a token can write only in the jobs of a release that need it."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    jobs = workflow["jobs"].values()
    used = [job.get("uses") for job in jobs] + [step.get("uses") for job in jobs for step in job.get("steps", ())]
    actions = [action for action in used if action is not None and not action.startswith("./")]
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    assert workflow["permissions"] == {"contents": "read"}
    assert path.name == "release.yml" or not any("permissions" in job for job in jobs)


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").iterdir()), ids=lambda path: path.name)
def test_a_workflow_is_read_by_every_checker(path: Path):
    """Many versions of actionlint refuse aliases of YAML; each job has a name in the list of checks."""
    text = path.read_text(encoding="utf-8")
    assert [event for event in yaml.parse(text) if isinstance(event, yaml.AliasEvent)] == []
    jobs = yaml.safe_load(text)["jobs"]
    assert [job for job in jobs if "name" not in jobs[job] and "uses" not in jobs[job]] == []
    assert [job for job in jobs if "timeout-minutes" not in jobs[job] and "uses" not in jobs[job]] == []


def test_actions_are_updated():
    """They are named by commit, so no fix of theirs arrives by itself."""
    [update] = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text(encoding="utf-8"))["updates"]
    assert (update["package-ecosystem"], update["directory"]) == ("github-actions", "/")


def test_the_release_is_built_with_its_address():
    """Otherwise the description on the index has no links."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    [step] = [step for step in jobs["wheels"]["steps"] if step.get("run") == "make wheels"]
    assert step["env"] == {"LOWTIDE_REPOSITORY": "${{ github.server_url }}/${{ github.repository }}"}


def test_the_hooks_fetch_nothing():
    """They are local commands, so a commit needs no network."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        assert hook["language"] == "system"
        assert re.search(rf"^{hook['entry'].removeprefix('make ')}:", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_an_issue_form_is_valid(form: Path):
    """GitHub shows a form only if it has a name, a description and fields with unique ids."""
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert content["name"]
    assert content["description"]
    fields = [field["id"] for field in content["body"] if field["type"] != "markdown"]
    assert fields
    assert len(set(fields)) == len(fields)
