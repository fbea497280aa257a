"""A person is erased in a real browser: the whole way, in both themes and on a narrow screen, without findings of axe.

With SCREENSHOTS=docs/images pictures for docs/console.md are taken.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.admin import BlockingAdminClient
from lowtide.admin.configs import ConfigChange, ConfigResource
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster
from tests.clients.replica_files import files_with
from tests.console_browser import Tab, chromium, console_process

from .axe import axe_script
from .test_console_pages import findings, picture

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
PERSON = "person-4711"
TOPICS = {"orders": 3, "payments": 2, "profiles": 1, "evidence": 1}
PER_TOPIC = 30
HOUR_MS = 3_600_000
NARROW = 390


def fill(bootstrap: str) -> None:
    """Records of a person in four topics, of which one is compacted and one is held, and two groups."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic(name, number, 3, config={"cleanup.policy": "compact"} if name == "profiles" else {})
        for name, number in TOPICS.items()
    ]
    for future in admin.create_topics(topics).values():
        future.result()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(PER_TOPIC * 10):
        key = PERSON if number % 10 == 3 else f"person-{number % 97}"
        for topic, partitions in TOPICS.items():
            value = f"{key} was here {number} times: {topic}"
            producer.produce(topic, value.encode(), key.encode(), partition=number % partitions)
    assert producer.flush(30) == 0
    until = ConfigChange("lowtide.hold.until", str(round(time.time() * 1000) + 90 * 24 * HOUR_MS))
    with BlockingAdminClient(bootstrap) as client:
        held = ConfigResource(ConfigResourceType.TOPIC, "evidence")
        assert client.alter_configs({held: [until, ConfigChange("lowtide.hold.reason", "case 7")]})[held] is None
        client.alter_group_offsets("billing", {TopicPartition("orders", 0): 60, TopicPartition("payments", 0): 20})
        client.alter_group_offsets("audit", {TopicPartition("orders", 1): 10})


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(3) as cluster:
        fill(cluster.bootstrap)
        yield cluster


@pytest.fixture(scope="module")
def address(cluster: LowtideCluster) -> Iterator[str]:
    with console_process("--bootstrap-server", cluster.bootstrap, "--write") as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Tab]:
    tab = Tab(browser, address)
    yield tab
    tab.close()
    assert tab.troubles == []
    assert tab.hosts <= {address.split("/")[2]}, "nothing comes from elsewhere"


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_script()


