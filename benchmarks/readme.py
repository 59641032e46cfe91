"""Regenerates what the README shows: the output of its `$ memsim ...` lines and its tables.

    python benchmarks/readme.py           rewrite README.md
    python benchmarks/readme.py --check   exit 1 if README.md is out of date

A ```console block is run again line by line; a table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_TABLE = re.compile(r"<!-- begin (\w+) -->\n(.*?)<!-- end \1 -->", re.DOTALL)


def _commands(block: str) -> list[str]:
    """Return the commands of a console block; a line that ends with a backslash goes on in the next."""
    commands: list[str] = []
    going_on = False
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append(line)
        elif going_on:
            commands[-1] += "\n" + line
        going_on = bool(commands) and line.endswith("\\") and (line.startswith("$ ") or going_on)
    return commands


def _run(command: str) -> str:
    words = shlex.split(command.removeprefix("$ ").removeprefix("pip install . && ").replace("\\\n", " "))
    if words[0] != "memsim":
        return ""
    process = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"}
    )
    # What begins is told on stderr, and only where nothing is kept yet.
    notes = [line for line in process.stderr.splitlines(keepends=True) if not line.startswith("memsim: ")]
    return process.stdout + "".join(notes)


def _console(match: re.Match[str]) -> str:
    return "```console\n" + "".join(f"{command}\n{_run(command)}" for command in _commands(match[1])) + "```"


def optimizer_table() -> str:
    """Return a Markdown table of every optimizer name, from the rules themselves."""
    from memsim.cli.optimizers import optimizer_rows

    lines = ["| optimizer | class | bytes per parameter | on the host | package | state |", "|---|---|---|---|---|---|"]
    for row in optimizer_rows():
        device = "-" if row["device"] is None else f"{row['device']:.4f}"
        host = "-" if row["host"] is None else f"{row['host']:.4f}"
        state = "exact" if row["compared"] else f"read only: {row['not_run']}"
        lines.append(
            f"| `{row['optimizer']}` | `{row['class_path']}` | {device} | {host} | {row['package']} | {state} |"
        )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"optimizers": optimizer_table}


def regenerated(text: str) -> str:
    """Return the README with every console block and table made anew."""
    text = _CONSOLE.sub(_console, text)
    return _TABLE.sub(lambda m: f"<!-- begin {m[1]} -->\n{TABLES[m[1]]()}<!-- end {m[1]} -->", text)


def main() -> int:
    """Rewrite README.md, or compare it."""
    parser = argparse.ArgumentParser(description="Regenerate the README's outputs.")
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    old = README.read_text(encoding="utf-8")
    new = regenerated(old)
    if check:
        if new != old:
            print("README.md is out of date: run python benchmarks/readme.py", file=sys.stderr)
        return int(new != old)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
