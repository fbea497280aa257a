"""One function decides which errors are disk failures."""

from __future__ import annotations

import errno

import pytest

from lowtide.runtime.filesystem import FailureKind, failure_kind, is_passing
from lowtide.storage.errors import StorageError, storage_error


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, FailureKind.NO_ROOM),
        (errno.EDQUOT, FailureKind.NO_ROOM),
        (errno.EMFILE, FailureKind.NO_RESOURCE),
        (errno.ENFILE, FailureKind.NO_RESOURCE),
        (errno.ENOMEM, FailureKind.NO_RESOURCE),
        (errno.EAGAIN, FailureKind.NO_RESOURCE),
        (errno.ENOENT, FailureKind.GONE),
        (errno.ENOTDIR, FailureKind.GONE),
        (errno.EBADF, FailureKind.GONE),
        (errno.EIO, FailureKind.BROKEN),
        (errno.EROFS, FailureKind.BROKEN),
        (errno.EACCES, FailureKind.BROKEN),
        (0, FailureKind.BROKEN),
        (None, FailureKind.BROKEN),
    ],
)
def test_every_error_has_one_kind(number: int | None, kind: FailureKind) -> None:
    assert failure_kind(number) is kind


def test_only_a_lack_of_room_or_resources_is_temporary() -> None:
    passing = {number for number in errno.errorcode if is_passing(OSError(number, ""))}
    assert passing == {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
    assert all(storage_error("/a", OSError(number, "")).is_passing for number in passing)
    assert not StorageError("/a", "holds what it must not hold").is_passing
