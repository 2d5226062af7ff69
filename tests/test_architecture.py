"""Each module imports only from those above it, and nothing imports what this library must not depend on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import adakern

ROOT = Path(adakern.__file__).parent

# Top to bottom. A module may import from the groups above its own; `name.*` is a package, whose modules may import each other.
ORDER = (
    ("errors", "_version", "floors"),
    ("checks",),
    ("precision", "memory", "progress", "files", "averages", "chebyshev"),
    ("momentum", "checkpoints"),
    ("quadrature",),
    ("activations.*",),
    ("losses",),
    ("networks",),
    ("linalg",),
    ("inputs",),
    ("recursion",),
    ("recursion_cnn",),
    ("limits.*",),
    ("deep_linear.*",),
    ("extension",),
    ("extension_vga", "extension_rest", "extension_rest_cnn", "extension_cnn", "extension_images"),
    ("solvers.*",),
    ("renormalization", "linear", "perturbing.*"),
    ("collapsing",),
    ("storage",),
    ("trajectories.*",),
    ("space",),
    ("solution",),
    ("loading",),
    ("solving",),
    ("metrics",),
    ("estimators",),
    ("readings",),
    ("plot.*", "report.*"),
    ("benchmarks.*",),
    ("figures.*",),
    ("cli.*",),
    ("__main__",),
)
# Beside the order: what these packages may import apart from themselves.
BESIDE = {
    "datasets.*": ("errors", "checks"),
    "finite.*": (*(name for group in ORDER[:8] for name in group),),
}
# Who may import them.
READERS = {
    "datasets.*": ("estimators", "plot.*", "benchmarks.*", "figures.*", "cli.*"),
    "finite.*": ("loading", "readings", "plot.*", "benchmarks.*", "figures.*", "cli.*"),
}

WHOLE = ("plot.*", "benchmarks.*", "figures.*", "cli.*")  # may `import adakern` itself, as a user does

FORBIDDEN = ("jax.core", "jax._src", "tensorflow", "neural_tangents", "jaxopt")
UNPICKLES = ("datasets.batches",)  # the official CIFAR-10 files are pickles


def unit(module: str) -> str | None:
    """The entry of the order that a module (`solvers.closed`, without the leading `adakern`) belongs to."""
    known = [name for group in ORDER for name in group] + list(BESIDE)
    for name in known:
        if module == name or (name.endswith(".*") and (module + ".").startswith(name[:-1])):
            return name
    return None


def allowed(module: str) -> set[str]:
    own = unit(module)
    if own is None:
        return set()
    result = {own} if own.endswith(".*") else set()
    if own in BESIDE:
        return result | set(BESIDE[own])
    for group in ORDER:
        if own in group:
            break
        result |= set(group)
    return result | {name for name, readers in READERS.items() if own in readers}


def imports(source: str, module: str, is_package: bool) -> set[str]:
    """Full dotted names of everything a source imports, inside functions too; `from a import b` gives `a` and `a.b`."""
    found = set()
    parts = ["adakern", *(module.split(".") if module else [])]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*up, base] if base else up)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def complaints(source: str, module: str, known: set[str], is_package: bool = False) -> list[str]:
    names = imports(source, module, is_package)
    result = []
    if unit(module) not in WHOLE and not _only_modules(source, known):
        result.append(f"{module} imports the whole of adakern")
    for name in sorted(names):
        if any((name + ".").startswith(bad + ".") for bad in FORBIDDEN):
            result.append(f"{module} imports {name}")
        if name.split(".")[0] in ("pickle", "dill", "cloudpickle", "joblib") and module not in UNPICKLES:
            result.append(f"{module} imports {name}")
        inner = name.removeprefix("adakern.")
        if name.split(".")[0] == "adakern" and inner in known and module:
            target = unit(inner)
            if target is None or target not in allowed(module):
                result.append(f"{module} imports {name}, which is not above it")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.endswith("config.update") and ("jax" in text or text == "config.update"):
                result.append(f"{module} calls {text}")
            if any(text == bad or text.startswith(bad + ".") for bad in FORBIDDEN):
                result.append(f"{module} uses {text}")
    return result


def _only_modules(source: str, known: set[str]) -> bool:
    """Whether every `from adakern import name` names a module, and there is no plain `import adakern`."""
    whole = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            whole |= {alias.name for alias in node.names if alias.name == "adakern"}
        if isinstance(node, ast.ImportFrom) and node.module == "adakern" and not node.level:
            whole |= {alias.name for alias in node.names} - known
    return not whole


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


MODULES = modules()


def test_every_module_has_its_place():
    assert [name for name in MODULES if name and unit(name) is None] == []


@pytest.mark.parametrize("module", list(MODULES), ids=lambda name: name or "adakern")
def test_imports(module):
    path = MODULES[module]
    assert complaints(path.read_text(encoding="utf-8"), module, set(MODULES), path.name == "__init__.py") == []


KNOWN = {
    "errors",
    "checks",
    "linalg",
    "networks",
    "solving",
    "solvers.closed",
    "solvers.particles",
    "solvers",
    "limits",
}
KNOWN |= {"limits.base", "datasets", "datasets.order", "finite", "finite.flow", "estimators", "storage", "losses"}


@pytest.mark.parametrize(
    "module, source",
    [
        ("linalg", "from adakern import solving"),
        ("linalg", "from adakern.solving import solve"),
        ("linalg", "import adakern.solving as s"),
        ("linalg", "def f():\n    from adakern.solvers import closed\n"),
        ("linalg", "from . import solving"),
        ("linalg", "from .solving import solve"),
        ("linalg", "import adakern"),
        ("linalg", "from adakern import solve"),
        ("linalg", "if True:\n    import jax.core\n"),
        ("linalg", "from jax._src import pjit"),
        ("linalg", "from jax import core"),
        ("linalg", "import jax\nx = jax._src.core"),
        ("linalg", "import tensorflow as tf"),
        ("linalg", "import neural_tangents.stax"),
        ("linalg", "from jaxopt import LBFGS"),
        ("linalg", "import pickle"),
        ("linalg", "import jax\njax.config.update('jax_enable_x64', True)"),
        ("linalg", "from jax import config\nconfig.update('jax_enable_x64', True)"),
        ("limits.base", "from ..solvers import closed"),
        ("solvers.closed", "from adakern.datasets import order"),
        ("datasets.order", "from adakern import linalg"),
        ("datasets.order", "from adakern.networks import MLP"),
        ("finite.flow", "from adakern.solvers import closed"),
        ("finite.flow", "from adakern.limits.base import Limit"),
        ("solvers.closed", "from adakern.finite import flow"),
        ("storage", "from adakern.estimators import AdaptiveKernelRegressor"),
    ],
)
def test_the_check_catches_violations(module, source):
    assert complaints(source, module, KNOWN) != []


@pytest.mark.parametrize(
    "module, source",
    [
        ("solving", "from adakern.solvers import closed\nfrom adakern import checks, linalg"),
        ("solvers.closed", "from adakern.solvers import particles\nfrom . import particles"),
        ("finite.flow", "from adakern import losses\nfrom adakern.networks import MLP"),
        ("estimators", "from adakern import datasets"),
        ("cli.fit", "import adakern as ak\nfrom adakern import solve"),
        ("datasets.order", "from adakern.errors import FileFormatError"),
        ("linalg", "import jax\nimport jax.numpy as jnp\nstats = {}\nstats.update(a=1)"),
        ("datasets.batches", "import pickle"),
    ],
)
def test_the_check_lets_others_pass(module, source):
    assert complaints(source, module, KNOWN) == []


def test_an_unknown_module_is_noticed():
    assert unit("magic") is None and unit("solversx") is None
    assert unit("solvers") == unit("solvers.closed") == "solvers.*"
