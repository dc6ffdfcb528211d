"""Checkpoints: what each format holds, what a model requires, and 140 broken files."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_files import (
    SMALL_DATA,
    safetensors_bytes,
    small_gguf,
    small_gguf_file,
    small_header,
    small_safetensors,
)

from contract.errors import CheckpointError
from contract.pipelines.checkpoints import INNER_VISION_MODEL, Checkpoint, open_checkpoint

for library in ("safetensors", "gguf"):
    pytest.importorskip(library, reason=f"{library} is an extra: [models]")

SHAPES = {"layer.weight": (2, 1), "layer.bias": (3,)}


def read_all(path: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.tensor(name) for name in checkpoint.names()}


def refused(path: Path, said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)


def header_with(**changes: Any) -> dict[str, Any]:
    header = small_header()
    header["layer.weight"] |= changes
    return header


def test_safetensors_hold_literal_values(tmp_path: Path) -> None:
    small_safetensors(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        checkpoint = open_checkpoint(path)
        assert checkpoint.names() == ("layer.bias", "layer.weight")
        assert (checkpoint.kind("layer.bias"), checkpoint.shape("layer.bias")) == ("BF16", (3,))
        assert checkpoint.tensor("layer.weight").tolist() == [[1.5], [-2.0]]
        assert checkpoint.tensor("layer.bias").tolist() == [1.0, -2.0, 0.0]
        assert checkpoint.metadata == {}


def test_every_kind_of_the_library_comes_back(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    kinds = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16",
             "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex64")  # fmt: skip
    stored = {kind: torch.tensor([[0, 1, 1]]).to(getattr(torch, kind)) for kind in kinds}
    stored |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5)}
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    torch.save(OrderedDict(stored), tmp_path / "model.pth")
    for name in ("model.safetensors", "model.pth"):
        checkpoint = open_checkpoint(tmp_path / name)
        assert checkpoint.names() == tuple(sorted(stored))
        for key, value in stored.items():
            found = checkpoint.tensor(key)
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            assert checkpoint.shape(key) == value.shape
            assert found.tolist() == value.tolist()
    assert open_checkpoint(tmp_path / "model.safetensors").metadata == {"format": "pt"}


def test_a_module_comes_back_from_torch_save(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    found = read_all(tmp_path)
    assert found.keys() == module.state_dict().keys()
    for name, value in module.state_dict().items():
        assert torch.equal(found[name], value)
    torch.save({"w": torch.nn.Parameter(torch.ones(2))}, tmp_path / "w.pt")
    assert not open_checkpoint(tmp_path / "w.pt").tensor("w").requires_grad


def shards(folder: Path, index: Any = None, **weight_map: str) -> Path:
    for i, (name, item) in enumerate(small_header().items()):
        begin, end = item["data_offsets"]
        alone = {name: item | {"data_offsets": [0, end - begin]}}
        (folder / f"{i}.safetensors").write_bytes(safetensors_bytes(alone, SMALL_DATA[begin:end]))
    places = {"layer.weight": "0.safetensors", "layer.bias": "1.safetensors"} | weight_map
    path = folder / "model.safetensors.index.json"
    given = {"metadata": {"total_size": 14}, "weight_map": places} if index is None else index
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    return path


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    path = shards(tmp_path)
    for given in (tmp_path, path):
        checkpoint = open_checkpoint(given)
        checkpoint.require(SHAPES)
        assert checkpoint.tensor("layer.bias").tolist() == [1.0, -2.0, 0.0]
        assert checkpoint.metadata == {"total_size": 14}


def test_a_shard_may_be_a_link_out_of_the_folder(tmp_path: Path) -> None:
    """As in the cache of the hub."""
    (tmp_path / "snapshot").mkdir()
    path = shards(tmp_path / "snapshot")
    (tmp_path / "snapshot" / "0.safetensors").rename(tmp_path / "blob")
    (tmp_path / "snapshot" / "0.safetensors").symlink_to("../blob")
    open_checkpoint(path).require(SHAPES)


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        ({"layer.weight": "2.safetensors"}, r"shard 2\.safetensors is missing"),
        ({"layer.weight": "../0.safetensors"}, r"shard '\.\./0\.safetensors' is no file of its folder"),
        ({"layer.weight": "/etc/passwd"}, "shard '/etc/passwd' is no file of its folder"),
        ({"layer.weight": "a\\..\\0.safetensors"}, "is no file of its folder"),
        ({"layer.weight": ".."}, r"shard '\.\.' is no file of its folder"),
        ({"layer.weight": "a" * 5000}, "File name too long; correct its weight_map"),
        ({"layer.weight": ""}, "shard '' is no file of its folder"),
        ({"layer.weight": "1.safetensors"}, r"1\.safetensors: layer\.weight is in the index alone"),
        ({"other": "0.safetensors"}, r"0\.safetensors: other is in the index alone"),
        ({"layer.weight": "model.safetensors.index.json"}, "no known kind of file"),
    ],
)  # fmt: skip
def test_an_index_that_lies_is_refused(
    tmp_path: Path, weight_map: dict[str, str], said: str
) -> None:
    refused(shards(tmp_path, **weight_map), said)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {"layer.weight": "0.safetensors"}, "metadata": []}, ""),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": {"a": 1}}, "no weight_map"),
        ([], "no weight_map"),
        ("{", "no JSON"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "key 'a' twice in one object"),
        ("[" * 100_000, "JSON nested too deep"),
        ('{"weight_map": NaN}', "NaN is no JSON"),
        ("9" * 5000, "no JSON"),
    ],
)
def test_an_index_of_another_form_is_refused(tmp_path: Path, index: Any, said: str) -> None:
    path = shards(tmp_path, index)
    if said:
        refused(path, said)
    else:
        assert open_checkpoint(path).metadata == {}


def test_an_index_without_a_tensor_of_its_shard_is_refused(tmp_path: Path) -> None:
    path = shards(tmp_path, {"weight_map": {"layer.weight": "both.safetensors"}})
    small_safetensors(tmp_path / "both.safetensors")
    refused(path, "layer.bias is in the file alone")


OVERFLOW = 1 << 62
SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "seven bytes": (b"\x01" * 7, "cut short or no safetensors file"),
    "no header": ((0).to_bytes(8, "little"), "no JSON"),
    "long header": ((1 << 63).to_bytes(8, "little") + b"{}", "a header of 9223372036854775808 bytes in a file of 10"),
    "no JSON": (safetensors_bytes(b"{]", b""), "no JSON"),
    "no UTF-8": (safetensors_bytes(b'{"\xff": 1}', b""), "no JSON"),
    "no object": (safetensors_bytes([], b""), "the header is no JSON object"),
    "nested": (safetensors_bytes(b'{"a":' * 100_000, b""), "nested too deep"),
    "twice": (safetensors_bytes(b'{"a": 1, "a": 2}', b""), "key 'a' twice"),
    "NaN": (safetensors_bytes(b'{"a": NaN}', b""), "NaN is no JSON"),
    "metadata": (safetensors_bytes({"__metadata__": {"a": 1}}, b""), "must hold text only"),
    "no fields": (safetensors_bytes({"a": {"dtype": "F32"}}, b""), "a: no object of dtype, shape and data_offsets"),
    "dtype": (safetensors_bytes(header_with(dtype="F33"), SMALL_DATA), "layer.weight: dtype 'F33'; known are F64"),
    "no dtype": (safetensors_bytes(header_with(dtype=[]), SMALL_DATA), r"dtype '\[\]'"),
    "negative": (safetensors_bytes(header_with(shape=[-2, -1]), SMALL_DATA), r"shape \[-2, -1\]"),
    "no whole size": (safetensors_bytes(header_with(shape=[2.0, 1]), SMALL_DATA), "shape .*sizes >= 0"),
    "no number": (safetensors_bytes(header_with(shape=[True, 2]), SMALL_DATA), "shape .*sizes >= 0"),
    "dimensions": (safetensors_bytes(header_with(shape=[1] * 9), SMALL_DATA), "at most 8 sizes"),
    "overflow": (safetensors_bytes(header_with(shape=[OVERFLOW, 4]), SMALL_DATA), "8 bytes; F32 .* has 73786976"),
    "2^64": (safetensors_bytes(header_with(shape=[1 << 64, 0]), SMALL_DATA), "sizes >= 0"),
    "bytes": (safetensors_bytes(header_with(shape=[3]), SMALL_DATA), r"8 bytes; F32 \[3\] has 12"),
    "backwards": (safetensors_bytes(header_with(data_offsets=[8, 0]), SMALL_DATA), "0 <= begin <= end"),
    "below 0": (safetensors_bytes(header_with(data_offsets=[-8, 0]), SMALL_DATA), "0 <= begin <= end"),
    "three offsets": (safetensors_bytes(header_with(data_offsets=[0, 4, 8]), SMALL_DATA), "0 <= begin <= end"),
    "overlap": (safetensors_bytes(header_with(data_offsets=[2, 10]), SMALL_DATA), "leaves a hole after the header"),
    "same bytes": (
        safetensors_bytes({n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "ab"}, bytes(4)),
        "b overlaps a",
    ),
    "out of range": (safetensors_bytes(header_with(data_offsets=[1000, 1008]), SMALL_DATA), "leaves a hole"),
    "cut short": (safetensors_bytes(small_header(), SMALL_DATA[:-1]), "have 14 bytes, the file has room for 13"),
    "appended": (safetensors_bytes(small_header(), SMALL_DATA + b"\0"), "have 14 bytes, the file has room for 15"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SAFETENSORS)
def test_safetensors_that_lie_are_refused(tmp_path: Path, fault: str) -> None:
    data, said = SAFETENSORS[fault]
    (tmp_path / "x.safetensors").write_bytes(data)
    refused(tmp_path / "x.safetensors", said)


def test_a_large_header_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write((20 << 20).to_bytes(8, "little"))
        file.truncate(21 << 20)
    refused(path, "a header of 20971520 bytes; at most 16777216 are read")


def archive(path: Path, data: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """What torch.save would write for a pickle of that text."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, text in (("data.pkl", data), ("byteorder", b"little"), ("version", b"3\n")):
            file.writestr(f"x/{name}", text)
    return path


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def shared_tuples() -> bytes:
    """A key whose hash takes 2^60 steps: {t60: 1}, t(n) = (t(n - 1), t(n - 1))."""
    steps = b"".join(b"q%ch%c\x86" % (i, i) for i in range(60))
    return b"\x80\x02})" + steps + b"K\x01s."


