"""The jobs of `cmlm.mine`: mines pairs, mines hard negatives, and scores a bitext."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

import numpy as np

from cmlm.common import atomic, identity, outputs
from cmlm.common.counts import counted
from cmlm.common.numbered_tasks import HERE, Workers
from cmlm.errors import UserError
from cmlm.mining import cells as cells_lib
from cmlm.mining import encoded, negatives, neighbours, texts, vectors
from cmlm.mining import pairs as pairs_lib
from cmlm.mining.index import SearchSettings
from cmlm.mining.pairs import PairRule
from cmlm.mining.texts import Texts
from cmlm.mining.vectors import Reader

_LINES_AT_ONCE = 65_536
# The texts in `Job.work_dir` that `Job.target` reads.
_TARGETS = ("target", "bitext-2", "pool")
# The printed report gives the share of pairs with at least each of these cosines.
_STEPS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings that every job shares.

    Attributes:
        source: the model; None: both sides bring their vectors.
        output: the .tsv or .tsv.gz file to write.
        work_dir: the directory for texts, vectors and neighbours, from which a stopped
            job resumes.
        search: the settings of the neighbour search.
        workers: the processes that encode and search.
        target: the same model with the prompt of targets, and of the texts that hard
            negatives are taken from; None: `source` reads all texts.
    """

    source: Reader | None
    output: str
    work_dir: str
    search: SearchSettings
    workers: Workers = HERE
    target: Reader | None = None

    def reader(self, name: str) -> Reader | None:
        """Returns the model that reads a text.

        Args:
            name: the name of the text in `work_dir`.
        """
        return self.target or self.source if name in _TARGETS else self.source

    def path(self, name: str) -> str:
        """Returns a path in the work directory."""
        return os.path.join(self.work_dir, name)

    def gather(self, lines, directory: str, name: str) -> Texts:
        """Stores the distinct lines of a text, see `texts.gather`."""
        found = texts.gather(lines, self.path(directory), name, self.search.memory)
        self._say(found)
        return found

    def encode(self, name: str, side: Texts) -> vectors.ShardedVectors:
        """Encodes a text that has no vectors yet."""
        directory = self.path(f"{name}-vectors")
        return vectors.encode(side, self.reader(name), directory, self.workers)

    def searcher(
        self, sides: dict[str, tuple[Texts, vectors.ShardedVectors]]
    ) -> neighbours.Searcher:
        """Returns a searcher of two sides."""
        directory = self.path("-".join([*sides, "neighbours"]))
        both = [own for _, own in sides.values()]
        searcher = neighbours.Searcher(*both, directory, self.search, self.workers)
        print(f"index: {searcher.kind}", file=sys.stderr)
        return searcher

    def side(
        self, name: str, given: Sequence[str] | str
    ) -> tuple[Texts, vectors.ShardedVectors | None]:
        """Returns the distinct lines of a side, and the vectors that it brings.

        Args:
            name: the name of the side.
            given: its files, or a folder that `encoded.write` has filled.

        Raises:
            UserError: another model made the vectors of the folder.
        """
        if not isinstance(given, str):
            lines = functools.partial(texts.read_lines, given)
            return self.gather(lines, name, f"--{name}"), None
        text, stored = encoded.read(given, f"--{name}")
        self._say(text)
        if reader := self.reader(name):
            own = identity.of(reader.encoder)
            changed = identity.difference(stored.about["model"], own)
            if changed:
                raise UserError(
                    f"{given} holds vectors of another model than --model ({changed}); "
                    "allowed: the model that encoded it"
                )
        return text, stored

    @staticmethod
    def _say(text: Texts) -> None:
        print(
            f"{text.name}: {counted(text.lines, 'sentence')}, {len(text):,} distinct",
            file=sys.stderr,
        )


def scores_path(output: str) -> str:
    """Returns a path that no glob of .tsv files matches.

    For example, the scores of `mined.tsv.gz` are at `mined.scores.gz`.
    """
    stem, _, packed = output.rpartition(".tsv")
    return f"{stem}.scores{packed}"


