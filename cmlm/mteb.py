"""Encoders of this project as models of MTEB, the Massive Text Embedding Benchmark.

    import mteb
    from cmlm.mteb import MtebEncoder

    model = MtebEncoder("MODEL")
    mteb.evaluate(model, mteb.get_tasks(tasks=["STSBenchmark"]))

This module needs Python 3.12 and `pip install 'cmlm[mteb]'`, which installs torch. No
other part of the project needs torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from mteb.models import abs_encoder, model_meta

from cmlm.common import checksums, identity, prompts
from cmlm.encoders import opening
from cmlm.encoders.reading import Reading
from cmlm.errors import naming_arguments


class MtebEncoder(abs_encoder.AbsEncoder):
    """A model of MTEB, which compares its vectors by cosine.

    Queries and documents of retrieval tasks get the encoder's prompts for them, if it
    has them. Prompts for single tasks are not used.

    Args:
        model: a model that `opening.open_encoder` opens.
        precision: float32, bfloat16, or None for the precision of the model.
        dimensions: keep the first N dimensions of each vector; 0 for all, or None for
            the model's own number.
    """

    def __init__(
        self,
        model: str | os.PathLike,
        precision: str | None = None,
        dimensions: int | None = None,
    ):
        model = os.fspath(model)
        reading = Reading(precision=precision, dimensions=dimensions)
        with naming_arguments("precision", "dimensions"):
            self._encoder = opening.open_encoder(model, reading)
        self.mteb_model_meta = model_meta.ModelMeta.create_empty(
            {
                "name": f"cmlm/{model.strip('/').split('/')[-1]}",
                "revision": self._revision(),
                "max_tokens": self._encoder.seq_length,
                "embed_dim": self._encoder.dim,
                "similarity_fn_name": model_meta.ScoringFunction.COSINE,
            }
        )

    def _revision(self) -> str:
        """The identity of the vectors in all roles: MTEB keeps scores by its name."""
        encoders = [self._encoder, *map(self._encoder.for_role, prompts.ROLES)]
        first, *others = map(identity.revision, encoders)
        same = all(other == first for other in others)
        return first if same else checksums.of_values([first, *others])

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        prompt_type: str | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Encodes MTEB's batches.

        Args:
            inputs: batches with the key `text`.
            prompt_type: MTEB's `query` or `document`; None for other texts.

        Returns:
            float32 [sentences, dim].
        """
        texts = [text for batch in inputs for text in batch["text"]]
        role = getattr(prompt_type, "value", prompt_type)
        encoder = self._encoder
        if role in prompts.ROLES:
            encoder = encoder.for_role(role)
        return encoder.encode(texts)