PICKLES: dict[str, tuple[Any, str]] = {
    "a list": ([torch.zeros(1)], "holds a list; save its state_dict alone"),
    "a tensor": (torch.zeros(1), "holds a Tensor; save its state_dict alone"),
    "a number": ({"step": 7}, "step is a int, no tensor; save its state_dict alone"),
    "nested": ({"state_dict": {"a": torch.zeros(1)}}, "state_dict is a dict, no tensor"),
    "a key": ({1: torch.zeros(1)}, "a key is a int, no text"),
    "sparse": ({"a": torch.eye(2).to_sparse()}, "_rebuild_sparse_tensor|torch.serialization"),
    "expanded": ({"a": torch.zeros(1).expand(1 << 50)}, "out of fewer bytes; save x.contiguous()"),
    "meta": ({"a": torch.zeros(1 << 50, device="meta")}, "_rebuild_meta_tensor_no_storage, no tensor"),
    "a module": (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear, no tensor"),
    "a command": (Call(eval, "exit(3)"), "its pickle names (builtins|__builtin__).eval, no tensor"),
    "bytes": (Call(bytearray, 1 << 40), "names (builtins|__builtin__).bytearray, no tensor"),
    "a huge tensor": (Call(torch.FloatTensor, 1 << 40), "torch.FloatTensor, no tensor"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PICKLES)
def test_anything_but_tensors_is_refused(tmp_path: Path, fault: str) -> None:
    value, said = PICKLES[fault]
    torch.save(value, tmp_path / "x.pth")
    refused(tmp_path / "x.pth", said)


ENDLESS: dict[str, tuple[bytes, str]] = {
    "a tuple twice": (shared_tuples(), "its pickle uses a tuple twice"),
    "deep tuples": (b"\x80\x02})" + b"\x85" * 500_000 + b"K\x01s.", "its pickle nests tuples deep"),
    "no such memo": (b"\x80\x02}h\x07s.", r"x\.pth: .*; download it again"),
    "an empty stack": (b"\x80\x02s.", "its pickle takes more than it holds"),
    "no end": (b"\x80\x02}", r"x\.pth: .*; download it again"),
    "4 GiB of text": (b"\x80\x02X\xff\xff\xff\xff", r"x\.pth: .*; download it again"),
    "nothing": (b"", r"x\.pth: .*; download it again"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ENDLESS)
def test_a_pickle_that_would_not_end_is_refused(tmp_path: Path, fault: str) -> None:
    data, said = ENDLESS[fault]
    refused(archive(tmp_path / "x.pth", data), said)


def test_archives_of_another_form_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)
    refused(path, "no archive of torch.save of torch 1.6 or later")
    path.write_bytes(pickle.dumps({}))
    refused(path, "no archive of torch.save")
    refused(
        archive(path, b"\x80\x02}." + bytes(99), zipfile.ZIP_DEFLATED), "compressed or encrypted"
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/other", b"")
    refused(path, "0 members data.pkl, one is needed")


def test_files_that_cannot_be_one_are_named(tmp_path: Path) -> None:
    refused(tmp_path / "absent.pth", "absent.pth: No such file or directory")
    refused(tmp_path, "one checkpoint is needed, it has none")
    for name in ("a.safetensors", "b.gguf", "c.onnx"):
        (tmp_path / name).touch()
    refused(tmp_path, r"one checkpoint is needed, it has a\.safetensors, b\.gguf; name the file")
    refused(tmp_path / "a.safetensors", "the file is empty")
    (tmp_path / "c.onnx").write_bytes(b"x")
    refused(tmp_path / "c.onnx", r"no known kind of file; known are \.safetensors")


def with_names(tmp_path: Path, *names: str) -> Checkpoint:
    header = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i, name in enumerate(names)
    }
    path = tmp_path / "named.safetensors"
    path.write_bytes(safetensors_bytes(header, bytes(len(names))))
    return open_checkpoint(path)


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(small_safetensors(tmp_path / "x.safetensors"))
    for ask in (checkpoint.shape, checkpoint.kind, checkpoint.tensor):
        with pytest.raises(
            CheckpointError, match=r"no tensor 'layer\.weigth'; did you mean 'layer\.weight'"
        ):
            ask("layer.weigth")
    with pytest.raises(CheckpointError, match=r"it has layer\.bias, layer\.weight"):
        checkpoint.shape("?")


def test_missing_extra_and_misshaped_tensors_come_in_one_error(tmp_path: Path) -> None:
    checkpoint = with_names(tmp_path, "w", *(f"old{i}" for i in range(7)))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.require({"w": (2, 3), **{f"layer.{i}.w": (1,) for i in range(6)}})
    assert str(caught.value).removeprefix(f"{tmp_path}/") == (
        "named.safetensors: tensors 6 missing (layer.0.w, layer.1.w, layer.2.w, layer.3.w, layer.4.w, and 1 more);"
        " 7 extra (old0, old1, old2, old3, old4, and 2 more); 1 of another shape (w (1,), not (2, 3));"
        " open the checkpoint of this very model"
    )
    checkpoint.require({name: (1,) for name in checkpoint.names()})


TOWER = tuple(f"vision_tower.encoder.layers.{i}.weight" for i in range(3))
INNER = tuple(name.replace("tower.", "tower.vision_model.") for name in TOWER)


def test_towers_with_and_without_the_inner_prefix_end_at_the_same_names(tmp_path: Path) -> None:
    expected = {name: (1,) for name in TOWER}
    for names in (TOWER, INNER):
        with_names(tmp_path, *names).renamed(INNER_VISION_MODEL).require(expected)
    with pytest.raises(CheckpointError, match=r"3 of its names carry 'vision_model\.': see"):
        with_names(tmp_path, *INNER).require(expected)
    with pytest.raises(CheckpointError, match=r"3 of its names lack 'vision_model\.': see"):
        with_names(tmp_path, *TOWER).require({name: (1,) for name in INNER})
    alone = with_names(tmp_path, "vision_model.post_layernorm.weight")
    assert alone.renamed(INNER_VISION_MODEL).names() == ("post_layernorm.weight",)


def test_renaming_keeps_the_tensors_and_refuses_two_of_one_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(small_safetensors(tmp_path / "x.safetensors"))
    view = checkpoint.renamed([(r"^layer\.(.*)$", r"model.\1"), ("model", "m")])
    assert view.names() == ("m.bias", "m.weight")
    assert view.tensor("m.weight").tolist() == [[1.5], [-2.0]]
    with pytest.raises(
        CheckpointError, match=r"two tensors are renamed 'x', one of them 'layer\.bias'"
    ):
        checkpoint.renamed([(r".*\..*", "x")])


def saved(folder: Path) -> bytes:
    torch.save({"layer.weight": torch.ones(2, 1), "layer.bias": torch.ones(3)}, folder / "good.pth")
    return (folder / "good.pth").read_bytes()


def with_byte(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def mutants(folder: Path, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Broken files: each differs from a good one in its header, at a place where no other value can be right."""
    good = safetensors_bytes(small_header(), SMALL_DATA)
    end = 8 + int.from_bytes(good[:8], "little")
    for at in rng.sample(range(1, len(good)), 15):
        yield "safetensors", good[:at]
    for at in rng.sample(range(8, end), 15):
        # a byte that is no ASCII, among ASCII: no UTF-8
        yield "safetensors", with_byte(good, at, good[at] ^ 0x80)
    for length in (0, 1, end - 9, end - 7, len(good), 1 << 32, 1 << 62, (1 << 64) - 1):
        yield "safetensors", length.to_bytes(8, "little") + good[8:]
    for begin in (-1, 1, 4, 9, 1 << 31, 1 << 62, 1 << 64):
        yield (
            "safetensors",
            safetensors_bytes(header_with(data_offsets=[begin, begin + 8]), SMALL_DATA),
        )

    index = json.dumps(
        {"weight_map": {"layer.weight": "good.safetensors", "layer.bias": "good.safetensors"}}
    )
    for at in rng.sample(range(1, len(index)), 10):
        yield "index.json", index[:at].encode()
    for at in rng.sample(range(len(index)), 10):
        yield "index.json", with_byte(index.encode(), at, ord(index[at]) ^ 0x80)

    header, good = small_gguf(), small_gguf_file()
    for at in rng.sample(range(1, len(good)), 15):
        yield "gguf", good[:at]
    for at, letter in header.sizes:
        for hostile in rng.sample(
            [1 << 31, (1 << 32) - 1, 1 << 60, 1 << 62, 1 << 63, (1 << 64) - 1], 2
        ):
            width = struct.calcsize(letter)
            value = min(hostile, (1 << 8 * width) - 1)
            yield "gguf", good[:at] + value.to_bytes(width, "little") + good[at + width :]

    good = saved(folder)
    for at in rng.sample(range(1, len(good)), 15):
        yield "pth", good[:at]
    first = good.index(b"data.pkl") + 8
    for at in rng.sample(range(first + 64, good.index(b".format_version") - 64), 10):
        # the sum over the member no longer fits
        yield "pth", with_byte(good, at, good[at] ^ 1 << rng.randrange(8))


def test_broken_files_are_refused_within_seconds(tmp_path: Path) -> None:
    small_safetensors(tmp_path / "good.safetensors")
    start, count = time.process_time(), 0
    for i, (suffix, data) in enumerate(mutants(tmp_path, random.Random(0))):
        path = tmp_path / f"{i}.{suffix}"
        path.write_bytes(data)
        with pytest.raises(CheckpointError):
            open_checkpoint(path)
        count += 1
    assert count > 140
    assert time.process_time() - start < 10


@pytest.mark.parametrize("suffix", ["safetensors", "gguf", "pth"])
def test_any_byte_may_be_wrong(tmp_path: Path, suffix: str) -> None:
    """No other error than ours, whichever bytes are flipped; where none comes, tensors are read."""
    goods: dict[str, Callable[[], bytes]] = {
        "safetensors": lambda: safetensors_bytes(small_header(), SMALL_DATA),
        "gguf": small_gguf_file,
        "pth": lambda: saved(tmp_path),
    }
    good, rng = goods[suffix](), random.Random(1)
    outcomes = set()
    for i in range(120):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path = tmp_path / f"{i}.{suffix}"
        path.write_bytes(data)
        try:
            outcomes.add(isinstance(read_all(path), dict))
        except CheckpointError:
            outcomes.add(False)
    assert False in outcomes


def test_the_good_files_of_the_mutants_are_good(tmp_path: Path) -> None:
    small_safetensors(tmp_path / "good.safetensors")
    saved(tmp_path)
    (tmp_path / "good.gguf").write_bytes(small_gguf_file())
    for name in ("good.safetensors", "good.pth"):
        open_checkpoint(tmp_path / name).require(SHAPES)
    assert len(read_all(tmp_path / "good.gguf")) == 4
    assert io.BytesIO(saved(tmp_path)).read(2) == b"PK"