def mine_pairs(
    job: Job,
    sources: Sequence[str] | str,
    targets: Sequence[str] | str,
    k: int,
    rule: PairRule,
) -> list[str]:
    """Mines translation pairs from two unaligned texts and writes them with scores.

    A sentence and its copy in the other text are no pair, and no neighbours of each
    other. A line on stderr counts the copies.

    Args:
        job: the shared settings.
        sources, targets: the files of the two texts, or folders, see `Job.side`.
        k: the number of neighbours of each sentence, for the margin.
        rule: which pairs to take.

    Returns:
        Lines that describe the written files.

    Raises:
        UserError: both sides hold the same text, a side has fewer than k distinct
            sentences, the sides have vectors of different models, or no pair reaches
            the threshold.
    """
    sides = _two_sides(job, {"source": sources, "target": targets}, rule.needed, k)
    searcher = job.searcher(sides)
    found = {side: searcher.find(side, k) for side in rule.needed}
    source, target = (text for text, _ in sides.values())
    for side, near in found.items():
        near.leave_out_equal(sides[side][0], sides[neighbours.OTHER[side]][0])
    pairs = pairs_lib.mine(found, rule)
    if copies := max(each.copies for each in found.values()):
        print(
            f"{counted(copies, 'pair')} of a sentence and its copy in the other text: "
            "left out",
            file=sys.stderr,
        )
    if not len(pairs):
        every = dataclasses.replace(rule, threshold=-np.inf, one_to_one=False)
        highest = pairs_lib.mine(found, every)["score"].max(initial=-np.inf)
        if np.isneginf(highest):
            raise _no_pair(rule.retrieval, copies)
        raise _none_reaches(rule.threshold, highest, "score")
    with _output_and_scores(job.output) as (file, scores):
        for score, cosine in zip(pairs["score"], pairs["cosine"], strict=True):
            scores.write(f"{score:.6f}\t{cosine:.6f}\n")
        for start in range(0, len(pairs), _LINES_AT_ONCE):
            part = pairs[start : start + _LINES_AT_ONCE]
            columns = (source.take(part["source"]), target.take(part["target"]))
            file.writelines(f"{a}\t{b}\n" for a, b in zip(*columns, strict=True))
    return [
        f"{job.output}  {counted(len(pairs), 'pair')} with a score ({rule.margin}) of "
        f"{rule.threshold:g} or more, the best first",
        f"{scores_path(job.output)}  score TAB cosine of each line",
    ]


def _two_sides(
    job: Job, given: dict[str, Sequence[str] | str], needed: Sequence[str], k: int
) -> dict[str, tuple[Texts, vectors.ShardedVectors]]:
    """Opens and encodes both sides, see `mine_pairs`.

    A mistake in either side is found before hours of encoding.

    Args:
        job: the shared settings.
        given: the files or the folder of `source` and of `target`.
        needed: the sides whose neighbours are searched.
        k: the number of neighbours.
    """
    opened = {name: job.side(name, of) for name, of in given.items()}
    if len({text.digest for text, _ in opened.values()}) == 1:
        raise UserError(
            "--source and --target hold the same text; allowed: texts of two languages"
        )
    for side in needed:
        searched = neighbours.OTHER[side]
        neighbours.check_size(searched, len(opened[searched][0]), k)
    total = sum(len(text) for text, _ in opened.values())
    cells_lib.check_number(job.search.cells, total)
    sides = {
        name: (text, job.encode(name, text) if stored is None else stored)
        for name, (text, stored) in opened.items()
    }
    models = [stored.about["model"] for _, stored in sides.values()]
    # The vectors of each side are those of --model, if there is one.
    if job.source is None and (changed := identity.difference(*models)):
        raise UserError(
            f"--source and --target hold vectors of two models ({changed}): encode both"
            " with one model, or name --model and the prompt of each side"
        )
    return sides


def _no_pair(retrieval: str, copies: int) -> UserError:
    """The error if no pair exists, whatever the threshold."""
    if retrieval == "intersection":
        return UserError(
            "--retrieval is intersection, and no pair is found in both directions; "
            "allowed: forward, backward, max, or a higher --neighbours"
        )
    if copies:
        return UserError(
            "no pair has two different sentences; allowed: texts of two languages, or "
            "a higher --neighbours"
        )
    return UserError(
        "no sentence has a neighbour in the cells that were searched; allowed: a higher"
        " --probes, or --index=flat"
    )


def _none_reaches(threshold: float, highest: float, kind: str) -> UserError:
    """The error of a threshold above the highest score; names a score that is there."""
    # Rounded down, so that this number as --threshold keeps the pair.
    return UserError(
        f"--threshold is {threshold:g}; allowed: at most "
        f"{np.floor(highest * 1e4) / 1e4:.4f}, the highest {kind} of a pair"
    )


@contextlib.contextmanager
def _output_and_scores(output: str) -> Iterator[tuple[TextIO, TextIO]]:
    """Yields files for pairs and for their scores, which get their names together."""
    with (
        outputs.named_together(output) as begin,
        atomic.text(output) as file,
        atomic.text(scores_path(output)) as scores,
    ):
        yield file, scores
        # A full disk shows before the first output has its name.
        file.flush()
        scores.flush()
        begin()


