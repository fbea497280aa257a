"""Changes in the console in a browser, where one is installed: each is rehearsed on its page, then carried out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lowtide.testing.cluster import LowtideCluster
from tests.console_browser import Tab, chromium, console_process


def picture(page: Any, name: str) -> None:
    """Keeps a picture of the page if SCREENSHOTS names a folder."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def create_topic(page: Any, name: str) -> None:
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name").fill(name)
    page.get_by_label("Partitions").fill("2")
    page.get_by_label("Settings").fill("retention.ms=86400000\ninternal.segment.bytes=10000")
    page.get_by_role("button", name="Rehearse").click()
    page.get_by_role("heading", name="Rehearsal").wait_for()
    picture(page, "create")
    page.get_by_role("button", name="Create the topic").click()
    page.get_by_role("heading", name=name, exact=True).wait_for()


def write_records(page: Any) -> None:
    page.get_by_role("link", name="Write records").click()
    page.get_by_label("Partition").fill("1")
    page.get_by_label("The key").fill("UA")
    page.get_by_label("The value").fill("\n".join(f"delay {number} {'x' * 400}" for number in range(20)))
    page.get_by_label("Each line is a record of its own").check()
    page.get_by_role("button", name="Add a header").click()
    page.get_by_label("Name of the header").fill("trace")
    page.get_by_label("Value of the header").fill("7")
    page.get_by_role("button", name="Rehearse").click()
    page.get_by_role("heading", name="Rehearsal").wait_for()
    picture(page, "produce")
    page.get_by_role("button", name="Write 20 records").click()
    page.get_by_role("link", name="20 records from offset 0 on").wait_for()
    picture(page, "produced")


def test_changes_in_a_browser():
    with (
        chromium() as browser,
        LowtideCluster() as cluster,
        console_process("--bootstrap-server", cluster.bootstrap, "--write") as address,
    ):
        width, theme = int(os.environ.get("SCREEN_WIDTH", "1280")), os.environ.get("SCREEN_THEME", "light")
        tab = Tab(browser, address, theme, width)
        page = tab.open("#/topics")
        create_topic(page, "flights")
        write_records(page)
        tab.close()
    assert tab.troubles == []
