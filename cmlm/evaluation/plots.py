"""Draws the figures of a report with matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure

from cmlm.evaluation import layout, tables

# Okabe and Ito's colours, which colour-blind readers can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#8a8a8a"
_MARKERS = "osD^vP*"
_INCHES = 8.5
# The lines of a panel with languages. Long names leave room for one panel only.
_LINES = 40
_SHORT_NAME = 8
# A legend on the right of the axes.
_BESIDE = {"frameon": False, "loc": "center left", "bbox_to_anchor": (1, 0.5)}
# The panels of `agnosticity` and their titles.
_WHEN = {"before": "as encoded", "after": "principal components removed"}
# The query languages of CMLM's figure 2; other languages if these are missing.
_QUERIES = ("de", "fr", "zh")


def figures(results: tables.Results) -> Iterator[tuple[str, Figure]]:
    """Draws every figure that the results allow.

    Args:
        results: the content of results.json.

    Yields:
        A caption and the figure.
    """
    for table in tables.tables(results):
        own = table.scores
        if len(own.columns) > 1 and not own.is_by_part:
            beside = " beside published rows (grey)" if own.sources else ""
            yield f"{table.family}: models{beside}.", scores(own)
    for (task, metric), models in _by_part(results).items():
        yield f"{task}: {metric} by language.", by_language(models, metric)
    for task, models in _drawn(results, "edges"):
        for model, drawn in models.items():
            kinds, near = "random", "random pairs are near 0"
            # Files of one's own have no similar pairs.
            if len(drawn["shares"]) > 1:
                kinds += " and of similar"
                near += " and similar pairs are not"
            yield (
                f"{task}: cosines of {kinds} sentences, {model}. If vectors use the "
                f"whole space, {near}.",
                cosines(drawn),
            )
    for task, models in _drawn(results, "before"):
        for model, drawn in models.items():
            yield (
                f"{task}: the languages of the nearest neighbours, {model}. The pool "
                "holds the same sentences in all languages. If vectors did not depend "
                "on language, the cells of a panel would be nearly equal.",
                neighbour_languages(drawn),
            )
            yield (
                f"{task}: the same sentences in all languages on the two strongest "
                f"axes, {model}. If vectors did not depend on language, the colours "
                "would mix.",
                language_map(drawn),
            )
        yield (
            f"{task}: the share of each language among the retrieved sentences, for "
            "queries in one language (rows), before and after PCR (CMLM, figure 2).",
            retrieved_languages(models),
        )
    for task, models in _drawn(results, "translations"):
        yield (
            f"{task}: sentences (circles) and their English translations (squares) on "
            "the two strongest axes, joined by lines (CMLM, figure 3).",
            translations(models),
        )


def scores(table: tables.Table) -> Figure:
    """A line for each task, a mark for each model; published rows are grey."""
    heads = table.heads
    # The legend beside the plot has a line for each row.
    figure, axes = _axes(max(1.6 + 0.34 * len(heads), 0.8 + 0.22 * len(table.rows)))
    places = np.arange(len(heads))[::-1]
    names = layout.shortened(row.name for row in table.rows)
    styles, markers = map(_style, itertools.count()), itertools.cycle(_MARKERS)
    for row in table.rows:
        if row.source:
            style = {"marker": next(markers), "color": _GREY, "markersize": 5}
            style["markerfacecolor"] = "none"
        else:
            style = {**next(styles), "markersize": 8}
        # None becomes NaN.
        numbers = np.array(row.numbers, float)
        label = _text(names[row.name])
        axes.plot(numbers, places, linestyle="", label=label, **style)
    axes.set_yticks(places, [*map(_text, heads)])
    axes.set_ylim(-0.6, len(heads) - 0.4)
    metrics = sorted({metric for _, metric in table.columns})
    axes.set_xlabel(" / ".join(metrics) if len(metrics) < 4 else "score")
    axes.grid(axis="both", color="#e4e4e4")
    axes.legend(**_BESIDE, fontsize=9)
    return figure


def by_language(models: dict[str, dict[str, float]], metric: str) -> Figure:
    """A line for each language, with the first model's best language on top.

    Many languages stand in several panels.

    Args:
        models: the scores by language, for each model.
        metric: the name of the metric.
    """
    first = next(iter(models.values()))
    languages = sorted(first, key=lambda name: -first[name])
    are_short = max(map(len, languages)) <= _SHORT_NAME
    count = min(-(-len(languages) // _LINES), 3) if are_short else 1
    lines = -(-len(languages) // count)
    names = layout.shortened(models)
    figure = Figure(
        figsize=(_INCHES, 1.4 + 0.24 * lines + 0.2 * len(models)), layout="constrained"
    )
    panels = figure.subplots(1, count, sharex=True, squeeze=False)[0]
    for panel, axes in enumerate(panels):
        shown = languages[panel * lines : (panel + 1) * lines]
        for number, (name, values) in enumerate(models.items()):
            axes.plot(
                [values.get(language, np.nan) for language in shown],
                range(len(shown)),
                linestyle="",
                **_style(number),
                markersize=7,
                label=_text(names[name]),
            )
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.set_yticks(range(len(shown)), [*map(_text, shown)])
        axes.set_ylim(lines - 0.4, -0.6)
        axes.set_xlabel(metric)
        axes.grid(color="#e4e4e4")
    panels[0].set_xlim(left=min(0, panels[0].get_xlim()[0]))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", frameon=False, fontsize=9)
    return figure


def cosines(drawn: dict[str, Any]) -> Figure:
    """Overlaid histograms of cosines."""
    figure, axes = _axes(3.2)
    edges = np.array(drawn["edges"])
    for number, (kind, shares) in enumerate(drawn["shares"].items()):
        axes.stairs(
            shares,
            edges,
            fill=True,
            alpha=0.45,
            color=_COLOURS[number],
            label=kind,
        )
    axes.set_xlim(-1, 1)
    axes.set_xlabel("cosine")
    axes.set_ylabel("share of pairs")
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
    axes.legend(frameon=False, loc="upper left")
    return figure


def neighbour_languages(drawn: dict[str, Any]) -> Figure:
    """Heat maps before and after principal component removal."""
    figure = Figure(figsize=(_INCHES, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = [*map(_text, drawn["languages"])]
    for axes, (when, title) in zip(panels, _WHEN.items(), strict=True):
        matrix = np.array(drawn[when]["neighbours"])
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
        for (row, column), share in np.ndenumerate(matrix):
            axes.text(
                column,
                row,
                f"{100 * share:.0f}",
                ha="center",
                va="center",
                fontsize=9,
                color="white" if share > 0.55 else "#222222",
            )
        axes.set_title(title, fontsize=11)
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("language of the neighbours, %")
    panels[0].set_ylabel("language of the sentence")
    return figure


def retrieved_languages(models: dict[str, dict[str, Any]]) -> Figure:
    """Bars as in figure 2 of CMLM: rows are query languages, columns are models.

    Args:
        models: the figure data of `agnosticity`, by model.
    """
    languages = next(iter(models.values()))["languages"]
    rows = [name for name in _QUERIES if name in languages] or languages[:3]
    names = layout.shortened(models, 20)
    columns = [
        (
            f"{_text(names[name])}{' + PCR' if when == 'after' else ''}",
            drawn[when],
        )
        for name, drawn in models.items()
        for when in _WHEN
    ]
    figure = Figure(
        figsize=(max(_INCHES, 2.1 * len(columns)), 1.9 * len(rows)),
        layout="constrained",
    )
    panels = figure.subplots(len(rows), len(columns), sharey=True, squeeze=False)
    for row, query in enumerate(rows):
        for column, (title, drawn) in enumerate(columns):
            axes = panels[row, column]
            shares = drawn["neighbours"][languages.index(query)]
            heights = [100 * share for share in shares]
            axes.bar([*map(_text, languages)], heights, color=_COLOURS[0])
            axes.spines[["top", "right"]].set_visible(False)
            if not row:
                axes.set_title(title, fontsize=10)
        panels[row, 0].set_ylabel(_text(f"query {query}, %"))
    return figure


def translations(models: dict[str, dict[str, Any]]) -> Figure:
    """Maps as in figure 3 of CMLM: rows are models, columns are languages.

    Args:
        models: the figure data of `bitext`, by model.
    """
    languages = list(next(iter(models.values()))["translations"])
    names = layout.shortened(models, 24)
    figure = Figure(
        figsize=(max(_INCHES, 2.6 * len(languages)), 2.7 * len(models)),
        layout="constrained",
    )
    panels = figure.subplots(len(models), len(languages), squeeze=False)
    for row, (model, drawn) in enumerate(models.items()):
        for axes, (language, sides) in zip(
            panels[row], drawn["translations"].items(), strict=True
        ):
            source, english = (np.array(side) for side in sides)
            for (x, y), (x_en, y_en) in zip(source, english, strict=True):
                axes.plot([x, x_en], [y, y_en], color=_GREY, linewidth=0.6)
            axes.scatter(*source.T, s=14, marker="o", color=_COLOURS[0], zorder=2)
            axes.scatter(*english.T, s=14, marker="s", color=_COLOURS[1], zorder=2)
            axes.set_xticks([])
            axes.set_yticks([])
            if not row:
                axes.set_title(_text(f"{language} and en"), fontsize=10)
        panels[row, 0].set_ylabel(_text(names[model]), fontsize=9)
    return figure


def language_map(drawn: dict[str, Any]) -> Figure:
    """Scatter plots before and after principal component removal."""
    figure = Figure(figsize=(_INCHES, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, (when, title) in zip(panels, _WHEN.items(), strict=True):
        for number, language in enumerate(drawn["languages"]):
            x, y = np.array(drawn[when]["map"][language]).T
            axes.scatter(
                x,
                y,
                s=22,
                marker=_MARKERS[number % len(_MARKERS)],
                color=_COLOURS[number % len(_COLOURS)],
                alpha=0.8,
                linewidths=0,
                label=_text(language),
            )
        axes.set_title(title, fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
    panels[1].legend(**_BESIDE)
    return figure


def _style(number: int) -> dict[str, str]:
    """The colour of a model, and the mark that tells models of one colour apart."""
    return {
        "marker": _MARKERS[number // len(_COLOURS) % len(_MARKERS)],
        "color": _COLOURS[number % len(_COLOURS)],
    }


def _text(name: str) -> str:
    """The name of a model or file as matplotlib draws it unchanged.

    Matplotlib reads text between `$` as a formula, and leaves labels that begin with
    `_` out of a legend.
    """
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def _axes(height: float):
    figure = Figure(figsize=(_INCHES, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def _by_part(
    results: tables.Results,
) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """The main metrics by part, for tasks with 3 parts and more."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for task, about in results["tasks"].items():
        start = f"{about['main_metric']}/"
        for name, model in results["models"].items():
            scored = model["scores"].get(task, {})
            parts = {
                metric.removeprefix(start): value
                for metric, value in scored.items()
                if metric.startswith(start)
            }
            # Tables show subsets and kinds of questions; figures do not.
            if "parts" in scored and len(parts) > 2:
                found.setdefault((task, about["main_metric"]), {})[name] = parts
    return found


def _drawn(
    results: tables.Results, key: str
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Yields each task whose figure data have a key, and its data by model."""
    figures = {name: model["figures"] for name, model in results["models"].items()}
    for task in dict.fromkeys(itertools.chain.from_iterable(figures.values())):
        drawn = {
            name: tasks[task]
            for name, tasks in figures.items()
            if key in tasks.get(task, {})
        }
        if drawn:
            yield task, drawn
