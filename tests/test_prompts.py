"""Prompts by name: in vectors, exports, servers, commands and retrieval."""

import json
import shutil
import urllib.error
import urllib.request

import commands
import grpc
import model_dirs
import numpy as np
import pytest
import servers
from tensorflow.core.protobuf import saved_model_pb2

import cmlm
from cmlm.common import arrays, identity, prompts
from cmlm.encoders import locating, opening
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.evaluation import results, run
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.store import Store
from cmlm.evaluation.tasks import retrieval
from export import dev_server, former_export, model_card, saved_models

TEXTS = ["sat on a mat", "", "dog ran"]
PROMPTS = {"query": "the cat ", "passage": "a mat, "}
STATED = ["query=the cat ", "passage=a mat, "]


def prompted(name, texts=TEXTS):
    return [PROMPTS[name] + text for text in texts]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run with two prompts by name, and none by default."""
    folder = tmp_path_factory.mktemp("run")
    return model_dirs.write(folder, **{"model.prompts": STATED})


@pytest.fixture(scope="module")
def plain(source):
    """The same encoder without prompts."""
    return opening.open_encoder(source, Reading(prompts={}))


@pytest.fixture(scope="module")
def exported(source, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("export"))
    opened = opening.open_weights(source)
    saved_models.Export(opened, folder, model_dirs.SEQ_LENGTH).write()
    difference = saved_models.Export(opened, folder, model_dirs.SEQ_LENGTH).compare()
    assert difference <= saved_models.TOLERANCE
    return folder


@pytest.fixture(scope="module")
def server(exported):
    made = dev_server.Server(servers.session(locating.find_export(exported)))
    made.start()
    yield made
    made.stop()


@pytest.fixture(params=["run", "export", "rest", "grpc"])
def encoder(request, source, exported):
    """The encoder in every form that has its prompts."""
    if request.param in ("run", "export"):
        return opening.open_encoder(source if request.param == "run" else exported)
    server = request.getfixturevalue("server")
    return opening.open_encoder(f"{getattr(server, request.param)}/v1/models/cmlm")


# -------------------------------------------------------------------- encode


def test_a_named_prompt_precedes_the_text(encoder, plain):
    assert set(encoder.prompts) == set(PROMPTS)
    model_dirs.assert_same(encoder.encode(TEXTS), plain.encode(TEXTS), 1e-5)
    for name in PROMPTS:
        want = plain.encode(prompted(name))
        assert not np.allclose(want, plain.encode(TEXTS), atol=1e-3)
        model_dirs.assert_same(encoder.encode(TEXTS, prompt_name=name), want, 1e-5)
        unit = encoder.encode(TEXTS, prompt_name=name, normalize=True)
        np.testing.assert_allclose(unit, arrays.unit_length(want), atol=1e-5)
        assert encoder.prompted(name) is encoder.prompted(name)
    # The vectors of an encoder with a prompt are not taken for those without.
    views = [encoder, *map(encoder.prompted, PROMPTS)]
    assert len({identity.revision(view) for view in views}) == 3
    # A prompt replaces another one.
    again = encoder.prompted("query").encode(TEXTS, prompt_name="passage")
    model_dirs.assert_same(again, plain.encode(prompted("passage")), 1e-5)
    with pytest.raises(UserError, match="prompt_name is 'q'; allowed: .*query.*, the "):
        encoder.encode(TEXTS, prompt_name="q")


@pytest.mark.parametrize("form", ["run", "checkpoint", "export"])
def test_an_encoder_without_a_default_prompt_warns(form, source, exported, caplog):
    model = {"run": source, "checkpoint": f"{source}/ckpt-3", "export": exported}[form]
    opening.open_encoder(model, Reading(prompt_name="query"))
    opening.open_encoder(model, Reading(prompt=""))
    assert "default prompt" not in caplog.text
    opening.open_encoder(model)
    said = f"{model} has named prompts but no default prompt: "
    assert caplog.text.count(said) == 1
    assert "(query)" in caplog.text


@pytest.mark.large
def test_an_export_command_warns_of_no_default_prompt(source, tmp_path):
    done = commands.run(
        "export.huggingface", f"--from={source}", f"--output={tmp_path / 'out'}"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("has named prompts but no default prompt: ") == 1


@pytest.mark.parametrize("form", ["run", "export"])
def test_tokens_show_the_prompt(form, source, exported, plain):
    encoder = opening.open_encoder(source if form == "run" else exported)
    view = encoder.prompted("query")
    assert view.tokens(TEXTS) == plain.tokens(prompted("query"))
    assert encoder.tokens(TEXTS) == plain.tokens(TEXTS)
    want = plain.lengths(prompted("query"))
    np.testing.assert_array_equal(view.lengths(TEXTS), want)
    assert view.info["prompt"] == "the cat "
    assert view.info["fingerprint"] != encoder.info["fingerprint"]


def tokenizations(folder):
    """How often the graph of an export holds the tokenizer with its vocabulary."""
    graph = saved_model_pb2.SavedModel()
    with open(f"{locating.find_export(folder)}/saved_model.pb", "rb") as file:
        graph.ParseFromString(file.read())
    functions = graph.meta_graphs[0].graph_def.library.function
    nodes = [node.op for function in functions for node in function.node_def]
    return sum("WordpieceTokenize" in op for op in nodes)


@pytest.mark.parametrize(
    "default, copies", [("", 2), pytest.param("dog ", 4, marks=pytest.mark.large)]
)
def test_an_export_holds_no_vocabulary_for_each_prompt(default, copies, tmp_path):
    stated = {"model.prompts": STATED, "model.prompt": default}
    opened = opening.open_weights(model_dirs.write(tmp_path / "run", **stated))
    folder = str(tmp_path / "export")
    saved_models.Export(opened, folder, model_dirs.SEQ_LENGTH).write()
    difference = saved_models.Export(opened, folder, model_dirs.SEQ_LENGTH).compare()
    assert difference <= saved_models.TOLERANCE
    assert tokenizations(folder) == copies
    here, there = opening.from_weights(opened), opening.open_encoder(folder)
    for one, two in [
        (here, there),
        *((here.prompted(name), there.prompted(name)) for name in PROMPTS),
    ]:
        np.testing.assert_array_equal(one.lengths(TEXTS), two.lengths(TEXTS))
        assert one.info["fingerprint"] == two.info["fingerprint"]
    for name in PROMPTS:
        chosen = Reading(prompt_name=name)
        other = there.prompted(name).info["fingerprint"]
        for describe in (opening.open_encoder, opening.described):
            for model in (f"{tmp_path}/run", folder):
                assert describe(model, chosen).info["fingerprint"] == other
        assert other not in (there.info["fingerprint"], there.info.get(prompts.PLAIN))


def test_search_takes_the_prompts_of_queries_and_documents(encoder, plain):
    cosines, rows = encoder.search(TEXTS, TEXTS, k=3)
    queries = plain.encode(prompted("query"), normalize=True)
    documents = plain.encode(prompted("passage"), normalize=True)
    want = np.sort(queries @ documents.T, axis=1)[:, ::-1]
    np.testing.assert_allclose(cosines, want, atol=1e-5)
    # Vectors stay as they are.
    own = encoder.search(plain.encode(TEXTS), plain.encode(TEXTS), k=1)[1]
    np.testing.assert_array_equal(own[:, 0], range(3))


@pytest.mark.parametrize(
    "known, role, want",
    [
        ({"query": "q"}, "query", "query"),
        ({"query": "q"}, "document", None),
        ({"corpus": "c", "passage": "p"}, "document", "passage"),
        ({"passage": "p", "document": "d"}, "document", "document"),
        # Not those of `Comparing`.
        (["query"], "query", None),
        # The encoder adds it anyway.
        ({"document": ""}, "document", None),
        ({"query": "own "}, "query", None),
        ({"document": "", "passage": "own "}, "document", None),
        # sentence-transformers adds the empty one.
        ({"document": "", "passage": "p"}, "document", "passage"),
    ],
)
def test_names_of_roles(known, role, want):
    class Encoder:
        prompts = known
        info = {"prompt": "own "} if "own " in str(known) else {}

    assert prompts.of_role(Encoder, role) == want
    assert prompts.of_role(object(), role) is None


class Busy(grpc.RpcError):
    """The error of a server that answers later."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "busy"


