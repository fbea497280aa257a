"""The licences of what Lowtide needs and ships: a page for people, and a bill of materials (SBOM) for programs.

    python packaging/licences.py page          # prints docs/licences.md
    python packaging/licences.py bill dist     # writes dist/lowtide-VERSION.cdx.json, CycloneDX 1.6

Both follow the requirements of pyproject.toml through the packages that are installed here, with the versions of
constraints.txt. A licence that is not allowed, or that a package does not name, is an error. The bill has what the
wheel requires without extras, and the works of others that it contains. It has no hashes of packages, because pip
chooses one of the files of a version. The same sources and packages give the same bytes.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[1]
EXTRAS: Final = ("etcd", "pipeline", "table")
"""The extras for users; the others are for development."""

ALLOWED: Final = frozenset(
    ("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib")
)
ALLOWED_FOR: Final = {"certifi": "MPL-2.0"}
"""Certificates of authorities, used unchanged: this licence covers changes of its files only."""

OTHER_NAMES: Final = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
"""How packages without a licence expression name their licence, in a field or a classifier."""

STATED: Final = {
    "google-re2": "BSD-3-Clause",
    "lz4": "BSD-3-Clause",
    "pandas": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
    "uvloop": "MIT OR Apache-2.0",
}
"""Licences that the metadata of a package do not name exactly; from its licence files."""

OWN_LICENCE: Final = "Apache-2.0"
VENDOR: Final = ROOT / "console" / "static" / "vendor"

PAGE: Final = """# Licences

<!-- Written by `make licences`. -->

Lowtide is under the Apache License 2.0. Its wheel contains two works of others: uPlot, which draws the console's charts
(MIT, `console/static/vendor/`), and a part of the definition of etcd's API (Apache-2.0, `metadata/etcd_rpc.proto`). So
the wheel's metadata say `Apache-2.0 AND MIT`.

pip installs the packages below beside it, with the extras that you choose. All have permissive licences except
certifi, whose licence (MPL-2.0) applies to changes of its own files. A wheel of theirs may contain libraries in C with
licences of their own, which are in its `.dist-info` folder.

