"""Models on the hub, against a local server that speaks its HTTP: what is asked, what is not, and every way to fail."""

import json
import os
import subprocess
import sys
import time

import pytest
from hub_server import COMMIT, OTHER_COMMIT, HubServer
from huggingface_hub import constants

from memsim.errors import CheckpointError, HubError, MemsimError, ModelError, UnknownNameError
from memsim.resolve import hub_http, resolve

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
TOKEN = "hf_notARealTokenButSecretAllTheSame"


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A small Llama in one file and in shards, as `{file name: bytes}`."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    model.save_pretrained(root / "single")
    model.save_pretrained(root / "sharded", max_shard_size="20KB")
    return {kind: files_of(root / kind) for kind in ("single", "sharded")} | {
        "num_parameters": sum(p.numel() for p in model.parameters())
    }


@pytest.fixture
def hub(models, monkeypatch, tmp_path):
    """The server, asked instead of huggingface.co, with an empty cache and without a token."""
    with HubServer() as server:
        server.add("acme/tiny", dict(models["single"]))
        server.add("acme/shards", dict(models["sharded"]))
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub_http, "RETRY_SECONDS", 0.01)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
        yield server


def refused(model, kind=HubError, **options):
    with pytest.raises(kind) as error:
        resolve(model, **options)
    said = str(error.value)
    assert isinstance(error.value, MemsimError)
    assert error.value.exit_code == 1
    assert len(said.splitlines()) <= 3
    assert TOKEN not in said
    return said


def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


# What is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["acme/tiny", "acme/shards"])
def test_a_model_on_the_hub_is_the_model_that_was_uploaded(hub, models, name):
    spec = resolve(name)
    assert spec.table.num_parameters == models["num_parameters"]
    assert (spec.name, spec.source) == (name, f"hub:{name}@{COMMIT}")
    assert (spec.task, spec.model_class, spec.dtype) == ("causal-lm", "LlamaForCausalLM", "float32")
    assert spec.assumptions == ()


def test_of_weights_only_headers_are_asked_for(hub, models):
    resolve("acme/shards")
    shards = [name for name in models["sharded"] if name.endswith(".safetensors")]
    assert len(shards) > 2
    for shard in shards:
        (request,) = hub.of(shard)
        assert request.method == "GET"
        assert request.headers["Range"] == "bytes=0-65535"


def test_a_long_header_takes_one_more_request_for_its_rest_alone(hub, models):
    content = models["single"][WEIGHTS]
    length = int.from_bytes(content[:8], "little")
    padded = content[8 : 8 + length] + b" " * 80_000
    hub.add(
        "acme/padded", {**models["single"], WEIGHTS: len(padded).to_bytes(8, "little") + padded + content[8 + length :]}
    )
    assert resolve("acme/padded").table.num_parameters == models["num_parameters"]
    assert [r.headers["Range"] for r in hub.of(WEIGHTS)] == ["bytes=0-65535", f"bytes=65536-{8 + len(padded) - 1}"]


def test_a_server_that_ignores_ranges_is_not_read_to_the_end(hub, models):
    text = json.dumps({"w": {"dtype": "F16", "shape": [25_000_000], "data_offsets": [0, 50_000_000]}}).encode()
    body = len(text).to_bytes(8, "little") + text + bytes(50_000_000)
    hub.add("acme/large", {CONFIG: models["single"][CONFIG], WEIGHTS: body})
    hub.fail(WEIGHTS, ignore_range=True)
    assert "1 tensor of the checkpoint would not be used by LlamaForCausalLM: w." in resolve("acme/large").assumptions
    (request,) = hub.of(WEIGHTS)
    hub.stop()
    assert sum(request.sent) < 10_000_000


