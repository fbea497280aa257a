"""Changes in the console in a browser, where one is installed: each is rehearsed on its page, then carried out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lowtide.admin.blocking import BlockingAdminClient
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster
from tests.console_browser import Tab, chromium, console_process


def picture(page: Any, name: str) -> None:
    """Keeps a picture of the page if SCREENSHOTS names a folder."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def create_topic(page: Any, name: str) -> None:
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_role("heading", name="Create a topic").wait_for()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Partitions").fill("2")
    page.get_by_label("Settings", exact=True).fill("retention.ms=86400000\ninternal.segment.bytes=10000")
    page.get_by_role("button", name="Rehearse").click()
    page.get_by_role("heading", name="Rehearsal").wait_for()
    picture(page, "create")
    page.get_by_role("button", name="Create the topic").click()
    page.get_by_role("heading", name=name, exact=True).wait_for()


def write_records(page: Any) -> None:
    page.get_by_role("link", name="Write records").click()
    page.get_by_role("heading", name="Write records").wait_for()
    page.get_by_label("Partition", exact=True).fill("1")
    page.get_by_label("The key").fill("UA")
    page.get_by_label("The value").fill("é" * 40_000)
    page.get_by_role("button", name="Rehearse").click()
    page.get_by_role("alert").get_by_text("This is too large: a request has at most 64 KiB.").wait_for()
    page.get_by_label("The value").fill("\n".join(f"delay {number} {'x' * 400}" for number in range(20)))
    page.get_by_label("Each line is a record of its own").check()
    page.get_by_role("button", name="Add a header").click()
    page.get_by_label("Name of the header").fill("trace")
    page.get_by_label("Value of the header").fill("7")
    page.get_by_role("button", name="Rehearse").click()
    page.get_by_role("heading", name="Rehearsal").wait_for()
    picture(page, "produce")
    page.get_by_role("button", name="Write 20 records").click()
    page.get_by_role("link", name="20 records from offset").wait_for()
    picture(page, "produced")


def change_settings(page: Any) -> None:
    """The closed segment with the first twenty records goes by size."""
    page.get_by_role("link", name="Settings", exact=True).click()
    page.get_by_role("heading", name="Settings of flights").wait_for()
    page.get_by_label("Filter by name or meaning").fill("retention")
    page.get_by_role("button", name="Change retention.bytes", exact=True).click()
    page.get_by_label("retention.bytes", exact=True).fill("8000")
    page.locator("form", has_text="Choose settings").get_by_role("button", name="Rehearse").click()
    page.get_by_role("heading", name="What the next retention pass would delete").wait_for()
    assert page.locator("dl.figures div", has_text="Records").first.locator("dd").inner_text() == "20"
    picture(page, "settings")
    page.get_by_role("button", name="Change 1 setting").click()
    page.get_by_text("1 setting changed: retention.bytes.").wait_for()
    page.get_by_role("region", name="Settings of flights").locator("tr", has_text="8.00 kB").wait_for()


def add_a_partition(page: Any) -> None:
    page.get_by_label("Partitions in total").fill("3")
    page.locator("form", has_text="Partitions in total").get_by_role("button", name="Rehearse").click()
    page.get_by_role("button", name="Add 1 partition").click()
    page.get_by_text("The topic has 3 partitions now.").wait_for()


def reset_offsets(tab: Tab) -> None:
    page = tab.open("#/group?group=readers")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Set to").select_option("duration")
    dialog.get_by_label("Value").fill("1 h")
    dialog.get_by_label("Topic").fill("flights")
    dialog.get_by_label("Partitions").fill("1")
    dialog.get_by_role("button", name="Rehearse").click()
    dialog.get_by_text("23 read again").wait_for()
    picture(page, "reset")
    dialog.get_by_role("button", name="Set 1 offset").click()
    page.get_by_text("Offsets were set.").wait_for()
    page.get_by_role("region", name="Offsets of readers").locator("td", has_text="23").wait_for(state="detached")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export offsets").click()
    assert download.value.suggested_filename == "offsets-readers.csv"
    assert Path(download.value.path()).read_text() == "flights,1,0\n"


def delete_the_topic(tab: Tab) -> None:
    page = tab.open("#/settings?topic=flights")
    page.locator("form", has_text="With all its records").get_by_role("button", name="Rehearse").click()
    page.get_by_role("region", name="Groups with offsets in the topic").get_by_text("readers").wait_for()
    end = page.locator("section", has_text="Rehearsal").get_by_role("button", name="Delete the topic")
    assert end.is_disabled()
    page.get_by_label("Type flights to confirm").fill("flight")
    assert end.is_disabled()
    page.get_by_label("Type flights to confirm").fill("flights")
    picture(page, "delete-topic")
    end.click()
    page.get_by_role("heading", name="Topics", exact=True).wait_for()
    page.get_by_text("There is no topic that you may see.").wait_for()


@pytest.mark.slow
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
        write_records(tab.open("#/topic?topic=flights"))
        change_settings(tab.open("#/topic?topic=flights"))
        add_a_partition(page)
        with BlockingAdminClient(cluster.bootstrap) as admin:
            admin.alter_group_offsets("readers", {TopicPartition("flights", 1): 23})
        reset_offsets(tab)
        delete_the_topic(tab)
        tab.close()
    assert tab.troubles == []
