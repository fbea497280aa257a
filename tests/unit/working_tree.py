"""`bench` is a folder of the working tree, not a package that is installed: it is loaded from there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "bench"

if "bench" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "bench", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench"] = module
    spec.loader.exec_module(module)
