"""Simulated runs in every format, through `memsim report`, and in PyTorch's own memory viewer."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from conftest import ROOT
from simulated_step import KIB, MIB, run
from test_comparison import SGD, SPEC, sgd_run

from memsim import __version__
from memsim.comparing import compare_run
from memsim.dry_run.result import DryRun
from memsim.ledger import Category
from memsim.prediction import static_prediction
from memsim.report.chart import chart_of
from memsim.report.chart_text import timeline_parts
from memsim.report.simulated_run import render_simulated_run, simulated_run_chart, simulated_run_page
from memsim.step import AllocatorSettings, AllocatorStats, StepTrace, TraceDevice
from memsim.step.held import held
from memsim.step.peaks import occupancy

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert(1)</script> & "$\\frac{1}{2}$" \x07\ud800'


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run.json"
    run(gpu="1GiB").save(path)
    return path


# --- the terminal


def test_the_drawing_shows_allocated_and_reserved_bytes_over_the_events():
    # 13 columns of label and axis and 21 events, one column each; a row is 2.2 MiB, an eighth of it 0.275 MiB.
    lines = [part.plain for part in timeline_parts(run().trace, 34)][1:]
    columns = [line[13:].ljust(21) for line in lines[:10]]
    heights = [sum(row[column] not in " ░" for row in columns) for column in range(21)]
    tops = [next((row[column] for row in columns if row[column] not in " ░"), "") for column in range(21)]
    # w 4 MiB: 2 rows, 14.5 eighths, drawn as 15; with the activation 10 MiB (36.4 eighths and more: 37), with the
    # gradient 14 MiB (50.9 and 2 KiB: 51), w and gradient alone 8 MiB (29.1 eighths: 30).
    micro = [2, 5, 7, 4, 4, 4, 4]
    assert heights == [0, 2, 2, *micro, 2, 2, *micro, 2, 2]
    assert (tops[1], tops[4], tops[5], tops[9]) == ("▇", "▅", "▃", "▆")
    assert [row[0] for row in columns] == ["░"] * 10  # 20 of 22 MiB are 9.1 rows: all ten are touched
    assert lines[0].startswith("  22.00 MiB ┤")
    assert lines[10] == "        0 B └" + "─" * 21
    assert lines[11:] == [" " * 13 + "│l│fo│back│z│f│back│z", " " * 13 + "│step 1     │step 2"]


def test_the_terminal_shows_heading_drawing_phases_and_why():
    text = render_simulated_run(run(gpu="1GiB"), width=80)
    assert "Tiny, float32; 1,048,576 parameters in 1 tensors" in text
    assert "peak allocated  14.00 MiB  (step 1, backward)" in text
    assert "The peak is in the backward of step 1" in text
    # 1024 MiB less 400 of context less 22 reserved
    assert "It fits on a GPU with 1.00 GiB: 602.00 MiB are left (41% used)." in text
    assert max(map(len, text.splitlines())) <= 80
    assert "free_completed" not in text


def test_details_list_the_events():
    lines = render_simulated_run(run(), details=True).splitlines()
    rows = [line.split() for line in lines if re.match(r"\d+ ", line)]
    assert len(rows) == 21
    what = ["activation", "layer", "MmBackward0"]
    # 4 MiB + 2 KiB + 6 MiB
    assert rows[4] == ["4", "1", "forward", "alloc", "6,291,456", "10,487,808", "23,068,672", *what]


def test_a_long_list_of_events_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr("memsim.report.simulated_run._MOST_EVENTS", 5)
    text = render_simulated_run(run(), details=True)
    assert "16 more events: --details -o FILE.csv writes all of them." in text


def test_where_memory_ran_out_the_text_says_what_was_asked_free_and_held():
    text = render_simulated_run(run(700 * MIB, gpu="1GiB"))
    assert "It does not fit on a GPU with 1.00 GiB: 98.00 MiB are missing." in text
    assert "asked         700.00 MiB in step 1, forward, layer" in text
    assert "free          602.00 MiB of 1.00 GiB: 98.00 MiB short at this moment" in text
    assert "held          4.00 MiB in tensors, 18.00 MiB in the cache" in text
    assert "What held memory when memory ran out" in text


def test_an_encoding_without_block_characters_gets_a_drawing_in_ascii(saved):
    process = subprocess.run(
        [sys.executable, "-m", "memsim", "report", saved],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    text = process.stdout.decode("ascii")
    assert "22.00 MiB |" in text
    assert "?" not in text
    assert re.search(r"\|\.+#+\.+", text)


def test_a_trace_without_events_has_nothing_to_draw():
    stats = AllocatorStats(**dict.fromkeys(AllocatorStats.__dataclass_fields__, 0))
    device = TraceDevice(name="GPU", total_bytes=1, compute_capability="8.0", torch_version="2.13.0")
    empty = StepTrace(device=device, settings=AllocatorSettings(), stats=stats, spans=(), events=())
    assert [part.plain for part in timeline_parts(empty, 80)] == ["\nNothing was allocated."]
    assert chart_of("nothing", empty, held((), "peak")) is None


# --- files


@pytest.mark.parametrize("suffix", ["json", "csv", "parquet", "md", "html", "xlsx", "txt", "svg", "png", "pickle"])
def test_report_writes_a_saved_run_in_every_format(saved, cli, tmp_path, suffix):
    path = tmp_path / f"again.{suffix}"
    result = cli("report", saved, "-o", path)
    assert (result.code, result.out) == (0, "")
    assert path.stat().st_size > 100
    assert cli("report", saved, "-o", path).code == 1
    assert "exists" in cli("report", saved, "-o", path).err
    assert cli("report", saved, "-f", "-q", "-o", path) == (0, "", "")


def test_tables_have_phases_or_with_details_events(saved, cli, tmp_path):
    cli("report", saved, "-o", tmp_path / "phases.csv")
    assert pd.read_csv(tmp_path / "phases.csv")["peak_allocated_bytes"].max() == 14 * MIB + 2 * KIB
    for suffix, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet), ("xlsx", pd.read_excel)):
        cli("report", saved, "--details", "-o", tmp_path / f"events.{suffix}")
        frame = read(tmp_path / f"events.{suffix}")
        assert (len(frame), frame["allocated_bytes"].max()) == (21, 14 * MIB + 2 * KIB)


def test_a_picture_of_what_has_no_events_is_refused(cli, tmp_path):
    for suffix in ("svg", "png"):
        result = cli("estimate", "gpt2", "-o", tmp_path / f"a.{suffix}")
        assert (result.code, (tmp_path / f"a.{suffix}").exists()) == (2, False)
        assert "memsim simulate" in result.err


# --- pictures


def polygons(svg):
    """Return the corners of each category's area."""
    root = ElementTree.fromstring(svg)
    return {
        polygon.find(f"{SVG}title").text: [
            tuple(map(float, point.split(","))) for point in polygon.get("points").split()
        ]
        for polygon in root.iter(f"{SVG}polygon")
    }


