"""Tables set models beside what is published; pictures show what results hold."""

import csv
import io
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from cmlm.evaluation import (
    averages,
    catalogue,
    layout,
    plots,
    published,
    report,
    run,
    tables,
)
from cmlm.evaluation.means import mean_of
from cmlm.evaluation.published import cmlm_paper, mirror_bert
from cmlm.evaluation.results import describe


def results():
    """As cmlm.evaluate writes them, of two models."""

    def model(shift):
        other = {"neighbours": np.eye(2).tolist()}
        other["map"] = {"de": [[0, 1], [1, 0]], "en": [[1, 1], [0, 0]]}
        return {
            "step": 3,
            "scores": {
                "sts12": {"spearman": 50.0 + shift},
                "sts13": {"spearman": 60.0 - shift},
                "tatoeba": {
                    **{"accuracy": 5.0, "parts": 3.0},
                    **{f"accuracy/{name}": 5.0 + shift for name in ("de", "fr", "zh")},
                },
                "pawsx": {"other_language": 20.0},
            },
            "averages": {},
            "figures": {
                "pawsx": {"languages": ["de", "en"], "before": other, "after": other}
            },
        }

    tasks = described("sts12", "sts13", "tatoeba", "pawsx")
    return {
        **{"seeds": [1], "versions": {"numpy": "1"}, "tasks": tasks},
        **{"groups": {}, "not_scored": {"mr": "not there"}},
        "models": {"first": model(0), "sec<ond": model(1)},
    }


def test_tables_have_models_and_published_rows():
    sts, bitext, pool, languages = tables.tables(results())
    assert sts.columns == [
        *(("sts12", "spearman"), ("sts13", "spearman"), ("average", "sts"))
    ]
    assert sts.heads == ["sts12", "sts13", "sts (2 of 7)"]
    assert sts.rows[:2] == [("first", "", [50, 60, 55]), ("sec<ond", "", [51, 59, 55])]
    numbers = {name: values for name, source, values in sts.rows if source}
    # Over the same two sets, not the seven that the paper averages.
    expected = [68.40, 82.41, (68.40 + 82.41) / 2]
    assert numbers["SimCSE-BERT base, unsupervised"] == pytest.approx(expected)
    assert bitext.columns == [("tatoeba", "accuracy")]
    assert len(pool.rows) == 2
    assert languages.heads == ["de", "fr", "zh"] and len(languages.rows) == 2
    (line,) = [
        line
        for line in layout.plain(sts).splitlines()
        if line.startswith("(SimCSE-BERT base, unsupervised)")
    ]
    assert line.split()[-3:] == ["68.40", "82.41", f"{expected[2]:.2f}"]
    assert "RoBERTa + Mirror, neither" not in numbers
    everything = tables.tables(results(), ablations=True)[0]
    assert "RoBERTa + Mirror, neither" in {name for name, _, _ in everything.rows}
    text = layout.markdown(sts)
    assert "| **first** | 50.00 | **60.00** | 55.00 |" in text
    assert "| **sec&lt;ond** | **51.00** |" in text


def test_a_part_of_a_task_has_its_published_numbers():
    scores = {"bli-en-fr": {"accuracy": 30.0, "accuracy_mapped": 40.0, "mrr": 50.0}}
    models = {"first": {"scores": scores}}
    made = {"tasks": described("bli-en-fr"), "models": models, "groups": {}}
    (table,) = tables.tables(made)
    shown = ("accuracy", "accuracy_mapped")
    assert table.columns == [("bli-en-fr", name) for name in shown]
    # The cell of en-fr in Mirror-BERT's table 19, and no row of other tasks.
    found = {name: numbers for name, source, numbers in table.rows if source}
    assert found["BERT of each language + Mirror"] == [None, 45.8]
    assert all(name.startswith("BERT of each language") for name in found)


def test_published_rows_name_tasks_and_metrics_that_exist():
    names = {task.name: task for task in catalogue.select(["all"])}
    groups = {group.name for group in averages.GROUPS}
    for row in published.ROWS:
        assert row.model and row.source and (row.scores or row.averages)
        assert all(task in names for task, _ in row.scores), row.model
        # A report shows an average only beside the average of the models.
        assert row.averages.keys() <= groups, row.model
        numbers = [*row.scores.values(), *row.averages.values()]
        assert all(0 <= number <= 100 for number in numbers), row.model


