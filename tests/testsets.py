"""Small copies of the public test sets, in their own layouts, made of `WORDS`."""

import json
import random
from pathlib import Path

from texts import write_lines

from cmlm.evaluation import catalogue
from cmlm.evaluation.tasks import lexical

WORDS = "the a river boat water fish bridge garden flower rain earth seed".split()
_ROWS = 24
_LANGUAGES = {"english": "en", "german": "de", "french": "fr", "japanese": "ja"}


def write(directory: Path) -> str:
    """Writes them all; returns the folder for --data_dir."""
    for make in (
        *(_senteval, _sts, _xeval, _tatoeba, _un, _bucc, _pawsx, _amazon),
        *(_words, _lexicons, _linking, _analogies, _paraphrases, _glue),
    ):
        make(directory, random.Random(make.__name__))
    return str(directory)


def _text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(2, 7)))


def _senteval(directory: Path, draw: random.Random) -> None:
    for name in (
        *("MR/rt-polarity.pos", "MR/rt-polarity.neg", "CR/custrev.pos"),
        *("CR/custrev.neg", "SUBJ/subj.objective", "SUBJ/subj.subjective"),
        *("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    ):
        write_lines(directory / "senteval" / name, [_text(draw) for _ in range(_ROWS)])
    for part in ("train", "dev", "test"):
        folder = directory / "senteval" / "SST"
        binary = [f"{_text(draw)}\t{row % 2}" for row in range(_ROWS)]
        write_lines(folder / "binary" / f"sentiment-{part}", binary)
        fine = [f"{row % 5} {_text(draw)}" for row in range(_ROWS)]
        write_lines(folder / "fine" / f"sentiment-{part}", fine)
        scored = [
            f"a\tb\tc\td\t{row % 6}\t{_text(draw)}\t{_text(draw)}"
            for row in range(_ROWS)
        ]
        path = directory / "senteval" / "STS" / "STSBenchmark" / f"sts-{part}.csv"
        write_lines(path, scored)
    types = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    for name in ("train_5500", "TREC_10"):
        # At least ten examples of a class, one for each fold.
        lines = [f"{types[row % 6]}:x {_text(draw)}" for row in range(3 * _ROWS)]
        write_lines(directory / "senteval" / "TREC" / f"{name}.label", lines)
    for part in ("train", "test"):
        head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        lines = [f"{row % 2}\t1\t2\t{_text(draw)}\t{_text(draw)}" for row in range(99)]
        path = directory / "senteval" / "MRPC" / f"msr_paraphrase_{part}.txt"
        write_lines(path, [head, *lines])
    judgments = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tjudgment"
        lines = [
            f"{row}\t{_text(draw)}\t{_text(draw)}\t{1 + row % 5}\t{judgments[row % 3]}"
            for row in range(_ROWS)
        ]
        write_lines(directory / "senteval" / "SICK" / f"{name}.txt", [head, *lines])


def _sts(directory: Path, draw: random.Random) -> None:
    for task in catalogue.FAMILIES["sts"]:
        for subset in getattr(task, "_subsets", ()):
            folder = directory / "senteval" / "STS" / f"{task._year}-en-test"
            pairs = [f"{_text(draw)}\t{_text(draw)}" for _ in range(_ROWS)]
            write_lines(folder / f"STS.input.{subset}.txt", pairs)
            write_lines(
                folder / f"STS.gs.{subset}.txt", [str(row % 6) for row in range(_ROWS)]
            )
    for place in (
        "sts17/STS2017.{}/STS.{}.track1.ar-ar.txt",
        "sts17/STS2017.{}/STS.{}.track3.es-es.txt",
        "sts-ru/STS2012_MSRvid_translated/STS.{1}.MSRvid.txt",
    ):
        pairs = [f"{_text(draw)}\t{_text(draw)}" for _ in range(_ROWS)]
        write_lines(directory / place.format("eval.v1.1", "input"), pairs)
        scores = [str(row % 6) for row in range(_ROWS)]
        write_lines(directory / place.format("gs", "gs"), scores)
    for code in ("de", "fr"):
        rows = [f"{_text(draw)},{_text(draw)},{row % 6}" for row in range(_ROWS)]
        write_lines(directory / "stsb-multilingual" / f"stsb-{code}-test.csv", rows)


def _xeval(directory: Path, draw: random.Random) -> None:
    for language in ("de", "en"):
        _senteval(directory / "xeval" / language, draw)
        (directory / "xeval" / language / "senteval").rename(
            directory / "xeval" / f"{language}.moved"
        )
        (directory / "xeval" / language).rmdir()
        (directory / "xeval" / f"{language}.moved").rename(
            directory / "xeval" / language
        )


def _tatoeba(directory: Path, draw: random.Random) -> None:
    for code in ("deu", "fra", "cmn"):
        for side in ("eng", code):
            name = f"tatoeba.{code}-eng.{side}"
            write_lines(
                directory / "tatoeba" / name, [_text(draw) for _ in range(_ROWS)]
            )


def _un(directory: Path, draw: random.Random) -> None:
    for language in ("en", "fr", "es"):
        lines = [_text(draw) for _ in range(_ROWS)]
        write_lines(directory / "un" / f"UNv1.0.6way.{language}", lines)


def _bucc(directory: Path, draw: random.Random) -> None:
    folder = directory / "bucc2018"
    for side in ("zh", "en"):
        rows = [f"{side}-{row}\t{_text(draw)} {side}" for row in range(_ROWS)]
        write_lines(folder / f"zh-en.dev.{side}", rows)
    write_lines(folder / "zh-en.dev.gold", ["zh-0\ten-0", "zh-1\ten-1"])


def _pawsx(directory: Path, draw: random.Random) -> None:
    for part in ("test", "dev"):
        for language in ("de", "en", "fr", "zh"):
            rows = [f"{_text(draw)} {row}\tother" for row in range(_ROWS)]
            write_lines(directory / "pawsx" / f"{part}-{language}.tsv", rows)


def _amazon(directory: Path, draw: random.Random) -> None:
    for language in _LANGUAGES:
        for category in ("books", "dvd", "music"):
            for part in ("train", "test"):
                items = [
                    f"<item><summary>{_text(draw)}</summary><rating>{rating}.0</rating>"
                    f"<text>{_text(draw)}</text></item>"
                    for _ in range(5)
                    for rating in (1, 2, 4, 5)
                ]
                folder = directory / "amazon-reviews" / "amazon-dataset" / language
                path = folder / category / f"{part}.review"
                write_lines(path, ["<items>", *items, "</items>"])


def _words(directory: Path, draw: random.Random) -> None:
    languages = list(lexical._LANGUAGES)
    head = ["SIMLEX_IDS", *languages]
    head += [f"{name}_{what}" for what in ("IN_SOURCE", "SCORE") for name in languages]
    rows = []
    for pair in range(10):
        for place in (1, 2):
            cells = {"SIMLEX_IDS": f"{pair}:{place}"}
            for name in languages:
                word = f"{draw.choice(WORDS)}{pair}{place}"
                cells |= {name: word, f"{name}_IN_SOURCE": word}
                cells[f"{name}_SCORE"] = str(pair % 6)
            rows.append("\t".join(cells[column] for column in head))
    write_lines(
        directory / "multi-simlex" / "Vulic-2020-x.tsv", ["\t".join(head), *rows]
    )


def _lexicons(directory: Path, draw: random.Random) -> None:
    for pair in ("en-fr", "en-it"):
        for name in ("test.freq.2k", "train.freq.1k", "train.freq.3k", "train.freq.5k"):
            rows = [f"{word}\t{draw.choice(WORDS)}s" for word in WORDS]
            write_lines(directory / "bli" / pair / f"yacle.{name}.{pair}.tsv", rows)


def _linking(directory: Path, draw: random.Random) -> None:
    folder = directory / "ncbi-disease"
    names = [f"C{row}||{_text(draw)}|{_text(draw)}" for row in range(9)]
    write_lines(folder / "medic-2012-07-06.txt", names)
    for part, name in (
        *(("train", "NCBItrainset_corpus"), ("devel", "NCBIdevelopset_corpus")),
        ("test", "NCBItestset_corpus"),
    ):
        lines = []
        for row in range(5):
            lines += [f"{row}|t|{_text(draw)}", f"{row}|a|{_text(draw)}"]
            lines += [f"{row}\t0\t3\t{_text(draw)}\tSpecificDisease\tMESH:C{row}", ""]
        write_lines(folder / part / f"{name}.txt", lines)
    for kind in ("disease", "chemical"):
        folder = directory / f"bc5cdr-{kind}"
        write_lines(folder / "test_dictionary.txt", names)
        rows = [f"1||0|3||Disease||{_text(draw)}||C{row}" for row in range(5)]
        write_lines(folder / "processed_test" / "1.concept", rows)
    names = [f"{row}||{_text(draw)}" for row in range(9)]
    write_lines(directory / "askapatient" / "AskAPatient.dict.txt", names)
    for fold in range(2):
        name = f"AskAPatient.fold-{fold}.test.preprocessed_query.txt"
        queries = [f"{row}||{_text(draw)}" for row in range(5)]
        write_lines(directory / "askapatient" / name, queries)
    write_lines(directory / "cometa" / "COMETA_id_sf_dictionary.txt", names)
    for split in ("stratified_general", "zeroshot_general"):
        rows = [f"{row}\t{_text(draw)}\t{row}" for row in range(5)]
        path = directory / "cometa" / "splits" / split / "test.csv"
        write_lines(path, ["ID\tTerm\tGeneral SNOMED ID", *rows])


def _analogies(directory: Path, draw: random.Random) -> None:
    for kind in ("semantic", "syntactic"):
        for level in ("word", "phrase", "sentence"):
            rows = ["\t".join(_text(draw) for _ in range(6)) for _ in range(9)]
            write_lines(directory / "ulr-analogy" / kind / level / "kind.txt", rows)


def _paraphrases(directory: Path, draw: random.Random) -> None:
    for part in ("train", "dev"):
        rows = [{"nl": _text(draw), "can": _text(draw)} for _ in range(_ROWS)]
        path = directory / "geogranno" / f"{part}_geo_granno.json"
        write_lines(path, [json.dumps(row) for row in rows])


def _glue(directory: Path, draw: random.Random) -> None:
    for part in ("train", "dev"):
        rows = [f"x\t{row % 2}\t*\t{_text(draw)}" for row in range(_ROWS)]
        write_lines(directory / "glue" / "CoLA" / f"{part}.tsv", rows)
    labels = ("entailment", "not_entailment")
    rows = [
        f"{row}\t{_text(draw)}\t{_text(draw)}\t{labels[row % 2]}"
        for row in range(_ROWS)
    ]
    head = "index\tquestion\tsentence\tlabel"
    write_lines(directory / "glue" / "QNLI" / "dev.tsv", [head, *rows])
