"""The safetensors header reader: whatever bytes come, a table or a CheckpointError, and no memory for mere claims."""

import json
import struct
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memsim.errors import CheckpointError
from memsim.resolve.folder import read_file_header
from memsim.resolve.safetensors_header import DTYPES, MAX_HEADER_BYTES, header_length, parse_header

safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
safetensors_numpy = pytest.importorskip("safetensors.numpy")


def file_bytes(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def read(content):
    length = header_length(content[:8], len(content), "x.safetensors")
    return parse_header(content[8 : 8 + length], len(content), "x.safetensors")


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_the_smallest_file_holds_no_tensor():
    assert read(file_bytes({})) == {}


def test_names_shapes_and_dtypes_come_in_the_order_in_which_safetensors_lists_them(tmp_path):
    path = tmp_path / "x.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "a10": entry(begin=8, end=16),
        "a": entry("I64", (), 16, 24),
        "B": entry(),
    }
    path.write_bytes(file_bytes(header, bytes(24)))
    with safetensors.safe_open(path, "pt") as file:
        listed = [(name, tuple(file.get_slice(name).get_shape())) for name in file.keys()]  # noqa: SIM118
    found = read_file_header(tmp_path, "x.safetensors")
    assert [(name, tensor.shape) for name, tensor in found.items()] == listed
    assert found["a"].dtype == "int64"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has 0 bytes"),
        (b"12345", "it has 5 bytes"),
        (struct.pack("<Q", 2**63), "claims a header of 9223372036854775808 bytes; safetensors allows 100000000"),
        (struct.pack("<Q", MAX_HEADER_BYTES), "claims a header of 100000000 bytes in a file of 8"),
        (file_bytes({"a": entry()}, bytes(8))[:30], "claims a header of"),
        (file_bytes(b"[]"), "does not begin with '{'"),
        (file_bytes(b"{"), "is not JSON"),
        (file_bytes(b'{"\xff": 1}'), "is not JSON"),
        (file_bytes(b'{"a":' * 100_000), "nested too deeply"),
        (file_bytes(b'{"a": 1' + b"0" * 5000 + b"}"), "is not JSON"),
        (file_bytes(b'{"a": {}, "a": {}}'), "the name 'a' appears twice"),
        (file_bytes({"a": []}), "lacks dtype, shape or data_offsets"),
        (file_bytes({"a": {"dtype": "F32", "shape": [2]}}), "lacks dtype, shape or data_offsets"),
        (file_bytes({"a\x1b[2J": entry()}, bytes(8)), "unprintable characters"),
        (file_bytes(b'{"\\ud800": {}}'), "unprintable characters"),
        (file_bytes({"a": entry("F31")}, bytes(8)), "unknown dtype 'F31'"),
        (file_bytes({"a": entry(["F32"])}, bytes(8)), "unknown dtype ['F32']"),
        (file_bytes({"a": entry(shape=[-2])}, bytes(8)), "has the shape [-2]"),
        (file_bytes({"a": entry(shape=[True, 2])}, bytes(8)), "has the shape [True, 2]"),
        (file_bytes({"a": entry(shape=[2.0])}, bytes(8)), "has the shape [2.0]"),
        (file_bytes({"a": entry(shape=[2**63])}, bytes(8)), "has the shape [9223372036854775808]"),
        (file_bytes({"a": entry(shape=[1] * 65)}, bytes(4)), "not a list of sizes"),
        (file_bytes({"a": entry(shape=[2**62, 2**62])}, bytes(8)), "bytes, not 8"),
        # (2**62)**64 elements of 4 bytes are 2**3970 bytes: beyond any float.
        (file_bytes({"a": entry(shape=[2**62] * 64, end=16)}, bytes(16)), "takes at least 2**3970 bytes, not 16"),
        (file_bytes({"\x1b" * 100_000: entry()}, bytes(8)), "unprintable characters"),
        (file_bytes({"a" * 600_000: entry(shape=[3])}, bytes(8)), "takes 12 bytes, not 8"),
        (file_bytes({"a": entry(shape=[3])}, bytes(8)), "takes 12 bytes, not 8"),
        (file_bytes({"a": entry(begin=8, end=0)}, bytes(8)), "not [begin, end]"),
        (file_bytes({"a": {**entry(), "data_offsets": [0, 4, 8]}}, bytes(8)), "not [begin, end]"),
        (file_bytes({"a": entry("F4", (3,), 0, 1)}, bytes(1)), "takes 1.5 bytes, not 1"),
        (file_bytes({"a": entry("F4", (2, 1), 0, 1)}, bytes(1)), "its last dimension is odd"),
        (file_bytes({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12)), "'b' overlaps the tensor before it"),
        (file_bytes({"a": entry(), "b": entry()}, bytes(16)), "overlaps the tensor before it"),
        (file_bytes({"a": entry(), "b": entry(begin=12, end=20)}, bytes(20)), "'b' leaves a hole before it"),
        (file_bytes({"a": entry(begin=8, end=16)}, bytes(16)), "'a' leaves a hole before it"),
        (file_bytes({"a": entry()}, bytes(7)), "end at byte 8 of the data, but it holds 7"),
        (file_bytes({"a": entry()}, bytes(9)), "end at byte 8 of the data, but it holds 9"),
    ],
)
def test_a_header_that_lies_is_refused_with_what_is_wrong(content, said):
    with pytest.raises(CheckpointError) as error:
        read(content)
    assert said in str(error.value)
    assert str(error.value).startswith("x.safetensors is not a complete safetensors file")
    assert len(str(error.value).splitlines()) <= 3
    assert len(str(error.value)) < 500
    assert error.value.exit_code == 1


