"""`lowtide-delete-records`: replaces Kafka's `kafka-delete-records`, with the same options, file and output.

It is stricter: a file with a typing error is refused before anything is deleted (`offset_file`), and the exit code is 1
if a partition failed, where Kafka's is 0. With `--leader-only` (KIP-1343) each line ends with the leader's log start
offset. It does not use Typer, because scripts start it often.

Source: Kafka's `DeleteRecordsCommand`; KIP-107, which calls the option for the file `--delete-offset-json-file`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from lowtide.admin.client import AdminClient
from lowtide.admin.deletion import DeletedRecords, DeleteResult
from lowtide.admin.errors import AdminError
from lowtide.admin.settings import ClientSettings, SettingsError
from lowtide.cli.offset_file import OffsetFileError, read_offset_file
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import printable
from lowtide.cli.streams import guarded
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.filesystem import OsFileSystem

NAME: Final = "lowtide-delete-records"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns the exit code."""
    return guarded(NAME, lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    if options.version:
        from lowtide import __version__  # noqa: PLC0415

        print(__version__)
        return ExitCode.DONE
    missing = [
        option
        for option in ("--bootstrap-server", "--offset-json-file")
        if getattr(options, option[2:].replace("-", "_")) is None
    ]
    if missing:
        return _refuse(f"{' and '.join(missing)} must be given. See --help.", ExitCode.MISUSED)
    try:
        settings = ClientSettings.read(
            options.command_config, {"bootstrap.servers": options.bootstrap_server}, "--bootstrap-server"
        )
        offsets = read_offset_file(options.offset_json_file, OsFileSystem())
    except (SettingsError, OffsetFileError) as error:
        return _refuse(str(error), ExitCode.MISUSED)
    print("Executing records delete operation", flush=True)
    try:
        results = asyncio.run(_delete(settings, offsets, leader_only=options.leader_only))
    except (AdminError, SettingsError) as error:  # The first connection reads the files that settings name.
        code = ExitCode.MISUSED if isinstance(error, SettingsError) else ExitCode.UNREACHABLE
        return _refuse(f"{str(error).rstrip('.')}.", code)
    except KeyboardInterrupt:
        return _refuse("interrupted; requests that were sent may still delete records.", ExitCode.INTERRUPTED)
    print("Records delete operation completed:")
    for partition, result in results.items():
        print(line(partition, result, leader_only=options.leader_only))
    return ExitCode.DONE if all(isinstance(result, DeletedRecords) for result in results.values()) else ExitCode.FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="This tool helps to delete records of the given partitions down to the specified offset.",
        epilog="The exit code is 0 if all records are deleted, 1 if a partition failed, 2 if the call, the file or the "
        "settings are invalid and nothing was done, 3 if the cluster can't be reached.",
    )
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT,…", help="REQUIRED: brokers to ask first")
    parser.add_argument(
        "--offset-json-file",
        "--delete-offset-json-file",
        metavar="FILE",
        help='REQUIRED: the offset of each partition: {"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], '
        '"version": 1}. An offset is the first one that stays; -1 deletes all committed records',
    )
    parser.add_argument("--command-config", metavar="FILE", help="a properties file with the settings of the client")
    parser.add_argument(
        "--leader-only",
        action="store_true",
        help="done when the leader has deleted (KIP-1343); prints its log start offset too",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


async def _delete(
    settings: ClientSettings, offsets: Mapping[TopicPartition, Offset], *, leader_only: bool
) -> dict[TopicPartition, DeleteResult]:
    async with AdminClient(settings) as client:
        return await client.delete_records(offsets, leader_only=leader_only)


def line(partition: TopicPartition, result: DeleteResult, *, leader_only: bool) -> str:
    """Formats the outcome of a partition like Kafka's tool; with `leader_only` adds the leader's log start offset."""
    if not isinstance(result, DeletedRecords):
        return f"partition: {partition}\terror: {printable(str(result).removeprefix(f'{partition}: '))}"
    text = f"partition: {partition}\tlow_watermark: {result.low_watermark}"
    return f"{text}\tleader_log_start_offset: {result.leader_log_start_offset}" if leader_only else text


def _refuse(reason: str, code: ExitCode) -> int:
    print(f"{NAME}: {printable(reason)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
