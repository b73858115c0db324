"""Writes a report: results.json, Markdown, and an HTML page with figures."""

from __future__ import annotations

import base64
import csv
import html
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from cmlm.common import atomic, json_files
from cmlm.errors import needing
from cmlm.evaluation import differences, layout, tables

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 70rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: .9rem;
        font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }
th { font-weight: 600; } tbody th { font-weight: 400; }
thead th { vertical-align: bottom; max-width: 9rem; overflow-wrap: break-word; }
th:first-child { text-align: left; position: sticky; left: 0; background: #fff;
                 min-width: 9rem; max-width: 18rem; overflow-wrap: anywhere; }
.published { color: #666; } .published sup { color: #36c; }
.scroll { overflow-x: auto; }
figure { margin: 1.5rem 0; } img { max-width: 100%; }
summary { cursor: pointer; padding: .3rem 0; overflow-wrap: anywhere; }
figcaption, .note, li { color: #555; font-size: .9rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; } th, td { padding: .25rem .4rem; }
  th:first-child { min-width: 6rem; max-width: 9rem; }
  img { max-width: none; width: 40rem; }
}
"""
# The properties of a model that a report shows: key in the results, column title.
_ABOUT = {
    "step": "step",
    "dim": "dim",
    "pooling": "pooling",
    "sentence_vector": "vector",
    "seq_length": "max tokens",
    "pcr": "PCR",
    "sentences": "sentences",
    "truncated_sentences": "cut",
    "encoding_seconds": "encoding, s",
    "scoring_seconds": "scoring, s",
}


def save(
    output: str,
    results: Mapping[str, Any],
    overwrite: bool,
    predictions: Mapping[str, differences.ByTask] | None = None,
) -> str:
    """Writes a .json file or the folder of a report, whole or not at all.

    Args:
        output: the path.
        results: the content of results.json.
        overwrite: whether to replace an output that exists.
        predictions: the predictions of each model, for the folder.

    Returns:
        The path of the file to look at.
    """
    if output.endswith(".json"):
        _write_json(output, results)
        return output
    with atomic.directory(output, overwrite) as directory:
        write(directory, results)
        if predictions:
            path = os.path.join(directory, "predictions.csv")
            with atomic.text(path) as file:
                write_predictions(file, predictions)
    return os.path.join(output, "report.html")


def write(directory: str, results: Mapping[str, Any]) -> None:
    """Writes the report's files into an existing directory.

    They are results.json, scores.csv, report.md and report.html.
    """

    def create(name: str):
        return atomic.text(os.path.join(directory, name))

    _write_json(os.path.join(directory, "results.json"), results)
    with create("scores.csv") as file:
        write_csv(file, results)
    with create("report.md") as file:
        file.write(markdown(results))
    with create("report.html") as file:
        file.write(page(results))


def write_csv(file, results: Mapping[str, Any]) -> None:
    """Writes every score on a line; `part` is a language, a pair or a subset.

    The averages are a task of their own, `average`, with the groups as parts.
    """
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["model", "task", "metric", "part", "value"])
    for name, model in results["models"].items():
        for task, scores in model["scores"].items():
            for metric, value in scores.items():
                metric, _, part = metric.partition("/")
                table.writerow([name, task, metric, part, value])
        for metric, key in (("mean", "averages"), ("mean_std", "averages_std")):
            for group, value in model.get(key, {}).items():
                table.writerow([name, tables.AVERAGE, metric, group, value])


def write_predictions(file, predictions: Mapping[str, differences.ByTask]) -> None:
    """Writes every example on a line, with a value and an answer of each model.

    Args:
        file: the text file.
        predictions: the predictions of each model.
    """
    table = csv.writer(file, lineterminator="\n")
    head = ["task", "part", "example", "first", "second", "gold"]
    for name in predictions:
        head += [name, f"{name} answer"]
    table.writerow(head)
    every = [*predictions.values()]
    # A model may lack a task that another has.
    places = dict.fromkeys(
        (task, part) for each in every for task in each for part in each[task]
    )
    for task, part in places:
        of_models = [each.get(task, {}).get(part) for each in every]
        about = next(filter(None, of_models))
        first, second = (*about.texts, [""] * len(about.gold))[:2]
        columns, empty = [first, second, about.gold], [""] * len(about.gold)
        for found in of_models:
            values = found.values if found else ()
            columns.append([f"{value:.6g}" for value in values] or empty)
            columns.append((found and found.answers) or empty)
        for number, cells in enumerate(zip(*columns, strict=True), 1):
            # JSON may hold half of a surrogate pair, which UTF-8 cannot encode.
            texts = (str(cell).encode("utf-8", "replace").decode() for cell in cells)
            table.writerow([task, part, number, *texts])


def _write_json(path: str, results: Mapping[str, Any]) -> None:
    """Writes results.json; a number that is not finite raises ValueError."""
    json_files.write(path, results, indent=1, allow_nan=False, ensure_ascii=False)


def markdown(results: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    parts = ["# Evaluation", _about_markdown(results), _failed_markdown(results)]
    for table in tables.tables(results, ablations=True):
        parts += [f"## {table.title}", layout.markdown(table)]
        parts.append("\n".join(f"- {line}" for line in tables.notes(results, table)))
    if found := results.get("differences"):
        lines = differences.lines(found)
        parts += ["## Differences", layout.markdown_lines(lines), differences.NOTE]
    parts.append("## All metrics")
    for table in tables.details(results):
        parts += [f"### {table.family}", layout.markdown(table)]
    return "\n\n".join(filter(None, parts)) + "\n"


def page(results: Mapping[str, Any]) -> str:
    """The report as one HTML page that needs no other file."""
    with needing("evaluate"):
        from cmlm.evaluation import plots

    body = ["<h1>Evaluation</h1>", _about_html(results), _failed_html(results)]
    for table in tables.tables(results, ablations=True):
        body += [f"<h2>{html.escape(table.title)}</h2>", layout.html_table(table)]
        lines = map(html.escape, tables.notes(results, table))
        body.append(f"<p class=note>{'<br>'.join(lines)}</p>")
    if found := results.get("differences"):
        body.append(f"<h2>Differences</h2>{_table_html(differences.lines(found))}")
        body.append(f"<p class=note>{html.escape(differences.NOTE)}</p>")
    body.append("<h2>Pictures</h2>")
    for caption, figure in plots.figures(results):
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        code = base64.b64encode(drawn.getvalue()).decode()
        said = html.escape(caption)
        body.append(
            f'<figure><div class=scroll><img alt="{said}" '
            f'src="data:image/svg+xml;base64,{code}"></div>'
            f"<figcaption>{said}</figcaption></figure>"
        )
    body.append("<h2>All metrics</h2>")
    for table in tables.details(results):
        body.append(
            f"<details><summary>{html.escape(table.family)}</summary>"
            f"{layout.html_table(table)}</details>"
        )
    return document("Evaluation", body)


def document(title: str, body: Sequence[str]) -> str:
    """An HTML page with the report's style."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{title}</title>"
        f"<style>{_STYLE}</style>" + "\n".join(body) + "</html>\n"
    )


