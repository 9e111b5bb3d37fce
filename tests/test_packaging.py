"""The shape of the repository: versions, import directions, sizes, and imports that stay cheap."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_scan import Function, code_lines, python_functions, rust_functions

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "diptych_core": ROOT / "rust/python/diptych_core",
    "diptych_kernels": ROOT / "kernels/diptych_kernels",
    "diptych": ROOT / "pyengine/diptych",
    "diptych_service": ROOT / "service/diptych_service",
}
MAY_IMPORT = {
    "diptych_core": set(),
    "diptych_kernels": {"diptych_core"},
    "diptych": {"diptych_core", "diptych_kernels"},
    # The service reaches the core through the engine alone.
    "diptych_service": {"diptych"},
}
SOURCE_FOLDERS = ("pyengine", "kernels", "service", "rust", "tests", "bench")


def sources(suffix: str) -> list[Path]:
    return sorted(path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob(f"*{suffix}"))


def toml(path: str) -> dict[str, object]:
    return tomllib.loads((ROOT / path).read_text())


def test_one_version_everywhere() -> None:
    import diptych
    import diptych_core
    import diptych_service

    version = toml("Cargo.toml")["workspace"]["package"]["version"]
    assert toml("pyproject.toml")["project"]["version"] == version
    assert toml("rust/pyproject.toml")["project"]["version"] == version
    assert diptych_core.__version__ == diptych.__version__ == diptych_service.__version__ == version
    assert f"diptych-core=={version}" in toml("pyproject.toml")["project"]["dependencies"]


def test_every_crate_takes_the_version_of_the_workspace() -> None:
    for member in toml("Cargo.toml")["workspace"]["members"]:
        assert toml(f"{member}/Cargo.toml")["package"]["version"] == {"workspace": True}, member


def test_at_most_twelve_direct_dependencies_and_torch_is_a_range() -> None:
    dependencies = toml("pyproject.toml")["project"]["dependencies"]
    assert len(dependencies) <= 12
    assert next(line for line in dependencies if line.startswith("torch")).startswith("torch>=")


# What a public call says by keyword, as the interface of the engine fixes it.
MANY_PARAMETERS = {"pyengine/diptych/async_engine.py chat"}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in PACKAGES[package].rglob("*.py*")
        if path.suffix in {".py", ".pyi"}
        for name in imports_of(path)
        if name in PACKAGES and name != package and name not in MAY_IMPORT[package]
    ]
    assert not wrong


def test_core_text_and_kernels_depend_on_nothing_of_ours() -> None:
    allowed = {
        **{"rust/core": set(), "rust/text": set(), "kernels/cpu": set()},
        "rust/eventlog": {"diptych-core"},
        "rust/runtime": {"diptych-core", "diptych-eventlog", "diptych-text"},
        "rust/sim": {"diptych-core"},
    }
    for crate, ours in allowed.items():
        dependencies = toml(f"{crate}/Cargo.toml").get("dependencies", {})
        assert {name for name in dependencies if name.startswith("diptych")} <= ours, crate


@pytest.mark.parametrize("folder", ["pyengine", "kernels", "service", "tests", "bench"])
def test_no_package_where_it_would_shadow_another(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_unsafe_stays_in_runtime_and_bindings() -> None:
    allowed = (ROOT / "rust/runtime", ROOT / "rust/python", ROOT / "kernels/cpu")
    found = [
        path.relative_to(ROOT)
        for path in sources(".rs")
        if not any(path.is_relative_to(folder) for folder in allowed)
        and re.search(r"\bunsafe\s*(\{|fn|impl)", path.read_text())
    ]
    assert not found


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for suffix in (".py", ".rs")
        for path in sources(suffix)
        if (lines := code_lines(path.read_text(), suffix)) > 400
    }
    assert not long


def functions() -> Iterator[tuple[str, Function]]:
    for suffix, scan in ((".py", python_functions), (".rs", rust_functions)):
        for path in sources(suffix):
            for function in scan(path.read_text()):
                yield str(path.relative_to(ROOT)), function


def test_functions_are_short() -> None:
    assert not [f"{path}:{function}" for path, function in functions() if function.lines > 60]


def test_functions_take_few_parameters() -> None:
    many = {f"{path} {function.name}" for path, function in functions() if function.parameters > 6}
    assert many == MANY_PARAMETERS


def test_the_scanner_sees_what_it_should() -> None:
    rust = (
        "fn first<const N: usize>(a: [u8; 3], f: impl Fn(u8, u8) -> u8) -> u8 {\n"
        '    let s = "}";\n    a[0]\n}\n'
        "fn second() {}\n"
    )
    assert [(f.name, f.lines, f.parameters) for f in rust_functions(rust)] == [("first", 4, 2), ("second", 1, 0)]
    python = "class A:\n    def f(self, a, *b, c=1, **d):\n        pass\n"
    assert [(f.name, f.lines, f.parameters) for f in python_functions(python)] == [("f", 2, 4)]
    assert code_lines('"""Two\nlines."""\n\n# why\nx = 1\n', ".py") == 1
    assert code_lines("//! doc\n/* a\nb */\nfn f() {} // x\n", ".rs") == 1


def test_public_names_are_few() -> None:
    import diptych_core.engine
    import diptych_core.kernels
    import diptych_core.sim
    import diptych_core.text
    import diptych_core.worker

    core = diptych_core
    for module in (core, core.engine, core.kernels, core.sim, core.text, core.worker):
        assert len(module.__all__) <= 16, module.__name__
    lib = (ROOT / "rust/core/src/lib.rs").read_text()
    assert len(public_names(lib)) <= 15


def public_names(lib: str) -> list[str]:
    """Names that `pub use` lines of a crate root export in a build that serves: none that a feature adds."""
    lib = re.sub(r"^#\[cfg\(feature = [^\n]*\n[^\n]*\n", "", lib, flags=re.MULTILINE)
    exported = re.findall(r"^pub use [\w:]+::(?:\{([^}]*)\}|(\w+));", lib, flags=re.MULTILINE | re.DOTALL)
    return [name.strip() for group, single in exported for name in (group or single).split(",") if name.strip()]


# --- Importing is free of side effects ---

PROBE = """
import os, signal, sys, threading
signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
environment = dict(os.environ)
def native_threads():
    return len(os.listdir("/proc/self/task"))
before = native_threads()
import %s
assert dict(os.environ) == environment, "the environment changed"
assert {n: signal.getsignal(n) for n in signal.valid_signals()} == signals, "a signal handler changed"
assert native_threads() == before, f"{native_threads() - before} threads were started"
assert threading.active_count() == 1
heavy = [name for name in ("torch", "transformers", "triton", "numpy") if name in sys.modules]
assert not heavy, f"imported {heavy}"
print(len(sys.modules))
"""


@pytest.mark.parametrize(
    ("module", "most_modules"),
    [("diptych_core.engine", 120), ("diptych", 500), ("diptych_service", 1000), ("diptych_service.cli", 1000)],
)
def test_importing_changes_nothing_and_stays_cheap(module: str, most_modules: int) -> None:
    """Reports E5: threads, environment and signals as before; neither torch nor transformers; few modules."""
    probe = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", PROBE % module], capture_output=True, text=True, timeout=60
    )
    assert probe.returncode == 0, probe.stderr
    assert int(probe.stdout) <= most_modules