def test_what_is_in_the_cache_at_the_same_commit_is_not_asked_for_again(hub):
    first = resolve("acme/shards")
    assert [r.method for r in hub.of(CONFIG)] == ["HEAD", "GET"]
    hub.requests.clear()
    assert resolve("acme/shards") == first
    assert [r.method for r in hub.of(CONFIG)] == ["HEAD"]
    assert hub.of(INDEX) == []


def test_a_new_commit_is_noticed(hub, models):
    resolve("acme/tiny")
    config = {**json.loads(models["single"][CONFIG]), "dtype": "bfloat16"}
    hub.add("acme/tiny", {**models["single"], CONFIG: json.dumps(config).encode()}, commit=OTHER_COMMIT)
    spec = resolve("acme/tiny")
    assert (spec.source, spec.dtype) == (f"hub:acme/tiny@{OTHER_COMMIT}", "bfloat16")


def test_the_cache_is_the_one_that_huggingface_hub_reads_and_writes(hub, models, monkeypatch):
    from huggingface_hub import hf_hub_download

    resolve("acme/shards")
    offline(monkeypatch)
    for name in (CONFIG, INDEX):
        for revision in ("main", COMMIT):
            path = hf_hub_download("acme/shards", name, revision=revision, local_files_only=True)
            with open(path, "rb") as file:
                assert file.read() == models["sharded"][name]


def test_weights_that_huggingface_hub_cached_are_read_there(hub, models, monkeypatch):
    from huggingface_hub import hf_hub_download

    for name in models["sharded"]:
        hf_hub_download("acme/shards", name)
    hub.requests.clear()
    online = resolve("acme/shards")
    # Whether the repository has a model.safetensors, which would go before the index, only the hub knows.
    assert [(r.method, r.path.rpartition("/")[2]) for r in hub.requests] == [("HEAD", CONFIG), ("GET", WEIGHTS)]
    offline(monkeypatch)
    spec = resolve("acme/shards")
    assert (spec.table, spec.source) == (online.table, online.source)
    assert spec.assumptions == (
        "The hub was not asked (offline mode is on (HF_HUB_OFFLINE)): "
        "the cached commit 0123456789ab of acme/shards was taken.",
    )
    assert len(hub.requests) == 2


def test_a_revision_is_a_branch_tag_or_commit(hub, models):
    config = {**json.loads(models["single"][CONFIG]), "dtype": "float16"}
    hub.add(
        "acme/tiny", {**models["single"], CONFIG: json.dumps(config).encode()}, revision="v1.0", commit=OTHER_COMMIT
    )
    assert resolve("acme/tiny").dtype == "float32"
    for revision in ("v1.0", OTHER_COMMIT):
        spec = resolve(f"acme/tiny@{revision}")
        assert (spec.name, spec.dtype) == (f"acme/tiny@{revision}", "float16")
        assert spec.source == f"hub:acme/tiny@{OTHER_COMMIT}"


def test_with_a_revision_the_hub_is_asked_though_the_catalog_has_the_model(hub):
    hub.add("openai-community/gpt2", {CONFIG: b'{"model_type": "gpt2", "n_layer": 1}'})
    assert resolve("openai-community/gpt2").source.startswith("catalog")
    assert hub.requests == []
    assert resolve("openai-community/gpt2@main").source == f"hub:openai-community/gpt2@{COMMIT}"


def test_the_token_is_sent_with_every_request(hub, monkeypatch):
    hub.token = TOKEN
    assert "the hub has no model acme/shards, or it is private (HTTP 401)" in refused("acme/shards")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.requests.clear()
    resolve("acme/shards")
    assert len(hub.requests) > 5
    assert {request.headers.get("authorization") for request in hub.requests} == {f"Bearer {TOKEN}"}