def line_of(svg):
    (line,) = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    return [tuple(map(float, point.split(","))) for point in line.get("points").split()]


def svg_of(simulated):
    from memsim.report.chart_svg import render_svg

    return render_svg(simulated_run_chart(simulated))


def test_the_picture_is_to_scale():
    svg = svg_of(run())
    areas = polygons(svg)
    assert list(areas) == ["parameter", "gradient", "activation", "input"]
    floor = max(y for _, y in areas["parameter"])
    scale = (floor - min(y for _, y in line_of(svg))) / (22 * MIB)
    heights = {name: (floor - min(y for _, y in points)) / scale / MIB for name, points in areas.items()}
    # w alone; w and its gradient; the activation on top of both
    assert heights == pytest.approx({"parameter": 4, "gradient": 8, "activation": 14, "input": 14}, abs=0.05)
    # the activation lives from event 4 to 6 and from 13 to 15, of 21
    left, right = min(x for x, _ in line_of(svg)), max(x for x, _ in line_of(svg))
    highest = min(y for _, y in areas["activation"])
    at_peak = sorted({x for x, y in areas["activation"] if y == highest})
    assert [(x - left) / (right - left) * 21 for x in at_peak] == pytest.approx([5, 6, 14, 15], abs=0.01)


def test_memory_of_unknown_holders_is_drawn_as_not_known():
    trace = run().trace
    activations = {e.address for e in trace.events if e.holder and e.holder.category is Category.ACTIVATION}
    events = tuple(replace(e, holder=None) if e.address in activations else e for e in trace.events)
    layers = chart_of("", replace(trace, events=events), held((), "peak")).layers
    assert [layer.name for layer in layers] == ["parameter", "gradient", "input", "not known"]
    thickness = [high - low for low, high in zip(layers[-1].lower_bytes, layers[-1].upper_bytes, strict=True)]
    assert thickness == [6 * MIB if index in (4, 5, 13, 14) else 0 for index in range(21)]


