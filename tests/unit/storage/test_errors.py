"""Which system errors are disk failures, and which are temporary."""

from __future__ import annotations

import errno

import pytest

from lowtide.storage.errors import StorageError, is_passing, storage_error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_full_disk_and_an_exhausted_process_pass(number: int):
    error = OSError(number, "text")
    assert is_passing(error)
    assert is_passing(storage_error("/d/file", error))
    assert storage_error("/d/file", error).is_passing


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOENT, errno.EACCES, errno.ENODEV])
def test_a_broken_disk_does_not_pass(number: int):
    error = OSError(number, "text")
    assert not is_passing(error)
    assert not is_passing(storage_error("/d/file", error))


def test_what_no_system_call_reported_does_not_pass():
    assert not is_passing(StorageError("/d/file", "it holds no checkpoint"))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_lack_of_descriptors_memory_or_threads_is_no_full_disk(number: int):
    assert not storage_error("/d/file", OSError(number, "text")).is_disk_full