@pytest.mark.parametrize(
    "protocol, error, said",
    [
        ("rest", urllib.error.HTTPError("", 503, "busy", {}, None), "HTTP 503 busy"),
        ("grpc", Busy(), "unavailable: busy"),
    ],
)
def test_a_busy_server_has_prompts(protocol, error, said, server, monkeypatch):
    address = getattr(server, protocol)
    encoder = opening.open_encoder(f"{address}/v1/models/cmlm")

    def refuse(*_, **__):
        raise error

    client = encoder._server
    place, name = client, "_read"
    if protocol == "grpc":
        place, name = client._stub, "GetModelMetadata"
    with monkeypatch.context() as patched:
        patched.setattr(place, name, refuse)
        with pytest.raises(UserError, match=said):
            encoder.search(TEXTS, TEXTS)
    assert set(encoder.prompts) == set(PROMPTS)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_a_version_that_is_gone_is_not_one_without_prompts(protocol, server):
    encoder = opening.open_encoder(f"{getattr(server, protocol)}/v1/models/cmlm")
    # Of the first answer; the server has loaded another one since.
    encoder._server._version = 7
    with pytest.raises(UserError, match="Servable not found.*version.* ?7"):
        encoder.encode(TEXTS, prompt_name="query")


# ------------------------------------------------------------------ readings


