"""Where the program ``belljar`` is."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from .errors import BinaryNotFound

_ADVICE = """the program 'belljar' is not here. One of these brings it:
  pip install .                                 from a clone: compiles it into the package (needs Rust)
  cargo install --path crates/cli               from a clone: puts it on the PATH (needs Rust)
  export BELLJAR_BIN=/path/to/belljar           where there is one already
  export BELLJAR_SERVER=http://HOST:7117        uses a server instead, with its key in BELLJAR_API_KEY"""


def find_binary() -> str:
    """What ``BELLJAR_BIN`` says, the one that came with this package, or the one on the ``PATH``."""
    if named := os.environ.get("BELLJAR_BIN"):
        if not os.access(named, os.X_OK):
            raise BinaryNotFound(f"BELLJAR_BIN: {named!r} is no program that can be run")
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
