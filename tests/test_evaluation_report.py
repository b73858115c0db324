"""Tables set models beside what is published; pictures show what results hold."""

import json

import numpy as np

from cmlm.evaluation import catalogue, plots, published, report, tables


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
                    **{"accuracy": 5.0, "parts": 3.0, "accuracy_xtreme36": 4.0},
                    **{f"accuracy/{name}": 5.0 + shift for name in ("de", "fr", "zh")},
                },
                "pawsx": {"other_language": 20.0},
            },
            "figures": {
                "pawsx": {"languages": ["de", "en"], "before": other, "after": other}
            },
        }

    tasks = {
        task.name: {
            "family": catalogue.family(task),
            "main_metric": task.main_metric,
            "protocol": task.protocol,
        }
        for task in catalogue.select(["sts12", "sts13", "tatoeba", "pawsx"])
    }
    return {
        **{"seeds": [1], "versions": {"numpy": "1"}, "tasks": tasks},
        **{"not_scored": {"mr": "not there"}},
        "models": {"first": model(0), "sec<ond": model(1)},
    }


def test_tables_have_models_and_published_rows():
    sts, bitext, pool = tables.tables(results())
    assert sts.columns == [("sts12", "spearman"), ("sts13", "spearman")]
    assert sts.rows[:2] == [("first", "", [50, 60]), ("sec<ond", "", [51, 59])]
    numbers = {name: values for name, source, values in sts.rows if source}
    assert numbers["SimCSE-BERT base, unsupervised"] == [68.40, 82.41]
    assert bitext.columns == [("tatoeba", "accuracy"), ("tatoeba", "accuracy_xtreme36")]
    assert ("LaBSE", "https://tfhub.dev/google/LaBSE/1", [None, 95.0]) in bitext.rows
    assert len(pool.rows) == 2
    assert "(SimCSE-BERT base, unsupervised)  68.40  82.41" in tables.plain(sts)
    assert "RoBERTa + Mirror, neither" not in numbers
    everything = tables.tables(results(), ablations=True)[0]
    assert "RoBERTa + Mirror, neither" in {name for name, _, _ in everything.rows}
    assert "| **first** | 50.00 | 60.00 |" in tables.markdown(sts)


def test_published_rows_name_tasks_and_metrics_that_exist():
    names = {task.name: task for task in catalogue.select(["all"])}
    for row in published.ROWS:
        assert row.model and row.source and (row.scores or row.averages)
        assert all(task in names for task, _ in row.scores), row.model
        numbers = [*row.scores.values(), *row.averages.values()]
        assert all(0 <= number <= 100 for number in numbers), row.model


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
    assert tables.plain(table).splitlines()[0].split() == [
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


def test_pictures_are_of_what_is_there():
    found = {name: figure for name, _, figure in plots.figures(results())}
    expected = ["scores-sts", "scores-bitext", "parts-tatoeba", "languages-first"]
    expected += ["map-first", "languages-sec-ond", "map-sec-ond"]
    assert list(found) == expected
    (axes,) = found["scores-sts"].axes
    shown = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert shown["sec<ond"] == [51, 59] and shown["all-MiniLM-L6-v2"] == [72.37, 80.60]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["sts12", "sts13"]
    (axes,) = found["parts-tatoeba"].axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[5] * 3, [6] * 3]


def test_report_is_whole_and_carries_its_pictures(tmp_path):
    report.write(str(tmp_path), results())
    assert json.loads((tmp_path / "results.json").read_text()) == results()
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 7
    assert "sec&lt;ond" in page and "sec<ond" not in page
    assert "<b>51.00</b>" in page and "<b>50.00</b>" not in page
    assert "Not scored: mr." in page