A test compares this page with the packages, and allows no other licence. Each release has this list as an SBOM
([Releasing](releasing.md#verify-a-release)).

| package | licence | needed by |
|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededPackage:
    """A package that pip installs with Lowtide. `requires` are normalized names."""

    name: str
    version: str
    licence: str
    requires: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainedWork:
    """A work of others that the wheel contains, as one file. `version` is None if only parts of it are there."""

    ecosystem: str
    namespace: str | None
    name: str
    version: str | None
    licence: str
    file: Path


def contained() -> tuple[ContainedWork, ...]:
    """Returns the works of others in the wheel."""
    _, uplot_version = (VENDOR / "uplot.version").read_text(encoding="utf-8").splitlines()[0].split()
    return (
        ContainedWork(
            ecosystem="npm",
            namespace=None,
            name="uplot",
            version=uplot_version,
            licence="MIT",
            file=VENDOR / "uplot.js",
        ),
        ContainedWork(
            ecosystem="golang",
            namespace="go.etcd.io/etcd/api",
            name="v3",
            version=None,
            licence="Apache-2.0",
            file=ROOT / "metadata" / "etcd_rpc.proto",
        ),
    )


def normalized(name: str) -> str:
    """Returns the name of a package as an index has it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(lines: list[str]) -> dict[str, NeededPackage]:
    """Returns the packages of these requirements, and what they require, by normalized name, sorted.

    Errors: PackageNotFoundError if one is not installed here, ValueError for an unknown or forbidden licence.
    """
    versions = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    pinned = {normalized(name): version for name, version in versions.items()}
    found: dict[str, NeededPackage] = {}
    left = [(requirement, frozenset(requirement.extras)) for requirement in map(Requirement, lines)]
    done = set()
    while left:
        requirement, extras = left.pop()
        name = normalized(requirement.name)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        package = metadata.distribution(requirement.name)
        required = [
            each
            for each in map(Requirement, package.requires or [])
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or {""})
        ]
        left += [(each, frozenset(each.extras)) for each in required]
        before = found[name].requires if name in found else frozenset()
        found[name] = NeededPackage(
            name=name,
            version=pinned.get(name, package.version),
            licence=licence_of(name, package.metadata),
            requires=before | {normalized(each.name) for each in required},
        )
    return dict(sorted(found.items()))


def licence_of(name: str, about: metadata.PackageMetadata) -> str:
    """Returns the licence as an SPDX expression. Errors: ValueError if it is unknown or not allowed."""
    classifiers = {each.rpartition(" :: ")[2] for each in about.get_all("Classifier", []) if each.startswith("License")}
    named = STATED.get(name) or about.get("License-Expression") or about.get("License")
    if named not in ALLOWED and not about.get("License-Expression") and name not in STATED:
        words = OTHER_NAMES.get(named or "") or (OTHER_NAMES.get(classifiers.pop()) if len(classifiers) == 1 else None)
        named = words or named
    if named and (set(re.split(r" AND | OR ", named)) <= ALLOWED or ALLOWED_FOR.get(name) == named):
        return named
    raise ValueError(f"the licence of {name} is unknown or not allowed: {named!r}")


def requirements() -> dict[str, list[str]]:
    """Returns the lines of pyproject.toml by who needs them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"Lowtide": project["dependencies"]} | {
        f"extra `{extra}`": project["optional-dependencies"][extra] for extra in EXTRAS
    }


def page() -> str:
    """Returns docs/licences.md."""
    rows: dict[str, tuple[str, list[str]]] = {}
    for user, lines in requirements().items():
        for name, package in needed(lines).items():
            users = rows.setdefault(name, (package.licence, []))[1]
            if "Lowtide" not in users:
                users.append(user)
    return PAGE + "".join(
        f"| {name} | {licence} | {', '.join(users)} |\n" for name, (licence, users) in sorted(rows.items())
    )


def bill(version: str, time_s: int) -> str:
    """Returns the SBOM of a release, as CycloneDX in JSON. `time_s` is its commit's."""
    # Only a release needs these packages.
    from cyclonedx.model import HashAlgorithm, HashType  # noqa: PLC0415
    from cyclonedx.model.bom import Bom, BomMetaData  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.model.license import LicenseExpression  # noqa: PLC0415
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    def component(
        url: PackageURL, licence: str, kind: ComponentType = ComponentType.LIBRARY, file: Path | None = None
    ) -> Component:
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest() if file else None
        return Component(
            name=f"{url.namespace}/{url.name}" if url.namespace else url.name,
            version=url.version,
            type=kind,
            purl=url,
            bom_ref=str(url),
            licenses=[LicenseExpression(licence)],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else (),
        )

    lines = requirements()["Lowtide"]
    packages = needed(lines)
    lowtide = component(PackageURL("pypi", None, "lowtide", version), OWN_LICENCE, ComponentType.APPLICATION)
    components = {
        each.name: component(PackageURL("pypi", None, each.name, each.version), each.licence)
        for each in packages.values()
    }
    works = [
        component(PackageURL(each.ecosystem, each.namespace, each.name, each.version), each.licence, file=each.file)
        for each in contained()
    ]
    made = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(lowtide.purl)),
        metadata=BomMetaData(component=lowtide, timestamp=datetime.fromtimestamp(time_s, UTC)),
        components=[*components.values(), *works],
    )
    required = [components[normalized(Requirement(line).name)] for line in lines]
    made.register_dependency(lowtide, [*required, *works])
    for each in packages.values():
        made.register_dependency(components[each.name], [components[name] for name in sorted(each.requires)])
    text = JsonV1Dot6(made).output_as_string(indent=2)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"the SBOM is invalid: {error}")
    return f"{text}\n"


def main(arguments: list[str]) -> None:
    """The command."""
    if arguments == ["page"]:
        print(page(), end="")
        return
    if len(arguments) != 2 or arguments[0] != "bill":
        sys.exit("usage: licences.py page | bill FOLDER")
    from wheels import commit_time  # noqa: PLC0415

    folder = Path(arguments[1])
    [sources] = folder.glob("lowtide-*.tar.gz")
    version = sources.name.removeprefix("lowtide-").removesuffix(".tar.gz")
    (folder / f"lowtide-{version}.cdx.json").write_text(bill(version, int(commit_time())), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
