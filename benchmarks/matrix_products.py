"""How fast a processor multiplies BERT's matrices: the limit of every encoder on it.

    python benchmarks/matrix_products.py --library=tensorflow --threads=2
    TORCH_ENV/bin/python benchmarks/matrix_products.py --library=torch --threads=2

Times the products of one layer (query, key and value; the output of attention; both of
the feed-forward part), with their biases and nothing else, as each library's encoder
calls them, for some numbers of tokens at once. Prints GFLOP/s, medians, and how many
tokens a second an encoder would read that did nothing but these products.

`int8` (TensorFlow only) quantises the weights once and the inputs in each product, with
one scale each: oneDNN's unsigned times signed product. Its kernel takes inputs from
0 upwards, so the least input is subtracted first, and its share of the product is added
afterwards.
Prints the cosine of the results with those of float32.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def int8_product(weight):
    """A function of float32 [tokens, in] that multiplies by a float32 [in, out]."""
    import numpy as np
    import tensorflow as tf

    weight = weight.numpy()
    largest = float(np.abs(weight).max())
    rounded = np.round(weight * (127 / largest)).astype(np.int8)
    kernel = tf.bitcast(tf.constant(rounded), tf.qint8)
    shift = tf.constant(weight.sum(axis=0))
    bias = tf.zeros(weight.shape[1])

    def multiply(x):
        least = tf.reduce_min(x)
        span = tf.reduce_max(x) - least
        scaled = tf.cast(tf.round((x - least) * (255 / span)), tf.uint8)
        product = tf.raw_ops.QuantizedMatMulWithBiasAndDequantize(
            a=tf.bitcast(scaled, tf.quint8),
            b=kernel,
            bias=bias,
            **{"min_a": 0.0, "max_a": span, "min_b": -largest, "max_b": largest},
            # Ignored: the output is not quantised.
            **{"min_freezed_output": -1.0, "max_freezed_output": 1.0},
            Toutput=tf.float32,
            input_quant_mode="SCALED",
        )
        return product + least * shift

    return multiply


def _int8_products(shapes):
    import tensorflow as tf

    weights = [tf.random.normal(shape) for shape in shapes]
    multiply = [int8_product(weight) for weight in weights]

    @tf.function
    def run(*inputs):
        found = [f(x) for f, x in zip(multiply, inputs, strict=True)]
        return [tf.reduce_max(y[:1]) for y in found]

    def make(tokens):
        inputs = [tf.random.normal([tokens, shape[0]]) for shape in shapes]
        exact, found = tf.matmul(inputs[0], weights[0]), multiply[0](inputs[0])
        cosine = -tf.keras.losses.cosine_similarity(exact, found)
        print(f"cosine with float32, lowest: {float(tf.reduce_min(cosine)):.5f}")
        return lambda: [value.numpy() for value in run(*inputs)]

    return make


def products(library: str, precision: str, threads: int, shapes):
    """A function of [tokens, in] that multiplies by all matrices, and its input."""
    if library == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        if precision == "int8":
            return _int8_products(shapes)
        dtype = tf.as_dtype(precision)
        # As in cmlm/modeling/inference_graph.py: bfloat16 kernels are [out, in].
        turned = precision == "bfloat16"
        weights = [
            (
                tf.Variable(tf.cast(tf.random.normal(s[::-1] if turned else s), dtype)),
                tf.constant(0.1, dtype, s[1:]),
            )
            for s in shapes
        ]

        @tf.function
        def run(*inputs):
            return [
                tf.reduce_max(
                    tf.nn.bias_add(tf.matmul(x, kernel, transpose_b=turned), bias)[:1]
                )
                for x, (kernel, bias) in zip(inputs, weights, strict=True)
            ]

        def make(tokens):
            inputs = [tf.cast(tf.random.normal([tokens, s[0]]), dtype) for s in shapes]
            return lambda: [value.numpy() for value in run(*inputs)]

        return make

    import torch

    torch.set_num_threads(threads)
    dtype = getattr(torch, precision)
    layers = [torch.nn.Linear(*shape).to(dtype) for shape in shapes]

    def make(tokens):
        inputs = [torch.randn(tokens, shape[0]).to(dtype) for shape in shapes]

        @torch.inference_mode()
        def run():
            return [layer(x) for layer, x in zip(layers, inputs, strict=True)]

        return run

    return make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", choices=["tensorflow", "torch"], required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=768, help="384 is MiniLM's")
    parser.add_argument("--layers", type=int, default=12, help="6 are MiniLM's")
    parser.add_argument("--tokens", type=int, nargs="+", default=[9, 256, 1024])
    parser.add_argument(
        "--precisions",
        nargs="+",
        default=["float32", "bfloat16"],
        choices=["float32", "bfloat16", "int8"],
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row")
    options = parser.parse_args()
    width = options.width
    shapes = [
        (width, 3 * width),
        (width, width),
        (width, 4 * width),
        (4 * width, width),
    ]
    flops_a_token = 2 * sum(a * b for a, b in shapes)
    print(
        "| precision | tokens at once | GFLOP/s | tokens a second |\n|---|---|---|---|"
    )
    for precision in options.precisions:
        make = products(options.library, precision, options.threads, shapes)
        for tokens in options.tokens:
            run = make(tokens)
            run()
            taken, end = [], time.perf_counter() + options.seconds
            while time.perf_counter() < end:
                begin = time.perf_counter()
                run()
                taken.append(time.perf_counter() - begin)
            speed = tokens / statistics.median(taken)
            print(
                f"| {precision} | {tokens} | {speed * flops_a_token / 1e9:.0f} |"
                f" {speed / options.layers:,.0f} |"
            )


if __name__ == "__main__":
    main()
