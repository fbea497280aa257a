"""The console in a browser, where one is installed: names and records that look like markup do nothing, and a delete is
carried out.

`tests/interop/test_console_pages.py` has every page.
"""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.testing.cluster import LowtideCluster
from tests.console_browser import Tab, chromium, console_process

HOSTILE = "<img src=x onerror=document.title='pwned'>"


def test_a_delete_and_hostile_texts_in_a_browser():
    with chromium() as browser, LowtideCluster() as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result()
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for _ in range(20):
            producer.produce("orders", HOSTILE.encode(), key=HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
        producer.flush()
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": HOSTILE, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
        consumer.close()
        with console_process("--bootstrap-server", cluster.bootstrap, "--write") as address:
            tab = Tab(browser, address)
            page = tab.open("#/groups")
            page.get_by_role("link", name=HOSTILE).click()
            page.get_by_role("heading", name=HOSTILE).wait_for()
            page = tab.open("#/records?topic=orders&partition=0&place=start")
            page.locator("details.record summary").first.click()
            page.get_by_role("heading", name=f"Header {HOSTILE}").wait_for()
            page = tab.open("#/purge?topic=orders")
            page.get_by_label("The first offset that stays").fill("7")
            page.get_by_role("button", name="Rehearse").click()
            page.get_by_role("button", name="Delete 7 records").click()
            page.wait_for_selector("li[data-step=replicas][data-done=yes]")
            assert "pwned" not in page.title()
            assert page.locator("img[src='x']").count() == 0
            tab.close()
    assert tab.troubles == []
