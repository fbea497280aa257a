"""Options of `serve` and `dev`: the sources of the configuration."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import PurePath

from lowtide.broker.config.broker_config import BROKER_KEYS, ConfigError, Setting
from lowtide.broker.config.log_levels import LEVELS, LOG_LEVEL
from lowtide.broker.config.maximum_versions import MAX_VERSION_PREFIX
from lowtide.broker.config.sources import from_environment, from_properties, from_settings, merge
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.process import environment

SOURCES = (
    "Configuration keys are those of Kafka. They come from --config, from the environment (LOWTIDE_LOG_RETENTION_MS is "
    "log.retention.ms) and from --set; later sources win."
)


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `given_configuration` reads."""
    parser.add_argument("--config", metavar="FILE", help="a file in the format of server.properties")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="set one key; may be repeated"
    )
    parser.add_argument(
        "--max-version",
        action="append",
        default=[],
        metavar="API=VERSION",
        dest="max_versions",
        help="the highest version of an API to offer",
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        type=str.upper,
        choices=LEVELS,
        help=f"the log level: {', '.join(LEVELS)}; default INFO",
    )


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Returns a reader of whole numbers for argparse."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is invalid: it must be a whole number from {least} to {most}")
        return int(text)

    return read


def given_configuration(options: argparse.Namespace) -> dict[str, Setting]:
    """Reads all sources. Errors: ConfigError, also for an unreadable file."""
    file: dict[str, Setting] = {}
    if options.config is not None:
        name = PurePath(options.config).name
        try:
            file = from_properties(OsFileSystem().read_bytes(options.config).decode("utf-8"), name)
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{name} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#x}."
            ) from None
        except OSError as error:
            raise ConfigError(f"--config {options.config} can't be read: {error.strerror}.") from error
    caps = from_settings(options.max_versions, "--max-version", MAX_VERSION_PREFIX)
    level = {} if options.log_level is None else {LOG_LEVEL: Setting(options.log_level, "--log-level")}
    return merge(file, from_environment(environment(), BROKER_KEYS), from_settings(options.settings), caps, level)
