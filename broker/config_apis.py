"""Caps on API versions: `lowtide.max.version.<Api>`, for tests and rolling upgrades."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config_key import ConfigError, ConfigKey, Range, Type
from lowtide.protocol.api_keys import API, ApiKey

MAX_VERSION_PREFIX: Final = "lowtide.max.version."


def api_name(key: ApiKey) -> str:
    """The API's name as the protocol guide spells it: `DeleteRecords`."""
    return API[key].request.__name__.removesuffix("Request")


_BY_NAME: Final = {api_name(key).lower(): key for key in API}


def capped_api(name: str) -> ApiKey:
    """The API that a key `lowtide.max.version.<Api>` caps.

    Errors: ConfigError when there is none; the message is a sentence without its full stop.
    """
    api = name.removeprefix(MAX_VERSION_PREFIX)
    key = _BY_NAME.get(api.lower())
    if key is None:
        message = f"{name} names no API that is served: allowed are {', '.join(sorted(api_name(key) for key in API))}"
        raise ConfigError(message)
    return key


def max_version(name: str) -> ConfigKey:
    """The configuration key that caps an API. Errors: as of `capped_api`."""
    spec = API[capped_api(name)]
    allowed = Range(spec.min_version, spec.max_version)
    return ConfigKey(name, Type.INT, None, allowed, "The highest version of the API that is offered.", enforced=True)
