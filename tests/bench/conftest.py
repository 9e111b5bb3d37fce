"""The programs of `bench` are run from their folder; its one package is imported from there."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
