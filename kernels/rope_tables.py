"""Tables of the rotary embedding: contracts and torch implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.lazy import lazy
from contract.references import rope_tables as references

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Tables = tuple["torch.Tensor", "torch.Tensor"]

#: One past the largest position of a text, and of a patch along one axis of an image.
POSITIONS, PATCHES = 262_144, 10_240
TRIG = (
    "SLEEF and ATen's vectors on CPUs: sinf and cosf at most 3.5 ulp, for every argument; CUDA C++ Programming Guide: 2"
    " ulp beside the rounded value; glibc below 1"
)
HIDDEN = "the 3.5 ulps of cos and sin hide how the last bit is rounded"


def frequencies(rng: Any, shape: tuple[int, ...]) -> Any:
    """theta^(-i / half) for the thetas of Llama, Gemma, Qwen3, Qwen3-VL and Qwen3.5, and of Gemma 4's tower."""
    theta = float(rng.choice((1e2, 1e4, 5e5, 1e6, 5e6, 1e7)))
    return theta ** (-np.arange(shape[0]) / shape[0])


def axis_sections(rng: Any, shape: tuple[int, ...]) -> Any:
    """Frequencies an axis: Qwen3-VL's, Qwen3.5's, and small ones."""
    choices = ((24, 20, 20), (11, 11, 10), (2, 1, 1))
    return np.asarray(choices[int(rng.integers(len(choices)))])


def exact_frequencies(rng: Any, count: int) -> Any:
    """Random frequencies of a typical spread, some of them 0."""
    return frequencies(rng, (count,)) * (rng.random(count) < 0.9)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: any angle in bf16, as nearly no cos or sin is within 3.5 fp32 ulps of a tie; the angle 0 in fp32."""
    positions = rng.integers(0, POSITIONS, shape["tokens"])
    positions[::8] = 0
    return {"positions": positions, "inv_freq": exact_frequencies(rng, shape["half"])}


def mrope_exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """As exact_rows, with a position of its own on each axis."""
    positions = rng.integers(0, POSITIONS, (3, shape["tokens"]))
    positions[:, ::8] = 0
    return {
        "positions": positions,
        "inv_freq": exact_frequencies(rng, shape["half"]),
        "sections": axis_sections(rng, (3,)),
    }


def vit_exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """As exact_rows, for both coordinates of a patch."""
    positions = rng.integers(0, PATCHES, (shape["tokens"], 2))
    positions[::8] = 0
    return {"positions": positions, "inv_freq": exact_frequencies(rng, shape["freqs"])}


def profiles(once: str, float32: str) -> tuple[Profile, Profile]:
    """Tables in bf16 and in fp32, with who has them."""
    return (
        Profile("once", {"angle": "fp32", "cos": "bf16", "sin": "bf16"}, users=once),
        Profile(
            "float32",
            {"angle": "fp32", "cos": "fp32", "sin": "fp32"},
            {"cos": "fp32", "sin": "fp32"},
            vacuous={"cos": HIDDEN, "sin": HIDDEN},
            users=float32,
        ),
    )


FREEDOMS = {"cos": TRIG, "sin": TRIG}
INV_FREQ = tensor("inv_freq", "half", "fp32", typical=frequencies, finite=True)
OUTPUTS = (output("cos", "tokens half"), output("sin", "tokens half"))

rope_tables = register(
    Contract(
        name="rope_tables",
        family="rotary",
        summary="cos and sin of positions times inverse frequencies",
        reference=references.rope_tables,
        operands=(
            tensor("positions", "tokens", "int32", below=POSITIONS),
            INV_FREQ,
            *OUTPUTS,
        ),
        parameters={"scheme": ("plain", "proportional")},
        profiles=profiles("text models of transformers", "MLX on Metal, fused rotations"),
        row_dims=("tokens",),
        # heads of 128 (Qwen3), 64 rotary dims (Qwen3.5), 512 (Gemma 4's global layers)
        shapes=(
            {"tokens": 1, "half": 64},
            {"tokens": 1028, "half": 64},
            {"tokens": 128, "half": 32},
            {"tokens": 128, "half": 256},
        ),
        awkward=({"tokens": 3, "half": 1}, {"tokens": 17, "half": 37}),
        stress=({"half": 16}, {"half": 5}, {"half": 64}),
        exact=exact_rows,
        exact_shapes=({"half": 16}, {"half": 64}, {"half": 5}),
        freedoms=FREEDOMS,
    )
)

mrope_tables = register(
    Contract(
        name="mrope_tables",
        family="rotary",
        summary="rotary tables of time, height and width, an axis for each frequency",
        reference=references.mrope_tables,
        operands=(
            tensor("positions", "axes tokens", "int32", below=POSITIONS),
            INV_FREQ,
            tensor("sections", "axes", "int32", below=1024, typical=axis_sections),
            *OUTPUTS,
        ),
        parameters={"layout": ("interleaved", "contiguous")},
        profiles=profiles("Qwen3-VL, Qwen3.5, Qwen2-VL in transformers", "fused rotations"),
        row_dims=("tokens",),
        shapes=(
            {"axes": 3, "tokens": 1, "half": 64},
            {"axes": 3, "tokens": 128, "half": 64},
            {"axes": 3, "tokens": 128, "half": 32},
        ),
        awkward=({"axes": 3, "tokens": 3, "half": 1}, {"axes": 3, "tokens": 17, "half": 37}),
        stress=({"axes": 3, "half": 64}, {"axes": 3, "half": 32}, {"axes": 3, "half": 5}),
        exact=mrope_exact_rows,
        exact_shapes=({"axes": 3, "half": 32}, {"axes": 3, "half": 64}, {"axes": 3, "half": 64}),
        freedoms=FREEDOMS,
        rules={"axes = 3 (time, height, width)": lambda s: s["axes"] == 3},
    )
)

vit_rope_tables = register(
    Contract(
        name="vit_rope_tables",
        family="rotary",
        summary="rotary tables of the two coordinates of image patches",
        reference=references.vit_rope_tables,
        operands=(
            tensor("positions", "tokens axes", "int32", below=PATCHES),
            tensor("inv_freq", "freqs", "fp32", typical=frequencies, finite=True),
            *OUTPUTS,
        ),
        profiles=profiles(
            "tower of Gemma 4 in transformers", "towers of Qwen3-VL and Qwen3.5 in transformers"
        ),
        row_dims=("tokens",),
        # heads of 64 (Qwen3-VL) and 72 (Gemma 4's tower)
        shapes=(
            {"tokens": 1, "axes": 2, "freqs": 16, "half": 32},
            {"tokens": 256, "axes": 2, "freqs": 16, "half": 32},
            {"tokens": 280, "axes": 2, "freqs": 18, "half": 36},
        ),
        awkward=(
            {"tokens": 3, "axes": 2, "freqs": 1, "half": 2},
            {"tokens": 17, "axes": 2, "freqs": 9, "half": 18},
        ),
        stress=(
            {"axes": 2, "freqs": 8, "half": 16},
            {"axes": 2, "freqs": 3, "half": 6},
            {"axes": 2, "freqs": 16, "half": 32},
        ),
        exact=vit_exact_rows,
        exact_shapes=(
            {"axes": 2, "freqs": 8, "half": 16},
            {"axes": 2, "freqs": 18, "half": 36},
            {"axes": 2, "freqs": 5, "half": 10},
        ),
        freedoms=FREEDOMS,
        rules={
            "axes = 2": lambda s: s["axes"] == 2,
            "half = 2 freqs (the frequencies of both axes)": lambda s: s["half"] == 2 * s["freqs"],
        },
    )
)


def cos_sin(angle: torch.Tensor, profile: str) -> Tables:
    """Both tables of fp32 angles, in the profile's format."""
    dtype = torch.bfloat16 if profile == "once" else torch.float32
    return angle.cos().to(dtype), angle.sin().to(dtype)