def full(value_of):
    """Scores of every task that a group averages."""
    scores = {}
    for group in averages.GROUPS:
        for keys in group.parts.values():
            for task, metric in keys:
                number = value_of(task, metric)
                scores.setdefault(task, {})[metric] = number
    return scores


def test_averages_are_the_papers():
    """CMLM base and CMLM+BR: means of the printed cells against the printed Avg."""
    rows = {(row.model, row.source.split()[-1]): row for row in published.ROWS}
    for name, table, group in (
        ("CMLM base", "1", "senteval"),
        ("CMLM base", "2", "sts"),
        ("CMLM+BR", "5", "tatoeba/xtreme36"),
        ("mBERT (table 8)", "8", "tatoeba/pcr11"),
        ("mBERT + PCR", "8", "tatoeba/pcr11_pcr"),
        ("BERT of the language + Mirror", "16", "multi-simlex"),
        ("mBERT + Mirror", "18", "multi-simlex-cross"),
        ("BERT of each language + Mirror", "19", "bli"),
    ):
        row = rows[name, table]
        scores = {}
        for (task, metric), value in row.scores.items():
            scores.setdefault(task, {})[metric] = value
        found = {item.group.name: item for item in averages.coverage(scores, ())}[group]
        assert not found.missing
        mean = np.mean(list(row.scores.values()))
        assert averages.of(scores)[group] == pytest.approx(mean)
        assert row.averages[group] == pytest.approx(mean, abs=0.2), (name, group)


def test_groups_have_the_papers_sizes_and_name_what_is_missing():
    sizes = {group.name: len(group.parts) for group in averages.GROUPS}
    assert {name: sizes[f"tatoeba/{name}"] for name in ("xtreme36", "muse14")} == {
        **{"xtreme36": 36, "muse14": 14}
    }
    assert (sizes["tatoeba/all112"], sizes["tatoeba/laser83"]) == (112, 83)
    assert (sizes["sts"], sizes["senteval"], sizes["xeval"]) == (7, 9, 15)
    every = set(averages.TATOEBA)
    assert set(averages.XTREME) <= every and set(averages.MUSE) <= every
    scores = {"tatoeba": {"accuracy_forward/af": 10.0, "accuracy_forward/zh": 20.0}}
    about = averages.describe({"model": scores})["tatoeba/xtreme36"]
    assert (about["parts"], about["scored"]) == (36, ["af", "zh"])
    assert about["missing"] == [name for name in averages.XTREME if name not in "af zh"]
    assert averages.of(scores)["tatoeba/xtreme36"] == 15


def test_xeval_is_averaged_by_language_over_tasks():
    """A cell is a language's mean over tasks, the average the mean of the cells."""

    def value(task, metric):
        language = metric.partition("/")[2]
        if not task.startswith("xeval-"):
            return 0.0
        place = averages.XEVAL_LANGUAGES.index(language)
        return 10.0 * place + (9.0 if task == "xeval-mr" else 0.0)

    scores = full(value)
    found = averages.of(scores)
    assert found["xeval/bg"] == pytest.approx(10 + 1)
    assert found["xeval"] == pytest.approx(70 + 1)
    del scores["xeval-mr"]["accuracy/bg"]
    (item,) = [
        item for item in averages.coverage(scores, ()) if item.group.name == "xeval"
    ]
    assert item.missing == ("bg without xeval-mr",)
    assert averages.of(scores)["xeval"] == pytest.approx(70 + 14 / 15)


def test_published_averages_are_those_of_their_numbers():
    """A slip in a table that was copied shows here; the papers' own slips are small."""
    for row in [*published.ROWS, *published.FINETUNED]:
        groups = dict(row.averages)
        numbers = list(row.scores.values())
        if "xeval" in groups:
            mean = groups.pop("xeval")
            numbers, groups = list(groups.values()), {"xeval": mean}
        for group, mean in groups.items():
            if len(numbers) > 1:
                assert abs(np.mean(numbers) - mean) < 0.5, (row.model, group)


