"""Write the catalog's files anew: build every model with transformers on the meta device and fold its tables.

    python models_catalog/regenerate.py [--facts FILE.jsonl] [--only SUBSTRING]

Facts (configuration, sources, published count) come from FILE.jsonl, one model a line, or from the files themselves.
Needs torch and transformers; takes minutes, no network, no weights. The result depends on the facts and on the versions
of torch and transformers, which index.json records; running it again changes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memsim.catalog.folding import KEPT_IN_FLOAT32, NUM_LABELS, Leaf, Node, Row, canonical, fold
from memsim.errors import ModelError
from memsim.model import ParameterTable
from memsim.record.architecture import tasks_of
from memsim.record.meta import BuiltModel, build_from_config
from memsim.tensors import Shape

FOLDER = Path(__file__).resolve().parent
INDEX = "index.json"
FLOAT32 = "float32.json"
"""Written by float32.py beside this file."""
OTHER_NUM_LABELS = 7
"""A number of labels that no model of the catalog has, to see which sizes follow it."""
LABEL_TASKS = frozenset(
    [
        "pretraining",
        "sequence-classification",
        "token-classification",
        "question-answering",
        "multiple-choice",
        "next-sentence-prediction",
        "image-classification",
        "semantic-segmentation",
        "ctc",
        "audio-classification",
        "audio-frame-classification",
        "audio-xvector",
    ]
)
"""Tasks whose classes read `num_labels`."""
KEPT_FACTS = ("aliases", "dtype", "facts", "source", "source2", "note", "keys_not_read", "confirmation", "proxy")
SHARED_LENGTH = 60
"""Subtrees shorter than this stay where they are."""

Facts = dict[str, Any]


def main() -> None:
    """Regenerate the files that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--facts", type=Path, help="JSON lines, one model each; default: the catalog's own files")
    parser.add_argument("--only", default="", help="only the model types of models whose id contains this")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    facts = [_from_line(json.loads(line)) for line in options.facts.open()] if options.facts else list(_own_facts())
    chosen = {f["config"]["model_type"] for f in facts if options.only in f["id"]}
    builder = TableBuilder()
    for model_type in sorted(chosen):
        models = [f for f in facts if f["config"]["model_type"] == model_type]
        entries = {f["id"]: _entry(f, builder) for f in sorted(models, key=lambda f: str(f["id"]).casefold())}
        path = FOLDER / f"{model_type}.json"
        path.write_text(_file_text(entries), encoding="utf-8")
        print(f"{path.name}: {len(entries)} models, {path.stat().st_size:,} bytes", file=sys.stderr)
    (FOLDER / INDEX).write_text(_index_text(facts), encoding="utf-8")


def _from_line(line: Facts) -> Facts:
    """Return one line of the gathered facts in the form of a catalog entry, without what is derived from the model."""
    kept = {key: line[key] for key in ("id", "config", *KEPT_FACTS) if key in line}
    kept["model_class"] = line["task_class"]
    kept["num_parameters"] = line.get("params_as_loaded", line["params_meta_count"])
    if "params_as_loaded" in line:
        kept["untied"] = ["lm_head.weight"]
    if "params_base" in line:
        kept["num_parameters_base"] = line["params_base"]["count"]
    if "params_published" in line:
        kept["published"] = {
            "num_parameters": line["params_published"],
            "match": _match(line),
            "source": line["published_source"],
        }
    return kept


def _match(line: Facts) -> str:
    """Return how the published number relates to the count as loaded; a line compares it with the count as built."""
    match = str(line["published_match"])
    if "params_as_loaded" in line and match == "equal":
        return "equal when lm_head is tied to the embedding, which the checkpoint does not do"
    if match.startswith("plus the untied lm_head"):
        return "equal as loaded: the checkpoint holds an lm_head of its own"
    return match


def _own_facts() -> Iterator[Facts]:
    for path in sorted(FOLDER.glob("*.json")):
        if path.name not in (INDEX, FLOAT32):
            for model, entry in json.loads(path.read_text(encoding="utf-8"))["models"].items():
                yield {"id": model, **entry}


