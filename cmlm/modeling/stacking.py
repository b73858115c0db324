"""Progressive stacking: starts a deep encoder from the layers of a shallow one."""

from __future__ import annotations

from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.modeling import restoring
from cmlm.modeling.model import SECOND_ENCODER, SentenceModel


def stack(model: SentenceModel, path: str) -> int:
    """Gives a model the weights of a model with fewer layers.

    With n layers in the checkpoint, layer i becomes a copy of layer i mod n (Gong et
    al., 2019, https://proceedings.mlr.press/v97/gong19a.html). All other weights are
    copied.

    Args:
        model: the deep model, which is changed.
        path: a checkpoint of the shallow model, or a directory of checkpoints.

    Returns:
        The number of layers in the checkpoint.

    Raises:
        UserError: the path holds no checkpoint or a damaged one, or its number of
            layers does not divide the model's.
    """
    path = restoring.find(path)
    layers = model.encoder.bert.transformer_layers
    encoders = [model.encoder]
    if SECOND_ENCODER in model.parts:
        encoders.append(model.second_encoder())
    found = restoring.count_layers(restoring.stored_shapes(path))
    if not found or len(layers) % found:
        raise UserError(
            f"{path} has {counted(found, 'layer')}; allowed: a number that divides "
            f"{len(layers)}, the model's layers"
        )
    restoring.restore(path, model=model, whole=False)
    for encoder in encoders:
        layers = encoder.bert.transformer_layers
        for number in range(found, len(layers)):
            layers[number].set_weights(layers[number % found].get_weights())
    return found
