"""Uses exports as their users do: TensorFlow, tensorflow-text, tensorflow-hub.

    python hub_program.py TEXTS RESULTS EXPORT=OUT...

A program of its own, run with any interpreter; it imports nothing of this project.
TEXTS holds a text a line, in hexadecimal; RESULTS is an .npz file with what was found,
each name after `EXPORT/`.
"""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_hub as hub
import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)


def use(out, text):
    """Loads the three SavedModels of an export and calls everything they have."""
    found = {"tensorflow": tf.__version__}
    preprocessor = hub.load(out + "/preprocessor")
    encoder = hub.load(out + "/encoder")
    serving = hub.load(out + "/serving/1")

    found["served"] = serving.signatures["serving_default"](text=text)["default"]
    found["called"] = serving(text)
    found["lengths"] = serving.lengths(text)
    languages = tf.constant(["de"] * text.shape[0])
    answer = serving.signatures["pcr"](text=text, language=languages)
    found["pcr"] = answer["pcr"]

    inputs = preprocessor(text)
    for name, value in inputs.items():
        found["inputs/" + name] = value
    outputs = encoder(inputs)
    for name in ("default", "pooled_output", "sequence_output"):
        found["outputs/" + name] = outputs[name]
    found["layers"] = len(outputs["encoder_outputs"])
    found["signature"] = encoder.signatures["serving_default"](**inputs)["default"]
    found["inference"] = encoder(inputs, training=False)["default"]
    found["dropout_1"] = encoder(inputs, training=True)["default"]
    found["dropout_2"] = encoder(inputs, training=True)["default"]
    padded = {name: tf.pad(value, [[0, 0], [0, 1]]) for name, value in inputs.items()}
    gap = encoder(padded)["default"] - encoder(inputs)["default"]
    found["padded"] = float(tf.reduce_max(abs(gap)))
    wider = {**padded, "input_mask": tf.ones_like(padded["input_mask"])}
    for name, call in (
        ("called", encoder),
        ("training", lambda tensors: encoder(tensors, training=True)),
        ("signature", lambda x: encoder.signatures["serving_default"](**x)),
        ("layer", hub.KerasLayer(encoder, trainable=True)),
    ):
        try:
            call(wider)
            found["wider/" + name] = "no error"
        except tf.errors.InvalidArgumentError as error:
            found["wider/" + name] = str(error)
    found["variables"] = len(encoder.variables)
    found["trainable_variables"] = len(encoder.trainable_variables)
    found["do_lower_case"] = encoder.do_lower_case
    found["vocab_file"] = encoder.vocab_file.asset_path.numpy().decode()

    tokens = preprocessor.tokenize(text)
    found["tokens"], found["splits"] = tokens.values, tokens.row_splits
    for name, value in preprocessor.tokenize.get_special_tokens_dict().items():
        found["special/" + name] = value
    a = preprocessor.tokenize(tf.constant(["the cat sat", "dog"]))
    b = preprocessor.tokenize(tf.constant(["a mat", "ran far away"]))
    for name, value in preprocessor.bert_pack_inputs([a, b], seq_length=7).items():
        found["packed/" + name] = value
    found["packed_default"] = preprocessor.bert_pack_inputs([a])["input_mask"]
    words = tf.RaggedTensor.from_row_splits(a, [0, 1, 2])
    packed = preprocessor.bert_pack_inputs([words], seq_length=6)
    found["packed_words"] = packed["input_word_ids"]
    return found


def main():
    texts_file, results, *exports = sys.argv[1:]
    with open(texts_file) as file:
        texts = [bytes.fromhex(line) for line in file.read().split("\n")]
    found = {}
    for export in exports:
        name, _, out = export.partition("=")
        for key, value in use(out, tf.constant(texts)).items():
            found[f"{name}/{key}"] = value
    found["modules"] = sorted({module.split(".")[0] for module in sys.modules})
    np.savez(results, **found)


if __name__ == "__main__":
    main()
