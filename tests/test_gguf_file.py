"""GGUF files: literal bytes, the gguf package beside them, and headers that lie."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from stored_files import GGUF, Q4_1_BLOCK, Q8_0_BLOCK, small_gguf_file

from contract.errors import CheckpointError, UsageError
from contract.pipelines.checkpoints import open_checkpoint
from contract.pipelines.gguf_file import Q4_1, split_q4_1, split_q8_0, unpermuted_rows

gguf = pytest.importorskip("gguf", reason="gguf is an extra: [models]")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(small_gguf_file())
    return path


def test_fields_are_plain_values(file: Path) -> None:
    metadata = open_checkpoint(file).metadata
    assert metadata == {
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.rope.freq_base": 1e5,
        "tokenizer.ggml.tokens": ["a", "Ġb", "<|end|>"],
        "tokenizer.ggml.token_type": [1, 1, 3],
    }
    assert type(metadata["llama.block_count"]) is int


def test_shapes_are_rows_first_and_blocks_stay_packed(file: Path) -> None:
    checkpoint = open_checkpoint(file)
    found = {name: (checkpoint.kind(name), checkpoint.shape(name)) for name in checkpoint.names()}
    assert found == {
        "embd": ("Q8_0", (2, 32)), "half": ("F16", (3, 2)), "norm": ("F32", (3,)), "q": ("Q4_1", (2, 64)),
    }  # fmt: skip
    assert checkpoint.tensor("norm").tolist() == [1.0, -2.0, 0.5]
    assert checkpoint.tensor("half").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert checkpoint.tensor("half").dtype == torch.float16
    assert bytes(checkpoint.tensor("q").flatten().tolist()) == Q4_1_BLOCK * 4
    assert checkpoint.tensor("q").shape == (2, 40)
    assert bytes(checkpoint.tensor("embd").flatten().tolist()) == Q8_0_BLOCK * 2


def compare_with_the_reader(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    checkpoint = open_checkpoint(path)
    theirs = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert checkpoint.metadata == theirs
    assert sorted(tensor.name for tensor in reader.tensors) == list(checkpoint.names())
    for tensor in reader.tensors:
        assert checkpoint.kind(tensor.name) == tensor.tensor_type.name
        assert checkpoint.shape(tensor.name) == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(checkpoint.tensor(tensor.name).numpy(), tensor.data)


def test_the_package_reads_the_same(file: Path) -> None:
    compare_with_the_reader(file)


@pytest.mark.slow
def test_the_package_reads_the_same_of_a_real_model() -> None:
    """5 s of processor time, all of it in the package's reader."""
    from contract.pipelines.packages import SMOLLM2, package_file

    try:
        path = package_file(SMOLLM2)
    except CheckpointError as error:
        pytest.skip(f"the package file is absent: {error}")
    compare_with_the_reader(path)