def test_a_row_says_that_its_printed_average_is_not_the_mean():
    """By hand: 763.6 / 9 and 2077.4 / 36."""
    notes = {
        (row.source.split()[-1], row.model): row.note
        for row in cmlm_paper.ROWS
        if "the mean of the printed numbers is" in row.note
    }
    assert [table for table, _ in notes] == "1 1 1 3 4 5 5 5 5 7 7 10 8".split()
    said = notes["1", "English BERT base (CC)"]
    assert said.endswith("; the mean of the printed numbers is 84.84, not 84.6")
    assert "is 81.11, not 81.2" in notes["3", "CMLM"]
    assert "is 57.71, not 57.3" in notes["5", "XLM-R"]


def test_rows_that_others_measured_have_their_own_note():
    notes = {row.model: row.note for row in cmlm_paper.STS_ROWS}
    assert "the last layer does not reproduce it" in notes["BERT Mean embeddings"]
    assert "SBERT's table 1" in notes["Avg. GloVe embeddings"]
    assert notes["CMLM base"] == "how the subsets of a year are joined is not said"
    table = [row for row in mirror_bert.STS_ROWS if row.source.endswith("table 3")]
    counting = {row.model for row in table if "counts padding" in row.note}
    assert counting == {"BERT, mean", "RoBERTa, mean"}


def test_an_average_over_fewer_languages_is_not_shown_beside_those_over_15():
    """mUSE's 81.9 is over nine languages."""
    rows = {row.model: row for row in cmlm_paper.XEVAL_ROWS}
    assert "nine languages" in rows["mUSE"].note
    assert {name for name, row in rows.items() if "S1" in row.note} == {
        *("S1 (joint training)", "S2 (CMLM, then bitext)", "S3", "S3+NLI")
    }
    scores = full(lambda task, metric: 50.0)
    (whole,) = (x for x in averages.coverage(scores, ()) if x.group.name == "xeval")
    groups = {"xeval": whole}
    table = tables.build("xeval", [], groups, {"own": scores}, [*rows.values()])
    shown = {name: numbers for name, _, numbers in table.rows}
    assert shown["LASER"] == [80.4] and "mUSE" not in shown


def test_deviations_stand_beside_those_of_table_11():
    made = results()
    made["tasks"] |= described("mr")
    for model in made["models"].values():
        model["scores"]["mr"] = {"accuracy": 80.0, "accuracy_std": 0.3}
    (table,) = [table for table in tables.tables(made) if table.family == "senteval"]
    assert table.columns == [("mr", "accuracy"), ("mr", "accuracy_std")]
    numbers = {name: values for name, _, values in table.rows}
    assert numbers["first"] == [80, 0.3]
    assert numbers["CMLM base, deviation"] == [None, 0.2]
    assert numbers["CMLM large, deviation"] == [None, 0.2]
    # Deviations are on another scale than the scores of a picture.
    assert table.scores.columns == [("mr", "accuracy")]


def test_what_is_published_by_language_has_a_table_of_its_own():
    made = results()
    for model in made["models"].values():
        model["scores"]["tatoeba"] |= {
            "accuracy_forward/de": 7.0,
            "accuracy_forward/fr": 8.0,
        }
    table = tables.tables(made)[-1]
    assert table.columns == [
        ("tatoeba", "accuracy_forward/de"),
        ("tatoeba", "accuracy_forward/fr"),
    ]
    numbers = {name: values for name, _, values in table.rows}
    assert numbers["CMLM+BR"] == [97.7, 96.1] and numbers["first"] == [7, 8]
    assert layout.plain(table).splitlines()[0].split() == [
        *("tatoeba:", "accuracy_forward", "de", "fr")
    ]


def test_families_of_parts_and_of_files():
    chosen = catalogue.select(
        ["tatoeba-de", "bitext:a.tsv", "multi-simlex-cross-en-fr"]
    )
    assert [catalogue.family(task) for task in chosen] == [
        "bitext",
        "bitext",
        "lexical",
    ]