def _entry(facts: Facts, builder: TableBuilder) -> Facts:
    """Return the catalog entry of one model, its tables not shared yet."""
    tables, task = builder.tables(facts)
    counted = builder.num_parameters(tables[task], facts)
    if counted != facts["num_parameters"]:
        raise SystemExit(f"{facts['id']}: {counted:,} parameters were built, the facts say {facts['num_parameters']:,}")
    entry = {"config": facts["config"], "model_class": facts["model_class"], "task": task}
    entry |= {key: facts[key] for key in KEPT_FACTS if key in facts}
    entry |= {"num_labels": builder.num_labels(facts), "num_parameters": counted}
    entry |= {key: facts[key] for key in ("num_parameters_base", "published", "untied") if key in facts}
    entry["assumptions"] = _assumptions(facts)
    entry["tables"] = {name: tables[name].as_json() for name in tables}
    return entry


@dataclass(frozen=True, slots=True)
class Table:
    """The table of one class."""

    model_class: str
    parameters: list[Row]
    buffers: list[Row]
    labels_fixed: bool
    """Whether the class refuses any number of labels but its configuration's."""

    def as_json(self) -> Node:
        """Return what a catalog file holds of it, nothing shared yet."""
        fixed = {"num_labels_fixed": True} if self.labels_fixed else {}
        buffers = fold(self.buffers) if self.buffers else {}
        return {"class": self.model_class, **fixed, "parameters": fold(self.parameters), "buffers": buffers}


class TableBuilder:
    """Builds tables, each distinct configuration once."""

    def __init__(self) -> None:
        self._built: dict[str, tuple[dict[str, Table], str]] = {}

    def tables(self, facts: Facts) -> tuple[dict[str, Table], str]:
        """Return the tables of every task, the model's own first, and the name of its own task."""
        config = _buildable(facts)
        key = json.dumps([config, facts.get("untied"), "proxy" in facts], sort_keys=True)
        if key not in self._built:
            self._built[key] = self._build(config, facts)
        tables, task = self._built[key]
        if "proxy" not in facts:
            return tables, task
        return {task: replace(tables[task], model_class=facts["model_class"]), "base": tables["base"]}, task

    def num_labels(self, facts: Facts) -> int:
        """Return the number of labels that the configuration itself gives."""
        from transformers import CONFIG_MAPPING

        config = _buildable(facts)
        return int(getattr(CONFIG_MAPPING[config["model_type"]].from_dict(dict(config)), "num_labels", None) or 2)

    def num_parameters(self, table: Table, facts: Facts) -> int:
        """Return the elements of all unique parameters."""
        labels = self.num_labels(facts)
        total = 0
        for _, leaf in table.parameters:
            if leaf.tied_to is None:
                elements = 1
                for size in leaf.shape:
                    elements *= labels if size == NUM_LABELS else int(size)
                total += elements
        return total

    def _build(self, config: Facts, facts: Facts) -> tuple[dict[str, Table], str]:
        own = build_from_config(config, task=None, dtype="bfloat16")
        if not own.task:
            raise SystemExit(f"{facts['id']}: no task of memsim leads to {own.model_class}")
        untied = facts.get("untied", ())
        tables = {own.task: self._table(config, own, None, untied)}
        for task in tasks_of(config["model_type"]):
            if task != own.task:
                built = build_from_config(config, task=task, dtype="bfloat16")
                tables[task] = self._table(config, built, task, untied)
        return tables, own.task

    def _table(self, config: Facts, built: BuiltModel, task: str | None, untied: Iterable[str]) -> Table:
        in_float16 = build_from_config(config, task=task, dtype="float16").table
        labels = OTHER_NUM_LABELS if built.task in LABEL_TASKS else None
        labels_fixed = False
        try:
            in_float64 = build_from_config(config, task=task, dtype="float64", num_labels=labels).table
        except ModelError:  # DistilBertForQuestionAnswering accepts two labels only
            labels_fixed = True
            in_float64 = build_from_config(config, task=task, dtype="float64").table
        parameters, buffers = _rows(built.table, in_float16, in_float64)
        apart = {name: leaf for name, leaf in parameters if name in untied}
        for name, leaf in apart.items():
            shapes = dict(parameters)[str(leaf.tied_to)]
            apart[name] = replace(leaf, tied_to=None, shape=shapes.shape, dtype=shapes.dtype)
        parameters = [(name, apart.get(name, leaf)) for name, leaf in parameters]
        return Table(built.model_class, parameters, buffers, labels_fixed)