def test_a_renamed_repository_is_followed_with_the_token(hub, models, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in (CONFIG, WEIGHTS):
        hub.fail(name, status=307, headers={"Location": f"/acme/new/resolve/{COMMIT}/{name}"}, times=1)
    hub.add("acme/new", dict(models["single"]))
    hub.add("acme/old", dict(models["single"]))
    assert resolve("acme/old").table.num_parameters == models["num_parameters"]
    moved = [request for request in hub.requests if "/acme/new/" in request.path]
    assert [request.method for request in moved] == ["HEAD", "GET"]
    assert {request.headers["authorization"] for request in moved} == {f"Bearer {TOKEN}"}


def test_the_token_does_not_go_to_another_host(hub, models, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer() as storage:
        storage.add("large/files", dict(models["single"]))
        for name in (CONFIG, WEIGHTS):
            # As the hub answers for large files: commit and etag in the redirect itself.
            headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": '"0123456789"'}
            hub.fail(
                name, status=302, headers={**headers, "Location": f"{storage.url}/large/files/resolve/main/{name}"}
            )
        assert resolve("acme/tiny").table.num_parameters == models["num_parameters"]
        assert [request.method for request in storage.requests] == ["GET", "GET"]
        assert not any("authorization" in map(str.lower, request.headers) for request in storage.requests)


def test_a_mirror_that_sends_everything_elsewhere_is_followed_without_the_token(hub, models, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer() as other:
        other.add("acme/tiny", dict(models["single"]))
        for name in (CONFIG, WEIGHTS):
            hub.fail(name, status=308, headers={"Location": f"{other.url}/acme/tiny/resolve/main/{name}"})
        assert resolve("acme/tiny").table.num_parameters == models["num_parameters"]
        assert not any("authorization" in map(str.lower, request.headers) for request in other.requests)


def test_redirects_in_a_circle_end(hub):
    hub.fail(CONFIG, status=302, headers={"Location": f"/acme/tiny/resolve/main/{CONFIG}"})
    assert "answers, but not as a hub does" in refused("acme/tiny")
    assert len(hub.requests) == hub_http.MAX_REDIRECTS
    hub.fail(CONFIG, status=302, headers={"Location": "file:///etc/passwd"})
    refused("acme/tiny")


def test_progress_is_told_in_sentences(hub, models):
    said = []
    resolve("acme/shards", progress=said.append)
    shards = sum(name.endswith(".safetensors") for name in models["sharded"])
    assert said == [
        "asking the hub for acme/shards",
        *(f"read {done} of {shards} safetensors headers" for done in range(1, shards + 1)),
    ]


def test_a_model_without_safetensors_is_what_its_config_says(hub, models):
    hub.add("acme/pickled", {CONFIG: models["single"][CONFIG], "pytorch_model.bin": b"never asked for"})
    spec = resolve("acme/pickled")
    assert spec.table.num_parameters == models["num_parameters"]
    assert spec.assumptions == (
        "No checkpoint was compared: it has no model.safetensors and no model.safetensors.index.json on the hub.",
    )
    assert hub.of("pytorch_model.bin") == []


def test_a_cache_that_cannot_be_written_is_no_error(hub, models, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert resolve("acme/tiny").table.num_parameters == models["num_parameters"]


# What goes wrong ---------------------------------------------------------------------------------------------------


def test_a_model_that_does_not_exist_is_named_with_near_ones_of_the_catalog(hub):
    said = refused("distilbert/distilbert-base-case")
    assert "the hub has no model distilbert/distilbert-base-case, or it is private (HTTP 401)." in said
    assert "Did you mean distilbert/distilbert-base-cased" in said


def test_a_name_without_organisation_is_never_asked_for(hub):
    with pytest.raises(UnknownNameError, match="Did you mean"):
        resolve("distilbert-base-case")
    for name in (
        "a/b/c",
        "acme/../etc",
        "-/x",
        "acme/ti ny",
        "acme/tiny?x=1",
        "acme/tiny@",
        "acme/tiny@../x",
        "@main",
        "",
    ):
        with pytest.raises(MemsimError) as error:
            resolve(name)
        assert len(str(error.value).splitlines()) <= 3
    assert "cannot be a hub id" in refused("acme/ti--ny")
    assert hub.requests == []


def test_a_revision_that_does_not_exist_is_told_from_a_model_that_does_not(hub):
    said = refused("acme/tiny@v9")
    assert said.startswith("acme/tiny has no revision 'v9' on the hub.")


def test_a_repository_without_a_config_is_no_model(hub):
    hub.add("acme/data", {"data.csv": b""})
    assert "acme/data has no config.json at revision 'main'" in refused("acme/data")


STATUSES = {
    "gated": (403, {"X-Error-Code": "GatedRepo"}, "acme/tiny is gated (HTTP 403): accept its licence at http"),
    "gated, no token": (401, {"X-Error-Code": "GatedRepo"}, "acme/tiny is gated (HTTP 401): accept its licence"),
    "401": (401, {}, "the hub has no model acme/tiny, or it is private (HTTP 401)"),
    "bad token": (
        401,
        {"X-Error-Message": "Invalid credentials in Authorization header"},
        "the hub refuses the token that was sent (HTTP 401)",
    ),
    "403": (403, {}, "the hub forbids access to acme/tiny (HTTP 403)"),
    "disabled": (
        403,
        {"X-Error-Message": "Access to this resource is disabled."},
        "the hub has disabled access to acme/tiny",
    ),
    "404": (404, {}, "the hub has no model acme/tiny, or it is private (HTTP 404)"),
    "429": (
        429,
        {"Retry-After": "77"},
        "limits your rate of requests (HTTP 429, asking for acme/tiny).\nWait 77 seconds",
    ),
    "429, unfriendly": (429, {"Retry-After": "\x1b[2J"}, "Wait a few minutes, or set HF_TOKEN"),
    "500": (500, {}, "the hub failed (HTTP 500, asking for acme/tiny)"),
    "503": (503, {}, "the hub failed (HTTP 503, asking for acme/tiny)"),
    "418": (418, {}, "the hub answered HTTP 418 for acme/tiny"),
}


# A missing model.safetensors is no error.
@pytest.mark.parametrize(
    ("name", "file"), [(n, f) for n in STATUSES for f in (CONFIG, WEIGHTS) if (n, f) != ("404", WEIGHTS)]
)
def test_each_refusal_of_the_hub_has_an_error_of_its_own(hub, monkeypatch, name, file):
    status, headers, said = STATUSES[name]
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.fail(file, status=status, headers=headers)
    began = time.monotonic()
    assert said in refused("acme/tiny")
    assert time.monotonic() - began < 5


def test_garbage_instead_of_json_is_refused_and_does_not_reach_the_cache(hub):
    for body in (b"<html>Welcome to the airport</html>", b"", b"[]", b"{}", b"\xff"):
        hub.fail(CONFIG, body=body)
        assert "config.json of acme/tiny on the hub" in refused("acme/tiny", ModelError)
    hub.faults.clear()
    hub.fail(INDEX, body=b"<html>")
    hub.repos["acme/shards"]["main"][1].pop(WEIGHTS, None)
    assert "model.safetensors.index.json of acme/shards is not JSON" in refused("acme/shards", CheckpointError)
    hub.faults.clear()
    assert resolve("acme/tiny").assumptions == resolve("acme/shards").assumptions == ()


def test_an_answer_that_is_not_of_a_hub_is_refused(hub):
    hub.fail(CONFIG, drop=("X-Repo-Commit",))
    assert "answers, but not as a hub does" in refused("acme/tiny")
    hub.fail(CONFIG, headers={"X-Repo-Commit": "../../../evil"})
    assert "answers, but not as a hub does" in refused("acme/tiny")
    hub.faults.clear()
    hub.fail(WEIGHTS, drop=("Content-Range",))
    assert "does not say how long model.safetensors is" in refused("acme/tiny")
    hub.fail(WEIGHTS, headers={"Content-Range": "bytes 5-9/10"})
    assert "does not say how long model.safetensors is" in refused("acme/tiny")


def test_an_etag_that_is_no_plain_name_is_not_made_a_path(hub, tmp_path, models):
    hub.fail(CONFIG, headers={"ETag": '"../../../evil"'})
    assert resolve("acme/tiny").table.num_parameters == models["num_parameters"]
    assert not (tmp_path / "cache").exists()
    assert not list(tmp_path.rglob("evil*"))


def test_a_connection_that_is_cut_once_is_tried_again(hub, models):
    hub.fail(CONFIG, cut_after=20, methods=("GET",), times=1)
    hub.fail(WEIGHTS, cut_after=20, times=1)
    assert resolve("acme/tiny").table.num_parameters == models["num_parameters"]


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS, INDEX, "model-00002-of-00005.safetensors"])
def test_a_connection_that_is_always_cut_is_told(hub, models, file):
    assert "model-00002-of-00005.safetensors" in models["sharded"]
    hub.fail(file, cut_after=20, methods=("GET",))
    said = refused("acme/tiny" if file == WEIGHTS else "acme/shards")
    assert "broke off" in said or "stopped after 20 of" in said
    assert len([request for request in hub.of(file) if request.method == "GET"]) == 2


def test_a_config_of_unknown_length_is_read_to_its_end(hub, models):
    hub.fail(CONFIG, drop=("Content-Length",), methods=("GET",))
    assert resolve("acme/tiny").table.num_parameters == models["num_parameters"]


def test_a_config_that_never_ends_is_not_read_to_its_end(hub, monkeypatch):
    from memsim.resolve import hub as hub_module

    monkeypatch.setattr(hub_module, "MAX_CONFIG_BYTES", 100_000)
    hub.fail(CONFIG, body=b" " * 30_000_000)
    assert "config.json is larger than 100000 bytes" in refused("acme/tiny")
    get = hub.of(CONFIG)[-1]
    hub.stop()
    assert sum(get.sent) < 10_000_000


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_hub_that_does_not_answer_is_not_waited_for(hub, monkeypatch, file):
    for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        monkeypatch.setattr(constants, name, 0.2)
    hub.fail(file, hang=1.5)
    began = time.monotonic()
    assert "did not answer in time" in refused("acme/tiny")
    assert time.monotonic() - began < 3


def test_all_requests_together_have_a_deadline(hub, monkeypatch):
    monkeypatch.setattr(hub_http, "TOTAL_SECONDS", 0.3)
    for name in (CONFIG, INDEX, WEIGHTS):
        hub.fail(name, hang=0.2)
    began = time.monotonic()
    said = refused("acme/tiny")
    assert "longer than 0.3 s" in said or "did not answer in time" in said
    assert time.monotonic() - began < 2


def test_without_a_network_the_cached_commit_is_taken_and_nothing_cached_is_an_error(hub):
    online = resolve("acme/tiny")
    hub.stop()
    spec = resolve("acme/tiny")
    assert spec.table == online.table
    assert spec.assumptions[0].startswith("The hub was not asked (no connection to http://127.0.0.1:")
    assert spec.assumptions[1] == (
        "No checkpoint was compared: its safetensors files are not in the hub's cache, and the hub was not asked."
    )
    said = refused("acme/shards")
    assert "acme/shards is not in the hub's cache, and no connection to http://127.0.0.1:" in said


def test_offline_the_cache_answers_and_nothing_cached_is_an_error(hub, monkeypatch):
    online = resolve("acme/tiny@main")
    offline(monkeypatch)
    hub.requests.clear()
    assert resolve("acme/tiny@main").table == online.table
    assert resolve(f"acme/tiny@{COMMIT}").table == online.table
    said = refused("acme/shards")
    assert "acme/shards is not in the hub's cache, and offline mode is on (HF_HUB_OFFLINE)." in said
    assert hub.requests == []


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HF_HUB_DOWNLOAD_TIMEOUT", "x", "Correct or unset HF_HUB_DOWNLOAD_TIMEOUT"),
        ("HF_HUB_ETAG_TIMEOUT", "y", "Correct or unset HF_HUB_ETAG_TIMEOUT"),
        ("HF_HOME", os.devnull, f"the token of the hub cannot be read from {os.devnull}"),
    ],
)
def test_an_environment_that_huggingface_hub_cannot_use_is_told(variable, value, said):
    script = (
        "from memsim.errors import HubError\nfrom memsim.resolve import resolve\n"
        "for _ in range(2):\n try: resolve('acme/tiny')\n except HubError as error: print(error)\n"
    )
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**clean, variable: value},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said in ran.stdout
    assert len(ran.stdout.splitlines()) == 4, "two tries of two lines"


