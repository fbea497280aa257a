"""Options that several subcommands have: where the configuration comes from."""

from __future__ import annotations

import argparse
from pathlib import PurePath

from lowtide.broker.config.broker_config import BROKER_KEYS, ConfigError, Setting
from lowtide.broker.config.log_levels import LEVELS, LOG_LEVEL
from lowtide.broker.config.maximum_versions import MAX_VERSION_PREFIX
from lowtide.broker.config.sources import from_environment, from_properties, from_settings, merge
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.process import environment

SOURCES = (
    "Configuration keys are those of Kafka; from weak to strong they come from --config, from the environment "
    "(LOWTIDE_LOG_RETENTION_MS is log.retention.ms) and from --set."
)


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add the options that `given_configuration` reads."""
    parser.add_argument("--config", metavar="FILE", help="a file in the syntax of server.properties")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="set one key; may be repeated"
    )
    parser.add_argument(
        "--max-version",
        action="append",
        default=[],
        metavar="API=VERSION",
        dest="max_versions",
        help="offer an API up to this version only",
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        type=str.upper,
        choices=LEVELS,
        help=f"how much the log has: {', '.join(LEVELS)}; default INFO",
    )


def given_configuration(options: argparse.Namespace) -> dict[str, Setting]:
    """What all sources say. Errors: ConfigError, one sentence, also for a file that can't be read."""
    file: dict[str, Setting] = {}
    if options.config is not None:
        name = PurePath(options.config).name
        try:
            file = from_properties(OsFileSystem().read_bytes(options.config).decode("utf-8"), name)
        except UnicodeDecodeError as error:
            message = f"{name} is not a text in UTF-8: byte {error.start} is {error.object[error.start]:#x}."
            raise ConfigError(message) from None
        except OSError as error:
            message = f"--config {options.config} cannot be read: {error.strerror}."
            raise ConfigError(message) from error
    caps = from_settings(options.max_versions, "--max-version", MAX_VERSION_PREFIX)
    level = {} if options.log_level is None else {LOG_LEVEL: Setting(options.log_level, "--log-level")}
    return merge(file, from_environment(environment(), BROKER_KEYS), from_settings(options.settings), caps, level)