def looked_at(page: Any, axe: str, name: str) -> None:
    """Has no serious finding in both themes, and needs no scrolling sideways on a narrow screen."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert findings(page, axe) == [], (name, theme)
        picture(page, f"console-{name}-{theme}")
    page.emulate_media(color_scheme="light")
    size = page.viewport_size
    page.set_viewport_size({"width": NARROW, "height": 860})
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, name
    assert findings(page, axe) == [], (name, NARROW)
    page.set_viewport_size(size)


def searched(tab: Tab, topics: str, key: str = PERSON) -> Any:
    page = tab.open("#/erase")
    page.get_by_label("Keys, one in each line").fill(key)
    page.get_by_label("Topics", exact=True).fill(topics)
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("heading", name="What was found").wait_for()
    return page


def test_a_person_is_erased_from_the_first_click_to_the_last_broker(
    tab: Tab, cluster: LowtideCluster, axe: str, tmp_path: Path
) -> None:
    """Protects the whole way: nothing before the confirmation, what was shown after it, and who is not clean yet."""
    page = tab.open("#/erase")
    looked_at(page, axe, "erase-whom")
    page = searched(tab, "orders, pay*, profiles, evidence")
    topics = page.get_by_role("region", name="Topics that were searched")
    assert topics.locator("tbody tr", has_text="evidence").inner_text().count("case 7") == 1
    assert page.get_by_role("region", name="Groups that read these partitions").locator("tbody tr").count() == 2
    looked_at(page, axe, "erase-found")
    page.get_by_role("button", name="Rehearse").click()
    go = page.get_by_role("button", name=f"Erase {3 * PER_TOPIC} records")
    go.wait_for()
    assert go.is_disabled()
    assert page.locator("li[data-step=rehearsal][aria-current=step]").count() == 1
    page.get_by_label("to confirm").fill("89")
    assert go.is_disabled(), "another number does not confirm"
    page.get_by_label("to confirm").fill("90")
    looked_at(page, axe, "erase-rehearsal")
    assert files_with(cluster, PERSON.encode(), "orders-*")
    cluster.stop_broker(3)
    go.click()
    page.get_by_text("Not yet clean: broker 3.").wait_for()
    brokers = page.get_by_role("region", name="Brokers with replicas")
    assert "it is not live" in brokers.locator("tbody tr", has_text="Broker 3").inner_text()
    looked_at(page, axe, "erase-missing")
    link = page.url
    assert PERSON not in link
    tab.open("#/cluster")
    cluster.start_broker(3)
    page = tab.open(link.partition("/console/")[2])
    page.get_by_text("Done: no file of any broker has one of these records.").wait_for(timeout=90_000)
    looked_at(page, axe, "erase-clean")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download the document").click()
    path = tmp_path / "document.json"
    waiting.value.save_as(path)
    document = json.loads(path.read_text())
    assert {each["topic"] for each in document["partitions"]} == {"orders", "payments", "profiles"}
    assert all([one["broker"] for one in each["confirmed"]] == [1, 2, 3] for each in document["partitions"])
    for topic in ("orders", "payments", "profiles"):
        assert files_with(cluster, PERSON.encode(), f"{topic}-*") == []
    assert files_with(cluster, PERSON.encode(), "evidence-*") != []
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href, document.cookie])")
    assert PERSON not in kept


def test_the_ledger_what_stands_and_holds(tab: Tab, axe: str) -> None:
    page = searched(tab, "orders", "person-1")
    page.get_by_label("Erase the keys again").fill("30")
    page.get_by_role("button", name="Rehearse").click()
    number = page.locator("label", has_text="to confirm").inner_text().split()[1]
    page.get_by_label("to confirm").fill(number)
    page.get_by_role("button", name="Erase ").click()
    page.get_by_text("It stands until").wait_for()
    page.get_by_role("link", name="All erasures").click()
    standing = page.get_by_role("region", name="Standing erasures")
    standing.locator("tbody tr").first.wait_for()
    ledger = page.get_by_role("region", name="The ledger")
    ledger.locator("tbody tr").first.wait_for()
    page.get_by_role("region", name="Topics that are held").locator("tbody tr", has_text="case 7").wait_for()
    looked_at(page, axe, "erasures")
    ledger.get_by_role("button", name="Details of the erasure").first.click()
    page.get_by_role("heading", name="Erasure of").wait_for()
    assert findings(page, axe) == []
    standing.get_by_role("button", name="End the standing erasure").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("The brokers stop looking for 1 key").wait_for()
    assert findings(page, axe) == []
    dialog.get_by_role("button", name="End it").click()
    page.get_by_text("The standing erasure was ended.").wait_for()
    page.get_by_text("None stands.").wait_for()


def test_a_hold_is_placed_and_ended_by_keyboard(tab: Tab, axe: str) -> None:
    page = tab.open("#/erasures")
    page.get_by_role("region", name="Topics that are held").locator("tbody tr").first.wait_for()
    page.get_by_role("button", name="Hold topics").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topics", exact=True).fill("payments")
    dialog.get_by_label("Until").fill("2099-01-01T00:00:00")
    dialog.get_by_label("Reason").fill("case 8")
    page.keyboard.press("Enter")
    dialog.get_by_text("All records of payments stay until").wait_for()
    assert findings(page, axe) == []
    dialog.get_by_role("button", name="Hold", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_text("The topics are held.").wait_for()
    row = page.get_by_role("region", name="Topics that are held").locator("tbody tr", has_text="case 8")
    row.wait_for()
    row.get_by_role("button", name="End the hold of payments").click()
    page.get_by_role("dialog").get_by_role("button", name="End the hold", exact=True).click()
    page.get_by_text("The hold was ended.").wait_for()
    row.wait_for(state="detached")


def test_a_search_is_of_a_header_or_a_file_of_keys(tab: Tab, tmp_path: Path) -> None:
    page = tab.open("#/erase")
    page.get_by_label("By header").check()
    page.get_by_label("Header, as NAME=VALUE").fill("who=nobody")
    page.get_by_label("All topics that you may read").check()
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("heading", name="What was found").wait_for()
    assert page.get_by_text("No partition has such a record.").is_visible()
    keys = tmp_path / "keys.txt"
    keys.write_text("person-2\nperson-3\n\n")
    page = tab.open("#/erase")
    page.get_by_label("Or a file with a key in each line").set_input_files(keys)
    page.get_by_text("2 keys from the file.").wait_for()
    page.get_by_label("Topics", exact=True).fill("payments")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("region", name="Partitions with records or troubles").locator("tbody tr").first.wait_for()


def test_the_recording_of_the_readme_can_be_made(browser: Any, tmp_path: Path) -> None:
    """Runs the script that draws docs/console-erase.gif, where there is a browser."""
    picture = tmp_path / "console-erase.gif"
    subprocess.run([sys.executable, "-m", "demo.console_recording", str(picture)], cwd=ROOT, check=True, timeout=300)
    assert picture.read_bytes().startswith(b"GIF89a")
