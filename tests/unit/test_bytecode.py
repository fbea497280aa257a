"""Brokers that tests start keep their bytecode, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bytecode import with_bytecode


def test_a_program_compiles_its_modules_once_and_not_beside_them(tmp_path: Path):
    """Also where the environment forbids it: a broker would compile hundreds of modules at each start."""
    (tmp_path / "one.py").write_text("", encoding="utf-8")
    env = with_bytecode({**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tmp_path)}, tmp_path / "kept")
    subprocess.run([sys.executable, "-c", "import one"], env=env, check=True)
    assert [path.name.partition(".")[0] for path in (tmp_path / "kept").rglob("one.*.pyc")] == ["one"]
    assert not (tmp_path / "__pycache__").exists()
