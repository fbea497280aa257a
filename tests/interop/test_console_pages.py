"""Every page of the console in a real browser, against three real brokers: drawn, live, by keyboard, without serious
findings of axe-core.

With SCREENSHOTS=docs/images pictures for docs/console.md are taken.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.testing.cluster import LowtideCluster
from tests.console_browser import Tab, chromium, console_process

from .axe import axe_script

pytestmark = pytest.mark.interop

HOSTILE = "<img src=x onerror=document.title='pwned'>"
RECORDS = 6000
HOUR_MS = 3_600_000
WIDE = 1000
FIRST_PAGE_BYTES = 300_000
FIRST_PAGE_MS = 300
FIRST_PAGE_WORK_MS = 150
"""Scripts, layout and styles of a first page with a thousand topics, in processor time."""

SLOW = 3
"""So many times as long is allowed on a busy machine."""


def fill(bootstrap: str) -> None:
    """Topics with an hour of records, groups, a thousand partitions, and texts that a page must not take for markup."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    flights = {
        "internal.segment.bytes": "16384",
        "retention.ms": str(2 * HOUR_MS),
        "retention.bytes": "4000000",
        "file.delete.delay.ms": "2000",
    }
    topics = [
        NewTopic("flights", 3, 3, config=flights),
        NewTopic("orders", 2, 3),
        NewTopic("hostile", 1, 3),
        NewTopic("wide", WIDE, 1),
    ]
    for future in admin.create_topics(topics).values():
        future.result()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    now_ms = round(time.time() * 1000)
    for number in range(RECORDS):
        value = json.dumps(
            {"flight": f"UA{number % 900}", "from": ("EWR", "LGA", "JFK")[number % 3], "delay": number % 117 - 10}
        )
        at_ms = now_ms - HOUR_MS + number * HOUR_MS // RECORDS
        producer.produce(
            "flights", value.encode(), key=f"N{number % 4000:05}".encode(), timestamp=at_ms, partition=number % 3
        )
        if number % 60 == 0:
            producer.flush()
    for number in range(200):
        producer.produce("orders", b"\x00\x01" + bytes([number]), key=str(number).encode())
        producer.produce("hostile", HOSTILE.encode(), key=HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
    producer.flush()
    for group, topic, offset, partitions in (
        ("etl", "flights", 700, 3),
        ("audit", "flights", 1200, 3),
        (HOSTILE, "hostile", 10, 1),
    ):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
        consumer.commit(
            offsets=[TopicPartition(topic, number, offset) for number in range(partitions)], asynchronous=False
        )
        consumer.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A console that may write, over three brokers."""
    with LowtideCluster(3) as cluster:
        fill(cluster.bootstrap)
        with console_process("--bootstrap-server", cluster.bootstrap, "--write") as address:
            yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(params=["light", "dark"])
def tab(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Tab]:
    """Checks both themes."""
    tab = Tab(browser, address, request.param)
    yield tab
    tab.close()
    assert tab.troubles == []
    assert tab.hosts <= {address.split("/")[2]}, "nothing comes from elsewhere"


PAGES = {
    "cluster": ("#/cluster", "Broker 3"),
    "topics": ("#/topics", "flights"),
    "topic": ("#/topic?topic=flights&partition=0", "The oldest segment is kept"),
    "wide": ("#/topic?topic=wide", "Partitions of wide"),
    "create": ("#/create", "The new topic"),
    "settings": ("#/settings?topic=flights", "retention.bytes"),
    "produce": ("#/produce?topic=flights", "Each line is a record"),
    "records": ("#/records?topic=flights&partition=0&place=start", "UA0"),
    "hostile": ("#/records?topic=hostile&partition=0&place=start", "<img"),
    "groups": ("#/groups", "audit"),
    "group": ("#/group?group=etl", "flights"),
    "deletes": ("#/deletes", "Ended"),
    "access": ("#/access", "Who may do what"),
    "users": ("#/access?show=users", "Users with SCRAM passwords"),
    "broker": ("#/broker?broker=1", "log.dirs"),
    "setting": ("#/setting?key=retention.ms", "flights"),
    "transactions": ("#/transactions", "No transaction that you may see is open."),
    "purge": ("#/purge?topic=flights&partition=0", "Up to where"),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_drawn_and_has_no_serious_finding(tab: Tab, name: str, axe: str) -> None:
    path, text = PAGES[name]
    page = tab.open(path)
    page.wait_for_function("text => document.body.textContent.includes(text)", arg=text)
    if name == "topic":
        page.wait_for_selector("figure svg rect.segment")
        page.wait_for_selector(".plot canvas")
        cut = page.evaluate(
            "[...document.querySelectorAll('.table')].filter((each) => each.scrollWidth > each.clientWidth + 1).length"
        )
        assert cut == 0, "every column is within the page"
    if name == "hostile":
        page.locator("details.record summary").first.click()
    assert "pwned" not in page.title()
    assert page.locator("img[src='x']").count() == 0
    serious = findings(page, axe)
    assert serious == []
    picture(page, f"console-{name}-{theme_of(page)}")


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_script()


def findings(page: Any, axe: str) -> list[str]:
    """Returns the serious and critical findings of axe-core. The debugger loads it despite the page's policy."""
    page.context.new_cdp_session(page).send("Runtime.evaluate", {"expression": axe})
    results = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']} ({each['impact']}): {[node['target'] for node in each['nodes']][:3]}"
        for each in results["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def theme_of(page: Any) -> str:
    """Returns the theme that the browser prefers."""
    return "dark" if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") else "light"


def picture(page: Any, name: str) -> None:
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def test_ten_tabs_share_one_connection_for_what_is_live(browser: Any, address: str) -> None:
    """A browser opens six connections to a host: three streams of a tab made the third tab wait for ever."""
    first = Tab(browser, address, "light")
    context = first.page.context
    try:
        first.open("#/topic?topic=flights&partition=0")
        for number in range(9):
            page = context.new_page()
            page.goto(f"{address.partition('#')[0]}#/topic?topic=flights&partition={number % 3}")
            page.wait_for_selector("figure svg rect.segment")
            page.wait_for_selector(".live:not(.still)")
    finally:
        first.close()


def test_the_first_page_is_small_and_soon_there(browser: Any, address: str) -> None:
    """Measures what the server sends; takes the least of several times, because a busy machine only adds."""
    times, sizes = [], []
    for _ in range(5):
        tab = Tab(browser, address)
        page = tab.open()
        page.wait_for_selector("table tbody tr")
        entries = page.evaluate(
            "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation')).map(each "
            "=> each.transferSize)"
        )
        sizes.append(sum(entries))
        times.append(
            page.evaluate(
                "performance.getEntriesByType('paint').find(each => each.name === 'first-contentful-paint').startTime"
            )
        )
        tab.close()
    assert max(sizes) < FIRST_PAGE_BYTES
    assert min(times) < SLOW * FIRST_PAGE_MS
    print(f"first page: {max(sizes)} bytes, first contentful paint {min(times):.0f} ms")


@pytest.mark.parametrize("path", ["#/cluster", "#/topics"])
def test_a_first_page_of_a_thousand_topics_is_little_work(browser: Any, address: str, path: str) -> None:
    tab = Tab(browser, address)
    topic = {"internal": False, "partitions": 3, "replicas": 3, "offline": 0, "behind": 0, "records": 10**9}
    rows = [
        {"name": f"topic-{number:04}", "bytes": 10**9, "replica_bytes": 3 * 10**9, **topic} for number in range(1000)
    ]
    value = json.dumps({"view": 0, "value": {"sizes_known": True, "topics": rows}})
    if path == "#/topics":
        events = f"event: value\ndata: {value}\n\n"
        tab.page.route("**/api/events*", lambda route: route.fulfill(body=events, content_type="text/event-stream"))
        tab.page.add_init_script("delete globalThis.SharedWorker")
    works = []
    for _ in range(4):
        session = tab.context.new_cdp_session(tab.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        tab.open(path).wait_for_selector("table tbody tr")
        counted = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        works.append(sum(counted[name] for name in ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")) * 1000)
        session.detach()
    if path == "#/topics":
        tab.page.get_by_role("link", name="topic-0000").wait_for()
    tab.close()
    print(f"{path}: {min(works):.0f} ms of work")
    assert min(works) < FIRST_PAGE_WORK_MS


def test_a_thousand_partitions_scroll(tab: Tab) -> None:
    """Only rows in sight are drawn, and the last one can be reached."""
    page = tab.open("#/topic?topic=wide")
    table = page.get_by_role("region", name="Partitions of wide")
    table.locator("tbody tr th").first.wait_for()
    assert table.locator("table").get_attribute("aria-rowcount") == str(WIDE + 1)
    assert table.locator("tbody tr").count() < 100
    table.evaluate("element => { element.scrollTop = element.scrollHeight; }")
    table.get_by_role("link", name=f"Partition {WIDE - 1}", exact=True).wait_for()
    assert table.locator("tbody tr").count() < 100


def test_the_keyboard_reaches_everything(tab: Tab) -> None:
    """The skip link is first, focus goes to the heading of a page that is opened, tables can be sorted and scrolled."""
    page = tab.open("#/topics")
    page.get_by_role("link", name="flights", exact=True).wait_for()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    sort = page.get_by_role("button", name="Partitions", exact=True)
    sort.focus()
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Partitions")
    page.get_by_role("link", name="flights", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.activeElement.tagName === 'H1' && document.activeElement.textContent === 'flights'"
    )
    assert page.title() == "flights – Lowtide"  # noqa: RUF001


def test_the_search_box_finds_by_keyboard(tab: Tab, axe: str) -> None:
    """As a combobox: the focus stays in the box, and the chosen hit is announced."""
    page = tab.open("#/cluster")
    page.wait_for_selector(".live:not(.still)")
    box = page.get_by_role("combobox")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    assert box.get_attribute("aria-expanded") == "false"
    page.keyboard.type("fl")
    page.get_by_role("option", name="flights", exact=True).wait_for()
    assert box.get_attribute("aria-expanded") == "true"
    chosen = page.locator(f"#{box.get_attribute('aria-activedescendant')}")
    assert (chosen.inner_text(), chosen.get_attribute("aria-selected")) == ("flights", "true")
    assert findings(page, axe) == []
    picture(page, "console-search-light")
    page.keyboard.press("Escape")
    assert page.get_by_role("option").count() == 0
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("flights/2/7")
    page.get_by_role("option", name="Offset 7 in partition 2 of flights").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.type("aud")
    page.get_by_role("option", name="audit", exact=True).wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="audit", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") != "search"


def test_ten_thousand_names_are_searched_at_once(tab: Tab) -> None:
    """At most twenty hits of a kind are shown, with how many there are."""
    page = tab.open("#/cluster")
    names = {"names": [f"topic.{number:05}" for number in range(10_000)], "left_out": 0, "error": None}
    none = {"names": [], "left_out": 0, "error": "You may not see them."}
    found = {"topics": names, "groups": names, "users": none, "brokers": none, "settings": none}
    page.route("**/api/view/names", lambda route: route.fulfill(json=found))
    page.keyboard.press("/")
    page.keyboard.type("topic.0")
    page.get_by_role("option", name="topic.00000").first.wait_for()
    assert page.get_by_role("option").count() == 40
    assert "20 of 10,000" in page.locator("#search-hits").inner_text()
    assert "Users were not searched: You may not see them." in page.locator("#search-hits").inner_text()


def test_a_topic_and_its_groups_lead_to_each_other(tab: Tab) -> None:
    page = tab.open("#/topic?topic=flights")
    page.get_by_role("region", name="Groups of flights").get_by_role("link", name="etl").click()
    page.get_by_role("region", name="Topics of etl").get_by_role("link", name="flights").click()
    page.get_by_role("heading", name="flights", exact=True).wait_for()


def test_the_theme_can_be_chosen_and_stays(tab: Tab) -> None:
    page = tab.open("#/cluster")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.locator("#theme").click()
    after = page.evaluate(ground)
    assert after != before
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate(ground) == after


def test_a_delete_is_watched_from_click_to_freed_bytes(browser: Any, address: str, axe: str) -> None:
    """Rehearsed, confirmed, done at every replica, and the files gone from all disks."""
    tab = Tab(browser, address)
    page = tab.open("#/purge?topic=flights&partition=2")
    page.get_by_label("The first offset that stays").fill("1500")
    page.get_by_role("button", name="Rehearse").click()
    page.get_by_role("heading", name="Rehearsal").wait_for()
    assert "1,500" in page.locator("main").inner_text()
    assert findings(page, axe) == []
    picture(page, "console-rehearsal-light")
    page.get_by_role("button", name="Delete 1,500 records").click()
    for step in ("asked", "leader", "replicas", "freed"):
        page.wait_for_selector(f"li[data-step={step}][data-done=yes]", timeout=60_000)
    freed = page.locator("p[role=status]", has_text="freed on all disks").inner_text()
    assert findings(page, axe) == []
    picture(page, "console-delete-light")
    page.get_by_role("link", name="Deletes", exact=True).click()
    page.get_by_role("region", name="Deletes that ended last").locator("tbody tr", has_text="0 → 1,500").wait_for()
    picture(page, "console-deletes-ended-light")
    tab.close()
    assert tab.troubles == []
    print(freed)


def test_offsets_of_a_group_are_reset_after_a_rehearsal(browser: Any, address: str, axe: str) -> None:
    tab = Tab(browser, address)
    page = tab.open("#/group?group=audit")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Set to").select_option("offset")
    dialog.get_by_label("Value").fill("1000")
    dialog.get_by_role("button", name="Rehearse").click()
    dialog.get_by_role("button", name="Set 3 offsets").wait_for()
    assert findings(page, axe) == []
    dialog.get_by_role("button", name="Set 3 offsets").click()
    page.get_by_role("region", name="Offsets of audit").locator("td", has_text="1,000").first.wait_for()
    tab.close()
    assert tab.troubles == []


def test_rehearsals_of_changes_have_no_serious_finding(tab: Tab, axe: str) -> None:
    """Of a new topic, of records, of settings with their forecast, and of the end of a topic."""
    page = tab.open("#/create")
    page.get_by_label("Name", exact=True).fill("new")
    rehearse(page, page.locator("form"), axe)
    page = tab.open("#/produce?topic=flights")
    page.get_by_label("The value").fill("v")
    page.get_by_role("button", name="Add a header").click()
    page.get_by_label("Name of the header").fill("trace")
    rehearse(page, page.locator("form"), axe)
    page = tab.open("#/settings?topic=flights")
    page.get_by_role("button", name="Change retention.ms", exact=True).click()
    page.get_by_label("retention.ms", exact=True).fill("60000")
    page.get_by_role("button", name="Change preallocate", exact=True).click()
    page.get_by_label("preallocate", exact=True).select_option("true")
    rehearse(page, page.locator("form", has_text="retention.ms"), axe)
    page.get_by_role("heading", name="What the next retention pass would delete").wait_for()
    picture(page, f"console-setting-rehearsal-{theme_of(page)}")
    page = tab.open("#/settings?topic=flights")
    rehearse(page, page.locator("form", has_text="With all its records"), axe)


def rehearse(page: Any, form: Any, axe: str) -> None:
    """Rehearses what a form asks for, and checks the page."""
    form.get_by_role("button", name="Rehearse").click()
    page.get_by_role("heading", name="Rehearsal").wait_for()
    assert findings(page, axe) == []


def test_a_narrow_screen_needs_no_scrolling_sideways(browser: Any, address: str) -> None:
    tab = Tab(browser, address, width=420)
    for path, text in PAGES.values():
        page = tab.open(path)
        page.wait_for_function("text => document.body.textContent.includes(text)", arg=text)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, path
    tab.close()
