"""Paths in the tree of a simulated disk: read-only functions over its root folder, with a kernel's errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from lowtide.runtime.filesystem.nodes import FileNode, Folder, Node


def path_parts(path: str) -> list[str]:
    """Returns the names of a path, from the root. `..` is not modelled."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    assert ".." not in parts, path
    return parts


def path_error(number: int, path: str) -> OSError:
    """Returns the kernel's error."""
    return OSError(number, os.strerror(number), path)


def find(root: Folder, path: str) -> Node | None:
    """Returns the file or folder at the path, or None."""
    node: Node = root
    for name in path_parts(path):
        if not isinstance(node, Folder) or name not in node.entries:
            return None
        node = node.entries[name]
    return node


def folder_at(root: Folder, path: str) -> Folder:
    """Returns the folder at the path. Errors: OSError with ENOENT or ENOTDIR."""
    node = find(root, path)
    if isinstance(node, Folder):
        return node
    raise path_error(errno.ENOENT if node is None else errno.ENOTDIR, path)


def file_at(root: Folder, path: str) -> FileNode:
    """Returns the file at the path. Errors: OSError with ENOENT or EISDIR."""
    node = find(root, path)
    if isinstance(node, FileNode):
        return node
    raise path_error(errno.ENOENT if node is None else errno.EISDIR, path)


def parent_of(root: Folder, path: str) -> tuple[Folder, str]:
    """Returns the folder of the path's last name, and that name. Errors: OSError with ENOENT or ENOTDIR."""
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
    """Checks that `node` may take the name `target` of `replaced`.

    Errors: OSError with ENOTEMPTY, EISDIR or ENOTDIR.
    """
    if isinstance(replaced, Folder) and (replaced.entries or isinstance(node, FileNode)):
        raise path_error(errno.ENOTEMPTY if isinstance(node, Folder) else errno.EISDIR, target)
    if isinstance(node, Folder) and isinstance(replaced, FileNode):
        raise path_error(errno.ENOTDIR, target)


def files_below(root: Folder) -> Iterator[FileNode]:
    """Yields every file of the tree."""
    folders = [root]
    while folders:
        for node in folders.pop().entries.values():
            if isinstance(node, Folder):
                folders.append(node)
            else:
                yield node
