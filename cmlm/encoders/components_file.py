"""The file of the principal components of languages, which belongs to one model.

`common/components.py` describes the method. A language without components keeps its
vectors unchanged. The file is an .npz that needs no unpickling:

    header       a JSON object: format, version, fingerprint of the model, and for each
                 language the name, the number of sentences, and the share of squared
                 length in each component
    components   float32 [languages, k, dim]; the k rows of a language are orthonormal

The file does not hold the length at which sentences were cut. Vectors of every cut come
from the same encoder, and a component is a common part of thousands of sentences, most
of which are shorter than any cut.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re

import numpy as np
import tensorflow as tf

from cmlm.common import arrays, atomic
from cmlm.common.components import LanguageComponents, remove
from cmlm.errors import UserError, one_line, shown

_FORMAT = "cmlm principal components"
_VERSION = 1
# 1,000 languages with 10 components of width 1,024 have 41 MB.
_MOST_BYTES = 1 << 30
_LANGUAGE = re.compile(r"[a-z0-9]+([_-][a-z0-9]+)*")


@dataclasses.dataclass(frozen=True)
class PrincipalComponents:
    """The components of some languages, for one model.

    Attributes:
        fingerprint: the fingerprint of the model (see `fingerprints.fingerprint`).
        languages: the components by language name, in the order of the language
            indices; all languages have the same k.
    """

    fingerprint: str
    languages: dict[str, LanguageComponents]

    @property
    def table(self) -> np.ndarray:
        """The components of all languages, float32 [languages, k, dim]."""
        return np.stack([found.components for found in self.languages.values()])

    def remove_from(self, vectors: np.ndarray, language: str) -> np.ndarray:
        """Vectors [n, dim] of a language without its components, if it has any."""
        known = self.languages.get(language.lower())
        return vectors if known is None else remove(vectors, known.components)

    def check_model(self, fingerprint: str, dim: int, path: str) -> None:
        """Makes sure that the components belong to a model.

        Args:
            fingerprint: the fingerprint of the model.
            dim: the width of its vectors.
            path: the file of the components, for the message.

        Raises:
            UserError: the components were fitted with another model or another way of
                reading it, or have another width.
        """
        if fingerprint != self.fingerprint:
            raise UserError(
                f"{path} was fitted for the fingerprint {self.fingerprint[:12]}, this "
                f"encoder has {fingerprint[:12]}; allowed: the model of the "
                "fitting, with its --pooling, --sentence_vector, --dimensions, --sif "
                "and prompt; or a new file from python -m cmlm.pcr"
            )
        if self.table.shape[2] != dim:
            raise UserError(
                f"{path} is damaged: its components have width {self.table.shape[2]}, "
                f"the model's vectors {dim}"
            )


def check_language(name: str) -> str:
    """Returns a language name in lower case, the form for comparisons.

    Raises:
        UserError: the name is not a language tag.
    """
    if not _LANGUAGE.fullmatch(name.lower()):
        raise UserError(
            f"language {name!r}; allowed: letters and digits, joined by - or _, as in "
            "de or zh-hant"
        )
    return name.lower()


# --------------------------------------------------------------------- files


def save(path: str, fitted: PrincipalComponents) -> None:
    """Writes an .npz file, whole or not at all; equal content gives equal bytes."""
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "fingerprint": fitted.fingerprint,
        "languages": [
            {"language": name, "sentences": found.sentences, "shares": found.shares}
            for name, found in fitted.languages.items()
        ],
    }
    content = io.BytesIO()
    np.savez(content, header=np.array(json.dumps(header)), components=fitted.table)
    with atomic.file(path) as temporary:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(content.getvalue())


def load(path: str) -> PrincipalComponents:
    """Reads a file of `save`, without executing anything in it.

    Raises:
        UserError: the file is missing or damaged, or has another version.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = io.BytesIO(file.read())
    except tf.errors.OpError as error:
        # TensorFlow writes "PATH; No such file or directory".
        reason = error.message.removeprefix(f"{path}; ")
        raise UserError(f"cannot read {path}: {reason}") from error
    try:
        arrays.check_archive(content, path, _MOST_BYTES)
        with np.load(content, allow_pickle=False) as found:
            header = json.loads(str(found["header"]))
            table = found["components"]
    except UserError:
        raise
    # zipfile and numpy raise errors of a dozen kinds for damaged archives.
    except Exception:
        raise UserError(f"{path} is not a file that cmlm.pcr wrote") from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise UserError(f"{path} is not a file that cmlm.pcr wrote")
    if header.get("version") != _VERSION:
        raise UserError(
            f"{path} has version {shown(header.get('version'))}; allowed: {_VERSION}"
        )
    try:
        _check_table(table, len(header["languages"]))
        languages = {
            check_language(entry["language"]): LanguageComponents(
                components, _shares(entry["shares"], len(components)), _count(entry)
            )
            for entry, components in zip(header["languages"], table, strict=True)
        }
        fingerprint = str(header["fingerprint"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {one_line(error)}") from error
    if len(languages) != len(table):
        raise UserError(f"{path} is damaged: it has a language twice")
    return PrincipalComponents(fingerprint, languages)


def _check_table(table: np.ndarray, languages: int) -> None:
    if table.dtype != np.float32 or table.ndim != 3 or not table.size:
        raise ValueError(f"components are {table.dtype} {list(table.shape)}")
    if len(table) != languages:
        raise ValueError(f"{len(table)} matrices of {languages} languages")
    # Before their products: more rows than the width cannot be orthonormal.
    if table.shape[1] > table.shape[2]:
        raise ValueError(f"{table.shape[1]} components of width {table.shape[2]}")
    gram = table @ table.transpose(0, 2, 1)
    if not np.allclose(gram, np.eye(table.shape[1]), atol=1e-4):
        raise ValueError("components are not orthonormal")


def _shares(values: list, count: int) -> tuple[float, ...]:
    shares = tuple(map(float, values))
    # Not `<`: a NaN must not pass. Rounding may exceed 1.
    if len(shares) != count or not all(0 <= share <= 1.0001 for share in shares):
        raise ValueError(f"shares {shown(values)}; allowed: {count} from 0 to 1")
    return shares


def _count(entry: dict) -> int:
    if type(entry["sentences"]) is not int or entry["sentences"] < 1:
        raise ValueError(f"sentences {shown(entry['sentences'])}; allowed: at least 1")
    return entry["sentences"]
