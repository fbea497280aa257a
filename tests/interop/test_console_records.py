"""The page of records in a real browser: searches, new records, one record by its address, and copies.

With SCREENSHOTS=docs/images a picture for docs/console.md is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.testing.cluster import LowtideCluster
from tests.console_browser import Tab, chromium, console_process

from .axe import axe_script
from .test_console_pages import findings, picture

pytestmark = pytest.mark.interop

RECORDS = 3000
PARTITIONS = 3
BEGAN_MS = 1_790_000_000_000
HOSTILE = "<img src=x onerror=document.title='pwned'>"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster() as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("flights", PARTITIONS, 1, config={"retention.ms": "-1"})])["flights"].result()
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
        for number in range(RECORDS):
            value = json.dumps({"n": number, "origin": ("EWR", "LGA", "JFK")[number % 3], "delay": number % 117 - 10})
            producer.produce(
                "flights",
                value.encode(),
                f"N{number:05}".encode(),
                number % PARTITIONS,
                timestamp=BEGAN_MS + number,
                headers=[(HOSTILE, HOSTILE.encode())],
            )
        producer.flush()
        yield cluster


@pytest.fixture(scope="module")
def address(cluster: LowtideCluster) -> Iterator[str]:
    with console_process("--bootstrap-server", cluster.bootstrap) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Tab]:
    tab = Tab(browser, address)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield tab
    tab.close()
    assert tab.troubles == []


def offsets(page: Any) -> list[str]:
    """Returns partition and offset of each row."""
    rows = page.locator("details.record summary").evaluate_all(
        "rows => rows.map((row) => [...row.children].slice(0, 2).map((each) => each.textContent).join(':'))"
    )
    return [str(each).replace(",", "") for each in rows]


def test_the_newest_of_all_partitions_come_first_and_older_ones_after_them(tab: Tab):
    page = tab.open("#/records?topic=flights&count=10")
    page.get_by_role("button", name="Older records").wait_for()
    newest = [f"{n % PARTITIONS}:{n // PARTITIONS}" for n in range(RECORDS - 1, 0, -1)]
    assert offsets(page) == newest[:10]
    page.get_by_role("button", name="Older records").click()
    page.get_by_role("heading", name="20 records").wait_for()
    assert offsets(page) == newest[:20]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_search_by_the_form(browser: Any, address: str, theme: str):
    """Each condition is in the address, which can be sent to others."""
    tab = Tab(browser, address, theme)
    page = tab.open("#/records")
    page.get_by_label("Topic", exact=True).fill("flights")
    page.get_by_label("Filter", exact=True).fill("delay > `100` && origin == 'EWR'")
    page.get_by_label("Text", exact=True).fill('"n": 10')
    page.get_by_role("button", name="Search").click()
    page.get_by_text("That is everything.").wait_for()
    wanted = [n for n in range(RECORDS) if n % 117 - 10 > 100 and n % 3 == 0 and str(n).startswith("10")]
    assert offsets(page) == [f"0:{n // 3}" for n in sorted(wanted, reverse=True)]
    assert "where=delay" in page.url
    page.locator("details.record summary").first.click()
    page.get_by_role("button", name="Copy as JSON").wait_for()
    assert findings(page, axe_script()) == []
    picture(page, f"console-records-{theme}")
    assert "pwned" not in page.title()
    assert page.locator("img[src='x']").count() == 0
    tab.close()
    assert tab.troubles == []


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("#/records?topic=flights&where=delay+>", 'The filter "delay >" is not JMESPath: it ends too early.'),
        (
            "#/records?topic=no-such-topic",
            "The cluster has no such topic or partition, or you have no right to see it.",
        ),
        ("#/records?topic=flights&partitions=x", "Partitions must be numbers and ranges, as in 0,2-4."),
        ("#/records?topic=flights&place=offset&value=3", "Name the partitions to which the offset belongs."),
    ],
)
def test_trouble_is_a_sentence(browser: Any, address: str, path: str, sentence: str):
    tab = Tab(browser, address)
    tab.open(path).get_by_text(sentence, exact=True).wait_for()
    tab.close()


def test_one_record_has_an_address_and_is_copied(tab: Tab):
    page = tab.open("#/records?topic=flights&partition=1&offset=500")
    page.get_by_role("button", name="Copy as JSON").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = json.loads(page.evaluate("() => navigator.clipboard.readText()"))
    assert (copied["topic"], copied["partition"], copied["offset"]) == ("flights", 1, 500)
    assert (copied["key"], copied["value"]["n"], copied["headers"][0]["name"]) == ("N01501", 1501, HOSTILE)
    page.get_by_role("button", name="Copy kcat command").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('kcat')")
    command = page.evaluate("() => navigator.clipboard.readText()")
    assert command == "kcat -C -b BROKER:9092 -t flights -p 1 -o 500 -c 1 -J"
    assert offsets(page) == ["1:500"]
    page.get_by_role("button", name="Base64").last.click()
    assert page.locator("pre").last.inner_text() == "PGltZyBzcmM9eCBvbmVycm9yPWRvY3VtZW50LnRpdGxlPSdwd25lZCc+"


def test_new_records_come_by_themselves_until_the_page_is_paused(tab: Tab, cluster: LowtideCluster):
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    page = tab.open("#/records?topic=flights&place=follow&text=brand")
    page.locator(".live:not(.still)").wait_for()
    producer.produce("flights", b"other", partition=0)
    producer.produce("flights", b"brand new", partition=2)
    producer.flush()
    page.get_by_text("brand new", exact=True).wait_for()
    assert page.locator("details.record").count() == 1
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Paused", exact=True).wait_for()
    producer.produce("flights", b"brand newer", partition=1)
    producer.flush()
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("brand newer", exact=True).wait_for()
    assert findings(page, axe_script()) == []


def test_leaving_the_page_ends_what_it_asked_for(tab: Tab):
    """Eight pages of a visitor may be live: more visits than that leave none behind."""
    for _ in range(10):
        page = tab.open("#/records?topic=flights&place=follow")
        page.locator(".live:not(.still)").wait_for()
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_role("heading", name="Topics").first.wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_narrow_screen_needs_no_scrolling_sideways(browser: Any, address: str, theme: str):
    tab = Tab(browser, address, theme, width=390)
    for path in ("#/records?topic=flights&count=10", "#/records?topic=flights&partition=1&offset=500"):
        page = tab.open(path)
        page.locator("details.record").first.wait_for()
        page.locator("details.record summary").first.click()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, path
        picture(page, f"console-records-narrow-{theme}")
    tab.close()
    assert tab.troubles == []
