"""`lowtide.max.version.<Api>`: the maximum version of an API to advertise, for tests and rolling upgrades."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigError, ConfigKey, Range, Type
from lowtide.protocol.api_keys import API, ApiKey, api_name

MAX_VERSION_PREFIX: Final = "lowtide.max.version."


_BY_NAME: Final = {api_name(key).lower(): key for key in API}


def api_of(name: str) -> ApiKey:
    """Returns the API of a `lowtide.max.version.` key; case is ignored, for environment variables are in upper case.

    Errors: ConfigError if Lowtide does not support the API.
    """
    given = name[len(MAX_VERSION_PREFIX) :]
    key = _BY_NAME.get(given.lower())
    if key is None:
        names = ", ".join(sorted(api_name(each) for each in API))
        raise ConfigError(f"{name} names an unsupported API: allowed after {MAX_VERSION_PREFIX} are {names}")
    return key


def max_version_key(name: str) -> ConfigKey:
    """Returns the configuration key of that name, with the API's name spelled as in the protocol.

    Errors: ConfigError if Lowtide does not support the API.
    """
    api = api_of(name)
    spec = API[api]
    doc = f"The maximum version of {api_name(api)} to advertise."
    allowed = Range(spec.min_version, spec.max_version)
    return ConfigKey(MAX_VERSION_PREFIX + api_name(api), Type.INT, None, allowed, doc)