def test_a_name_selects_the_prompt_of_every_text(source, exported, plain):
    want = plain.encode(prompted("passage"))
    for model in (source, exported):
        chosen = opening.open_encoder(model, Reading(prompt_name="passage"))
        model_dirs.assert_same(chosen.encode(TEXTS), want, 1e-5)
        assert chosen.info["prompt"] == "a mat, "
        with pytest.raises(UserError, match="--prompt_name is 'x'; allowed: query, pa"):
            opening.open_encoder(model, Reading(prompt_name="x"))
    said = "prompt_name is 'x'; allowed: no prompt_name, because .* states no prompts"
    with pytest.raises(UserError, match=said):
        plain.encode(TEXTS, prompt_name="x")


def test_prompts_replace_those_of_the_model(source, exported):
    other = opening.open_encoder(source, Reading(prompts={"q": "dog "}))
    assert other.prompts == {"q": "dog "}
    text = opening.open_encoder(source).encode(["dog mat"])
    model_dirs.assert_same(other.encode(["mat"], prompt_name="q"), text)
    refused = "--prompts is {'q': 'dog '}; allowed with .*: {'query': 'the cat ', .*fix"
    with pytest.raises(UserError, match=refused):
        opening.open_encoder(exported, Reading(prompts={"q": "dog "}))
    opening.open_encoder(exported, Reading(prompts=PROMPTS))
    loaded = cmlm.load(source, prompts={"a": "the "})
    assert loaded.prompts == {"a": "the "}


@pytest.mark.parametrize(
    "values, said",
    [
        ({"prompts": ["query"]}, "prompts is .'query'.; allowed: a dict of names"),
        ({"prompts": {"query": 5}}, "prompts is {'query': 5}; allowed: a dict of "),
        ({"prompts": {"a=b": "c"}}, "prompts is {'a=b': 'c'}; allowed: a dict of n"),
        ({"prompts": {"": "c"}}, "prompts is {'': 'c'}; allowed: a dict of names"),
    ],
)
def test_wrong_prompts(values, said, source):
    with pytest.raises(UserError, match=said):
        cmlm.load(source, **values)


@pytest.mark.parametrize(
    "stated, said",
    [
        (["query"], r"has prompts=\['query'\]; allowed: dict"),
        ({"query": 5}, "prompts in .* is {'query': 5}; allowed: a dict of names"),
        ({"query": None}, "prompts in .* is {'query': None}; allowed: a dict of na"),
    ],
)
def test_wrong_prompts_of_an_export(stated, said, exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "export")
    # Exports of version 0.1.0 have no checksums.
    for path in folder.rglob("checksums.json"):
        path.unlink()
    path = folder / "serving" / "1" / "assets.extra" / "export.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "prompts": stated}))
    with pytest.raises(UserError, match=said):
        opening.open_encoder(str(folder))


