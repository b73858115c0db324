"""A tuned encoder with its head as a SavedModel: from strings to predictions.

The signature `serving_default` takes string [n]: `text`, or `text1` and `text2`. It
returns `logits` float32 [n, outputs] and, by the kind of the labels,

| labels  | outputs                                                            |
|---------|--------------------------------------------------------------------|
| classes | `label` string [n], `probabilities` float32 [n, classes]           |
| several | `labels` string [n], separated by `|`, `probabilities` [n, labels] |
| a score | `score` float32 [n]                                                |

`assets.extra/task.json` names the classes in their order. The SavedModel is a version,
the folder `1`, because a model server takes a folder of versions. It has warm-up
requests.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from cmlm.common import arrays, checksums, json_files
from cmlm.encoders import batching, locating, warm_up
from cmlm.encoders.graph import SentenceGraph
from cmlm.errors import UserError
from cmlm.evaluation import labelled_files
from cmlm.finetuning import labelled
from cmlm.finetuning.labelled import FileTask
from cmlm.finetuning.training import HEAD
from cmlm.modeling import export_layout, inference_graph
from cmlm.modeling.model import SentenceModel
from cmlm.tokenization.base import Tokenizer

VERSION = "1"
_SERVED = (*export_layout.OF_SAVED_MODEL, export_layout.TUNED_TASK)
# The largest difference between the graph that trains and the graph that serves.
TOLERANCE = 1e-4
_ROWS_AT_ONCE = 1024


def write(
    directory: str,
    task: FileTask,
    model: SentenceModel,
    tokenizer: Tokenizer,
    seq_length: int,
) -> None:
    """Writes the SavedModel of a tuned model.

    Args:
        directory: a directory that does not exist.
        task: the task of the head, a classifier over [CLS].
        model: the tuned encoder and its head.
        tokenizer: the tokenizer of the encoder.
        seq_length: the longest sequence in tokens.
    """
    logits, variables = _head_outputs(task, model, tokenizer, seq_length)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name) for name in task.texts],
        autograph=False,
    )
    def serve(*texts):
        return _answers(task, logits(*texts))

    served = tf.train.Checkpoint()
    served.variables = variables
    # SentencePiece's model is a resource, which a saved object must own.
    served.tokenizer = tokenizer
    tf.saved_model.save(served, directory, {"serving_default": serve})
    about = {**task.describe(), "seq_length": seq_length}
    path = os.path.join(directory, export_layout.TUNED_TASK)
    json_files.write(path, about, indent=2, ensure_ascii=False)
    texts = dict.fromkeys(task.texts, tf.constant(warm_up.SENTENCES))
    warm_up.write(directory, {"serving_default": serve}, texts)
    checksums.write(
        directory, _SERVED, os.path.join(directory, export_layout.CHECKSUMS)
    )


def _head_outputs(
    task: FileTask, model: SentenceModel, tokenizer: Tokenizer, seq_length: int
) -> tuple[Callable[..., tf.Tensor], list[tf.Variable]]:
    """Builds the part of the graph that ends in the head.

    Returns:
        A function from the one or two texts, string [n], to the outputs of the head,
        float32 [n, outputs]; and the variables that the function reads.
    """
    encoder = inference_graph.build(model.encoder, model.config)
    graph = SentenceGraph(tokenizer, encoder, seq_length)
    head = model.parts[HEAD]
    inner, outer = (
        [tf.constant(array) for array in layer.get_weights()]
        for layer in (head.dense, head.out_proj)
    )
    compute = graph.token_vectors.get_concrete_function()

    def logits(*texts):
        if len(texts) == 2:
            tokens = tokenizer.encode_pair(*texts, seq_length)
        else:
            tokens = tokenizer.encode(*texts, seq_length)

        def batch(rows, width):
            ids, mask = batching.padded(tokens, rows, width, tokenizer.pad_id)
            types = tokenizer.segments(ids)
            hidden = tf.tanh(compute(ids, mask, types) @ inner[0] + inner[1])
            return hidden @ outer[0] + outer[1]

        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        return batching.map_in_batches(batch, lengths, task.num_outputs)

    return logits, list(compute.graph.variables)


def _answers(task: FileTask, logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """The outputs of the signature, see the table above, from float32 [n, outputs]."""
    if task.is_regression:
        return {"logits": logits, "score": logits[:, 0] * task.spread + task.center}
    names = tf.constant(task.labels)
    if not task.is_several:
        return {
            "logits": logits,
            "label": tf.gather(names, tf.argmax(logits, axis=1)),
            "probabilities": tf.nn.softmax(logits),
        }
    places = tf.where(logits > 0)
    chosen = tf.RaggedTensor.from_value_rowids(
        tf.gather(names, places[:, 1]), places[:, 0], tf.shape(logits, tf.int64)[0]
    )
    return {
        "logits": logits,
        "labels": tf.strings.reduce_join(
            chosen, axis=1, separator=labelled_files.SEPARATOR
        ),
        "probabilities": tf.sigmoid(logits),
    }


class Tuned:
    """A SavedModel of `write`, opened.

    Args:
        directory: see `locating.find_tuned`.

    Attributes:
        task: the task, without files.

    Raises:
        UserError: the model does not exist or is damaged.
    """

    def __init__(self, directory: str):
        path = locating.find_tuned(directory)
        if not path:
            raise UserError(
                f"{directory} is not a tuned model; allowed: an output of "
                "cmlm.finetune --task=file:FILE; or train one with --task"
            )
        about = json_files.read(os.path.join(path, export_layout.TUNED_TASK))
        with locating.loading_graph(path):
            self.task = labelled.from_description(about)
            self._served = tf.saved_model.load(path)
            self._serve = self._served.signatures["serving_default"]

    def logits(self, texts: Iterable[tuple[str, ...]]) -> np.ndarray:
        """The outputs of the head for texts or pairs, float32 [n, outputs]."""
        texts, found = iter(texts), [np.zeros([0, self.task.num_outputs], np.float32)]
        while rows := list(itertools.islice(texts, _ROWS_AT_ONCE)):
            found.append(self._some(rows))
        return np.concatenate(found)

    def _some(self, rows: list[tuple[str, ...]]) -> np.ndarray:
        columns = zip(self.task.texts, zip(*rows, strict=True), strict=True)
        given = {name: tf.constant(column) for name, column in columns}
        return self._serve(**given)["logits"].numpy()


def check(directory: str, texts: list[tuple[str, ...]], expected: np.ndarray) -> float:
    """Compares a written model with the model that trained.

    Args:
        directory: the SavedModel.
        texts: some examples.
        expected: the outputs of the model that trained, float [n, outputs].

    Returns:
        The largest difference.

    Raises:
        UserError: the difference is more than rounding.
    """
    found = arrays.difference(Tuned(directory).logits(texts), expected)
    arrays.check_difference(
        found, TOLERANCE, f"{directory} differs from the tuned model"
    )
    return found[0]
