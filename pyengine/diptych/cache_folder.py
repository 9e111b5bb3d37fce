"""Where Diptych keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/diptych`; a relative or missing XDG_CACHE_HOME means `~/.cache`, as its specification says."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "diptych"
