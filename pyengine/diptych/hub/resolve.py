"""From what the user calls a model to the folder that holds it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from diptych.errors import ModelError
from diptych.hub.gguf_file import open_gguf
from diptych.hub.known import KNOWN_MODELS
from diptych.hub.pull import pull
from diptych.models.config import PACKED_WEIGHTS

# Weights, configuration and tokenizer; never the same weights again in another format.
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
HUB_IGNORED = ["*/*", "consolidated*"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_model(model: str, revision: str | None = None, *, progress: bool = False, weights: bool = True) -> Path:
    """The local folder of `model`: a known name, a folder, a GGUF file, or a Hugging Face id at `revision`.

    What is missing is fetched; a GGUF file gets a folder in the cache. Written as a path (`./name`), a folder wins over
    a known name. `progress` goes to standard error; embedders leave it
    off. `weights` false: the folder need hold none (they are fetched all the same). Blocks on disk and network. Raises
    `ModelError`.
    """
    if model in KNOWN_MODELS:
        _no_revision(model, revision, "a known name")
        return pull(model, progress=progress)
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        _no_revision(model, revision, "a local folder")
        return _checked(folder.resolve(), model, weights)
    if folder.suffix == ".gguf" and folder.is_file():
        _no_revision(model, revision, "a local file")
        return open_gguf(folder)
    if model.startswith(("/", "./", "../", "~")) or _HUB_ID.fullmatch(model) is None:
        raise ModelError(
            f"no model {model!r}: no such folder or GGUF file, and neither a known name "
            f"({', '.join(sorted(KNOWN_MODELS))}) nor a Hugging Face id (owner/name)"
        )
    return _checked(_from_hub(model, revision, progress), model, weights)


def _no_revision(model: str, revision: str | None, what: str) -> None:
    if revision is not None:
        raise ModelError(f"revision={revision!r} has no meaning for {model!r}, which is {what}; leave it out")


def _checked(folder: Path, model: str, weights: bool) -> Path:
    names = set(os.listdir(folder))
    missing = [name for name in ("config.json", "tokenizer.json") if name not in names]
    if weights and not any(name.endswith((".safetensors", ".gguf")) or name == PACKED_WEIGHTS for name in names):
        missing.append("*.safetensors")
    if missing:
        raise ModelError(f"the model {model!r} cannot be used: {folder} holds no {', no '.join(missing)}")
    return folder


def _from_hub(model: str, revision: str | None, progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f" at revision {revision!r}" if revision else ""
    try:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=HUB_FILES,
                ignore_patterns=HUB_IGNORED,
                tqdm_class=None if progress else _quiet_tqdm(),
            )
        )
    except GatedRepoError as error:
        raise ModelError(f"the model {model!r} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"the model {model!r} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"no model {model!r}: no folder, no known name, none on the hub that you may read") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(f"the model {model!r}{at} is not in the cache and the hub cannot be reached") from error
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise ModelError(f"cannot fetch the model {model!r}{at} from the hub: {reason}") from error


def _quiet_tqdm() -> type:
    from huggingface_hub.utils.tqdm import tqdm

    class Quiet(tqdm):
        def __init__(self, *args: object, **options: object) -> None:
            options["disable"] = True
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    return Quiet
