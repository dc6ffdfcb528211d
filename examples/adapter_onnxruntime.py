"""A node of an ONNX graph in onnxruntime: its inputs by name, its attributes from the scalars.

contract run examples/adapter_onnxruntime.py
"""

import functools

import torch

import contract

GRAPH = """<ir_version: 10, opset_import: ["": 17]> norm (float[N, D] x, float[D] w, float[D] b) => (float[N, D] y)
    {{ y = LayerNormalization <axis = -1, epsilon = {eps}> (x, w, b) }}"""


@functools.cache
def session(eps):
    import onnx
    import onnxruntime

    model = onnx.parser.parse_model(GRAPH.format(eps=f"{eps:.8f}"))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


@contract.implementation("layer_norm", profile="float32", requires=("onnxruntime", "onnx"))
def onnx_layer_norm(x, weight, bias, *, eps):
    given = {"x": x.numpy(), "w": weight.numpy(), "b": bias.numpy()}
    return torch.from_numpy(session(eps).run(None, given)[0])


@contract.red("layer_norm", profile="float32", gate="stress", requires=("onnxruntime", "onnx"))
def another_epsilon(x, weight, bias, *, eps):
    return onnx_layer_norm(x, weight, bias, eps=10 * eps)
