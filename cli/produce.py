"""`lowtide records produce`: writes values, or lines of standard input, to a topic.

Lines are sent at once: the lines of one read are one flush. So a typed line is sent alone, and lines of a file in
batches. The producer is the pipeline's: idempotent, with acks=all. Keys map to partitions as in Java's clients; records
without a key stay together for a flush. Lines, and so the buffered input, are limited to `LINE_BYTES_MAX`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import typer

from lowtide.admin.errors import AdminError
from lowtide.admin.settings import SettingsError
from lowtide.cli.call import SettingsCall, network_error, unhurried
from lowtide.cli.cluster_questions import parsed_partitions
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, remark
from lowtide.cli.record_lines import LineError, LineForm, LineReader
from lowtide.pipeline.outbox import Limits
from lowtide.pipeline.partition_batches import ProduceError
from lowtide.pipeline.producer import Producer
from lowtide.pipeline.producer_settings import ProducerSettings
from lowtide.protocol.batch_building import UnplacedRecord, build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.key_hash import partition_of_key
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.process import standard_input

LINE_BYTES_MAX: Final = 16 << 20
"""The longest line. Topics accept a megabyte by default (`max.message.bytes`)."""

READ_BYTES: Final = 256 << 10
"""The most bytes of one read from standard input."""

_COMPRESSIONS: Final = tuple(codec.name.lower() for codec in Compression)


@unhurried
def produce(  # its options are its parameters
    call: SettingsCall,
    target: Annotated[str, typer.Argument(metavar="TOPIC[:PARTITION]", help="flights, or flights:3 for one partition")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]…", help="the values of records; default: lines of standard input"),
    ] = None,
    *,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="the key of all records")] = None,
    separator: Annotated[
        str | None,
        typer.Option("--separator", metavar="TEXT", help="separates key and value in each line: `--separator :`"),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=TEXT", help="a header of all records; may be repeated")
    ] = None,
    form: Annotated[
        LineForm, typer.Option("--format", help="the format of lines; json is that of `records show -o json`")
    ] = LineForm.TEXT,
    compression: Annotated[str, typer.Option("--compression", metavar="CODEC", help=", ".join(_COMPRESSIONS))] = "none",
) -> ExitCode:
    """Write records: each VALUE, or each line of standard input.

    A record is written when all in-sync replicas have it. Retries neither lose nor duplicate records. With --format
    json, a line is an object with value, and optionally key, headers and timestamp.
    """
    to = _target(target)
    if compression not in _COMPRESSIONS:
        raise misused(f"--compression {compression} is invalid: it must be one of {', '.join(_COMPRESSIONS)}.")
    try:
        reader = LineReader(form=form, key=key, separator=separator, headers=header or [])
    except ValueError as error:
        raise misused(f"{error}.") from None
    timeout_ms = call.settings.default_api_timeout_ms
    settings = ProducerSettings(
        client=call.settings,
        limits=Limits(delivery_timeout_ms=timeout_ms),
        compression=Compression[compression.upper()],
        max_block_ms=timeout_ms,
    )
    if values:
        pieces: Iterable[list[bytes]] = [[value.encode("utf-8", "surrogateescape") for value in values]]
    else:
        if sys.stdin is not None and sys.stdin.isatty():
            remark("Each line is a record. Ctrl-D ends the input.")
        pieces = lines_of(standard_input(READ_BYTES))
    written = _write(settings, to, reader, pieces)
    if call.output is Output.JSON:
        print_json({"topic": to.topic, "records": written})
    else:
        print(f"{to.topic}: {plural(written, 'record')}")
    return ExitCode.DONE


def _target(text: str) -> TopicPartition:
    """Returns the partition in `topic:number`; for `topic` alone its number is -1. Errors: CommandError."""
    topic, numbers = parsed_partitions(text)
    if numbers is not None and len(numbers) != 1:
        raise misused("give one partition only, as in flights:3.")
    return TopicPartition(topic, -1 if numbers is None else numbers[0])


def lines_of(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields the lines that each piece completes, without line ends; the last line may lack one.

    Errors: CommandError.
    """
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LINE_BYTES_MAX or any(len(line) > LINE_BYTES_MAX for line in lines):
            raise CommandError(f"a line is longer than {LINE_BYTES_MAX:,} bytes.")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _write(
    settings: ProducerSettings, target: TopicPartition, reader: LineReader, pieces: Iterable[list[bytes]]
) -> int:
    """Writes all; returns the number of records. Errors: CommandError with the number of records written before."""
    producer, clock = Producer(settings), SystemClock()
    try:
        for turn, lines in enumerate(pieces):
            records = [reader.read(line, clock.wall_ms()) for line in lines if line or reader.takes_empty_lines]
            available = producer.learn_topic(target.topic)
            count = producer.cluster.leaders.partition_count(target.topic)
            if target.partition >= count:
                has = f"it has {plural(count, 'partition')}{_so_far(producer)}"
                raise CommandError(f"topic {target.topic} has no partition {target.partition}: {has}.")
            placed = _placed(records, target.partition, available[turn % len(available)], count)
            for partition, several in placed.items():
                batch = bytearray(build_batch(several, compression=settings.compression))
                producer.add(TopicPartition(target.topic, partition), batch, len(several))
            producer.flush()
        return producer.acknowledged_records
    except LineError as error:
        raise CommandError(f"{error}{_so_far(producer)}.") from None
    except ProduceError as error:
        raise CommandError(f"{error}{_so_far(producer)}.") from error
    except AdminError as error:
        raise network_error(error) from error
    except SettingsError as error:
        raise CommandError(str(error), ExitCode.MISUSED) from error
    finally:
        producer.close()


def _so_far(producer: Producer) -> str:
    count = producer.acknowledged_records
    return f"; {plural(count, 'record')} {'is' if count == 1 else 'are'} written" if count else "; nothing is written"


def _placed(records: Sequence[UnplacedRecord], given: int, keyless: int, count: int) -> dict[int, list[UnplacedRecord]]:
    """Groups records by partition: `given` unless it is -1, else the partition of the key, or `keyless` without one."""
    found: defaultdict[int, list[UnplacedRecord]] = defaultdict(list)
    for record in records:
        key = record[1]
        found[given if given >= 0 else keyless if key is None else partition_of_key(key, count)].append(record)
    return found
