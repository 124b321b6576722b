"""Small Relax modules: an anchor with one operator behind it or in front of it, many at once."""

import numpy as np
import pytest
from tvm import relax

from tvmfuse.passes.name_variables import NameVariables
from tvmfuse.signature import Signature
from tvmfuse.workload import Workload

_RNG = np.random.default_rng(0)
op = relax.op


def weight(*shape):
    return relax.const(_RNG.standard_normal(shape).astype("float32"))


def scalar(value):
    return relax.const(value, "float32")


# Anchor -> (shapes of its inputs, how it is made of them).
ANCHORS = {
    "conv1d": ([(1, 8, 16)], lambda x: op.nn.conv1d(x, weight(8, 8, 3), padding=1)),
    "conv2d": ([(1, 8, 6, 6)], lambda x: op.nn.conv2d(x, weight(8, 8, 3, 3), padding=1)),
    "conv3d": ([(1, 4, 4, 4, 4)], lambda x: op.nn.conv3d(x, weight(4, 4, 3, 3, 3), padding=1)),
    "depthwise": ([(1, 8, 6, 6)],
                  lambda x: op.nn.conv2d(x, weight(8, 1, 3, 3), padding=1, groups=8)),
    "grouped": ([(1, 8, 6, 6)],
                lambda x: op.nn.conv2d(x, weight(8, 4, 3, 3), padding=1, groups=2)),
    "conv1d_transpose": ([(1, 8, 16)],
                         lambda x: op.nn.conv1d_transpose(x, weight(8, 8, 3), padding=1)),
    "conv2d_transpose": ([(1, 8, 6, 6)],
                         lambda x: op.nn.conv2d_transpose(x, weight(8, 8, 3, 3), padding=1)),
    "conv3d_transpose": ([(1, 4, 4, 4, 4)],
                         lambda x: op.nn.conv3d_transpose(x, weight(4, 4, 3, 3, 3), padding=1)),
    "dense": ([(4, 8)], lambda x: op.matmul(x, weight(8, 8))),
    "matmul": ([(2, 4, 8), (2, 8, 8)], op.matmul),
    "attention": ([(2, 4, 8), (2, 8, 4), (2, 4, 8)],
                  lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k)), v)),
    "max_pool": ([(1, 8, 6, 6)], lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2))),
    "avg_pool": ([(1, 8, 6, 6)], lambda x: op.nn.avg_pool2d(x, (2, 2), (2, 2))),
    "mean": ([(4, 16)], lambda x: op.mean(x, [1], keepdims=True)),
    "sum": ([(4, 16)], lambda x: op.sum(x, [1], keepdims=True)),
    "max": ([(4, 16)], lambda x: op.max(x, [1], keepdims=True)),
    "min": ([(4, 16)], lambda x: op.min(x, [1], keepdims=True)),
    "softmax": ([(4, 16)], lambda x: op.nn.softmax(x)),
    "log_softmax": ([(4, 16)], lambda x: op.nn.log_softmax(x)),
    "layer_norm": ([(4, 16)],
                   lambda x: op.nn.layer_norm(x, weight(16), weight(16), axes=[1])),
    "group_norm": ([(1, 8, 6, 6)],
                   lambda x: op.nn.group_norm(x, weight(8), weight(8), 2, 1, [2, 3])),
    "instance_norm": ([(1, 8, 6, 6)],
                      lambda x: op.nn.instance_norm(x, weight(8), weight(8), 1, [2, 3])),
    "rms_norm": ([(4, 16)], lambda x: op.nn.rms_norm(x, weight(16), axes=[1])),
    "resize": ([(1, 8, 6, 6)], lambda x: op.image.resize2d(x, (12, 12), layout="NCHW")),
    "embedding": ([(16, 8)], lambda x: op.take(x, relax.const(np.array([1, 2, 3])), 0)),
    "elementwise": ([(4, 16)], lambda x: op.exp(x)),
}  # fmt: skip


def _vector(y):
    shape = _shape(y)
    axis = 1 if len(shape) > 2 else len(shape) - 1
    return weight(*[e if i == axis else 1 for i, e in enumerate(shape)])


def _last(y):
    return weight(_shape(y)[-1])


