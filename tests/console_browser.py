"""A browser that visits a console: Debian's chromium, driven by Playwright.

Tests that need it are skipped where either is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
STOP_S = 30
WAIT_MS = 30_000


@contextmanager
def console_process(*options: str) -> Iterator[str]:
    """`lowtide console` on a free port; gives the address that it prints."""
    command = [sys.executable, "-m", "lowtide.cli.main", "console", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip()
    finally:
        process.terminate()
        assert process.wait(STOP_S) == 0
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser. Skips the test where there is none, unless CI_INTEROP=1."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    required = os.environ.get("CI_INTEROP") == "1"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        assert not required, "CI_INTEROP=1, but playwright not installed"
        pytest.skip("playwright not installed")
    if program is None:
        assert not required, "CI_INTEROP=1, but chromium not installed"
        pytest.skip("chromium not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of the console, and everything that went wrong in it. The token of `address` logs in."""

    def __init__(self, browser: Any, address: str, theme: str = "light", width: int = 1280) -> None:
        self.base = address.partition("#")[0]
        self.context = browser.new_context(
            viewport={"width": width, "height": 860}, color_scheme=theme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.troubles: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: message.type == "error" and self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        if "token=" in address:
            self.page.goto(address)
            self.page.wait_for_function("() => !location.hash.includes('token=') && document.querySelector('main h1')")

    def open(self, path: str = "") -> Any:
        """Show a page, from its address."""
        self.page.goto("about:blank")
        self.page.goto(self.base + path)
        self.page.wait_for_selector("main h1")
        return self.page

    def close(self) -> None:
        self.context.close()
