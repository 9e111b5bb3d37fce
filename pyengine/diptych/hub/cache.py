"""The cache folder: one writer at a time, and a folder is either whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from diptych.cache_folder import cache_root

MANIFEST = "diptych.json"


@contextlib.contextmanager
def exclusive(name: str, waiting: Callable[[], None]) -> Iterator[Path]:
    """Hold the lock of `name` under `models/` and yield that folder. `waiting` is called once if another holds it.

    The kernel drops the lock when its holder dies, so whatever unfinished work lies there afterwards is nobody's.
    """
    models = cache_root() / "models"
    models.mkdir(parents=True, exist_ok=True)
    with open(models / f".{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_stale(models, name)
        yield models


@contextlib.contextmanager
def workspace(models: Path, name: str) -> Iterator[Path]:
    """A temporary folder on the same file system as its final place, gone afterwards whatever happens."""
    folder = models / f".tmp-{name}-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(built: Path, final: Path, scratch: Path) -> None:
    """Put `built` in the place of `final` by renames; an older `final` goes to `scratch` and with it."""
    for file in built.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    if final.exists():
        final.rename(scratch / "replaced")
    built.rename(final)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest, or None if the folder is not one that a finished conversion left behind."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def is_whole(folder: Path, expected: dict[str, Any]) -> bool:
    """Whether `folder` holds what its manifest lists, made from `expected` (a subset of the manifest)."""
    manifest = read_manifest(folder)
    if manifest is None or any(manifest.get(key) != value for key, value in expected.items()):
        return False
    files = manifest.get("files", {})
    return bool(files) and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in files.items()
    )


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({**content, "files": files}, indent=2) + "\n")


def _remove_stale(models: Path, name: str) -> None:
    for leftover in models.glob(f".tmp-{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