def test_the_picture_names_the_peak_its_largest_tensors_and_the_phases():
    texts = [element.text for element in ElementTree.fromstring(svg_of(run(gpu="1GiB"))).iter(f"{SVG}text")]
    start = texts.index("peak 14.00 MiB")
    assert texts[start + 1 : start + 4] == [
        "6.00 MiB activation layer MmBackward0",
        "4.00 MiB parameter layer.w",
        "4.00 MiB gradient layer.w",
    ]
    assert {"tiny, batch 1, torch.optim.SGD", "step 1", "step 2", "forward", "backward", "zero_grad"} <= set(texts)
    assert "the allocator can have 624.00 MiB (above the picture)" in texts


def test_where_memory_ran_out_the_picture_shows_the_capacity_and_what_was_asked():
    svg = svg_of(run(700 * MIB, gpu="1GiB"))
    assert "stroke-dasharray" in svg
    assert "out of memory at 4.00 MiB: 700.00 MiB more asked" in svg
    assert "stroke-dasharray" not in svg_of(run(gpu="1GiB"))


def test_the_png_has_the_colours_of_the_categories(saved, cli, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow reads the picture")
    cli("report", saved, "-o", tmp_path / "run.png")
    picture = image.open(tmp_path / "run.png").convert("RGB")
    assert picture.size == (1440, 768)
    counts = {color: count for count, color in picture.getcolors(2**24)}
    parameter, gradient, activation = counts[0x4C, 0x72, 0xB0], counts[0xDD, 0x84, 0x52], counts[0x55, 0xA8, 0x68]
    # areas in MiB x events: w 4 x 20; gradient 4 x 5 twice; activation 6 x 2 twice, under a part of the note
    assert gradient / parameter == pytest.approx(40 / 80, rel=0.05)
    assert activation / parameter == pytest.approx(24 / 80, rel=0.15)


def test_without_matplotlib_the_error_names_the_extra_and_the_way_without(saved, cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = cli("report", saved, "-o", tmp_path / "run.png")
    assert (result.code, (tmp_path / "run.png").exists()) == (1, False)
    assert "memsim[plot]" in result.err
    assert ".svg" in result.err


# --- the page


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_holds_the_picture_and_the_tables_and_nothing_from_elsewhere():
    page = Page(simulated_run_page(run(gpu="1GiB")))
    assert {"svg", "table", "h2"} <= set(page.tags)
    assert {"script", "img", "link"}.isdisjoint(page.tags)
    assert page.links == []
    for text in ("Phases", "By module", "Largest tensors", "layer.w", "14.00 MiB", "Assumed"):
        assert text in page.texts, text


def test_strange_names_are_escaped_everywhere():
    simulated = run(name=NASTY, module=NASTY)
    page = simulated_run_page(simulated)
    assert "script" not in Page(page).tags
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
    page.encode()
    assert any("<script>" in text for text in ElementTree.fromstring(svg_of(simulated)).itertext())
    from memsim.report.chart_png import render_png

    assert render_png(simulated_run_chart(simulated))[:4] == b"\x89PNG"


# --- PyTorch's own tools

FLAMEGRAPH = "#!/bin/sh\ncat\n"
"""Stands for the script that torch would download: hands its input, lines of `frames bytes`, back."""


@pytest.fixture
def viewer(tmp_path):
    """Run `python -m torch.cuda._memory_viz` on the snapshot of a run."""
    script = tmp_path / ".cache" / "flamegraph.pl"
    script.parent.mkdir()
    script.write_text(FLAMEGRAPH)
    script.chmod(0o755)

    def view(cli, simulated, *commands):
        simulated.save(tmp_path / "run.json", force=True)
        assert cli("report", tmp_path / "run.json", "-f", "-o", tmp_path / "run.pickle").code == 0
        code = (
            "import sys, runpy\n"
            "for command in sys.argv[2:]:\n"
            "    print('=====')\n"
            "    output = ['-o', command] if command in ('segments', 'memory', 'trace_plot') else []\n"
            "    sys.argv = ['viz', command, 'run.pickle', *output]\n"
            "    runpy.run_module('torch.cuda._memory_viz', run_name='__main__')\n"
        )
        code = code.replace("sys.argv[2:]", repr(commands))
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-2000:]
        texts = process.stdout.split("=====\n")[1:]
        return [
            (tmp_path / command).read_text() if (tmp_path / command).exists() else text
            for command, text in zip(commands, texts, strict=True)
        ]

    return view


def flamegraph_bytes(text):
    """Return the bytes of each line of the input of a flame graph."""
    lines = [line.rpartition(" ") for line in text.splitlines()]
    return {frames: int(nbytes) for frames, _, nbytes in lines}


@pytest.mark.parametrize(("alloc_conf", "made"), [("", "cudaMalloc("), ("expandable_segments:True", "'segment_map'")])
def test_pytorchs_own_viewer_opens_the_snapshot(cli, viewer, alloc_conf, made):
    simulated = run(alloc_conf=alloc_conf)
    stats, trace, segments, memory = viewer(cli, simulated, "stats", "trace", "segments", "memory")
    # w is all that is left: 4 MiB in a segment of 20, and an empty small one of 2.
    assert "segments: 2" in stats
    assert "total_reserved: 22.0MiB" in stats
    assert "total_allocated: 4.0MiB" in stats
    assert "21 entries" in trace
    assert trace.count(made) == 2
    assert sum(flamegraph_bytes(segments).values()) == 22 * MIB
    assert sum(nbytes for name, nbytes in flamegraph_bytes(memory).items() if "layer.w" in name) == 4 * MIB


def test_an_expandable_segment_of_the_small_pool_is_told_apart(cli, tmp_path):
    from memsim.snapshot import snapshot_of

    segments = snapshot_of(run(alloc_conf="expandable_segments:True").trace)["segments"]
    kinds = {(segment["segment_type"], segment["total_size"], segment["is_expandable"]) for segment in segments}
    assert kinds == {("large", 20 * MIB, True), ("small", 2 * MIB, True)}


# --- timelines of other results


def dry_run():
    simulated = run()
    figures = simulated.simulation
    return DryRun(
        memsim_version=__version__,
        command=("python", "train <b>.py"),
        device=simulated.trace.device,
        ending="stopped",
        exit_code=0,
        num_steps=2,
        peak=figures.peak,
        held=figures.held,
        phases=figures.phases,
        oom=None,
        num_ooms=0,
        advice=(),
        assumptions=(),
        unmodeled=(),
        trace=simulated.trace,
    )


def test_a_dry_run_has_a_picture_and_a_page(cli, tmp_path):
    dry_run().save(tmp_path / "run.json")
    assert cli("report", tmp_path / "run.json", "-o", tmp_path / "run.svg").code == 0
    assert list(polygons((tmp_path / "run.svg").read_text())) == ["parameter", "gradient", "activation", "input"]
    assert cli("report", tmp_path / "run.json", "-o", tmp_path / "run.html").code == 0
    page = Page((tmp_path / "run.html").read_text())
    assert "python 'train <b>.py'" in page.texts
    assert {"svg", "table"} <= set(page.tags)
    assert "b" not in page.tags


def test_a_dry_run_without_events_has_a_page_without_a_picture(cli, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(dry_run().to_dict()))
    page = Page(cli("report", tmp_path / "run.json", "--format", "html").out)
    assert "table" in page.tags
    assert "svg" not in page.tags
    result = cli("report", tmp_path / "run.json", "-o", tmp_path / "run.svg")
    assert (result.code, "without its events" in result.err) == (1, True)


def test_a_comparison_has_a_picture_of_what_was_measured(cli, tmp_path):
    compare_run(static_prediction(SPEC, SGD, num_steps=1), sgd_run().measurement()).save(tmp_path / "c.json")
    assert cli("report", tmp_path / "c.json", "-o", tmp_path / "c.svg").code == 0
    svg = (tmp_path / "c.svg").read_text()
    assert "tiny, measured on cpu" in svg
    # a CPU keeps nothing: what is reserved is what is allocated, 1200 + 12 + 16 + 5000 + 1200 + 12 at most
    measured = occupancy(compare_run(static_prediction(SPEC, SGD), sgd_run().measurement()).trace)
    assert measured.peak_reserved_bytes == measured.peak_allocated_bytes == 1200 + 12 + 16 + 5000 + 1200 + 12
    assert Path(tmp_path / "c.svg").stat().st_size > 1000
