"""What the export commands export: the encoder that their flags name."""

from __future__ import annotations

from cmlm import encoding, model_dir, pretrained


def load(
    source: str | None, directory: str | None, checkpoint: str, seq_length: int | None
) -> tuple[model_dir.TrainedEncoder, int]:
    """Opens it, and says where its sentences are cut.

    Args:
        source: --from, weights of another program; None for a model_dir.
        directory: --model_dir.
        checkpoint: --checkpoint, of the model_dir.
        seq_length: --seq_length, in tokens; None for the encoder's own.

    Raises:
        UserError: there is no such encoder, or it has not so many positions.
    """
    if source:
        trained = pretrained.load_encoder(source)
    else:
        trained = model_dir.load_encoder(directory, checkpoint)
    if seq_length is None:
        return trained, encoding.default_seq_length(trained)
    return trained, encoding.resolve_seq_length(trained.config.model, seq_length)
