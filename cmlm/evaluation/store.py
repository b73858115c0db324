"""The vectors of a run's sentences: each distinct sentence is encoded once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cmlm.common import (
    arrays,
    checksums,
    identity,
    json_files,
    locks,
    prompts,
    scratch,
)
from cmlm.common.progress import bar as progress_bar
from cmlm.common.protocols import SentenceEncoder, name_of
from cmlm.errors import UserError

_KEY_BYTES = 16
# The number of sentences in one call of the model: large enough for full batches of
# similar length, small enough for a steady bar and bounded memory.
_AT_ONCE = 2048


# A function that changes the vectors, float32 [n, dim], of sentences in a language, or
# returns the same array.
Change = Callable[[np.ndarray, str], np.ndarray]


class VectorsOnDisk:
    """Unit vectors of sentences, read from a store on demand.

    The class has the interface of `mining.vectors.ShardedVectors`, so that a mining
    index can search sets that do not fit into memory.

    Args:
        store: the store, which stays open.
        rows: the row of each sentence in the store, int64 [n].
        language: the language of the sentences.
        role: see `base.Vectors`.
    """

    def __init__(self, store: Store, rows: np.ndarray, language: str, role: str):
        self._store, self._rows = store, rows
        self._language, self._role = language, role
        self.shape = (len(rows), store.dim)
        self.about = {"shape": list(self.shape), "language": language}

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dim(self) -> int:
        return self.shape[1]

    def read(self, start: int, stop: int) -> np.ndarray:
        """The vectors of rows `start` to `stop` - 1, float32 [rows, dim]."""
        return self.take(np.arange(start, min(stop, len(self))))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of some rows, float32 [len(rows), dim]."""
        vectors = self._store.take(self._rows[rows], self._language, self._role)
        return arrays.unit_length(vectors)


