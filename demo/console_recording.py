"""Draws docs/console-erase.gif: the console, while it erases a person from three brokers, of which one is away.

    python -m demo.console_recording docs/console-erase.gif

Each picture is a screenshot of the real console in Chromium. It needs the extra `browser` and a `chromium` in the PATH.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from PIL import Image

from lowtide.testing.cluster import LowtideCluster
from tests.console_browser import Tab, chromium, console_process

PERSON = "person-4711"
TOPICS = {"orders": 3, "payments": 2}
RECORDS = 3000
WIDTH, HEIGHT = 1040, 760
COLOURS = 48
LONG_MS, SHORT_MS = 3600, 2000
WAIT_MS = 90_000
LARGEST_BYTES = 1 << 20


class Recording:
    """The pictures, each with the time in milliseconds that it is shown."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.pictures: list[Image.Image] = []
        self.times: list[int] = []

    def take(self, top: Any, shown_ms: int = LONG_MS) -> None:
        """Adds a picture of the page from an element on, as far as the page can be scrolled."""
        top.evaluate("element => { element.scrollIntoView({block: 'start'}); scrollBy(0, -16); }")
        self.page.wait_for_timeout(300)
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.pictures.append(picture.quantize(COLOURS, dither=Image.Dither.NONE))
        self.times.append(shown_ms)

    def save(self, target: Path) -> None:
        first, *others = self.pictures
        first.save(target, save_all=True, append_images=others, duration=self.times, loop=0, optimize=True)
        assert target.stat().st_size < LARGEST_BYTES, f"{target} has {target.stat().st_size} bytes"


def fill(bootstrap: str) -> None:
    """Writes records of many people to the topics; one in a hundred is of the person."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, number, 3) for name, number in TOPICS.items()]).values():
        future.result()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(RECORDS):
        key = PERSON if number % 100 == 3 else f"person-{number % 97}"
        for topic, partitions in TOPICS.items():
            producer.produce(topic, f"{topic} {number} of {key}", key, partition=number % partitions)
    assert producer.flush(30) == 0


def record(tab: Tab, cluster: LowtideCluster) -> Recording:
    """Goes through the six steps as a visitor does."""
    page = tab.open("#/erase")
    recording = Recording(page)
    page.get_by_label("Keys, one in each line").fill(PERSON)
    page.get_by_label("Topics", exact=True).fill("orders, pay*")
    recording.take(page.get_by_role("heading").first, SHORT_MS)
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("heading", name="What was found").wait_for()
    recording.take(page.get_by_role("heading", name="What was found"))
    page.get_by_role("button", name="Rehearse").click()
    confirmed = page.get_by_label("to confirm")
    confirmed.wait_for()
    confirmed.fill("".join(filter(str.isdigit, page.locator("label", has_text="to confirm").inner_text())))
    recording.take(confirmed)
    cluster.stop_broker(3)
    page.get_by_role("button", name="Erase ").click()
    page.get_by_text("Not yet clean: broker 3.").wait_for(timeout=WAIT_MS)
    recording.take(page.get_by_role("heading").first)
    cluster.start_broker(3)
    page.get_by_text("Done: no file of any broker has one of these records.").wait_for(timeout=WAIT_MS)
    recording.take(page.get_by_role("heading").first)
    return recording


def main(target: Path) -> None:
    with LowtideCluster(3) as cluster, chromium() as browser:
        fill(cluster.bootstrap)
        with console_process("--bootstrap-server", cluster.bootstrap, "--write") as address:
            tab = Tab(browser, address, width=WIDTH)
            tab.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            record(tab, cluster).save(target)
            tab.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