def _buildable(facts: Facts) -> Facts:
    """Return the configuration that transformers can build, with the class that the model's own `config.json` names."""
    proxy = facts.get("proxy")
    config = {**facts["config"], "architectures": [proxy["cls"] if proxy else facts["model_class"]]}
    config.pop("dtype", None)
    if proxy:
        config["model_type"] = proxy["model_type"]
    return config


def _rows(table: ParameterTable, in_float16: ParameterTable, in_float64: ParameterTable) -> tuple[list[Row], list[Row]]:
    """Return the rows of one model built in bfloat16, in float16, and in float64 with another number of labels."""
    parameters: list[Row] = []
    for own, half, double in zip(table.parameters, in_float16.parameters, in_float64.parameters, strict=True):
        if not own.name == half.name == double.name:
            raise SystemExit(f"{own.name}, {half.name} and {double.name} should be one parameter")
        leaf = Leaf(tied_to=own.tied_to, frozen=not own.requires_grad, module_class=own.module_class)
        if own.tied_to is None:
            shape = _shape(own.tensor.shape, double.tensor.shape)
            leaf = replace(leaf, shape=shape, dtype=_dtype(own.tensor.dtype, half.tensor.dtype, double.tensor.dtype))
        parameters.append((own.name, leaf))
    buffers: list[Row] = []
    for buffer, *others in zip(table.buffers, in_float16.buffers, in_float64.buffers, strict=True):
        dtype = _dtype(buffer.tensor.dtype, *(other.tensor.dtype for other in others))
        buffers.append((buffer.name, Leaf(shape=buffer.tensor.shape, dtype=dtype, transient=not buffer.persistent)))
    return parameters, buffers


def _shape(own: Shape, labelled: Shape) -> tuple[int | str, ...]:
    sizes = list(zip(own, labelled, strict=True))
    if any(other not in (size, OTHER_NUM_LABELS) for size, other in sizes):
        raise SystemExit(f"the catalog cannot say how {own} becomes {labelled} with {OTHER_NUM_LABELS} labels")
    return tuple(NUM_LABELS if size != other else size for size, other in sizes)


def _dtype(in_bfloat16: str, in_float16: str, in_float64: str) -> str:
    """Return what a leaf says of its dtype, from what it is with weights of each dtype."""
    kept = {dtype for dtype, is_now in (("bfloat16", in_bfloat16), ("float16", in_float16)) if is_now == "float32"}
    if (in_bfloat16, in_float16, in_float64) == ("bfloat16", "float16", "float64"):
        return ""
    if in_bfloat16 == in_float16 == in_float64:
        return in_float64
    for name, dtypes in KEPT_IN_FLOAT32.items():
        if set(dtypes) == kept and in_float64 == "float64":
            return name
    raise SystemExit(f"the catalog cannot say what is {in_bfloat16}, {in_float16} and {in_float64} in turn")


