"""Prints the oldest versions that pyproject.toml allows, as constraints for pip: "jax>=0.10" becomes "jax==0.10"."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]:
    name, bound, marker = re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)(?:,<[\d.]+)?(;.*)?", requirement).groups()
    print(f"{name}=={bound}{marker or ''}")
