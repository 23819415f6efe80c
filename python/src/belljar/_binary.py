"""Finds the ``belljar`` program."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from .errors import BinaryNotFound

_ADVICE = """the program 'belljar' was not found. One of these fixes it:
  pip install .                                 in a clone: compiles it into the package (needs Rust)
  cargo install --path crates/cli               in a clone: installs it on the PATH (needs Rust)
  export BELLJAR_BIN=/path/to/belljar           uses an existing program
  export BELLJAR_SERVER=http://HOST:7117        uses a server instead, with its key in BELLJAR_API_KEY"""


def find_binary() -> str:
    """Returns the program in ``BELLJAR_BIN``, else the one installed with this package, else the one on ``PATH``."""
    if named := os.environ.get("BELLJAR_BIN"):
        if not os.access(named, os.X_OK):
            raise BinaryNotFound(f"BELLJAR_BIN: {named!r} is not an executable file")
        return named
    beside = [Path(sysconfig.get_path("scripts", scheme)) / "belljar" for scheme in _schemes()]
    for path in beside:
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("belljar")
    if found is None:
        raise BinaryNotFound(_ADVICE)
    return found


def _schemes() -> list[str]:
    return [scheme for scheme in ("posix_prefix", "posix_user") if scheme in sysconfig.get_scheme_names()]
