"""Apache Kafka gives the answers that `tests/clients/test_open_transactions.py` expects."""

from __future__ import annotations

import pytest

from tests.clients.open_transactions import EXPECTED, VERSIONS, ask_all

from .kafka import Kafka

pytestmark = pytest.mark.interop


async def test_kafka_answers_what_is_expected_of_lowtide(kafka: Kafka) -> None:
    kafka.start()
    for version in VERSIONS:
        assert await ask_all(kafka.bootstrap, version) == EXPECTED, version