def test_a_hub_that_fails_does_not_hide_the_cache(hub):
    online = resolve("acme/tiny")
    hub.fail(CONFIG, status=500)
    assert resolve("acme/tiny").table == online.table
    hub.fail(CONFIG, status=404, headers={"X-Error-Code": "EntryNotFound"})
    assert "has no config.json" in refused("acme/tiny")


def test_headers_that_lie_are_refused(hub, models):
    content = models["single"][WEIGHTS]
    for body, said in (
        ((2**63).to_bytes(8, "little"), "claims a header of 9223372036854775808 bytes"),
        (b"", "it has 0 bytes"),
        (b"12345", "it has 5 bytes"),
        (content[:-1], "of data"),
        (content[:50], "in a file of 50"),
    ):
        hub.add("acme/lies", {**models["single"], WEIGHTS: body})
        found = refused("acme/lies", CheckpointError)
        assert found.startswith("model.safetensors of acme/lies on the hub is not a complete safetensors file")
        assert said in found


def test_an_index_that_names_a_missing_shard_is_an_incomplete_upload(hub, models):
    hub.add("acme/part", {n: b for n, b in models["sharded"].items() if n != "model-00002-of-00005.safetensors"})
    assert "acme/part lacks a shard that its index names" in refused("acme/part")


