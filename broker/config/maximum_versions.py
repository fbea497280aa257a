"""`lowtide.max.version.<Api>`: the highest version of an API to offer, for tests and for upgrades one broker at a time."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigError, ConfigKey, Range, Type
from lowtide.protocol.api_keys import API, ApiKey

MAX_VERSION_PREFIX: Final = "lowtide.max.version."


def api_name(key: ApiKey) -> str:
    """The API's name as the protocol guide writes it: `DeleteRecords`."""
    return "".join(word.capitalize() for word in key.name.split("_"))


_BY_NAME: Final = {api_name(key).lower(): key for key in API}


def api_of(name: str) -> ApiKey:
    """The API that a `lowtide.max.version.` key is about; its case doesn't matter, for the environment has none.

    Errors: ConfigError when Lowtide doesn't speak that API.
    """
    given = name[len(MAX_VERSION_PREFIX) :]
    key = _BY_NAME.get(given.lower())
    if key is None:
        names = ", ".join(sorted(api_name(each) for each in API))
        message = f"{name} names an API that Lowtide doesn't speak: allowed after {MAX_VERSION_PREFIX} are {names}"
        raise ConfigError(message)
    return key


def max_version_key(name: str) -> ConfigKey:
    """The configuration key of that name, with the API's name spelled as in the protocol.

    Errors: ConfigError when Lowtide doesn't speak that API.
    """
    api = api_of(name)
    spec = API[api]
    doc = f"The highest version of {api_name(api)} to offer."
    allowed = Range(spec.min_version, spec.max_version)
    return ConfigKey(MAX_VERSION_PREFIX + api_name(api), Type.INT, None, allowed, doc, enforced=True)