def _assumptions(facts: Facts) -> list[str]:
    """Return what a user must know about the table, in sentences."""
    said = []
    if "proxy" in facts:
        said.append(
            f"{facts['model_class']} is remote code, which memsim never runs: the table is that of "
            f"{facts['proxy']['cls']} of the same sizes. Counts are equal; the real tensors may be fused differently."
        )
    if "untied" in facts:
        said.append(
            "The checkpoint stores an lm_head of its own, so from_pretrained keeps it apart from the embedding; "
            "from_config of transformers 5 would tie them."
        )
    match = facts.get("published", {}).get("match", "")
    if "multi-token" in match or "MTP" in match:
        said.append("The checkpoint's multi-token-prediction weights are not counted: transformers builds none.")
    if "FP8" in match:
        said.append("The checkpoint stores FP8 weights with scales; the table is that of the unquantized model.")
    if facts["config"]["model_type"] == "gpt_oss":
        said.append("The checkpoint stores its experts as MXFP4; the table is that of the unquantized model.")
    if facts["confirmation"] == "unconfirmed":
        said.append("No published parameter count confirms this model's configuration.")
    if facts["confirmation"] == "agrees with published rounded count":
        said.append("Only a rounded published parameter count confirms this model's configuration.")
    if "keys_not_read" in facts:
        keys = ", ".join(facts["keys_not_read"])
        said.append(f"No source for this very model states {keys}: taken from a sibling, or chosen to match its count.")
    return said


def _file_text(entries: Mapping[str, Facts]) -> str:
    """Return the text of one file: what its tables share on a line each, then its models with a line for each fact."""
    pool = SharedNodes(table for entry in entries.values() for table in entry["tables"].values())
    models = []
    for model, entry in entries.items():
        facts = dict(entry)
        facts["tables"] = {task: pool.referred(table) for task, table in entry["tables"].items()}
        lines = ",\n".join(f"  {json.dumps(key)}: {_one_line(value)}" for key, value in facts.items())
        models.append(f" {json.dumps(model)}: {{\n{lines}\n }}")
    shared = ",\n".join(f" {json.dumps(name)}: {canonical(node)}" for name, node in pool.shared.items())
    return '{"shared": {\n' + shared + '\n},\n"models": {\n' + ",\n".join(models) + "\n}}\n"


def _one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class SharedNodes:
    """Finds the subtrees that several tables hold, and replaces them by references to one copy."""

    def __init__(self, tables: Iterable[Node]) -> None:
        self._uses: Counter[str] = Counter()
        self.shared: dict[str, Node] = {}
        for table in tables:
            self._count(table)

    def referred(self, node: Node) -> Node:
        """Return `node` with every shared subtree replaced by its reference."""
        if not isinstance(node, dict) or "$shape" in node or "$tied_to" in node:
            return node
        text = canonical(node)
        replaced = {key: self.referred(child) for key, child in node.items()}
        if self._uses[text] < 2 or len(text) < SHARED_LENGTH:
            return replaced
        # Named by content, so that one changed model does not rename what the others share.
        name = hashlib.sha256(text.encode()).hexdigest()[:8]
        if self.shared.setdefault(name, replaced) != replaced:
            raise SystemExit(f"two subtrees are called {name}: make the names longer")
        return f"@{name}"

    def _count(self, node: Node) -> None:
        if not isinstance(node, dict):
            return
        text = canonical(node)
        self._uses[text] += 1
        if self._uses[text] == 1:  # what lies below a shared subtree is stored once with it
            for child in node.values():
                self._count(child)


def _index_text(facts: list[Facts]) -> str:
    """Return the text of the index: versions, the models of every file, and the aliases."""
    import torch
    import transformers

    files: dict[str, list[str]] = {}
    for model in sorted(facts, key=lambda f: str(f["id"]).casefold()):
        files.setdefault(f"{model['config']['model_type']}.json", []).append(model["id"])
    built_with = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
    listed = ",\n".join(f"  {json.dumps(name)}: {json.dumps(files[name])}" for name in sorted(files))
    aliases = {alias: f["id"] for f in facts for alias in f.get("aliases", ())}
    named = ",\n".join(f"  {json.dumps(alias)}: {json.dumps(aliases[alias])}" for alias in sorted(aliases))
    return f'{{"built_with": {json.dumps(built_with)},\n"files": {{\n{listed}\n}},\n"aliases": {{\n{named}\n}}}}\n'


if __name__ == "__main__":
    main()