def test_a_reading_is_named_by_its_flags(source):
    reading = Reading(prompt_name="query", prompts={"query": "the cat "})
    assert reading.given() == "--prompt_name=query '--prompts=query=the cat '" or (
        reading.given() == "--prompt_name=query --prompts='query=the cat '"
    )
    assert Reading(prompts={}).given() == "--prompts=''"
    with pytest.raises(UserError, match="--prompt_name is 'query'; allowed: one of"):
        opening.open_encoder(source, Reading(prompt="a ", prompt_name="query"))


def test_a_named_prompt_leaves_place_for_the_text(source):
    said = r"--seq_length is 5; allowed: 6 to .* 'a mat, ' \(--prompts= leaves it out"
    with pytest.raises(UserError, match=said):
        opening.open_encoder(source, Reading(seq_length=5))
    opening.open_encoder(source, Reading(seq_length=5, prompts={}))


def test_a_prompt_longer_than_every_sentence_is_named(source):
    long, most = "cat " * 40, model_dirs.SEQ_LENGTH
    said = f"the prompt 'cat .* has 40 tokens; allowed: at most {most - 3}, because .*"
    for reading, remedy in (
        (
            Reading(prompts={"query": long}),
            r"num_views\) \(--prompts= leaves it out\)$",
        ),
        (Reading(prompt=long), r"3, model.num_views\)$"),
    ):
        with pytest.raises(UserError, match=said + remedy):
            opening.open_encoder(source, reading)


@pytest.mark.parametrize(
    "given, said",
    [
        (["query"], "--prompts is 'query'; allowed: NAME=TEXT"),
        (["=text"], "--prompts is '=text'; allowed: NAME=TEXT"),
        (["a=b", "a=c"], "--prompts is 'a=c'; allowed: NAME=TEXT, each name once"),
    ],
)
def test_wrong_flags(given, said):
    with pytest.raises(UserError, match=said):
        prompts.parse(given)


def test_flags_of_prompts():
    assert prompts.parse(["a=b=c ", "d="]) == {"a": "b=c ", "d": ""}
    assert prompts.parse([""]) == prompts.parse([]) == {}


# ----------------------------------------------------------------- commands