def test_long_names_of_one_end_stay_whole():
    end = "/the/folder/of/the/export/of/the/last/step"
    names = [f"seed0{end}", f"seed1{end}", f"seed0{end}/1", "short"]
    found = layout.shortened(names)
    assert [found[name] for name in names] == [
        *names[:2],
        f"\u2026{names[2][-33:]}",
        "short",
    ]
    made = results()
    first, second = made["models"].values()
    made["models"] = dict(zip(names, (first, second), strict=False))
    (table, *_) = tables.tables(made)
    shown = layout.plain(table).splitlines()
    assert shown[1].startswith(names[0]) and shown[2].startswith(names[1])


def test_twelve_models_have_marks_of_their_own():
    made = results()
    first, _ = made["models"].values()
    made["models"] = {f"model {n}": first for n in range(12)}
    drawn = [figure for _, figure in plots.figures(made)]
    for figure in (drawn[0], drawn[1]):
        lines = [line for axes in figure.axes for line in axes.get_lines()]
        own = [line for line in lines if line.get_label().startswith("model ")]
        styles = {(line.get_marker(), line.get_color()) for line in own}
        assert len(own) == len(styles) == 12


def test_pictures_show_names_as_they_are():
    """Matplotlib has its own meaning for a text between dollars, and for `_x`."""
    made = results()
    first, second = made["models"].values()
    made["models"] = {"_first": first, "lr$^$2": second}
    names = {"_a.txt": "de", "$^$b": "en"}
    for model in (first, second):
        drawn = model["figures"]["pawsx"]
        drawn["languages"] = [*names]
        for when in ("before", "after"):
            places = drawn[when]["map"]
            renamed = {name: places[of] for name, of in names.items()}
            drawn[when] = {**drawn[when], "map": renamed}
        for metric in ("accuracy/de", "accuracy/fr"):
            scores = model["scores"]["tatoeba"]
            scores[f"accuracy/$^${metric[-2:]}"] = scores.pop(metric)
    shown = []
    for _, figure in plots.figures(made):
        page = io.StringIO()
        figure.savefig(page, format="svg")
        shown.append(page.getvalue())
    whole = "".join(shown)
    for name in ("_first", "lr$^$2", "_a.txt", "$^$b", "$^$de"):
        assert f"<!-- {name} -->" in whole or f"<!--  {name} -->" in whole, name
    # The legend of the scores has every model.
    assert "_first" in shown[0] and "lr$^$2" in shown[0]


def test_pictures_are_of_what_is_there():
    captions, found = zip(*plots.figures(results()))
    begin = ["sts: models beside published", "tatoeba: accuracy by language"]
    for model in ("first", "sec<ond"):
        begin.append(f"pawsx: the languages of the nearest neighbours, {model}.")
        begin.append(f"pawsx: the same sentences in all .* axes, {model}.")
    begin.append("pawsx: the share of each language among the retrieved sentences")
    assert len(captions) == len(begin)
    assert all(map(re.match, begin, captions))
    (axes,) = found[0].axes
    shown = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert shown["sec<ond"] == [51, 59] and shown["all-MiniLM-L6-v2"] == [72.37, 80.60]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["sts12", "sts13"]
    (axes,) = found[1].axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[5] * 3, [6] * 3]
    panels = found[-1].axes
    assert len(panels) == 4, "queries in de; two models before and after PCR"
    assert [bar.get_height() for bar in panels[0].patches] == [100, 0]


def test_the_caption_of_cosines_names_the_pairs_that_are_there():
    shares = {"random pairs": [0.5, 0.5], "pairs with a human score": [0.0, 1.0]}
    for kinds, said in (
        (1, "random sentences"),
        (2, "random and of similar sentences"),
    ):
        made = results()
        drawn = {"edges": [-1, 0, 1], "shares": dict([*shares.items()][:kinds])}
        made["models"]["first"]["figures"] = {"geometry": drawn}
        captions = [caption for caption, _ in plots.figures(made)]
        assert any(f"geometry: cosines of {said}, first. " in each for each in captions)


