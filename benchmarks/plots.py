"""Draws the figures of docs/results/ from its JSON lines.

    python benchmarks/plots.py

frontier.svg            speed and quality of the encoders worth using
isotropy.svg            what Mirror-BERT's arms do to isotropy and STS-B
conditioning_gain.svg   CMLM's gain over the steps, with true and shuffled neighbours
scaling.svg             CMLM's gain over tokens, from nothing, and a fitted line
pcr.svg                 neighbours in a sentence's own language, before and after PCR
"""

import itertools
import math
import operator
import os
import statistics
from collections.abc import Iterator

import claims
import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402  (after the choice of a backend)

_RESULTS = os.path.join(os.path.dirname(claims.CONFIGS), "docs", "results")
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    "#000000",
)


# Where the labels of points lie: the offset in points, and the side that it counts to.
_LABELS = {
    ("all-MiniLM-L6-v2", 6): (0, -16, "center"),
    ("distill_layers", 3): (0, 8, "center"),
    ("distill_layers", 2): (0, -16, "center"),
    ("distill_small", 2): (0, 8, "center"),
}


def _rows(name: str) -> list[dict]:
    return claims.rows(os.path.join(_RESULTS, f"{name}.jsonl"))


def _axes(x: str, y: str):
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel=y)
    _tidy(axes)
    return figure, axes


def _tidy(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6")
    axes.set_axisbelow(True)


def frontier() -> Figure:
    figure, axes = _axes("speed, times that of MiniLM", "STS-B test")
    colours = itertools.cycle(_COLOURS)
    for row, colour in zip(_rows("frontier"), colours, strict=False):
        x, y = row["times_minilm"], row["stsb_test"]
        axes.scatter(x, y, color=colour, zorder=3)
        shape = f"{row['model']}, {row['layers']} × {row['width']}"
        *offset, side = _LABELS.get((row["model"], row["layers"]), (-8, -14, "right"))
        axes.annotate(shape, (x, y), xytext=offset, textcoords="offset points", ha=side)
    axes.set_xscale("log")
    axes.set(xlim=(0.55, 16), ylim=(50, 88))
    axes.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    return figure


def isotropy() -> Figure:
    figure, axes = _axes("isotropy of unit vectors", "STS-B test")
    arms: dict[str, list[dict]] = {}
    for row in _rows("mirror_sentence"):
        if row["kind"] == "sentences" and row["pooling"] == "cls":
            arms.setdefault(row["arm"], []).append(row)
    for (arm, rows), colour in zip(arms.items(), _COLOURS, strict=True):
        x, y = (
            statistics.fmean(row[key] for row in rows)
            for key in ("isotropy_unit", "stsb-test")
        )
        axes.scatter(x, y, color=colour, zorder=3)
        side = -1 if arm == "drophead" else 1  # Close to "both".
        axes.annotate(
            *(arm, (x, y)),
            xytext=(7 * side, -3),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
        )
    axes.margins(0.2)
    return figure


def conditioning_gain() -> Figure:
    figure, axes = _axes("step", "conditioning gain, nats per masked word")
    titles = {"cmlm": "true neighbours", "shuffled": "shuffled neighbours"}
    for (arm, title), colour in zip(titles.items(), _COLOURS, strict=False):
        for row in _rows("cmlm_claims"):
            # Since the fourth start, the wrong neighbour is another row of the batch
            # than before, so later gains are not comparable with these.
            if row["arm"] == arm and row.get("base") in (None, "third"):
                gains = row["conditioning_gain"]
                steps = [int(step) for step in gains]
                axes.plot(steps, gains.values(), "o-", color=colour, label=title)
                # The legend names an arm once, for all of its seeds.
                title = None
    axes.axhline(0, color="#8a8a8a", linewidth=0.8)
    axes.legend(frameon=False)
    return figure


def scaling() -> Figure:
    """The validations of each seed; a panel for each order of the files."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    _gains_over_tokens(panels[0], "cmlm_scaling_by_size", "files read by size")
    _gains_over_tokens(panels[1], "cmlm_scaling", "each file at the same rate")
    panels[0].set_ylabel("conditioning gain, nats per masked word")
    return figure


def _gains_over_tokens(axes, name: str, title: str) -> None:
    """The points of each seed, and the line a + b log10(tokens) of the longest runs."""
    # The longest row of a seed has the validations of its shorter rows, too.
    rows = [row for row in _rows(name) if row["arm"] == "cmlm"]
    rows.sort(key=operator.itemgetter("steps"))
    runs = {row["seed"]: row for row in rows}
    longest = rows[-1]["steps"]
    tokens, gains = [], []
    colours = itertools.cycle(_COLOURS[2:])
    for seed, colour in zip(sorted(runs), colours, strict=False):
        row = runs[seed]
        of_a_step = row["million_tokens"] / row["steps"]
        x = [int(step) * of_a_step for step in row["gains"]]
        y = list(row["gains"].values())
        axes.scatter(x, y, s=14, color=colour, label=f"seed {seed}")
        if row["steps"] == longest:
            tokens += x
            gains += y
    fit = statistics.linear_regression([math.log10(x) for x in tokens], gains)
    ends = (min(tokens), 1000)
    axes.plot(
        ends,
        [fit.intercept + fit.slope * math.log10(x) for x in ends],
        "--",
        color=_COLOURS[1],
        label=f"{fit.slope:.3f} for each factor of ten",
    )
    _tidy(axes)
    axes.set(xlabel="million tokens", xscale="log", title=title)
    axes.legend(frameon=False, fontsize="small")


def pcr() -> Figure:
    """A panel for each encoder: bars for each language of PAWS-X."""
    rows = _rows("pcr")
    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    panels = figure.subplots(1, len(rows), sharey=True)
    for axes, row in zip(panels, rows, strict=True):
        count = len(row["languages"])
        for side, suffix, label, colour in (
            (-0.2, "", "before", _COLOURS[0]),
            (0.2, "_pcr", "after PCR", _COLOURS[1]),
        ):
            own = [row[f"neighbours{suffix}"][i][i] for i in range(count)]
            places = [i + side for i in range(count)]
            axes.bar(places, own, width=0.36, color=colour, label=label)
        axes.axhline(1 / count, color="#8a8a8a", linewidth=0.8)
        axes.set_xticks(range(count), row["languages"])
        axes.set_title(row["arm"], fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share of own language")
    panels[0].legend(frameon=False)
    return figure


def _figures() -> Iterator[tuple[str, Figure]]:
    for draw in (frontier, isotropy, conditioning_gain, scaling, pcr):
        yield draw.__name__, draw()


def main() -> None:
    # The same rows give the same file.
    matplotlib.rcParams.update({"svg.hashsalt": "cmlm", "svg.fonttype": "none"})
    for name, figure in _figures():
        path = os.path.join(_RESULTS, f"{name}.svg")
        figure.savefig(path, metadata={"Date": None})
        print(path)


if __name__ == "__main__":
    main()