def mine_negatives(
    job: Job,
    bitext: Sequence[str],
    columns: int,
    pool_files: Sequence[str] | None,
    rule: negatives.NegativeRule,
) -> list[str]:
    """Writes a bitext with hard negatives in further columns.

    Args:
        job: the shared settings.
        bitext: the files of the bitext.
        columns: the number of columns of the bitext; hard negatives replace the columns
            after the second.
        pool_files: the files of the text to take negatives from; None: all targets.
        rule: which negatives to take.

    Returns:
        Lines that describe the written file.

    Raises:
        UserError: no pair has enough negatives.
    """
    source, target = (
        job.gather(
            functools.partial(texts.read_column, bitext, columns, column),
            f"bitext-{column + 1}",
            f"--bitext, column {column + 1}",
        )
        for column in range(2)
    )
    pool, pool_name = target, "bitext-2"
    if pool_files:
        lines = functools.partial(texts.read_lines, pool_files)
        pool, pool_name = job.gather(lines, "pool", "--pool"), "pool"
    k = negatives.neighbours_for(rule, len(pool), pool is target)
    cells_lib.check_number(job.search.cells, len(source) + len(pool))
    both = {"bitext-1": source, pool_name: pool}
    sides = {name: (text, job.encode(name, text)) for name, text in both.items()}
    found = job.searcher(sides).find("source", k)
    stored = tuple(own for _, own in sides.values())
    rows = negatives.choose(source, target, pool, found, stored, rule, job.work_dir)
    written = 0
    with atomic.text(job.output) as file:
        for a, b in zip(source.rows, target.rows, strict=True):
            if rows[a, 0] >= 0:
                cells = [*source.take([a]), *target.take([b]), *pool.take(rows[a])]
                file.write("\t".join(cells) + "\n")
                written += 1
        if not written:
            ways = {
                f"a lower --hard_negatives than {rule.count}": rule.count > 1,
                f"a lower --skip_nearest than {rule.skip}": rule.skip > 0,
                f"a higher --max_cosine than {rule.max_cosine:g}": rule.max_cosine < 1,
                "a larger --pool": True,
            }
            raise UserError(
                f"no pair has {counted(rule.count, 'hard negative')}; allowed: "
                f"{', or '.join(way for way, helps in ways.items() if helps)}"
            )
    return [
        f"{job.output}  {counted(written, 'pair')} with "
        f"{counted(rule.count, 'hard negative')} each; left out: "
        f"{counted(source.lines - written, 'pair')} with fewer"
    ]


def score_pairs(
    job: Job, bitext: Sequence[str], columns: int, threshold: float
) -> list[str]:
    """Keeps the lines of a bitext whose source and target have a high cosine.

    Feng et al., 2020 (LaBSE), https://arxiv.org/abs/2007.01852, section 3.1, filter
    bitext with a scoring model. That model is not public, so the cosine of an encoder
    replaces its score. The cosines are stored, not the vectors, so the work directory
    stays small.

    Args:
        job: the shared settings.
        bitext: the files of the bitext.
        columns: the number of columns of the bitext; columns after the second are
            copied.
        threshold: the lowest cosine to keep.

    Returns:
        Lines that describe the written files, and the share of lines by cosine.

    Raises:
        UserError: no line reaches the threshold.
    """
    read_rows = functools.partial(texts.read_rows, bitext, columns)
    lines = job.gather(read_rows, "bitext-lines", "--bitext")
    about = vectors.describe(lines, job.source.encoder, 1)
    openers = [job.source.opener(job.workers)]
    if job.target:
        about["target_model"] = identity.of(job.target.encoder)
        openers.append(job.target.opener(job.workers))
    score = functools.partial(_scoring, lines.opener(job.workers), openers)
    cosines = vectors.fill(
        job.path("cosines"), about, score, "scoring pairs", job.workers
    )
    reached = np.zeros(len(_STEPS), np.int64)
    written, highest = 0, -np.inf
    with _output_and_scores(job.output) as (file, scores):
        for start in range(0, lines.lines, _LINES_AT_ONCE):
            rows = np.array(lines.rows[start : start + _LINES_AT_ONCE])
            own = cosines.take(rows)[:, 0]
            highest = own.max(initial=highest)
            reached += (own[:, np.newaxis] >= _STEPS).sum(axis=0)
            chosen = own >= threshold
            file.writelines(f"{line}\n" for line in lines.take(rows[chosen]))
            scores.writelines(f"{cosine:.6f}\n" for cosine in own[chosen])
            written += int(chosen.sum())
        if not written:
            raise _none_reaches(threshold, highest, "cosine")
    shares = "  ".join(
        f"{step:g}: {number / lines.lines:.1%}"
        for step, number in zip(_STEPS, reached.tolist(), strict=True)
    )
    return [
        f"share of pairs with at least this cosine  {shares}",
        f"{job.output}  {written:,} of {lines.lines:,} pairs with a cosine of "
        f"{threshold:g} or more, in their order",
        f"{scores_path(job.output)}  cosine of each line",
    ]


def _scoring(
    open_texts: Callable[[], Texts], openers: Sequence[vectors.Open]
) -> vectors.Make:
    """Opens what scores a bitext: one model for both sides, or one for each."""
    lines, encoders = open_texts(), [open_encoder() for open_encoder in openers]

    def make(start: int, stop: int) -> np.ndarray:
        cells = [line.split("\t") for line in lines.take(range(start, stop))]
        texts_of_sides = [[row[i] for row in cells] for i in (0, 1)]
        if len(encoders) == 1:
            # One call makes it easier to fill batches of similar length.
            texts_of_sides = [sum(texts_of_sides, [])]
        rows = [*map(vectors.checked, encoders, texts_of_sides)]
        source, target = np.split(np.concatenate(rows), 2)
        return np.einsum("nd,nd->n", source, target)[:, np.newaxis]

    return make
