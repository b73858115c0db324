"""Writes a report: results.json, Markdown, and an HTML page with figures."""

from __future__ import annotations

import base64
import html
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from cmlm.evaluation import tables

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: .9rem;
        font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr.published td { color: #777; }
.scroll { overflow-x: auto; }
figure { margin: 1.5rem 0; } img { max-width: 100%; }
figcaption, .note { color: #555; font-size: .9rem; }
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


def write(directory: str, results: Mapping[str, Any]) -> None:
    """Writes results.json, report.md and report.html into an existing directory."""
    with open(os.path.join(directory, "results.json"), "w", encoding="utf-8") as file:
        write_json(file, results)
    with open(os.path.join(directory, "report.md"), "w", encoding="utf-8") as file:
        file.write(markdown(results))
    with open(os.path.join(directory, "report.html"), "w", encoding="utf-8") as file:
        file.write(page(results))


def write_json(file, results: Mapping[str, Any]) -> None:
    """Writes results.json; a number that is not finite raises ValueError."""
    json.dump(results, file, indent=1, allow_nan=False, ensure_ascii=False)
    file.write("\n")


def markdown(results: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    parts = ["# Evaluation", _about_markdown(results)]
    for table in tables.tables(results, ablations=True):
        parts += [f"## {table.family}", tables.markdown(table)]
        parts.append("\n".join(f"- {line}" for line in tables.notes(results, table)))
    parts.append(_failed(results))
    return "\n\n".join(filter(None, parts)) + "\n"


def page(results: Mapping[str, Any]) -> str:
    """The report as one HTML page that needs no other file."""
    from cmlm.evaluation import plots

    body = ["<h1>Evaluation</h1>", _about_html(results)]
    for table in tables.tables(results, ablations=True):
        body += [f"<h2>{html.escape(table.family)}</h2>", html_table(table)]
        lines = map(html.escape, tables.notes(results, table))
        body.append(f"<p class=note>{'<br>'.join(lines)}</p>")
    body.append("<h2>Pictures</h2>")
    for _, caption, figure in plots.figures(results):
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        code = base64.b64encode(drawn.getvalue()).decode()
        said = html.escape(caption)
        body.append(
            f'<figure><img alt="{said}" src="data:image/svg+xml;base64,{code}">'
            f"<figcaption>{said}</figcaption></figure>"
        )
    body.append(f"<p class=note>{html.escape(_failed(results))}</p>")
    return document("Evaluation", body)


def document(title: str, body: Sequence[str]) -> str:
    """An HTML page with the report's style."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<style>{_STYLE}</style>" + "\n".join(body) + "</html>\n"
    )


def html_table(table: tables.Table) -> str:
    """A table as HTML; published rows show their source as a tooltip."""
    heads = table.heads
    rows = ["<tr>" + "".join(f"<th>{html.escape(head)}" for head in ["", *heads])]
    for name, source, numbers in table.rows:
        label = html.escape(name)
        if source:
            label = f'<span title="{html.escape(source)}">{label}</span>'
        kind = " class=published" if source else ""
        cells = "".join(
            f"<td>{_html_number(table, column, number)}"
            for column, number in enumerate(numbers)
        )
        rows.append(f"<tr{kind}><td>{label}{cells}")
    return f"<div class=scroll><table>{''.join(rows)}</table></div>"


def _html_number(table: tables.Table, column: int, number: float | None) -> str:
    """The HTML of a cell, bold for the best of the models scored here."""
    if number is None:
        return ""
    ours = [numbers[column] for _, source, numbers in table.rows if not source]
    ours = [value for value in ours if value is not None]
    best = len(ours) > 1 and number == max(ours)
    return f"<b>{number:.2f}</b>" if best else f"{number:.2f}"


def _about(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [name, *(_cell(model.get(key)) for key in _ABOUT)]
        for name, model in results["models"].items()
    ]
    return ["model", *_ABOUT.values()], rows


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):  # The languages that PCR has components for.
        return ", ".join(value["languages"])
    return "" if value is None else str(value)


def _about_markdown(results: Mapping[str, Any]) -> str:
    head, rows = _about(results)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{table}\n\nSeeds: {', '.join(map(str, results['seeds']))}."


def _about_html(results: Mapping[str, Any]) -> str:
    head, rows = _about(results)
    text = "<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    for row in rows:
        text += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
    versions = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    seeds = ", ".join(map(str, results["seeds"]))
    return (
        f"<div class=scroll><table>{text}</table></div>"
        f"<p class=note>Seeds {seeds}. {html.escape(versions)}. results.json holds "
        "every number and the checksums of the data.</p>"
    )


def _failed(results: Mapping[str, Any]) -> str:
    failed = results["not_scored"]
    return f"Not scored: {', '.join(failed)}." if failed else ""
