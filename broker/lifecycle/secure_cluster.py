"""Brokers of one process that encrypt, log in to each other and ask clients who they are: their material, in the folder of their data."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.broker_config import Setting
from lowtide.broker.lifecycle.client_settings import Login, admin_login, write_client_files
from lowtide.broker.lifecycle.first_users import set_passwords
from lowtide.broker.lifecycle.secure_material import broker_settings, system_maker

FOLDER: Final = "secure"
"""Of the material, in the folder of the data."""

CLIENT_FOLDER: Final = "client"
"""Of the files of clients, in the folder of the material."""


class SecureCluster:
    """The material of one cluster. Creates what is missing at once. Errors: StorageError."""

    def __init__(self, directory: str) -> None:
        """`directory` has the data of the cluster."""
        self._maker = system_maker()
        self._material = self._maker.make(f"{directory}/{FOLDER}")
        self.client_folder = f"{self._material.directory}/{CLIENT_FOLDER}"
        """Where `write_client_files` writes."""

    def given(self) -> dict[str, Setting]:
        """What all brokers are configured with, where nothing stronger is given."""
        return {key: Setting(text, "the secure cluster") for key, text in broker_settings(self._material).items()}

    async def set_passwords(self, directory: str) -> None:
        """Have the users log in, before the brokers start. `directory` has the metadata.

        Errors: StorageError, MetadataStoreError, MetadataCorruptError, OSError.
        """
        await set_passwords(directory, self._material.passwords, self._maker)

    def login(self, bootstrap: str) -> Login:
        """How the administrator logs in at these addresses."""
        return admin_login(self._material, bootstrap, self._material.directory)

    def write_client_files(self, bootstrap: str) -> None:
        """When the addresses are known. Errors: StorageError."""
        write_client_files(self._maker, self._material, bootstrap, self.client_folder)