def test_the_package_writes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a", 7)
    writer.add_bool("b", True)
    writer.add_float64("c", 0.1)
    writer.add_array("d", [1, 2, 3])
    writer.add_custom_alignment(64)
    weight = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    q4, q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("w", weight)
    writer.add_tensor("w4", gguf.quants.quantize(weight, q4), raw_dtype=q4)
    writer.add_tensor("w8", gguf.quants.quantize(weight, q8), raw_dtype=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    compare_with_the_reader(path)
    assert open_checkpoint(path).metadata["b"] is True


def test_blocks_come_apart() -> None:
    """Byte j holds value j in its low half and value j + 16 in its high half."""
    blocks = torch.tensor([list(Q4_1_BLOCK), list(Q4_1_BLOCK)], dtype=torch.uint8)
    codes, d, m = split_q4_1(blocks)
    assert codes.tolist() == [[0, 2, 4, 6, 8, 10, 12, 14] * 2 + [1, 3, 5, 7, 9, 11, 13, 15] * 2] * 2
    assert (d.tolist(), m.tolist()) == ([[0.5], [0.5]], [[-1.25], [-1.25]])
    assert (codes.dtype, d.dtype, m.dtype) == (torch.uint8, torch.float16, torch.float16)
    codes, d = split_q8_0(torch.tensor([list(Q8_0_BLOCK)], dtype=torch.uint8))
    assert codes.tolist() == [[*range(16), *range(-16, 0)]]
    assert (codes.dtype, d.tolist()) == (torch.int8, [[-0.25]])
    with pytest.raises(CheckpointError, match=r"no rows of Q8_0 blocks of 34 bytes"):
        split_q8_0(blocks)


@pytest.mark.parametrize(("kind", "size"), [("Q4_1", 20), ("Q8_0", 34)])
def test_parts_have_the_values_of_the_package(kind: str, size: int) -> None:
    raw = np.random.default_rng(size).integers(0, 256, (5, 3 * size), dtype=np.uint8)
    # exponents of ordinary scales
    raw.reshape(-1, size)[:, (1, 3) if kind == "Q4_1" else (1,)] &= 0x3F
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    parts = (split_q4_1 if kind == "Q4_1" else split_q8_0)(torch.from_numpy(raw))
    d = parts.d.float().repeat_interleave(32, 1)
    ours = parts.codes.float() * d
    if isinstance(parts, Q4_1):
        ours += parts.m.float().repeat_interleave(32, 1)
    np.testing.assert_array_equal(ours.numpy(), theirs)


def test_rows_of_two_heads_are_put_back() -> None:
    stored = torch.tensor([0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15])
    expected = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    assert unpermuted_rows(stored, 2).tolist() == expected
    packed = stored[:, None].expand(-1, 20)
    assert unpermuted_rows(packed, 2)[:, 7].tolist() == expected
    for heads in (0, 5, 12):
        with pytest.raises(CheckpointError, match=f"12 rows are no {heads} heads"):
            unpermuted_rows(stored, heads)


def test_transformers_puts_rows_back_alike() -> None:
    module = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    rows = np.arange(3 * 64 * 2).reshape(192, 2)
    theirs = module.LlamaTensorProcessor()._reverse_permute_weights(rows, 9, 3)
    np.testing.assert_array_equal(unpermuted_rows(torch.from_numpy(rows), 3).numpy(), theirs)


def one_tensor(sizes: tuple[int, ...], kind: int, offset: int, body: bytes) -> bytes:
    file = GGUF(1, 0)
    file.tensor("w", sizes, kind, offset)
    return file.body(body)


def fields(*add: Callable[[GGUF], None]) -> bytes:
    file = GGUF(0, len(add))
    for step in add:
        step(file)
    return file.body() + bytes(64)


def two(first: tuple[str, int], second: tuple[str, int]) -> bytes:
    file = GGUF(2, 0)
    for name, offset in (first, second):
        file.tensor(name, (16,), 0, offset)
    return file.body(bytes(256))


LONG = struct.pack("<Q", 1 << 62)
BROKEN: dict[str, tuple[bytes, str]] = {
    "other magic": (b"GGML" + bytes(60), "begins with b'GGML', no GGUF file"),
    "version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1; 2 and 3 are read"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "short": (b"GGUF\x03", "1 numbers of 4 bytes in 1 bytes"),
    "tensor count": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "1152921504606846976 tensors in 0 bytes"),
    "field count": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "1152921504606846976 fields in 0 bytes"),
    "key length": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + LONG + bytes(20), "4611686018427387904 bytes of text"),
    "list length": (fields(lambda f: f.field("k", 9, struct.pack("<I", 0) + LONG)), "4611686018427387904 values"),
    "list of lists": (fields(lambda f: f.field("k", 9, struct.pack("<IQ", 9, 1))), "a list of type 9"),
    "field type": (fields(lambda f: f.field("k", 13, b"")), "a field of type 13"),
    "no UTF-8": (fields(lambda f: f.string("k", b"\xff\xfe")), r"no UTF-8: b'\\xff\\xfe'"),
    "key twice": (fields(*[lambda f: f.string("k", "v")] * 2), "field 'k' twice"),
    "alignment": (
        fields(lambda f: f.field("general.alignment", 4, struct.pack("<I", 3))) ,
        "general.alignment = 3, no power of two",
    ),
    "no dimensions": (one_tensor((), 0, 0, bytes(64)), "'w' has 0 dimensions"),
    "many dimensions": (one_tensor((1,) * 5, 0, 0, bytes(64)), "'w' has 5 dimensions"),
    "size 0": (one_tensor((0, 4), 0, 0, bytes(64)), r"'w' has sizes \(0, 4\)"),
    "huge sizes": (one_tensor((1 << 40, 1 << 40), 0, 0, bytes(64)), "w: ends at byte .* cut short"),
    "kind": (one_tensor((32,), 4, 0, bytes(64)), "w: unknown kind 4"),
    "half a block": (one_tensor((33,), 3, 0, bytes(64)), "w: 33 columns; Q4_1 has blocks of 32"),
    "offset": (one_tensor((4,), 0, 1 << 63, bytes(64)), "w: ends at byte .* cut short"),
    "odd offset": (one_tensor((4,), 0, 8, bytes(64)), "w: offset 8 is no multiple of 32"),
    "cut short": (small_gguf_file()[:-1], "embd: ends at byte .* cut short"),
    "overlap": (two(("a", 0), ("b", 32)), "b overlaps a"),
    "name twice": (two(("a", 0), ("a", 64)), "two tensors of one name"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_header_that_lies_is_refused(tmp_path: Path, fault: str) -> None:
    data, said = BROKEN[fault]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)