def test_map_of_translations_has_a_line_for_each_pair():
    made = results()
    pairs = {"fr": [[[0, 1], [2, 3]], [[0, 0], [2, 2]]]}
    for model in made["models"].values():
        model["figures"]["tatoeba"] = {"translations": pairs}
    *_, (caption, figure) = plots.figures(made)
    assert caption.startswith("tatoeba: sentences (circles) and their English tra")
    panels = figure.axes
    assert len(panels) == 2, "a row for each model, a column for each language"
    lines = [line.get_xydata().tolist() for line in panels[0].lines]
    assert lines == [[[0, 1], [0, 0]], [[2, 3], [2, 2]]]


def test_each_task_has_its_own_pictures():
    """Of two bitexts; of two pools of sentences in different languages."""
    made = results()
    pairs = {"fr": [[[0, 1], [2, 3]], [[0, 0], [2, 2]]]}
    for model in made["models"].values():
        drawn = model["figures"]
        drawn["tatoeba"] = {"translations": pairs}
        drawn["bitext:own"] = {"translations": pairs | {"de": pairs["fr"]}}
        three = {"neighbours": np.eye(3).tolist()}
        three["map"] = {name: [[0, 1]] for name in "abc"}
        own = {"languages": [*"abc"], "before": three, "after": three}
        drawn["agnosticity:own"] = own
    figures = dict(plots.figures(made))
    for task, panels in (
        *(("pawsx: the share", 4), ("agnosticity:own: the share", 12)),
        *(("tatoeba: sentences", 2), ("bitext:own: sentences", 4)),
    ):
        (found,) = [figures[name] for name in figures if name.startswith(task)]
        assert len(found.axes) == panels


def test_report_is_whole_and_carries_its_pictures(tmp_path):
    made = results()
    made["tasks"]["sts12"]["remarks"] = ["a remark"]
    report.write(str(tmp_path), made)
    assert json.loads((tmp_path / "results.json").read_text()) == made
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 7
    assert "sec&lt;ond" in page and "sec<ond" not in page
    assert "<b>51.00</b>" in page and "<b>50.00</b>" not in page
    assert "<b>mr</b>: not there" in page
    text = (tmp_path / "report.md").read_text()
    assert "sts: mean, STS12-16" in text and "missing: sts14, sts15" in text
    assert "Seeds: 1." in text and "- mr: not there" in text
    assert "sts12: a remark" in page and "- sts12: a remark" in text
    (row,) = [
        row
        for row in published.ROWS
        if row.model == "CMLM base" and ("sts12", "spearman") in row.scores
    ]
    assert row.note and row.note in page and f"{row.source}; {row.note}" in text
    link = row.source[row.source.index("http") :].partition(",")[0]
    assert f'<a href="{link}">{link}</a>' in page
    with open(tmp_path / "scores.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(
        len(scores)
        for model in results()["models"].values()
        for scores in model["scores"].values()
    )
    cells = {"model": "sec<ond", "task": "tatoeba", "metric": "accuracy", "part": "de"}
    assert {**cells, "value": "6.0"} in lines


def test_averages_have_lines_of_their_own_and_deviations():
    made = results()
    for model in made["models"].values():
        model["averages"] = averages.of(model["scores"])
    both = mean_of([*made["models"].values()], ())
    both["averages_std"]["sts"] = 0.25
    made["models"]["both"] = both
    file = io.StringIO(newline="")
    report.write_csv(file, made)
    lines = file.getvalue().splitlines()
    assert "sec<ond,average,mean,sts,55.0" in lines
    assert "both,average,mean_std,sts,0.25" in lines
    table = tables.tables(made)[0]
    assert table.heads[-2:] == ["sts (2 of 7)", "sts_std"]
    assert [row.numbers[-2:] for row in table.rows[1:3]] == [[55, None], [55, 0.25]]
    assert not table.is_best(len(table.columns) - 1, 0.25)
    assert "| **both** | 50.50 | 59.50 | 55.00 | 0.25 |" in layout.markdown(table)


def test_a_report_may_lie_on_another_file_system():
    report.write("ram://reports/first", results())
    for name in ("scores.csv", "report.md", "report.html"):
        assert tf.io.gfile.exists(f"ram://reports/first/{name}")
    with tf.io.gfile.GFile("ram://reports/first/results.json") as file:
        assert json.loads(file.read()) == results()