def test_an_index_that_leads_elsewhere_is_refused_before_anything_is_asked(hub, models):
    index = {"weight_map": {"w": "../../../other/repo/resolve/main/model.safetensors"}}
    hub.add("acme/evil", {CONFIG: models["single"][CONFIG], INDEX: json.dumps(index).encode()})
    assert "must be a .safetensors file inside" in refused("acme/evil", CheckpointError)
    assert not [request for request in hub.requests if "other" in request.path]


# In a process of its own -------------------------------------------------------------------------------------------

SCRIPT = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers"}:
            raise ImportError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
from memsim.errors import MemsimError
from memsim.resolve import resolve
try:
    spec = resolve(sys.argv[1])
    print(spec.table.num_parameters, spec.model_class)
except MemsimError as error:
    print(type(error).__name__, error)
"""


def in_a_process(model, **environment):
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS"))
    }
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, model],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**clean, **environment},
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return process.stdout


def test_the_environment_is_read_and_nothing_is_printed_without_torch(hub, models, tmp_path):
    hub.token = TOKEN
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    expected = f"{models['num_parameters']} LlamaForCausalLM\n"
    assert in_a_process("acme/shards", **environment) == expected
    assert "the hub has no model acme/none" in in_a_process("acme/none", **environment)
    # Of the sharded model config and index were cached, but a header is not a file: without torch it must be asked for.
    said = in_a_process("acme/shards", **environment, HF_HUB_OFFLINE="1")
    assert said.startswith("MissingPackageError acme/shards: its safetensors files are not in the hub's cache")
    assert 'pip install "memsim[torch]"' in said
    unreachable = {**environment, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "other")}
    assert "and no connection to http://127.0.0.1:9 (" in in_a_process("acme/shards", **unreachable)
    assert TOKEN not in in_a_process("acme/shards", **unreachable)