def test_more_values_than_any_vocabulary_has_are_not_read(tmp_path: Path) -> None:
    """A list of bytes takes eight times its size once it is read."""
    path = tmp_path / "large.gguf"
    count = (1 << 22) + 1
    path.write_bytes(fields(lambda f: f.field("k", 9, struct.pack("<IQ", 0, count) + bytes(count))))
    with pytest.raises(CheckpointError, match="more than 4194304 tensors, fields and values"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("at", "said"), [(1, "d of row 0, block 0 is "), (23, "m of row 0, block 1 is ")]
)
def test_a_scale_that_is_no_number_is_refused(tmp_path: Path, at: int, said: str) -> None:
    for high, value in ((0x7C, "inf"), (0x7E, "nan")):
        body = bytearray(Q4_1_BLOCK * 2)
        body[at - 1 : at + 1] = bytes([0, high])
        path = tmp_path / "nan.gguf"
        path.write_bytes(one_tensor((64, 1), 3, 0, bytes(body)))
        checkpoint = open_checkpoint(path)
        with pytest.raises(CheckpointError, match=f"w: {said}{value}"):
            checkpoint.tensor("w")


def test_another_kind_is_listed_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "k.gguf"
    path.write_bytes(one_tensor((256, 1), 12, 0, bytes(144)))
    checkpoint = open_checkpoint(path)
    assert (checkpoint.kind("w"), checkpoint.shape("w")) == ("Q4_K", (1, 256))
    with pytest.raises(CheckpointError, match="w is Q4_K; read are F32, F16, Q4_1, Q8_0"):
        checkpoint.tensor("w")


def test_tensors_are_mapped(file: Path) -> None:
    """Two reads share the file's memory, and a write to it stays in this process."""
    checkpoint = open_checkpoint(file)
    first, second = checkpoint.tensor("norm"), checkpoint.tensor("norm")
    assert first.data_ptr() == second.data_ptr()
    first[0] = 9.0
    assert file.read_bytes() == small_gguf_file()


def test_without_the_package_the_extra_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        UsageError, match=r"gguf cannot be imported .* pip install 'kernel-contract\[models\]'"
    ):
        open_checkpoint(file)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="no regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")
