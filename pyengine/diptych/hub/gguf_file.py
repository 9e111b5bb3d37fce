"""A GGUF file as a model folder: what the file says of itself, written out once, and a link to the file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from diptych.cache_folder import cache_root
from diptych.hub.cache import exclusive, is_whole, publish, workspace, write_manifest

# Raised when the folder's files are written otherwise than before: cached ones are then made again.
DESCRIPTION = 1


def open_gguf(file: Path) -> Path:
    """The folder, in the cache, of the model in a GGUF file. Its weights are the file's own. Raises `ModelError`."""
    file = file.resolve()
    name = f"{file.stem}-{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    final, origin = cache_root() / "models" / name, _origin(file)
    if is_whole(final, origin):
        return final
    with exclusive(name, lambda: None) as models:
        if not is_whole(final, origin):
            with workspace(models, name) as scratch:
                folder = scratch / "folder"
                folder.mkdir()
                from diptych.hub.gguf_folder import describe

                describe(file, folder)
                (folder / file.name).symlink_to(file)
                write_manifest(folder, origin)
                publish(folder, final, scratch)
    return final


def _origin(file: Path) -> dict[str, object]:
    about = file.stat()
    return {"description": DESCRIPTION, "file": str(file), "size": about.st_size, "changed": about.st_mtime_ns}
