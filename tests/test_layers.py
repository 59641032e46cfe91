"""The layers of the design, held over the source itself: a module imports only from what stands above it."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "memsim"

# From the top: each may import itself and anything above it. A name covers the modules below it unless they stand
# apart (`report.frames` knows nothing of results, `report` renders them).
ORDER = (
    ("errors",),
    ("units", "tensors", "files", "typed"),
    ("model", "config", "ledger", "gpus", "cuda_context"),
    ("optimizers", "catalog"),
    ("block_sizes",),
    ("allocator",),
    ("step",),
    ("snapshot_file",),
    ("simulation",),
    ("imaginary_gpu",),
    ("record", "prediction"),
    ("resolve", "live", "built_optimizer", "report.frames"),
    ("results", "comparison"),
    ("dry_run.result", "snapshot", "comparing", "whole_step"),
    ("simulated_run", "programs"),
    ("saved",),
    ("estimator", "dry_run", "snapshot", "report"),
    ("simulator",),
    ("integrations",),
    ("verifying",),
    ("cli",),
)
ROWS = {name: row for row, names in enumerate(ORDER) for name in names}


def row_of(module: str) -> tuple[int, str] | None:
    """Return the row and the name that a module (`memsim.report.frames`) belongs to."""
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in ROWS:
            return ROWS[name], name
    return None


def imports(source: str) -> set[str]:
    """Return every memsim module that a source imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in found if name == "memsim" or name.startswith("memsim.")}


def violations(module: str, source: str) -> list[str]:
    own = row_of(module)
    if own is None:
        return [f"{module} stands in no row"]
    found = []
    for name in sorted(imports(source)):
        target = row_of(name)
        if target is not None and target[0] >= own[0] and target[1] != own[1]:
            found.append(f"{module} (row {own[0]}) imports {name} (row {target[0]})")
    return found


def modules() -> dict[str, str]:
    result = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("memsim", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in {"memsim", "memsim.__main__"}:
            result[name] = path.read_text(encoding="utf-8")
    return result


def outside_imports(source: str, *, top_only: bool = False) -> set[str]:
    tree = ast.parse(source)
    guarded = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    nodes = tree.body if top_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_a_module_imports_only_from_the_rows_above_its_own():
    assert [v for name, source in modules().items() for v in violations(name, source)] == []


def test_a_violation_would_be_seen():
    assert violations("memsim.tensors", "from memsim.cli import main") != []
    assert violations("memsim.catalog", "def f():\n    import memsim.resolve.hub") != []
    assert violations("memsim.nowhere", "") != []
    assert violations("memsim.cli.estimate", "from memsim import catalog") == []


def test_torch_and_the_network_are_imported_only_where_the_design_says():
    allowed = {
        "torch": ("memsim.record", "memsim.verify", "memsim.integrations"),
        "transformers": ("memsim.record", "memsim.verify", "memsim.integrations"),
        "peft": ("memsim.record",),
        "accelerate": ("memsim.record",),
        "bitsandbytes": ("memsim.record",),
        "pandas": ("memsim.report",),
        "matplotlib": ("memsim.report.chart_png",),
        "huggingface_hub": ("memsim.resolve",),
        "requests": ("memsim.resolve",),
        "httpx": ("memsim.resolve",),
    }
    wrong = [
        f"{name} imports {package}"
        for name, source in modules().items()
        for package in outside_imports(source)
        if package in allowed and not name.startswith(allowed[package])
    ]
    assert wrong == []
    assert outside_imports("def f():\n    import torch.nn") == {"torch"}


def test_heavy_packages_are_never_imported_at_the_top_of_a_module():
    heavy = {"torch", "transformers", "pandas", "numpy", "huggingface_hub", "pyarrow", "openpyxl", "matplotlib"}
    wrong = {name: outside_imports(source, top_only=True) & heavy for name, source in modules().items()}
    assert {name: found for name, found in wrong.items() if found} == {}