class Store:
    """Maps sentences to vectors, which lie in a file so that memory stays flat.

    `directory` holds four files: `keys`, a hash of 16 bytes for each sentence, with its
    prompt if that is not the model's default one;
    `vectors`, a float32 row for each sentence; `shape.json`, the width of a row; and
    `checksums.json`, the checksums of the others. Rows are only appended, each vector
    before its key, so a killed run leaves a usable store: its last rows have no
    checksum.

    Args:
        encoder: the model.
        directory: the directory that keeps the vectors for the next run, made if
            missing. It must belong to this model alone. By default the store deletes
            its vectors when it closes.
        progress: show a bar on stderr while encoding.
        change: applied to the vectors at every read, such as principal component
            removal. The file holds the unchanged vectors. It belongs to the model's
            default prompt.

    Attributes:
        dim: the width of a vector; 0 before the first vector.

    Raises:
        UserError: another run uses the directory, or it is damaged.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        directory: str | None = None,
        progress: bool = False,
        change: Change | None = None,
    ):
        self._encoder = encoder
        self._change = change
        self._progress = progress
        self._rows: dict[bytes, int] = {}
        self.dim = self._summed = 0
        with contextlib.ExitStack() as stack:
            self._is_kept = directory is not None
            if not self._is_kept:
                directory = stack.enter_context(scratch.directory())
            self._directory = directory
            stack.enter_context(locks.held(directory))
            self._load()
            self._stack = stack.pop_all()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind, *_) -> None:
        with self._stack:
            # Large files are summed again only if rows were added, also by killed runs.
            if self._is_kept and kind is None and len(self._rows) != self._summed:
                names = ("keys", "vectors", "shape.json")
                checksums.write(self._directory, names, self._path(checksums.FILE_NAME))

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, sentences: Iterable[str], role: str = "") -> None:
        """Encodes the sentences that the store does not hold, the longest first.

        Args:
            sentences: the sentences.
            role: see `base.Vectors`.

        Raises:
            UserError: a vector is not finite or has the wrong shape.
        """
        new = {}
        key_of = self._keys(role)
        for text in sentences:
            key = key_of(text)
            if key not in self._rows:
                new[key] = text
        # The longest first: a batch that does not fit into memory fails at once.
        order = sorted(new, key=lambda key: -len(new[key]))
        with progress_bar(len(order), disable=not self._progress) as bar:
            for start in range(0, len(order), _AT_ONCE):
                keys = order[start : start + _AT_ONCE]
                self._append(keys, [new[key] for key in keys], role)
                bar.update(len(keys))

    def __call__(
        self, sentences: Sequence[str], language: str = "", role: str = ""
    ) -> np.ndarray:
        """The vectors of sentences; see `base.Vectors`."""
        self.add(sentences, role)
        if not len(sentences):
            return np.zeros([0, self.dim], np.float32)
        return self.take(self._rows_of(sentences, role), language, role)

    def on_disk(
        self, sentences: Sequence[str], language: str = "", role: str = ""
    ) -> VectorsOnDisk:
        """The unit vectors of sentences, for sets that do not fit into memory."""
        self.add(sentences, role)
        return VectorsOnDisk(self, self._rows_of(sentences, role), language, role)

    def prompt(self, role: str) -> str:
        """NAME=TEXT of the model's prompt for a role; "" for the default prompt.

        A server does not tell the text: the identity of its vectors stands for it.
        """
        name = self._prompt_name(role)
        if name is None:
            return ""
        text = self._encoder.prompts[name]
        if text is None:
            text = identity.revision(self._encoder.prompted(name))
        return f"{name}={text}"

    def _prompt_name(self, role: str) -> str | None:
        return prompts.of_role(self._encoder, role) if role else None

    def take(self, rows: np.ndarray, language: str, role: str) -> np.ndarray:
        """The vectors of rows of the store in any order, float32 [len(rows), dim].

        Raises:
            UserError: `change` would change vectors of another prompt.
        """
        path, shape = self._path("vectors"), (len(self), self.dim)
        # Mapped for this call only: a mapped file counts as memory of the process.
        stored = np.memmap(path, "<f4", "r", shape=shape)
        # Rows in the file's order need one pass over the file, from front to back.
        order = np.argsort(rows, kind="stable")
        vectors = np.empty([len(rows), self.dim], np.float32)
        vectors[order] = stored[rows[order]]
        if not self._change:
            return vectors
        changed = self._change(vectors, language)
        name = self._prompt_name(role)
        if name is not None and changed is not vectors:
            raise UserError(
                f"the texts in {language} get the prompt {name!r}, and --pcr was "
                "fitted without it; allowed: no --pcr, or no prompts (--prompts=)"
            )
        return changed

    def _rows_of(self, sentences: Sequence[str], role: str) -> np.ndarray:
        rows = map(self._rows.__getitem__, map(self._keys(role), sentences))
        return np.fromiter(rows, np.int64, len(sentences))

    def _keys(self, role: str) -> Callable[[str], bytes]:
        """The function from sentences in a role to their keys."""
        prompt = self.prompt(role).encode("utf-8", "surrogatepass")
        salt = hashlib.sha256(prompt).digest() if prompt else b""
        return functools.partial(_key, salt=salt)

    def _append(self, keys: list[bytes], texts: list[str], role: str) -> None:
        name = self._prompt_name(role)
        named = {} if name is None else {"prompt_name": name}
        encoded = self._encoder.encode(texts, **named)
        vectors = arrays.checked(encoded, texts, name_of(self._encoder), self.dim)
        if not self.dim:
            self.dim = vectors.shape[1]
            shape = json.dumps({"dim": self.dim}).encode()
            arrays.append(self._path("shape.json"), shape)
        start = len(self._rows)
        arrays.append(self._path("vectors"), vectors.astype("<f4").tobytes())
        arrays.append(self._path("keys"), b"".join(keys))
        self._rows.update((key, start + row) for row, key in enumerate(keys))

    def _load(self) -> None:
        """Reads the keys of the rows that are complete."""
        if not os.path.exists(self._path("keys")):
            for name in ("vectors", "shape.json", checksums.FILE_NAME):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self._path(name))
            return
        try:
            summed = checksums.check(
                self._directory,
                self._path(checksums.FILE_NAME),
                grows=("keys", "vectors"),
            )
            self._summed = summed.get("keys", 0) // _KEY_BYTES
            path = self._path("shape.json")
            self.dim = json_files.field(
                json_files.read(path), "dim", int, path, at_least=1
            )
            arrays.cut_incomplete_rows(
                {self._path("keys"): _KEY_BYTES, self._path("vectors"): 4 * self.dim}
            )
            with open(self._path("keys"), "rb") as file:
                keys = file.read()
        except UserError as error:
            raise UserError(f"{error}; delete {self._directory}") from error
        except OSError as error:
            raise UserError(
                f"{self._directory} is damaged: {error}; delete {self._directory}"
            ) from error
        starts = range(0, len(keys), _KEY_BYTES)
        self._rows = {
            keys[start : start + _KEY_BYTES]: row for row, start in enumerate(starts)
        }

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def folder_in(cache_dir: str, encoder: Any) -> str | None:
    """The folder of a model's vectors in a cache; None without a fingerprint.

    Args:
        cache_dir: the folder of the vectors of all models.
        encoder: the model, or a model for each language.
    """
    if not encoder.info.get("fingerprint"):
        return None
    return os.path.join(cache_dir, identity.revision(encoder))


class LanguageStores:
    """A store for each language, each with its own encoder.

    Args:
        encoders: the encoder of each language; all vectors have one width.
        progress: show a bar on stderr while encoding.
    """

    def __init__(self, encoders: Mapping[str, SentenceEncoder], progress: bool):
        with contextlib.ExitStack() as stack:
            self._stores = {
                language: stack.enter_context(Store(encoder, progress=progress))
                for language, encoder in encoders.items()
            }
            self._stack = stack.pop_all()

    def __enter__(self) -> LanguageStores:
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return sum(map(len, self._stores.values()))

    def add(self, sentences: Iterable[str], role: str = "") -> None:
        """Does nothing, because the languages of the sentences are not known yet."""

    def __call__(
        self, sentences: Sequence[str], language: str = "", role: str = ""
    ) -> np.ndarray:
        """The vectors of sentences; see `base.Vectors`."""
        return self._of(language)(sentences, language, role)

    def on_disk(
        self, sentences: Sequence[str], language: str = "", role: str = ""
    ) -> VectorsOnDisk:
        """The unit vectors of sentences, for sets that do not fit into memory."""
        return self._of(language).on_disk(sentences, language, role)

    def prompt(self, role: str) -> str:
        """The prompts of the encoders for a role, see `Store.prompt`."""
        return " ".join(store.prompt(role) for store in self._stores.values()).strip()

    def _of(self, language: str) -> Store:
        if language not in self._stores:
            wanted = "texts without a language"
            if language:
                wanted = f"language {language!r}"
            raise UserError(
                f"a task asks for {wanted}; allowed: languages with an encoder, "
                f"{', '.join(self._stores)}; LANGUAGE=FILE names a file's language"
            )
        return self._stores[language]


def _key(text: str, salt: bytes) -> bytes:
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES, key=salt
    ).digest()
