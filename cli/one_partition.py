"""The partition that a command is about, where it can only be one."""

from __future__ import annotations

from lowtide.admin.wanted_offsets import parse_partitions
from lowtide.cli.outcome import misused
from lowtide.protocol.types import TopicPartition


def one_partition(text: str, *, otherwise: int) -> TopicPartition:
    """The partition in `topic` or `topic:number`; `otherwise` is its number where none is given. Errors: CommandError."""
    try:
        topic, numbers = parse_partitions(text)
    except ValueError as error:
        raise misused(f"{error}.") from None
    if numbers is not None and len(numbers) != 1:
        raise misused("one partition at a time, as in flights:3.")
    return TopicPartition(topic, otherwise if numbers is None else numbers[0])
