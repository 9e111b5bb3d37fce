"""What is installed, for bug reports and for whoever compares measurements."""

from __future__ import annotations

from typing import NamedTuple

import diptych_core
from diptych import __version__


class Versions(NamedTuple):
    """Versions of both distributions, and whether the native code was built for `release` or `debug`."""

    diptych: str
    diptych_core: str
    build_profile: str


def versions() -> Versions:
    return Versions(__version__, diptych_core.__version__, diptych_core.build_profile)
