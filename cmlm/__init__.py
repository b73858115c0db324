"""Universal sentence encoders, trained on your own text and served, in TensorFlow.

    import cmlm

    encoder = cmlm.load("OUT")  # an export, a model_dir, a Hugging Face folder, ...
    vectors = encoder.encode(["a sentence", "another"])  # float32 [2, dim]

Importing this package is cheap: only `load` imports TensorFlow.
"""

from cmlm.common.versions import VERSION as __version__

__all__ = ["__version__", "load"]


def load(model: str):
    """Opens an export, a model_dir, foreign weights, a server or stored vectors.

    Returns an object with `encode(sentences) -> float32 [len(sentences), dim]`. Raises
    cmlm.errors.UserError if the encoder does not exist or is damaged.
    """
    from cmlm.encoders import opening

    return opening.open_encoder(model)
