"""Compiles the text of a .proto file, as a registry keeps it, to the descriptors of its messages.

The compiler is protoc itself, from the wheel of `grpcio-tools`: it decides what is valid, and it has Google's own
files. It runs in a process of its own for each new schema, so that its complaints can be shown. The texts come from
whoever may register schemas: names of files are checked, so that none is written elsewhere.
"""

from __future__ import annotations

import base64
import functools
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.schemas.registry import UnsupportedSchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

SECONDS: Final = 60.0
_KEPT: Final = 64
_MAIN: Final = "lowtide_main.proto"
_PROVIDED: Final = "google/protobuf/"
"""Files that protoc has."""

_NEEDED: Final = "Protobuf needs grpcio-tools: install Lowtide with its extra `table`"

_CONFLUENT: Final = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
}
"""Files that Confluent's registry has, and that schemas import without a reference."""


def compiled(text: str, references: dict[str, str]) -> list[FileDescriptorProto]:
    """Returns the descriptors of a file and of all that it imports; its own is the last.

    Errors: UnsupportedSchemaError; ImportError, which says what to install.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - an extra

    main = _serialized(text)
    if main is None:
        texts = {name: one for name, one in references.items() if _serialized(one) is None}
        return list(FileDescriptorSet.FromString(_protoc(text, tuple(sorted(texts.items())))).file)
    main.name = _MAIN
    found: dict[str, FileDescriptorProto] = {}
    for name in main.dependency:
        _import(name, references, found, frozenset())
    return [*found.values(), main]


def _import(
    name: str, references: dict[str, str], found: dict[str, FileDescriptorProto], around: frozenset[str]
) -> None:
    """Adds a file that a serialized one imports, after those that it imports. Errors: UnsupportedSchemaError."""
    if name in found:
        return
    if name in around:
        raise UnsupportedSchemaError(f"the file {name!r} imports itself")
    one = _serialized(references.get(name, ""))
    if one is None:
        files = compiled(f'syntax = "proto3"; import "{_checked(name)}";', references)[:-1]
        found.update({file.name: file for file in files if file.name not in found})
        return
    one.name = name
    for other in one.dependency:
        _import(other, references, found, around | {name})
    found[name] = one


def _serialized(text: str) -> FileDescriptorProto | None:
    """Returns the descriptor of a file that was registered in base64, as Confluent's client for Python does it.

    Returns None for the text of a .proto file: its spaces are not base64.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - an extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True)) if text else None
    except (ValueError, DecodeError):
        return None


@functools.lru_cache(maxsize=_KEPT)
def _protoc(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """Returns what protoc makes of a file and of the files that it imports. Errors: UnsupportedSchemaError."""
    if find_spec("grpc_tools") is None:
        raise ImportError(_NEEDED, name="grpc_tools")
    with tempfile.TemporaryDirectory(prefix="lowtide-protoc-") as name:
        folder = Path(name)
        for place, content in (*_CONFLUENT.items(), *references, (_MAIN, text)):
            if not place.startswith(_PROVIDED):
                file = folder / _checked(place)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_imports"]
        command += ["--descriptor_set_out=descriptors", _MAIN]
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter
                command, cwd=name, capture_output=True, timeout=SECONDS, check=False, text=True, errors="replace"
            )
        except subprocess.TimeoutExpired as error:
            raise UnsupportedSchemaError(f"protoc needs more than {SECONDS:.0f} s for it") from error
        if done.returncode:
            raise UnsupportedSchemaError(f"protoc refuses it: {_complaint(done.stderr)}")
        return (folder / "descriptors").read_bytes()


def _checked(name: str) -> str:
    """Returns the name of a file that is imported. Errors: UnsupportedSchemaError, if it may lead elsewhere."""
    path = PurePosixPath(name)
    if not name.isprintable() or "\\" in name or path.is_absolute() or ".." in path.parts or not path.parts:
        raise UnsupportedSchemaError(f"it refers to a file with the name {name!r}")
    return name


def _complaint(text: str) -> str:
    lines = [one.strip() for one in text.splitlines() if ".proto:" in one and "warning:" not in one]
    return (lines or ["without a reason"])[0].replace(f"{_MAIN}:", "line ")


def message_class(text: str, references: dict[str, str], indexes: tuple[int, ...]) -> Any:
    """Returns the class of the message that a path of indexes leads to. Errors: UnsupportedSchemaError."""
    from google.protobuf import descriptor_pool, message_factory  # noqa: PLC0415 - an extra

    files = compiled(text, references)
    declared: Any = files[-1].message_type
    name = files[-1].package
    for index in indexes:
        if not 0 <= index < len(declared):
            raise UnsupportedSchemaError(f"it has no message of the indexes {list(indexes)}")
        name = f"{name}.{declared[index].name}".lstrip(".")
        declared = declared[index].nested_type
    pool = descriptor_pool.DescriptorPool()
    try:
        for one in files:
            pool.Add(one)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedSchemaError(f"its descriptors are not accepted: {error}") from error
