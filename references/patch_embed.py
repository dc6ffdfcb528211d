"""Patches to the rows of a vision tower: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def patch_embed(
    r: Reading,
    patches: Quantity,
    weight: Quantity,
    offset: Quantity | None,
    table: Quantity | None,
    places: Quantity | None,
    adds: str,
    bias: str,
) -> Quantity:
    """A linear map of each patch, its bias and its learned position: y = x W^T + b, out = y + p.

    A convolution whose stride is its kernel's size is this map of flattened patches.

    Args:
        patches: (rows, k) bf16, k = channels side side, in the order of the weight's columns.
        weight: (n, k) bf16.
        offset: (n,) bf16, the bias b; absent with adds=position.
        table: (entries, n) bf16, learned positions; absent with adds=bias. Tables of two axes stand below each other.
        places: (rows, axes) int32, the entries whose sum is p: one, or one for each of two axes.
        adds: 'both', 'position' or 'bias'.
        bias: 'inside', added before y is rounded; 'outside', after.

    Rounding points:
        product: x W^T before the bias (outside only).
        y: the mapped patch, before the position is added.
        position: the sum of two entries.
        out: the result.

    Freedoms: the products in any order, the bias at any place of the sum.

    Specials: as a matrix product: an infinity times 0 is NaN.

    Source: transformers, modeling_siglip.py (both, one entry), modeling_gemma4.py (position, two entries),
    modeling_qwen3_vl.py (bias); Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    columns = weight.swapaxes(0, 1)
    if offset is None:
        y = r.dot(patches, columns)
    elif bias == "inside":
        y = r.dot(patches, columns, start=offset.reshape(1, weight.shape[0]))
    else:
        y = r.round("product", r.dot(patches, columns)) + offset
    if table is None or places is None or adds == "bias":
        return r.round("out", y)
    index = r.integers(places)
    position = r.take(table, index[:, 0])
    if index.shape[1] == 2:
        position = r.round("position", position + r.take(table, index[:, 1]))
    return r.round("out", r.round("y", y) + position)