@pytest.mark.large
def test_names_without_a_signature_are_named(tmp_path):
    names = ["pcr=a ", "normalized=a ", "s 2=a ", "query=a "]
    names += ["document=", "passage=b "]
    source = model_dirs.write(tmp_path / "run", **{"model.prompts": names})
    out = f"{tmp_path}/out"
    done = commands.run("export.tfhub", f"--model_dir={source}", f"--export_dir={out}")
    assert done.returncode == 0, done.stderr
    for name in ("pcr", "normalized", "s 2"):
        assert f"note: the prompt {name!r} gets no signature; allowed" in done.stderr
    assert "note: the empty prompt 'document' gets no signature, " in done.stderr
    encoder = opening.open_encoder(out)
    assert list(encoder.prompts) == ["query", "passage"]
    found = json.loads((tmp_path / "out" / "export.json").read_text())
    assert [*found["prompts"]] == [name.split("=")[0] for name in names]
    assert found["signatures"] == sorted(
        ["normalized", "passage", "query", "serving_default", "tensors"]
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| prompt `query` | 'a '" in card


def test_the_card_takes_any_prompt(source):
    opened = opening.open_weights(source, Reading(prompts={"s\n2": "a|b\n"}))
    card = model_card.render(opened, 9, for_hugging_face=False, normalized=False)
    assert "\n| prompt `s 2` | 'a\\|b\\n' |\n" in card


def test_lost_prompts_are_named(exported):
    changed = former_export.changes(f"{exported}/serving", {"prompts": {}}, None)
    had = "prompts query 'the cat ', passage 'a mat, '"
    assert changed == [f"{had}, now none (--prompts)"]
    other = {"prompts": {"query": "q ", "passage": "a mat, "}}
    changed = former_export.changes(f"{exported}/serving", other, None)
    assert changed == ["prompts query 'the cat ', now query 'q ' (--prompts)"]
    same = {"prompts": PROMPTS}
    assert former_export.changes(f"{exported}/serving", same, None) == []


def test_the_client_requests_a_prompt(server, plain):
    done = commands.run(
        *("export.client", f"--server={server.rest}", "--signature=passage"),
        *("--normalize", *(f"--text={text}" for text in TEXTS)),
    )
    assert done.returncode == 0, done.stderr
    vectors = [json.loads(line)["vector"] for line in done.stdout.splitlines()]
    want = plain.encode(prompted("passage"), normalize=True)
    model_dirs.assert_same(vectors, want, 1e-5)
    done = commands.run(
        *("export.client", f"--server={server.grpc}", "--signature=x", "--text=dog")
    )
    assert done.returncode == 1 and '"x" not found' in done.stderr


def test_the_page_searches_with_prompts(server):
    with urllib.request.urlopen(f"{server.rest}/", timeout=60) as answer:
        page = answer.read().decode()
    assert 'vectors("query", [' in page and 'vectors("passage", texts)' in page


@pytest.mark.large
def test_encode_selects_prompts(exported, plain, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" for line in TEXTS))
    out = f"{tmp_path}/vectors.npy"
    query = plain.encode(prompted("query", ["dog"]), normalize=True)[0]
    note = "take the lines without the prompt 'passage' of the model; --prompt_name=pas"
    output, passage = f"--output={out}", "--prompt_name=passage"
    for given, texts, is_noted in (
        ([output, passage], prompted("passage"), False),
        ([output, "--overwrite"], TEXTS, True),
        ([], prompted("passage"), False),
        (["--prompt="], TEXTS, False),
    ):
        done = commands.run(
            *("cmlm.encode", f"--model={exported}", f"--input={text}", *given),
            *("--query=dog", f"--neighbours={len(TEXTS)}"),
        )
        assert done.returncode == 0, done.stderr
        documents = plain.encode(texts)
        if output in given:
            model_dirs.assert_same(np.load(out), documents, 1e-5)
        cosines = dict(zip(TEXTS, arrays.unit_length(documents) @ query, strict=True))
        for line in filter(str.strip, cosines):
            assert f"  {cosines[line]:.3f}  {line}\n" in done.stdout, given
        assert (note in done.stderr) == is_noted, given


# ------------------------------------------------------------------- mining


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    """Bitext, and its two sides."""
    folder = tmp_path_factory.mktemp("mined")
    words = "cat sat on a mat dog ran far away".split()
    draw = np.random.default_rng(4)
    sides = [
        [f"{i} {' '.join(draw.choice(words, 5))}" for i in range(40)] for _ in range(2)
    ]
    for name, side in zip(("source", "target"), sides, strict=True):
        (folder / f"{name}.txt").write_text("\n".join(side))
    lines = [f"{a}\t{b}\n" for a, b in zip(*sides, strict=True)]
    (folder / "bitext.tsv").write_text("".join(lines))
    return folder, *sides


def mine(model, job, output, *more):
    done = commands.run(
        *("cmlm.mine", f"--model={model}", *job, f"--output={output}", *more)
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in output.read_text().splitlines()]


@pytest.mark.parametrize(
    "form, job",
    [
        ("run", "pairs"),
        ("run", "scores"),
        ("run", "negatives"),
        ("export", "negatives"),
    ],
)
def test_mining_gives_each_side_its_prompt(
    form, job, source, exported, plain, mined, tmp_path
):
    """Against cosines of texts with their prompts, by brute force."""
    folder, sources, targets = mined
    cosines = (
        plain.encode(prompted("query", sources), normalize=True)
        @ plain.encode(prompted("passage", targets), normalize=True).T
    )
    flags = {
        "pairs": [
            *(f"--source={folder}/source.txt", f"--target={folder}/target.txt"),
            *("--margin=absolute", "--retrieval=forward", "--threshold=-1"),
            "--repeat_sentences",
        ],
        "scores": [f"--bitext={folder}/bitext.tsv", "--score", "--threshold=-1"],
        "negatives": [f"--bitext={folder}/bitext.tsv", "--hard_negatives=1"],
    }
    prompts = ["--source_prompt_name=query", "--target_prompt_name=passage"]
    model = source if form == "run" else exported
    rows = mine(model, flags[job], tmp_path / "mined.tsv", *prompts)
    assert len(rows) == len(sources)
    if job == "negatives":
        np.fill_diagonal(cosines, -1)
    if job == "scores":
        scores = np.loadtxt(tmp_path / "mined.scores")
        np.testing.assert_allclose(scores, np.diag(cosines), atol=2e-6)
    else:
        nearest = [targets[column] for column in cosines.argmax(axis=1)]
        assert {row[0]: row[-1] for row in rows} == dict(
            zip(sources, nearest, strict=True)
        )


@pytest.mark.large
def test_mining_with_the_prompt_of_one_side(source, mined, tmp_path):
    """The other side has the prompt of all texts; so have both in other processes."""
    folder, *_ = mined
    job = [f"--bitext={folder}/bitext.tsv", "--score", "--threshold=-1"]
    scores = {}
    for name, given in {
        "sides": ["--source_prompt_name=query", "--target_prompt_name=passage"],
        "source": ["--prompt_name=passage", "--source_prompt_name=query"],
        "target": ["--prompt=the cat ", "--target_prompt_name=passage"],
        "workers": [
            *("--prompt_name=query", "--target_prompt_name=passage", "--workers=2"),
        ],
    }.items():
        mine(source, job, tmp_path / f"{name}.tsv", *given)
        scores[name] = np.loadtxt(tmp_path / f"{name}.scores")
    for found in scores.values():
        np.testing.assert_allclose(found, scores["sides"], atol=2e-6)


@pytest.mark.large
def test_vectors_of_another_prompt_are_not_mined(source, mined, tmp_path):
    folder, *_ = mined
    for side, name in (("source", "query"), ("target", "passage")):
        done = commands.run(
            *("cmlm.encode", f"--model={source}", f"--input={folder}/{side}.txt"),
            *(f"--output={tmp_path}/{side}", f"--prompt_name={name}"),
        )
        assert done.returncode == 0, done.stderr
    job = [f"--source={tmp_path}/source", f"--target={tmp_path}/target"]
    output = f"--output={tmp_path}/mined.tsv"
    right = ["--source_prompt_name=query", "--target_prompt_name=passage"]
    for given, said in (
        ([f"--model={source}", "--prompt_name=query"], "target holds vectors of an"),
        ([f"--model={source}", *right[:1]], "; allowed: the model that encoded it"),
        ([f"--model={source}", "--source_prompt_name=no"], "allowed: query, passage, "),
        (right, "--source_prompt_name=query is given; allowed: with --model"),
        ([], "--source and --target hold vectors of two models (fingerpri"),
    ):
        done = commands.run("cmlm.mine", *job, output, *given)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    mine(source, job, tmp_path / "mined.tsv", *right, "--threshold=-1")


# ---------------------------------------------------------------- retrieval


@pytest.fixture
def collection(tmp_path):
    """A folder in BEIR's layout; a query is also a document."""
    (tmp_path / "qrels").mkdir()
    for name, texts in (("corpus", [*TEXTS, "far away"]), ("queries", TEXTS[::2])):
        rows = [{"_id": f"{name}{n}", "text": text} for n, text in enumerate(texts)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    lines = ["head\thead\thead", "queries0\tcorpus3\t1", "queries1\tcorpus0\t2"]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(lines))
    return tmp_path


class Prefixed:
    """Puts the prompts before the texts itself; texts of queries are told apart."""

    info = {}

    def __init__(self, plain):
        self._plain, self.asked = plain, []
        self.prompts = {"query": "q", "passage": "p"}

    def encode(self, texts, prompt_name=None):
        self.asked += [(prompt_name, text) for text in texts]
        return self._plain.encode(prompted(prompt_name, texts))


def test_retrieval_takes_prompts(collection, encoder, plain):
    task = retrieval.RetrievalFiles([str(collection)])
    data = task.read(DataDir(str(collection)))
    other = Prefixed(plain)
    item = run.TaskData(task, data, {})
    want = run.score(other, [item]).scores[task.name]
    got = run.score(encoder, [item])
    assert got.scores[task.name] == pytest.approx(want)
    # A text in two roles has two vectors, and is encoded once in each.
    roles = [("query", text) for text in data.queries]
    roles += [("passage", text) for text in data.documents]
    assert sorted(other.asked) == sorted(roles)
    assert got.encoded == len(roles)


def test_prompts_count_in_the_sentences_that_are_cut(collection, source):
    task = retrieval.RetrievalFiles([str(collection)])
    item = run.TaskData(task, task.read(DataDir(str(collection))), {})
    texts = run.by_role([item])
    # `[CLS] sat on a mat [SEP]` has 6 tokens, the prompts have 2 and 3.
    encoder = opening.open_encoder(source, Reading(seq_length=7))
    for model, cut in ((encoder, 2), (opening.open_encoder(source), 0)):
        entry = results.entry_of(model, run.score(model, [item]), texts)
        assert entry["truncated_sentences"] == cut


def test_stored_vectors_depend_on_the_prompt(source, tmp_path):
    folder = str(tmp_path / "store")
    encoder = opening.open_encoder(source)
    with Store(encoder, folder) as store:
        first = store(TEXTS, role="query")
        assert len(store) == 3 and store.prompt("query") == "query=the cat "
    with Store(encoder, folder) as store:
        np.testing.assert_array_equal(store(TEXTS, role="query"), first)
        assert len(store) == 3
        assert not np.allclose(store(TEXTS), first)
    # The prompt's text counts, not its name alone.
    other = opening.open_encoder(source, Reading(prompts={"query": "far "}))
    with Store(other, folder) as store:
        assert not np.allclose(store(TEXTS, role="query"), first)
        assert len(store) == 9


def test_components_are_not_removed_from_vectors_of_another_prompt(source):
    fitted = model_dirs.fit(opening.open_weights(source))
    encoder = opening.open_encoder(source)
    with Store(encoder, change=fitted.remove_from) as store:
        plain = store(TEXTS)
        assert not np.allclose(store(TEXTS, "de"), plain)
        # A language without components keeps its vectors, with any prompt.
        np.testing.assert_array_equal(
            store(TEXTS, "xx", "query"), encoder.encode(TEXTS, prompt_name="query")
        )
        said = "texts in de get the prompt 'query', and --pcr was fitted without it; al"
        with pytest.raises(UserError, match=said):
            store(TEXTS, "de", "query")
        with pytest.raises(UserError, match=said):
            store.on_disk(TEXTS, "de", "query").read(0, 3)


class Served:
    """Like the encoder of a server, which tells the names of its prompts alone."""

    info = {"server": "http://host"}

    def __init__(self, plain, texts, name=None):
        self._plain, self._texts, self._name = plain, texts, name
        self.prompts = dict.fromkeys(texts)

    def prompted(self, name):
        return Served(self._plain, self._texts, name)

    @property
    def marks(self):
        return {"probe": self.encode(["dog"], self._name).tolist()}

    def encode(self, texts, prompt_name=None):
        return self._plain.encode([self._texts[prompt_name] + text for text in texts])


def test_stored_vectors_of_a_server_depend_on_its_prompt(plain, tmp_path):
    folder, rows = str(tmp_path / "store"), []
    for prompt in ("the cat ", "the cat ", "far "):
        served = Served(plain, {"query": prompt})
        with Store(served, folder) as store:
            want = plain.encode([prompt + text for text in TEXTS])
            model_dirs.assert_same(store(TEXTS, role="query"), want, 1e-5)
            rows.append(len(store))
    assert rows == [3, 3, 6]
