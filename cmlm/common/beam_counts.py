"""Counts of a Beam pipeline that are exact on every runner.

    def build(pipeline):
        outputs = pipeline | ... | beam.ParDo(Drop()).with_outputs(COUNTS, main="kept")
        write_counts([outputs[COUNTS]], path)

Beam's own counters may count repeated work twice; these travel with the data.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable

import apache_beam as beam
from apache_beam import pvalue

from cmlm.common import beam_files

# The tag of the output with the counts of a `CountingDoFn`.
COUNTS = "counts"


class CountingDoFn(beam.DoFn):
    """A DoFn with counts that are exact on every runner.

    They are pairs (name, number) in the tagged output COUNTS. A subclass adds to
    `self.counts`, and calls `super()` if it overrides `start_bundle`.
    """

    def start_bundle(self):
        self.counts: collections.Counter = collections.Counter()

    def finish_bundle(self):
        for item in sorted(self.counts.items()):
            item = beam.window.GlobalWindows.windowed_value(item)
            yield pvalue.TaggedOutput(COUNTS, item)
        self.counts.clear()


def write_counts(counts: Iterable[beam.PCollection], path: str) -> None:
    """Writes the summed COUNTS outputs of all transforms to one JSON file."""
    (
        tuple(counts)
        | "Flatten counts" >> beam.Flatten().with_output_types(tuple[str, int])
        | "Sum counts" >> beam.CombinePerKey(sum)
        | "List counts" >> beam.combiners.ToList()
        | "Write counts" >> beam.Map(_write_counts, path)
    )


def _write_counts(counts: list[tuple[str, int]], path: str) -> None:
    with beam_files.atomic_text(path) as output:
        json.dump(dict(sorted(counts)), output, indent=1, ensure_ascii=False)


def read_counts(path: str) -> collections.Counter:
    """Reads a file that `write_counts` has written."""
    with beam_files.open_bytes(path) as file:
        return collections.Counter(json.load(file))
