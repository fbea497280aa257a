"""Paths in the tree of a simulated disk: functions over its root folder, with the errors that a kernel answers.

They change nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from lowtide.runtime.filesystem.nodes import FileNode, Folder, Node


def path_parts(path: str) -> list[str]:
    """The names of a path, from the root on. `..` is not modelled."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    assert ".." not in parts, path
    return parts


def path_error(number: int, path: str) -> OSError:
    """The subclass of OSError that the kernel's answer would have become."""
    return OSError(number, os.strerror(number), path)


def find(root: Folder, path: str) -> Node | None:
    """The file or folder at the path, or None."""
    node: Node = root
    for name in path_parts(path):
        if not isinstance(node, Folder) or name not in node.entries:
            return None
        node = node.entries[name]
    return node


def folder_at(root: Folder, path: str) -> Folder:
    """The folder at the path. Errors: OSError with ENOENT or ENOTDIR."""
    node = find(root, path)
    if isinstance(node, Folder):
        return node
    raise path_error(errno.ENOENT if node is None else errno.ENOTDIR, path)


def file_at(root: Folder, path: str) -> FileNode:
    """The file at the path. Errors: OSError with ENOENT or EISDIR."""
    node = find(root, path)
    if isinstance(node, FileNode):
        return node
    raise path_error(errno.ENOENT if node is None else errno.EISDIR, path)


def parent_of(root: Folder, path: str) -> tuple[Folder, str]:
    """The folder that holds, or would hold, the last name of the path, and that name.

    Errors: OSError with ENOENT or ENOTDIR.
    """
    *above, name = path_parts(path)
    node: Node | None = root
    for part in above:
        if not isinstance(node, Folder):
            raise path_error(errno.ENOTDIR, path)
        node = node.entries.get(part)
    if isinstance(node, Folder):
        return node, name
    raise path_error(errno.ENOENT if node is None else errno.ENOTDIR, path)


def check_replacing(node: Node, replaced: Node | None, target: str) -> None:
    """Whether `node` may take the name `target`, which `replaced` has.

    Errors: OSError with ENOTEMPTY, EISDIR or ENOTDIR.
    """
    if isinstance(replaced, Folder) and (replaced.entries or isinstance(node, FileNode)):
        raise path_error(errno.ENOTEMPTY if isinstance(node, Folder) else errno.EISDIR, target)
    if isinstance(node, Folder) and isinstance(replaced, FileNode):
        raise path_error(errno.ENOTDIR, target)


def files_below(root: Folder) -> Iterator[FileNode]:
    """Every file of the tree."""
    folders = [root]
    while folders:
        for node in folders.pop().entries.values():
            if isinstance(node, Folder):
                folders.append(node)
            else:
                yield node
