"""An ONNX model as a black box: its inputs are arguments, its outputs results; onnxruntime computes it on the CPU.

A single node is asked about as a model that holds nothing else. Tensors are handed over by address, so that formats which
NumPy does not have (bf16) travel too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contract.errors import UsageError
from contract.lazy import lazy

torch = lazy("torch")

#: Type of a model's tensor -> dtype of torch, and its number in ONNX (onnx/onnx.proto, TensorProto.DataType).
TYPES = {
    "tensor(float)": ("float32", 1),
    "tensor(uint8)": ("uint8", 2),
    "tensor(int8)": ("int8", 3),
    "tensor(int32)": ("int32", 6),
    "tensor(int64)": ("int64", 7),
    "tensor(float16)": ("float16", 10),
    "tensor(double)": ("float64", 11),
    "tensor(bfloat16)": ("bfloat16", 16),
}


class OnnxModel:
    """f(**inputs) -> the outputs, in the model's order.

    Raises:
        UsageError: no onnxruntime, no file, or no model in it.
    """

    def __init__(self, path: str) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise UsageError(
                f"target {path}: onnxruntime is not installed; pip install onnxruntime"
            ) from error
        if not Path(path).is_file():
            raise UsageError(f"target: no file {path} (from {Path.cwd()})")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        # fusions round elsewhere than the nodes that are asked about
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self.session: Any = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise UsageError(f"target {path} cannot be run by onnxruntime: {error}") from error

    def parameters_of_inputs(self) -> list[dict[str, Any]]:
        """Its inputs, as `contract.identify.target.describe` lists arguments."""
        return [
            {"name": one.name, "kind": "POSITIONAL_OR_KEYWORD", "required": True}
            for one in self.session.get_inputs()
        ]

    def __call__(self, **given: Any) -> Any:
        binding = self.session.io_binding()
        # held until the model has run: it reads them by address
        kept: list[Any] = []
        sizes: dict[Any, int] = {}
        for one in self.session.get_inputs():
            dtype, number = _type(one)
            tensor = given[one.name].contiguous()
            if tensor.dtype != dtype:
                raise TypeError(f"input {one.name} is {one.type}, and is given {tensor.dtype}")
            kept.append(tensor)
            sizes |= dict(zip(one.shape, tensor.shape, strict=False))
            binding.bind_input(one.name, "cpu", 0, number, list(tensor.shape), tensor.data_ptr())
        results = []
        for one in self.session.get_outputs():
            dtype, number = _type(one)
            shape = [size if isinstance(size, int) else sizes[size] for size in one.shape]
            results.append(torch.empty(shape, dtype=dtype))
            binding.bind_output(one.name, "cpu", 0, number, shape, results[-1].data_ptr())
        self.session.run_with_iobinding(binding)
        return results[0] if len(results) == 1 else tuple(results)


def _type(one: Any) -> tuple[Any, int]:
    if one.type not in TYPES:
        raise TypeError(f"{one.name} is {one.type}, which is no format of a contract")
    name, number = TYPES[one.type]
    return getattr(torch, name), number
