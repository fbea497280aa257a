"""Certificates, users and client files for brokers of one process with TLS and logins, in their data folder."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.broker_config import Setting
from lowtide.broker.lifecycle.client_settings import ClusterLogin, admin_login, write_client_files
from lowtide.broker.lifecycle.first_users import set_passwords
from lowtide.broker.lifecycle.secure_material import broker_settings, system_maker

FOLDER: Final = "secure"
"""The folder of the material, in the data folder."""

CLIENT_FOLDER: Final = "client"
"""The folder of the client files, in that of the material."""


class SecureCluster:
    """The material of one cluster. Creates what is missing. Errors: StorageError."""

    def __init__(self, directory: str) -> None:
        """`directory` is the data folder of the cluster."""
        self._maker = system_maker()
        self._material = self._maker.make(f"{directory}/{FOLDER}")
        self.client_folder = f"{self._material.directory}/{CLIENT_FOLDER}"
        """The folder that `write_client_files` writes to."""

    def given(self) -> dict[str, Setting]:
        return {key: Setting(text, "the secure cluster") for key, text in broker_settings(self._material).items()}

    async def set_passwords(self, directory: str) -> None:
        """Sets the passwords of the users before the brokers start. `directory` has the metadata.

        Errors: StorageError, MetadataStoreError, MetadataCorruptError, OSError.
        """
        await set_passwords(directory, self._material.passwords, self._maker)

    def login(self, bootstrap: str) -> ClusterLogin:
        return admin_login(self._material, bootstrap, self._material.directory)

    def write_client_files(self, bootstrap: str) -> None:
        """Writes the client files, once the addresses are known. Errors: StorageError."""
        write_client_files(self._maker, self._material, bootstrap, self.client_folder)
