"""A member of a share group with librdkafka's share consumer, until standard input ends.

`librdkafka_sharer.py BOOTSTRAP GROUP TOPIC,TOPIC accept|hold` prints each record that it gets, as `java/Sharer.java`.
"""

from __future__ import annotations

import json
import sys
import threading

from confluent_kafka import ShareConsumer


def main(bootstrap: str, group: str, topics: str, how: str) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe(topics.split(","))
    while not ended.is_set():
        messages = list(consumer.poll(0.1) or ())
        for message in messages:
            assert message.error() is None, message.error()
            place = {"at": f"{message.topic()}-{message.partition()}", "offset": message.offset()}
            say("got", **place, count=message.delivery_count())
            if how == "accept":
                consumer.acknowledge(message)
                say("read", **place)
        if messages and how == "hold":
            ended.wait()
    consumer.close()
    say("left")


def say(what: str, **values: object) -> None:
    print(json.dumps({"what": what} | values), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
