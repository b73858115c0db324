"""One model of a server: checks arguments and answers, and divides long requests."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence

import numpy as np

from cmlm.common.counts import counted
from cmlm.encoders.sentences import check_sentences, to_bytes
from cmlm.encoders.signatures import DEFAULT, SIGNATURES, of_text
from cmlm.errors import UserError, one_line

# Limits of one request, in sentences and bytes of text. Many servers limit the size of
# a batch and the time of an answer, and many proxies limit the size of a request.
_REQUEST_SENTENCES = 256
_REQUEST_BYTES = 64 << 10
# Limit of an answer.
MOST_BYTES = 1 << 30
# A server has a port for each protocol.
PORTS = (
    "allowed: http:// with the port of REST, 8501 in TensorFlow Serving, or grpc:// "
    "with the port of gRPC, 8500"
)

# The variable of the environment with the token of a protected server.
_TOKEN = "CMLM_SERVER_TOKEN"


def _authorization() -> dict[str, str]:
    """The header that shows a server the token of the environment; empty without one.

    Raises:
        UserError: the token cannot stand in a header.
    """
    token = os.environ.get(_TOKEN)
    if not token:
        return {}
    # Messages leave a token out.
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(
            f"{_TOKEN} has a space, or a character that is not printable ASCII; "
            "allowed: letters, digits and punctuation"
        )
    return {"authorization": f"Bearer {token}"}


class ServedModel(abc.ABC):
    """One model of a server; subclasses implement the protocol.

    Args:
        address: the address of the server, for messages.
        model: the name of the model on the server.
        version: the version of the model; None takes the version that answers the first
            request. A server may load another version meanwhile, whose vectors do not
            go with the first ones.
        timeout: seconds for one request.

    Raises:
        UserError: the environment has a token that no header can hold.
    """

    def __init__(self, address: str, model: str, version: int | None, timeout: float):
        self._address = address
        self._model = model
        self._version = version
        self._timeout = timeout
        self._authorization = _authorization()
        self._width = None

    def encode(
        self,
        sentences: Sequence[str],
        signature: str = DEFAULT,
        languages: Sequence[str] | None = None,
    ) -> np.ndarray:
        """Encodes sentences in one or more requests.

        Args:
            sentences: any number of sentences.
            signature: a key of `signatures.TEXT_SIGNATURES`, or the name of a prompt.
            languages: the language of each sentence, for a signature that takes
                languages.

        Returns:
            float32 [len(sentences), dim]; [0, 0] without sentences, because the width
            is then unknown.

        Raises:
            TypeError: `sentences` or `languages` is not a list of str.
            UserError: an argument is not allowed, the server cannot be reached or
                refuses the request, or its answer holds no vector for each sentence.
        """
        check_sentences(sentences)
        if languages is not None:
            check_sentences(languages, "languages")
        row = of_text(signature)
        if row.takes_language and languages is None:
            raise UserError(
                f"languages is None; allowed with the signature {signature}: a "
                "language for each sentence"
            )
        if languages is not None and not row.takes_language:
            raise UserError(
                f"languages are given; allowed: none with the signature {signature}"
            )
        if languages is not None and len(languages) != len(sentences):
            raise UserError(
                f"got {counted(len(languages), 'language')} for "
                f"{counted(len(sentences), 'sentence')}; allowed: one for each"
            )
        texts = to_bytes(sentences)
        if not texts:
            return np.zeros([0, 0], np.float32)
        vectors = []
        for rows in _requests(texts):
            inputs = {"text": texts[rows]}
            if languages is not None:
                inputs["language"] = to_bytes(languages[rows])
            vectors.append(self._vectors(signature, inputs))
        return np.concatenate(vectors)

    def has_components(self, language: str, signature: str = "pcr") -> bool:
        """Whether the signature changes the vectors of a language, by one request.

        A server does not refuse a language without components: it answers the vector as
        it is, with the `language_index` -1.
        """
        inputs = {"text": [b""], "language": to_bytes([language])}
        index = self.predict(signature, inputs).get("language_index")
        return index is None or bool((index >= 0).all())

    def _vectors(self, signature: str, inputs: dict[str, list[bytes]]) -> np.ndarray:
        """Sends one request; returns float32 [n, dim] after a check of the answer."""
        name = of_text(signature).output
        outputs = self.predict(signature, inputs)
        if name not in outputs:
            raise self._refused(
                f"signature {signature} gave the outputs {', '.join(sorted(outputs))}; "
                f"allowed: {name}"
            )
        count = len(inputs["text"])
        try:
            found = outputs[name].astype(np.float32, copy=False)
        except (ValueError, TypeError) as error:
            raise self._refused(
                f"{name} is not an array of numbers: {error}"
            ) from error
        if found.ndim != 2 or len(found) != count:
            raise self._refused(
                f"{name} has the shape {list(found.shape)}; allowed: [{count}, dim]"
            )
        self._width = self._width or found.shape[1]
        if found.shape[1] != self._width:
            # Of a server that tells no version.
            raise self._refused(
                f"{name} has the width {found.shape[1]}, and had {self._width} before"
            )
        if not np.isfinite(found).all():
            row = np.isfinite(found).all(axis=1).argmin()
            text = inputs["text"][row].decode(errors="replace")
            raise self._refused(f"the vector of {text[:60]!r} is not finite")
        return found

    @abc.abstractmethod
    def predict(
        self, signature: str, inputs: dict[str, list[bytes]]
    ) -> dict[str, np.ndarray]:
        """Sends one request.

        Args:
            signature: as for `encode`.
            inputs: strings [n], by input name.

        Returns:
            The outputs, by name.
        """

    def prompt_names(self) -> list[str]:
        """The names of the model's prompts; [] if the server does not tell them."""
        row = SIGNATURES[DEFAULT]
        names = (*row.inputs, row.output)
        return sorted(
            signature
            for signature, found in self._signatures().items()
            if found == names and signature not in SIGNATURES
        )

    @abc.abstractmethod
    def _signatures(self) -> dict[str, tuple[str, ...]]:
        """The names of the inputs, then of the outputs, of each signature.

        A server that does not tell them gives {}.
        """

    def _no_array(self, error: Exception) -> UserError:
        return self._refused(f"an output is not an array of numbers: {error}")

    def _refused(self, reason: str) -> UserError:
        reason = one_line(reason, 300)
        return UserError(f"{self._address}, model {self._model}: {reason}")


def _requests(texts: Sequence[bytes]):
    """Yields slices of texts that fit into one request."""
    start = size = 0
    for row, text in enumerate(texts):
        full = row - start == _REQUEST_SENTENCES or size + len(text) > _REQUEST_BYTES
        if row > start and full:
            yield slice(start, row)
            start, size = row, 0
        size += len(text)
    if len(texts):
        yield slice(start, len(texts))