def _about(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [name, *(_cell(model.get(key)) for key in _ABOUT)]
        for name, model in results["models"].items()
    ]
    return ["model", *_ABOUT.values()], rows


def _seeds(results: Mapping[str, Any]) -> str:
    """The seeds; those of each task if the tasks of a merged report differ."""
    tasks: dict[str, list[str]] = {}
    for name, about in results["tasks"].items():
        seeds = about["seeds"] if "merged" in results else results["seeds"]
        tasks.setdefault(", ".join(map(str, seeds)), []).append(name)
    if len(tasks) == 1:
        return next(iter(tasks))
    return "; ".join(f"{seeds} ({', '.join(names)})" for seeds, names in tasks.items())


def _notes(results: Mapping[str, Any]) -> list[str]:
    """The sentences on the models, without their full stops."""
    notes = [tables.note_of_pcr(results), *tables.notes_of_means(results)]
    return [note for note in notes if note]


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):  # The languages that PCR has components for.
        return ", ".join(value.get("languages", value))
    return "" if value is None else str(value)


def _about_markdown(results: Mapping[str, Any]) -> str:
    head, rows = _about(results)
    table = layout.markdown_lines([head, *rows])
    notes = [f"Seeds: {_seeds(results)}", *_notes(results)]
    return f"{table}\n\n{'. '.join(notes)}."


def _about_html(results: Mapping[str, Any]) -> str:
    head, rows = _about(results)
    versions = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    notes = html.escape(". ".join([f"Seeds {_seeds(results)}", *_notes(results)]))
    return (
        f"{_table_html([head, *rows])}<p class=note>{notes}. "
        f"{html.escape(versions)}. results.json holds every number and the checksums "
        "of the data.</p>"
    )


def _table_html(lines: Sequence[Sequence[str]]) -> str:
    """A table of texts; the first line and the first column hold titles."""
    head, *rows = lines
    cells = [[f"<th>{html.escape(cell)}" for cell in head]]
    for name, *row in rows:
        numbers = [f"<td>{html.escape(cell)}" for cell in row]
        cells.append([f"<th>{html.escape(name)}", *numbers])
    return layout.html_lines(cells)


def _failed_markdown(results: Mapping[str, Any]) -> str:
    said = [f"- {name}: {reason}" for name, reason in results["not_scored"].items()]
    return "\n".join(["Not scored:", "", *said]) if said else ""


def _failed_html(results: Mapping[str, Any]) -> str:
    said = [
        f"<li><b>{html.escape(name)}</b>: {html.escape(reason)}"
        for name, reason in results["not_scored"].items()
    ]
    return f"<p>Not scored:<ul>{''.join(said)}</ul>" if said else ""
