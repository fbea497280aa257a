"""The files of the console: all there, small, and without anything that its policy forbids."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from lowtide.console.site import FOLDER, read_files
from lowtide.runtime.filesystem import OsFileSystem

STATIC = Path(FOLDER)
NAMES = tuple(read_files(OsFileSystem()))
FIRST_PAGE = 300_000
OWN = [name for name in NAMES if not name.startswith("vendor/")]


def test_every_file_is_served_and_every_module_is_there():
    there = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}
    assert there - set(NAMES) == {"vendor/uplot.LICENSE", "vendor/uplot.version"}
    for name in NAMES:
        if name.endswith(".js"):
            folder = (STATIC / name).parent
            for imported in re.findall(
                r"(?:from |import\()\"(\./[^\"]+|\.\./[^\"]+)\"", (STATIC / name).read_text(encoding="utf-8")
            ):
                assert str((folder / imported).resolve().relative_to(STATIC.resolve())) in NAMES


def test_all_files_together_are_small():
    """The limit holds even if a browser loaded all files for the first page."""
    assert sum(len(file.content) for file in read_files(OsFileSystem()).values()) < FIRST_PAGE


def test_nothing_is_loaded_from_elsewhere():
    for name in OWN:
        text = (STATIC / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert re.search(r"https?://|//[a-z]+\.[a-z]+/", text) is None, name


def test_no_markup_is_made_of_texts():
    """And no style or script stands in the page itself: its policy would stop them."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new "
        r"Function|DOMParser|srcdoc|setAttribute\(\"(?:style|on)"
    )
    for name in OWN:
        assert forbidden.search((STATIC / name).read_text(encoding="utf-8")) is None, name
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<script(?![^>]*src=)|<style|style=|\son\w+=", page) is None


def test_the_vendored_chart_is_the_package_that_is_named():
    """Returns its file as in the package, with a line that exports it."""
    lines = dict(
        line.split(" ", 1) for line in (STATIC / "vendor/uplot.version").read_text(encoding="utf-8").splitlines()
    )
    content = (STATIC / "vendor/uplot.js").read_bytes().removesuffix(b"\nexport default uPlot;\n")
    assert hashlib.sha256(content).hexdigest() == lines["uPlot.iife.min.js"]
    assert hashlib.sha256((STATIC / "vendor/uplot.css").read_bytes()).hexdigest() == lines["uPlot.min.css"]
    assert "MIT" in (STATIC / "vendor/uplot.LICENSE").read_text(encoding="utf-8")


def test_pages_import_what_they_draw_with():
    """Nothing compiles the modules: a page that lacks an import fails when it is opened."""
    scripts = {
        name: file.content.decode() for name, file in read_files(OsFileSystem()).items() if name.startswith("js/")
    }
    parts = set(re.findall(r"^export function (\w+)", scripts["js/dom.js"], re.MULTILINE))
    assert {"h", "select", "address"} <= parts
    for name, script in scripts.items():
        imports = re.search(r'^import \{([^}]*)\} from "./dom.js"', script, re.MULTILINE)
        if imports is None:
            continue
        code = re.sub(r"//.*", "", script)
        used = {part for part in parts if re.search(rf"(?<![\w.$]){part}\(", code)}
        own = set(re.findall(r"(?:function|const|let) (\w+)", code))
        assert used - own <= set(re.findall(r"\w+", imports[1])), name