# Operator as the rules name it -> how it reads a value ``y``; ``r`` and ``m`` are a float and a
# boolean tensor of its shape.
STEPS = {
    "bias": lambda y, r, m: op.add(y, _vector(y)),
    "scale": lambda y, r, m: op.multiply(y, _vector(y)),
    "add": lambda y, r, m: op.add(y, r),
    "multiply": lambda y, r, m: op.multiply(y, r),
    "subtract": lambda y, r, m: op.subtract(y, r),
    "divide": lambda y, r, m: op.divide(y, r),
    "maximum": lambda y, r, m: op.maximum(y, r),
    "minimum": lambda y, r, m: op.minimum(y, r),
    "subtract_const": lambda y, r, m: op.subtract(y, _vector(y)),
    "divide_const": lambda y, r, m: op.divide(y, _vector(y)),
    "maximum_const": lambda y, r, m: op.maximum(y, scalar(0.1)),
    "minimum_const": lambda y, r, m: op.minimum(y, scalar(0.1)),
    "power_const": lambda y, r, m: op.power(y, scalar(2.0)),
    "relu": lambda y, r, m: op.nn.relu(y),
    "relu6": lambda y, r, m: op.nn.relu6(y),
    "leaky_relu": lambda y, r, m: op.nn.leakyrelu(y),
    "prelu": lambda y, r, m: op.nn.prelu(y, weight(int(y.ty.shape.values[1]))),
    "silu": lambda y, r, m: op.nn.silu(y),
    "gelu": lambda y, r, m: op.nn.gelu(y),
    "gelu_tanh": lambda y, r, m: op.nn.gelu_tanh(y),
    "selu": lambda y, r, m: op.nn.selu(y),
    "softplus": lambda y, r, m: op.nn.softplus(y),
    "sigmoid": lambda y, r, m: op.sigmoid(y),
    "tanh": lambda y, r, m: op.tanh(y),
    "clip": lambda y, r, m: op.clip(y, 0, 6),
    "exp": lambda y, r, m: op.exp(y),
    "log": lambda y, r, m: op.log(y),
    "sqrt": lambda y, r, m: op.sqrt(y),
    "rsqrt": lambda y, r, m: op.rsqrt(y),
    "erf": lambda y, r, m: op.erf(y),
    "abs": lambda y, r, m: op.abs(y),
    "negative": lambda y, r, m: op.negative(y),
    "round": lambda y, r, m: op.round(y),
    "floor": lambda y, r, m: op.floor(y),
    "sin": lambda y, r, m: op.sin(y),
    "cos": lambda y, r, m: op.cos(y),
    "cast": lambda y, r, m: op.astype(y, "float64"),
    "greater": lambda y, r, m: op.greater(y, scalar(0.5)),
    "where": lambda y, r, m: op.where(m, y, r),
    "slice": lambda y, r, m: op.strided_slice(y, [0], [0], [1]),
    "transpose": lambda y, r, m: op.permute_dims(y),
    "reshape": lambda y, r, m: op.reshape(y, (-1,)),
    "layer_norm": lambda y, r, m: op.nn.layer_norm(y, _last(y), _last(y), axes=[-1]),
}


def _shape(expr):
    return [int(v) for v in expr.ty.shape.values]


def _result_shape(make, shapes):
    inputs = [relax.Var(f"i{n}", relax.TensorType(s, "float32")) for n, s in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        value = builder.emit(make(*inputs))
        builder.emit_func_output(value)
    return _shape(value)


def _in_front(name, shape):
    """Shape and type of the input, and how the operator makes of it what the anchor reads."""
    axis = 1 if len(shape) > 2 else len(shape) - 1
    if name == "cast":
        return shape, "float16", lambda y, r, m: op.astype(y, "float32")
    if name == "slice":
        wide = [2 * e if i == axis else e for i, e in enumerate(shape)]
        return wide, "float32", lambda y, r, m: op.strided_slice(y, [axis], [0], [shape[axis]])
    return shape, "float32", STEPS[name]


def _module_of(anchor, epilogues=(), prologues=()):
    """A workload with one chain for each of the operators: all apart, each with its own inputs."""
    shapes, make = ANCHORS[anchor]
    builder, inputs = relax.BlockBuilder(), []

    def fresh(shape, dtype="float32"):
        inputs.append(relax.Var(f"i{len(inputs)}", relax.TensorType(shape, dtype)))
        return inputs[-1]

    result = _result_shape(make, shapes)
    chains = []
    for name in prologues:
        shape, dtype, step = _in_front(name, shapes[0])
        extra = fresh(shapes[0]), fresh(shapes[0], "bool")
        chains.append((fresh(shape, dtype), [fresh(s) for s in shapes[1:]], extra, step))
    for name in epilogues:
        given = [fresh(s) for s in shapes]
        chains.append((None, given, (fresh(result), fresh(result, "bool")), STEPS[name]))
    with builder.function("main", inputs):
        with builder.dataflow():
            outs = []
            for front, given, extra, step in chains:
                if front is not None:
                    outs.append(builder.emit(make(builder.emit(step(front, *extra)), *given)))
                else:
                    outs.append(builder.emit(step(builder.emit(make(*given)), *extra)))
            result = builder.emit_output(relax.Tuple(outs))
        builder.emit_func_output(result)
    return Workload(anchor, NameVariables()(builder.finalize()), Signature((), ()), None, ())


@pytest.fixture(scope="session")
def module_of():
    """``module_of(anchor, epilogues=(), prologues=())``."""
    return _module_of
