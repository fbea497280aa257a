"""Every page of the console as an administrator, a reader and nobody, at a secure Lowtide and at Apache Kafka: pages
work without errors, show nothing that the user may not see, and say which right is missing.

The pages are those of app.js, so a new page is visited too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.driver import until
from tests.console_browser import Tab, chromium, console_process

from .console_worlds import (
    ADMIN,
    HIDDEN,
    HIDDEN_GROUP,
    NOBODY,
    READER,
    SECRET,
    SHOWN,
    VISIBLE,
    VISIBLE_GROUP,
    Visited,
    secure_kafka,
    secure_lowtide,
)

pytestmark = pytest.mark.interop

APP = Path(__file__).parents[2] / "console/static/js/app.js"
PAGES = re.findall(r"^  (\w+): \{ title:", APP.read_text(encoding="utf-8"), re.MULTILINE)
MISSING_RIGHT = re.compile(r"\b(you|user \w+) (lack|may|need)\b|\bright\b|users who may|only Lowtide", re.IGNORECASE)
REFUSED = "Failed to load resource"
"""What the browser itself prints about an answer above 399; the answers are checked by their status."""

SETTLED = """() => !document.querySelector('main [aria-busy=true]')
  && ![...document.querySelectorAll('.live.still')].some(
    each => each.checkVisibility() && each.textContent === 'Connecting')
"""
LEAVE = """address => {
  document.querySelector('main h1')?.setAttribute('data-left', '');
  location.hash = address;
}"""
"""Opens another page without loading everything again, which a visitor may not do as often as this test."""

DRAWN = """() => !(main => main.children.length === 2 && main.lastElementChild.matches('.notice.trouble'))(
  document.querySelector('main'))"""
"""Returns false if app.js has caught an error of the page: it shows a heading and the error instead."""

USERS = (ADMIN, READER, NOBODY)


class Site(NamedTuple):
    """A console, and the cluster that it shows."""

    address: str
    cluster: Visited


class Visit:
    """A user who has logged in to a console with a browser."""

    def __init__(self, browser: Any, site: Site, user: str) -> None:
        self.tab = Tab(browser, site.address)
        self.statuses: list[tuple[int, str]] = []
        page = self.tab.page
        page.goto(self.tab.base)
        page.get_by_label("Name").fill(user)
        page.get_by_label("Password").fill(site.cluster.passwords[user])
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Log out").wait_for()
        self._opened = 0
        self._asked: set[Any] = set()
        page.on("response", lambda answer: self.statuses.append((answer.status, answer.url)))
        page.on("request", lambda asked: self._asked.add(asked))
        page.on("requestfinished", lambda asked: self._asked.discard(asked))
        page.on("requestfailed", lambda asked: self._asked.discard(asked))

    def open(self, name: str, **given: object) -> str:
        """Opens a page and returns its text, when all of it is there. Errors: AssertionError if something is wrong."""
        self.statuses.clear()
        self.tab.troubles.clear()
        self._opened += 1  # Makes each address another one.
        query = "&".join(f"{key}={value}" for key, value in {**given, "visit": self._opened}.items())
        page = self.tab.page
        page.evaluate(LEAVE, f"#/{name}?{query}")
        page.wait_for_selector("main h1:not([data-left])")
        page.wait_for_function(SETTLED)
        until(lambda: not self._waits())
        assert page.locator("main h1").first.inner_text().strip(), f"{name} has no heading"
        assert page.evaluate(DRAWN), page.locator("main").inner_text()
        assert page.title().endswith("Lowtide"), name
        assert [each for each in self.tab.troubles if not each.startswith(REFUSED)] == [], name
        assert [each for each in self.statuses if each[0] >= 500] == [], name
        return str(page.locator("main").inner_text())

    def _waits(self) -> bool:
        """Returns whether the page waits for an answer; lets the browser's events arrive first.

        A shared worker, whose script and stream are requests without an end, is not the page.
        """
        self.tab.page.evaluate("() => 0")
        return any(not each.url.endswith("/live.js") and "/api/events" not in each.url for each in self._asked)

    def refused(self) -> list[tuple[int, str]]:
        """Returns the refused requests of the page that is open."""
        return [each for each in self.statuses if each[0] >= 400]


@pytest.fixture(scope="module", params=["lowtide", "kafka"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("world")
    if request.param == "lowtide":
        world = secure_lowtide()
    else:
        world = secure_kafka(request.getfixturevalue("jars"), folder / "node")
    with world as cluster:
        settings = folder / "client.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in cluster.client_settings.items()))
        words = ("--bootstrap-server", cluster.bootstrap, "--command-config", str(settings), "--login", "cluster")
        with console_process(*words, "--write") as address:
            yield Site(address, cluster)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module", params=USERS)
def user(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def visit(browser: Any, site: Site, user: str) -> Iterator[Visit]:
    made = Visit(browser, site, user)
    yield made
    made.tab.close()


OPENED = {"topic": VISIBLE, "partition": 0, "place": "start", "group": VISIBLE_GROUP}
MORE = {"setting": {"key": "log.retention.ms"}}
"""What single pages need besides."""


def test_the_pages_are_found() -> None:
    assert {"cluster", "topics", "topic", "records", "groups", "group", "deletes", "purge"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_right_for_every_user(visit: Visit, user: str, name: str) -> None:
    text = visit.open(name, **OPENED, **MORE.get(name, {}))
    if user == ADMIN:
        assert visit.refused() == []
        assert visit.tab.page.locator("main .notice.trouble").all_inner_texts() == []
        return
    assert SECRET not in text
    assert HIDDEN not in text
    assert HIDDEN_GROUP not in text
    if user == NOBODY:
        assert SHOWN not in text
        assert says_what_is_missing(visit), text


@pytest.mark.parametrize("name", PAGES)
def test_a_page_without_a_choice_lists_only_what_the_user_may_see(visit: Visit, user: str, name: str) -> None:
    text = visit.open(name)
    hidden = {ADMIN: (), READER: (HIDDEN, HIDDEN_GROUP), NOBODY: (HIDDEN, HIDDEN_GROUP, VISIBLE, VISIBLE_GROUP)}[user]
    html = visit.tab.page.content()
    for word in (*hidden, *((SECRET,) if user != ADMIN else ())):
        assert word not in text
        assert word not in html


@pytest.mark.parametrize("name", PAGES)
def test_an_address_with_hidden_names_shows_nothing_of_them(visit: Visit, user: str, name: str) -> None:
    hidden = {**OPENED, "topic": HIDDEN, "group": HIDDEN_GROUP, **MORE.get(name, {})}
    visit.open(name, **hidden)
    html = visit.tab.page.content()
    if user != ADMIN:
        assert SECRET not in html
    if user == NOBODY:
        assert says_what_is_missing(visit), visit.tab.page.locator("main").inner_text()


def test_the_reader_sees_the_records_that_are_its_own(visit: Visit, user: str) -> None:
    """Otherwise an empty console would pass."""
    text = visit.open("records", **OPENED)
    assert (SHOWN in text) is (user != NOBODY)
    assert (VISIBLE in visit.open("topics")) is (user != NOBODY)
    assert (VISIBLE_GROUP in visit.open("groups")) is (user != NOBODY)


def says_what_is_missing(visit: Visit) -> bool:
    """Returns whether the page names what is missing, or shows only a form, which says it when it is sent."""
    page = visit.tab.page
    if MISSING_RIGHT.search(page.locator("main").inner_text()):
        return True
    return bool(page.locator("main form").count()) and not page.locator("main .table tbody tr").count()
