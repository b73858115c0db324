"""Finds and reads public test sets as distributed, and rejects damaged files."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
from collections.abc import Container, Iterator, Sequence
from typing import Any

from cmlm.common import files, language_names, utf8
from cmlm.errors import UserError
from cmlm.evaluation import parsing

UTF_8 = ("utf-8-sig",)
# Some of SentEval's files are Latin-1.
EITHER = ("utf-8-sig", "latin-1")


class MissingData(UserError):
    """A data set is missing; the message names the expected files."""


class DataDir:
    """A folder of test sets; it records which files were read.

    A set may lie in the folder itself or in a subfolder of its own name (`senteval/`,
    `tatoeba/`), and every file may be packed (`.gz`).

    Args:
        path: the folder.

    Attributes:
        checksums: the SHA-256 of every file that was read, by path. A packed file is
            hashed without unpacking. Paths inside the folder are relative to it.
        left_out: the error of each part of a set, such as a language, that is left
            out.
        senteval_encodings: the encodings that files in SentEval's layout may have.
    """

    def __init__(self, path: str):
        self.path = self._root = os.path.abspath(path)
        self.checksums: dict[str, str] = {}
        self.left_out: dict[str, UserError] = {}
        self.senteval_encodings = EITHER

    def inside(self, folder: str) -> DataDir:
        """A folder inside this one; files read there are recorded here."""
        other = DataDir(os.path.join(self.path, folder))
        other.checksums = self.checksums
        other._root = self._root
        return other

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Leaves a part of a set out, and keeps the error, if a file is bad."""
        try:
            yield
        except UserError as error:
            self.left_out[name] = error

    def check_found(self, parts: Container[str], *needed: str) -> None:
        """Checks that the parts that a task needs have been read.

        Args:
            parts: the parts that have been read.
            needed: the parts that the task needs; any one part by default.

        Raises:
            UserError: a needed part is left out; or no part is left.
        """
        if not needed and not parts:
            needed = tuple(self.left_out)
        for name in needed:
            if name in self.left_out:
                raise self.left_out[name]

    def find(self, *names: str, within: str | Sequence[str] = "") -> str:
        """The first file that exists.

        Args:
            names: alternative paths of the file, relative to the folder or absolute.
            within: the subfolder that may hold the file instead, or several.

        Raises:
            MissingData: none of the files exists.
        """
        looked_for = self._places(names, within)
        for path in looked_for:
            for candidate in (path, path + ".gz"):
                # Its reader refuses a pipe by name.
                if os.path.exists(candidate) and not os.path.isdir(candidate):
                    return candidate
        raise MissingData(f"missing: {', '.join(looked_for)} (also as .gz)")

    def find_own(self, paths: Sequence[str]) -> list[tuple[str, str]]:
        """The user's own files and their languages; "" for unknown languages.

        Args:
            paths: `FILE` or `LANGUAGE=FILE`, below the working directory or below the
                folder. An existing file named `en=FILE` goes before `FILE` in English.

        Raises:
            MissingData: a file is in neither.
            UserError: some files have a language and others do not.
        """
        found = [self._find_own(path) for path in paths]
        if len({bool(language) for _, language in found}) > 1:
            raise UserError(
                f"{':'.join(paths)}: some files have a language; allowed: "
                "LANGUAGE=FILE for all files or for none"
            )
        return found

    def find_own_of_one_language(self, paths: Sequence[str]) -> tuple[list[str], str]:
        """The user's own files, and their common language; see `find_own`.

        Raises:
            MissingData: a file is in neither folder.
            UserError: the files have several languages.
        """
        found = self.find_own(paths)
        languages = list(dict.fromkeys(language for _, language in found))
        if len(languages) > 1:
            raise UserError(
                f"{':'.join(paths)}: the languages {', '.join(languages)}; allowed: "
                "files of one language"
            )
        return [path for path, _ in found], languages[0]

    def _find_own(self, path: str) -> tuple[str, str]:
        language, rest = language_names.split_off(path)
        if language:
            with contextlib.suppress(MissingData):
                return self.find(os.path.abspath(path), path), ""
        return self.find(os.path.abspath(rest), rest), language

    def matching(self, pattern: str, within: str | Sequence[str] = "") -> list[str]:
        """The files (also packed ones) or folders that a glob matches, sorted.

        Args:
            pattern: the glob, relative to the folder.
            within: the subfolder that may hold the files instead, or several; the
                last one that holds any counts.

        Raises:
            MissingData: nothing matches.
        """
        # A subfolder goes first: in the folder itself, the glob may match other sets.
        for place in reversed(self._places([""], within)):
            start = os.path.join(glob.escape(place), pattern)
            paths = [*glob.glob(start), *glob.glob(start + ".gz")]
            if paths:
                return sorted(paths)
        looked_for = self._places([pattern], within)
        raise MissingData(f"missing: {', '.join(looked_for)} (also as .gz)")

    def _places(self, names: Sequence[str], within: str | Sequence[str]) -> list[str]:
        inside = [within] if isinstance(within, str) else within
        folders = [self.path]
        folders += [os.path.join(self.path, folder) for folder in inside if folder]
        paths = (os.path.join(folder, name) for folder in folders for name in names)
        return list(dict.fromkeys(paths))

    def text(self, path: str, encodings: Sequence[str] = UTF_8) -> str:
        """Reads a whole file in the first encoding that fits.

        A byte order mark before a line is left out, see `utf8.Lines`.

        Raises:
            UserError: the file is not text in these encodings, has a NUL, or is
                truncated.
        """
        content = files.whole(path)
        text = None
        for encoding in encodings:
            with contextlib.suppress(UnicodeDecodeError):
                text = content.decode(encoding)
                break
        if text is None:
            raise UserError(f"{path} is not {' or '.join(encodings)} text")
        if "\0" in text:
            # Any bytes are Latin-1 text, those of UTF-16 too.
            line = text[: text.index("\0")].count("\n") + 1
            raise UserError(
                f"{path}, line {line}: a NUL; allowed: {' or '.join(encodings)} text"
            )
        if path.endswith(".gz"):
            with open(path, "rb") as packed:
                content = packed.read()
        inside = os.path.relpath(path, self._root)
        name = path if inside.startswith("..") else inside
        self.checksums[name] = hashlib.sha256(content).hexdigest()
        return text.replace(f"\n{utf8.MARK}", "\n")

    def lines(self, path: str, encodings: Sequence[str] = UTF_8) -> list[str]:
        """Reads a file's lines, without line ends.

        Only a line feed ends a line. Python's splitlines() would also break at
        Latin-1's control characters, which occur inside sentences of some files.

        Raises:
            UserError: the file is empty, or not text in these encodings.
        """
        text = self.text(path, encodings)
        if not text:
            raise UserError(f"{path} is empty; allowed: at least one line")
        return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]

    def table(self, path: str, columns: int) -> list[list[str]]:
        """Reads tab-separated rows of at least `columns` columns.

        Raises:
            UserError: a row has fewer columns.
        """
        rows = [line.split("\t") for line in self.lines(path)]
        parsing.check_columns(path, enumerate(rows, 1), columns, or_more=True)
        return rows

    def rows(self, path: str, columns: int) -> list[list[str]]:
        """Reads a `.csv` file as `csv` does, any other file as `table` does."""
        if parsing.is_csv(path):
            return self.csv(path, columns)
        return self.table(path, columns)

    def csv(self, path: str, columns: int) -> list[list[str]]:
        """Reads comma-separated rows of exactly `columns` columns, quoted with `"`.

        Raises:
            UserError: a row has another number of columns, or is not CSV.
        """
        # Unlike splitlines(), this breaks at line ends only, and keeps them in cells.
        lines = io.StringIO(self.text(path), newline="")
        numbered = list(parsing.csv_rows(path, lines))
        if not numbered:
            raise UserError(f"{path} is empty; allowed: at least one row")
        parsing.check_columns(path, numbered, columns)
        return [cells for _, cells in numbered]

    def json_lines(
        self, path: str, needed: Sequence[str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields where a JSON object stands, and the object, for each line.

        Raises:
            UserError: a line is not a JSON object, or a needed entry is not a text.
        """
        for number, line in enumerate(self.lines(path), 1):
            where = f"{path}, line {number}"
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                item = None
            if not isinstance(item, dict):
                raise UserError(f"{where}: not a JSON object; allowed: one a line")
            if not all(isinstance(item.get(name), str) for name in needed):
                names = " and ".join(map(repr, needed))
                raise UserError(f"{where} lacks a text; allowed: texts {names}")
            yield where, item


def reason(task: str, error: UserError) -> str:
    """Why a set or a part of it cannot be scored: a file is missing or damaged.

    Args:
        task: the name of the task. The user's own files, `FAMILY:FILE`, may be sound
            and not fit the task.
        error: the error.
    """
    says_all = ":" in task or isinstance(error, MissingData)
    return str(error) if says_all else f"damaged: {error}"