@implementation("rope_tables", name="torch", profile=("once", "float32"))
def rope_tables_torch(
    positions: torch.Tensor, inv_freq: torch.Tensor, *, scheme: str, profile: str
) -> Tables:
    """One fp32 product an angle; the pairs that stand still have angle 0."""
    angle = positions.float()[:, None] * inv_freq
    if scheme == "proportional":
        angle[:, len(inv_freq) // 4 :] = 0.0
    return cos_sin(angle, profile)


def axis_of_each(sections: torch.Tensor, half: int, layout: str) -> torch.Tensor:
    """The axis that each frequency reads."""
    lane = torch.arange(half)
    _, height, width = sections.long()
    if layout == "contiguous":
        starts = sections.long().cumsum(0)[:2]
        return torch.searchsorted(starts, lane, right=True)
    reads_height = (lane % 3 == 1) & (lane < 3 * height)
    reads_width = (lane % 3 == 2) & (lane < 3 * width)
    axis: torch.Tensor = reads_height + 2 * reads_width
    return axis


@implementation("mrope_tables", name="torch", profile=("once", "float32"))
def mrope_tables_torch(
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    sections: torch.Tensor,
    *,
    layout: str,
    profile: str,
) -> Tables:
    """Every frequency takes its axis's positions, then one fp32 product an angle."""
    read = positions.float()[axis_of_each(sections, len(inv_freq), layout)]
    return cos_sin(read.T * inv_freq, profile)


@implementation("vit_rope_tables", name="torch", profile=("once", "float32"))
def vit_rope_tables_torch(
    positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str
) -> Tables:
    """The angles of the first coordinate, then those of the second."""
    return cos_sin((positions.float()[..., None] * inv_freq).flatten(1), profile)
