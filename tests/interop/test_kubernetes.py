"""The Kubernetes manifest against the schemas of the oldest supported and the newest known version."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is missing: make interop installs it"
)

pytestmark = pytest.mark.interop

MANIFEST = Path(__file__).resolve().parents[2] / "packaging/kubernetes/lowtide.yaml"
OLDEST = "1.28"


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_the_manifest_is_valid(version: str) -> None:
    """Strictly: a field that the API doesn't have is an error."""
    parts = list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))
    assert len(parts) == 6
    for part in parts:
        kubernetes_validate.validate(part, version, strict=True)
    parts[-1]["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(parts[-1], version, strict=True)