def test_112_languages_fit_every_form():
    """Tables are turned; pictures have panels; each number is there once."""
    made = results()
    for place, model in enumerate(made["models"].values()):
        model["scores"]["tatoeba"] |= {
            f"accuracy/{language}": 100 * place + number / 100
            for number, language in enumerate(averages.TATOEBA)
        }
    table = tables.tables(made)[-1]
    assert len(table.columns) == 112 and table.title == "tatoeba: accuracy"
    lines = layout.plain(table).splitlines()
    assert lines[0].split() == ["tatoeba:", "accuracy", "1", "2"]
    number = averages.TATOEBA.index("sw")
    expected = ["sw", f"{number / 100:.2f}", f"{100 + number / 100:.2f}"]
    assert expected in [line.split() for line in lines]
    assert len(lines) == 1 + 112 + 2 and max(map(len, lines)) < 80
    rows = layout.markdown(table).splitlines()
    assert rows[0] == "|  | **first** | **sec&lt;ond** |" and len(rows) == 112 + 2
    text = layout.html_table(table)
    assert text.count("<tr>") == 113
    assert f"<th>sw<td>{expected[1]}<td><b>{expected[2]}</b>" in text
    panels = dict(plots.figures(made))["tatoeba: accuracy by language."].axes
    shown = [label.get_text() for axes in panels for label in axes.get_yticklabels()]
    # The first model's best language is the first.
    assert len(panels) == 3 and shown == averages.TATOEBA[::-1]


def test_every_metric_is_in_the_details():
    made = results()
    whole, by_part = tables.details(made)[2:4]
    assert whole.heads == ["accuracy", "parts"] and by_part.heads == ["accuracy"]
    assert whole.rows == [("first", "", [5, 3]), ("sec<ond", "", [5, 3])]
    assert by_part.rows[0] == ("de", "", [5.0]) and not by_part.compares
    assert "<b>" not in layout.html_table(by_part)


def test_the_best_number_is_the_one_that_the_task_declares():
    """A longer mean vector is worse; counts and deviations have no best number."""
    made = results()
    made["tasks"] = described("geometry", "amazon")
    for shift, model in enumerate(made["models"].values()):
        model["scores"] = {
            "geometry": {
                **{"isotropy": 0.1 + shift, "mean_vector_norm": 3.0 + shift},
                **{"mean_vector_norm_unit": 0.5, "cosine_mean": 0.2 + shift},
            },
            "amazon": {
                **{"accuracy": 40.0 + shift, "accuracy_std": 1.0 + shift},
                **{"train_reviews": 10.0 + shift, "parts": 2.0 + shift},
            },
        }
        model["figures"] = {}
    _, shape = tables.tables(made)
    assert shape.heads == [
        *("isotropy", "mean_vector_norm ↓", "mean_vector_norm_unit ↓")
    ]
    assert [
        [number for number in (0.1, 1.1, 3.0, 4.0, 0.5) if shape.is_best(place, number)]
        for place in range(3)
    ] == [[1.1], [3.0], []]
    assert "| **first** | 0.10 | **3.00** | 0.50 |" in layout.markdown(shape)
    assert "<td><b>3.00</b>" in layout.html_table(shape)
    assert "↓: smaller is better." in tables.notes(made, shape)
    caption, figure = next(plots.figures(made))
    assert caption.startswith("geometry: models")
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == shape.heads
    reviews, whole = tables.details(made)
    assert layout.markdown(whole).count("**") == 2 * (2 + 2), "two names, two numbers"
    _, first, second = (
        row.split("|")[2:-1] for row in layout.markdown(reviews).splitlines()[1:4]
    )
    assert [cell.strip() for cell in first] == ["40.00", "1.00", "10.00", "2.00"]
    assert [cell.strip() for cell in second] == ["**41.00**", "2.00", "11.00", "3.00"]


