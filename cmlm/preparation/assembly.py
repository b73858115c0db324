r"""The Beam pipeline of a preparation: read, clean, deduplicate, write shards.

The text is shuffled once, from the reader to its shard. Deduplication shuffles only
arrays of fingerprints by bucket, and sends the repeated rows to the shard of their
document. A worker holds one bucket, or a few blocks of one shard, so the numbers of
buckets and shards must grow with the input. Before each grouping, blocks may wait on
disk, see `spilling`.

    files -> read -> steps -> spread --- text, packed ----------------------> write
                                 \--- fingerprints -> repeated, near --------/
                                  \--- sentences per language -> limit ------/
"""

from __future__ import annotations

import apache_beam as beam
from apache_beam import pvalue

from cmlm.common import beam_counts, beam_progress
from cmlm.preparation import documents, repeats, spilling, spreading, steps, writing
from cmlm.preparation.settings import Settings


def build(
    pipeline: beam.Pipeline,
    settings: Settings,
    directory: str,
    counts_path: str,
    progress: beam_progress.Progress | None = None,
    readers: int = 1,
    scratch: str | None = None,
) -> None:
    """Adds the whole preparation to a pipeline.

    Args:
        pipeline: an empty pipeline.
        settings: the settings of the preparation.
        directory: receives LANGUAGE/00000-of-00001.txt.gz, or .tsv.gz for bitext.
        counts_path: the JSON file to write, with all counts by `steps.count_name`.
        progress: the progress bar, in bytes read.
        readers: the number of workers. If there are fewer files, several workers read
            each file and each keeps its own documents: reading is cheap, and sending
            raw text to other workers would take their memory.
        scratch: an empty directory on this machine for blocks that wait to be grouped,
            if all workers run here; None leaves them to the runner.
    """
    parts = _Parts(settings, scratch)
    cleaned = parts.cleaned(pipeline, progress, readers)
    spread = cleaned | "spread" >> beam.ParDo(spreading.Spread(settings)).with_outputs(
        spreading.Spread.ROWS,
        spreading.Spread.DOCUMENTS,
        spreading.Spread.SIGNATURES,
        main="text",
    )
    rows = parts.spilled("rows", spread[spreading.Spread.ROWS])
    decided = parts.decided(spread, rows)
    limits = parts.limits(rows, decided) if settings.max_sentences else None
    text = {"text": parts.spilled("text", spread.text), **decided}
    grouped = text | "shards" >> beam.CoGroupByKey()
    parts.counted("write", grouped, writing.WriteShard(settings, directory), limits)
    beam_counts.write_counts(parts.counts, counts_path)


class _Parts:
    """The parts of a pipeline.

    Args:
        settings, scratch: see `build`.

    Attributes:
        counts: the counts of the parts so far.
    """

    def __init__(self, settings: Settings, scratch: str | None):
        self._settings, self._scratch = settings, scratch
        self.counts: list[beam.PCollection] = []

    def counted(
        self, label: str, collection: beam.PCollection, do_fn: beam.DoFn, *args
    ) -> beam.PCollection:
        """Applies a `CountingDoFn` and gathers its counts."""
        outputs = collection | label >> beam.ParDo(do_fn, *args).with_outputs(
            beam_counts.COUNTS, main="kept"
        )
        self.counts.append(outputs[beam_counts.COUNTS])
        return outputs.kept

    def spilled(self, label: str, collection: beam.PCollection) -> beam.PCollection:
        """Lets blocks wait on disk, see `spilling`."""
        return collection | f"spill {label}" >> spilling.Spill(self._scratch)

    def cleaned(
        self,
        pipeline: beam.Pipeline,
        progress: beam_progress.Progress | None,
        readers: int,
    ) -> beam.PCollection:
        """Reads documents and applies the steps that work on single documents."""
        settings = self._settings
        language = "" if "language" in settings.steps else settings.languages[0]
        parts = -(-readers // len(settings.paths))
        files = [
            (index, path, part, parts)
            for index, path in enumerate(settings.paths)
            for part in range(parts)
        ]
        stream = self.counted(
            "read",
            pipeline | beam.Create(files) | beam.Reshuffle(),
            steps.ReadDocuments(
                settings.layout,
                language or documents.UNKNOWN,
                settings.text_field,
                progress,
            ),
        )
        for step in steps.chosen(settings):
            stream = self.counted(step.name, stream, step)
        return stream

    def decided(
        self, spread: pvalue.DoOutputsTuple, rows: beam.PCollection
    ) -> dict[str, beam.PCollection]:
        """Compares documents and lines: the repeated ones, by the reason to drop them.

        Args:
            spread: the outputs of `spreading.Spread`.
            rows: its rows, spilled.
        """
        settings, decided = self._settings, {}

        def compare(label, collection, do_fn: repeats.Repeated) -> None:
            grouped = self.spilled(label, collection)
            grouped |= f"group {label}" >> beam.GroupByKey()
            repeated = grouped | f"{do_fn.reason}s" >> beam.ParDo(do_fn)
            decided[do_fn.reason] = self.spilled(f"{do_fn.reason}s", repeated)

        if "duplicate_documents" in settings.steps:
            same = repeats.Repeated(settings, "duplicate document")
            compare("documents", spread[spreading.Spread.DOCUMENTS], same)
        if "near_duplicates" in settings.steps:
            near = repeats.Near(settings, "near duplicate")
            compare("signatures", spread[spreading.Spread.SIGNATURES], near)
        if "duplicate_lines" in settings.steps:
            lines = (
                {"rows": rows, **decided}
                | "lines of documents kept" >> beam.CoGroupByKey()
                | "by fingerprint" >> beam.ParDo(repeats.ByFingerprint(settings))
            )
            compare("lines", lines, repeats.Repeated(settings, "duplicate line"))
        return decided

    def limits(
        self, rows: beam.PCollection, decided: dict[str, beam.PCollection]
    ) -> pvalue.AsDict:
        """The `writing.Limit` of each language, for `writing.WriteShard`."""
        settings = self._settings
        kept = {"rows": rows, **decided} | "lines kept" >> beam.CoGroupByKey()
        cuts = pvalue.AsDict(
            kept
            | "histogram" >> beam.ParDo(writing.Histogram(settings))
            | "histogram of a language" >> beam.CombinePerKey(writing.add_histograms)
            | "cut of the limit"
            >> beam.Map(writing.cut_of_limit, settings.max_sentences)
        )
        limits = (
            kept
            | "sizes" >> beam.ParDo(writing.SizesInCut(settings), cuts)
            | "sizes of a language" >> beam.CombinePerKey(writing.join_sizes)
            | "limit" >> beam.Map(writing.limit, cuts, settings.seed)
        )
        return pvalue.AsDict(limits)