def test_a_dtype_that_pytorch_has_not_is_named():
    with pytest.raises(CheckpointError, match="dtype F6_E2M3, which PyTorch cannot hold"):
        read(file_bytes({"a": entry("F6_E2M3", (4,), 0, 3)}, bytes(3)))


def test_nothing_is_allocated_from_a_claimed_size(tmp_path):
    for number, content in enumerate([struct.pack("<Q", 2**63), struct.pack("<Q", MAX_HEADER_BYTES) + b"{}"]):
        (tmp_path / f"{number}.safetensors").write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(CheckpointError):
                read_file_header(tmp_path, f"{number}.safetensors")
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


def test_only_the_header_of_a_file_is_read(tmp_path):
    # 8 GB of weights that the file system never stored: reading them would take seconds and pages.
    text = json.dumps({"a": entry("F32", (2_000_000_000,), 0, 8_000_000_000)}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 8_000_000_000)
    tracemalloc.start()
    try:
        assert read_file_header(tmp_path, "model.safetensors")["a"].nbytes == 8_000_000_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
@example(file_bytes({"a": entry()}, bytes(8)))
def test_any_bytes_give_a_table_or_a_checkpoint_error(content):
    try:
        found = read(content)
    except CheckpointError:
        return
    assert all(tensor.nbytes >= 0 for tensor in found.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(sorted(DTYPES)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
SIZES = st.lists(st.integers(-1, 4) | JSON, max_size=3)
ENTRIES = st.fixed_dictionaries(
    {"dtype": st.sampled_from(sorted(DTYPES)) | JSON, "shape": SIZES, "data_offsets": SIZES | st.just([0, 4])}
)


@given(st.dictionaries(st.text(max_size=3), ENTRIES | JSON, max_size=3), st.binary(max_size=16))
def test_any_json_gives_a_table_whose_bytes_are_the_data_or_a_checkpoint_error(header, data):
    try:
        found = read(file_bytes(header, data))
    except CheckpointError:
        return
    assert sum(tensor.nbytes for tensor in found.values()) == len(data)


TORCH_DTYPES = {
    name: getattr(torch, dtype)
    for name, (dtype, bits) in DTYPES.items()
    if dtype and bits >= 8 and hasattr(torch, dtype) and name != "F8_E8M0"
}


@given(
    st.dictionaries(
        st.text(
            st.characters(min_codepoint=33, max_codepoint=0x2FF, categories=("L", "N", "P")), min_size=1, max_size=9
        ),
        st.tuples(st.sampled_from(sorted(TORCH_DTYPES)), st.lists(st.integers(0, 4), max_size=4)),
        max_size=5,
    )
)
def test_what_safetensors_saves_from_torch_is_read_with_equal_shapes_and_dtypes(wanted):
    tensors = {name: torch.empty(shape, dtype=TORCH_DTYPES[dtype]) for name, (dtype, shape) in wanted.items()}
    found = read(safetensors_torch.save(tensors))
    assert {n: (t.shape, f"torch.{t.dtype}", t.nbytes) for n, t in found.items()} == {
        n: (tuple(t.shape), str(t.dtype), t.nbytes) for n, t in tensors.items()
    }


def test_what_safetensors_saves_from_numpy_is_read_with_equal_shapes_and_dtypes(tmp_path):
    import numpy

    names = ("F64", "F32", "F16", "I64", "U64", "I32", "U32", "I16", "U16", "I8", "U8", "BOOL", "C64")
    arrays = {n: numpy.zeros((3, i), safetensors_numpy._TYPES[n]) for i, n in enumerate(names)}
    safetensors_numpy.save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "np"})
    found = read_file_header(tmp_path, "model.safetensors")
    assert {n: (t.shape, t.dtype, t.nbytes) for n, t in found.items()} == {
        n: (a.shape, a.dtype.name, a.nbytes) for n, a in arrays.items()
    }


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_packed_float4_has_the_shape_that_pytorch_gives_it(tmp_path):
    tensor = torch.zeros(2, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    safetensors_torch.save_file({"w": tensor}, tmp_path / "model.safetensors")
    loaded = safetensors_torch_shape(tmp_path / "model.safetensors")
    found = read_file_header(tmp_path, "model.safetensors")["w"]
    # Two elements in a byte: 16 bytes of storage.
    assert (found.shape, found.dtype, found.nbytes) == (tuple(tensor.shape), "float4_e2m1fn_x2", 16)
    assert loaded == [2, 16]


def safetensors_torch_shape(path):
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["w"]["shape"]