def test_a_component_removed_after_those_of_the_flag_is_named():
    made = results()
    first, second = made["models"].values()
    for model in (first, second):
        model["scores"]["tatoeba"] |= {"accuracy_pcr": 5.0, "accuracy_pcr/de": 4.0}
        # A task in whose languages nothing is removed.
        model["scores"]["pawsx"] |= {"language_probe_pcr": 40.0}
    assert tables.note_of_pcr(made) == ""
    removed = {"sts12": ["de"], "tatoeba": ["de", "zh"]}
    made["models"] = {
        "plain": first,
        "own + PCR": second | {"pcr": {"removed": removed}},
    }
    said = (
        "--pcr removed components of de, zh in tatoeba; accuracy_pcr removes one more"
    )
    assert tables.note_of_pcr(made) == f"own + PCR: {said}"
    assert said in report.markdown(made)
    made["models"]["other + PCR"] = made["models"]["own + PCR"]
    assert tables.note_of_pcr(made) == f"own + PCR, other + PCR: {said}"
    removed["tatoeba"] = [*map(str, range(36))]
    assert "of 36 languages in tatoeba;" in tables.note_of_pcr(made)


def test_tasks_declare_metrics_of_their_own():
    """A number is ranked as its task says: an error, a length, a count, a flag."""
    tasks = {task.name: task for task in catalogue.select(["all"])}
    for name, metric in (
        *(("tatoeba", "xsim_error_forward"), ("pawsx", "same_language@10_pcr")),
        *(("pawsx", "language_probe"), ("geometry", "mean_vector_norm_unit")),
    ):
        assert metric.startswith(tuple(tasks[name].smaller_is_better))
    for task in tasks.values():
        first = (*task.smaller_is_better, *task.not_ranked)
        assert not first or not task.main_metric.startswith(first), task.name


def test_groups_of_ones_own_are_averages_in_tables():
    made = results() | {"groups": {"mine": ["de", "zh"], "other": ["de", "sw", "fr"]}}
    (table,) = [table for table in tables.tables(made) if table.family == "bitext"]
    assert table.heads == [
        *("tatoeba", "tatoeba/mine (mean of 2)", "tatoeba/other (2 of 3)")
    ]
    assert table.rows[1][2] == [5, 6, 6]
    own = averages.own_groups(made["groups"], made["tasks"])
    scores = made["models"]["sec<ond"]["scores"]
    assert averages.of(scores, own)["tatoeba/mine"] == 6
    assert averages.describe({"model": scores}, own)["tatoeba/other"]["missing"] == [
        "sw"
    ]


def test_parts_asked_for_alone_have_the_averages_of_their_task():
    """`bli-en-fr,bli-en-it` as `bli` with the files of these two."""
    parts = {
        "en-fr": {"accuracy": 30.0, "accuracy_mapped": 40.0},
        "en-it": {"accuracy": 20.0, "accuracy_mapped": 50.0},
    }
    both = {
        f"{name}/{part}": value
        for part, scored in parts.items()
        for name, value in scored.items()
    }
    whole = {"bli": {"accuracy": 25.0, "accuracy_mapped": 45.0, **both}}
    alone = {f"bli-{part}": scored for part, scored in parts.items()}
    about = described(*alone)
    groups = {"mine": ["en-fr", "en-it", "en-ru"]}
    own = averages.own_groups(groups, about)
    wanted = averages.of(whole, averages.own_groups(groups, described("bli")))
    assert wanted == {"bli": 45, "bli/mine": 25}
    assert averages.of(alone, own) == {**wanted, "bli/parts": whole["bli"]["accuracy"]}
    made = {"tasks": about, "models": {"first": {"scores": alone}}, "groups": groups}
    (table,) = tables.tables(made)
    assert table.heads[-3:] == [
        "bli (2 of 6)",
        "bli/parts (mean of 2)",
        "bli/mine (2 of 3)",
    ]
    # Mirror-BERT's table 19, over the same two pairs.
    rows = {name: numbers for name, source, numbers in table.rows if source}
    assert rows["BERT of each language + Mirror"][-3] == pytest.approx(
        (45.8 + 37.8) / 2
    )
    # One part is no average.
    assert averages.of({"bli-en-fr": parts["en-fr"]}, own) == {}


def described(*names):
    tasks = catalogue.select(names)
    return {t.name: describe(run.TaskData(t, {}, {})) for t in tasks}
