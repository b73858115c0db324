"""README and docs/: what they name exists, and their commands parse.

A page is checked as a reader would use it: links lead somewhere, every flag belongs to
its command, every setting to the configuration, every listed file is there, and tables
that claim to be complete are.
"""

import ast
import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from test_architecture import SOURCES, _imports

from cmlm.config import recipes
from cmlm.evaluation import catalogue
from cmlm.objectives import OBJECTIVES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted((ROOT / "configs").glob("*.flags"))
WORDS_OF_README = 1500

# What absl gives to every command.
_EVERYWHERE = {"flagfile", "help", "helpfull", "verbosity"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=_name)


# ------------------------------------------------------------------- reading pages


def _blocks(text: str) -> list[str]:
    """What stands between fences."""
    return re.findall(r"^```[^\n]*\n(.*?)^```", text, re.S | re.M)


def _commands(text: str) -> list[list[str]]:
    """The words of every `python -m MODULE ...` in fences or in a flagfile's header."""
    source = re.sub(r"^#( |$)", "", text, flags=re.M)
    joined = re.sub(r"\\\n\s*", " ", source)
    found = []
    for line in joined.splitlines():
        start = line.find("python -m ")
        if start < 0 or (start and not line[:start].isspace()):
            continue
        lexer = shlex.shlex(line[start:], posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words = list(lexer)
        end = next((i for i, w in enumerate(words) if w in ("|", "&", "&&", ";")), None)
        found.append(words[2:end])
    return found


def _fenced_commands(page: Path) -> list[list[str]]:
    text = "\n".join(_blocks(page.read_text("utf-8")))
    # A quoted value may go on over lines, as that of --beam_options.
    text = re.sub(
        r"='([^'\n]*\n[^']*)'", lambda m: f"='{' '.join(m[1].split())}'", text
    )
    return [words for words in _commands(text) if words[0].split(".")[0] in _PACKAGES]


_PACKAGES = ("cmlm", "export")


def _flags(module: str) -> dict[str, tuple[str, list[str] | None]]:
    """Kind and choices of a command's flags, from its source."""
    path = ROOT / (module.replace(".", "/") + ".py")
    assert path.exists(), f"there is no command {module}"
    found = {}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(
            "flags.DEFINE_"
        ):
            kind = ast.unparse(node.func).removeprefix("flags.DEFINE_")
            choices = None
            if kind == "enum" and isinstance(node.args[2], ast.List):
                parts = [ast.unparse(part) for part in node.args[2].elts]
                if not any(part.startswith("*") for part in parts):
                    choices = [ast.literal_eval(part) for part in parts]
            found[ast.literal_eval(node.args[0])] = (kind, choices)
    return found


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.M)
    }


# ------------------------------------------------------------------ what holds for all


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= WORDS_OF_README


@each_page
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            broken.append(target)
        elif anchor and anchor not in _anchors(other):
            broken.append(target)
    assert not broken, f"{_name(page)} links to {broken}"


@pytest.mark.parametrize("page", [*PAGES, *CONFIGS], ids=_name)
def test_files_that_are_named_exist(page):
    named = re.findall(
        r"(?<![\w/])(?:configs|benchmarks|tests|docs|cmlm|export)/[\w/]+\.\w+",
        page.read_text("utf-8"),
    )
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing, f"{_name(page)} names {sorted(missing)}"


@pytest.mark.parametrize("source", [*PAGES, *CONFIGS], ids=_name)
def test_flags_belong_to_their_command(source):
    if source.suffix == ".md":
        commands = _fenced_commands(source)
    else:
        commands = _commands(source.read_text("utf-8"))
    wrong = []
    for module, *words in commands:
        known = _flags(module)
        for word in words:
            if not word.startswith("--"):
                # In headers `...` stands for the rest of a command.
                if word != "...":
                    wrong.append(f"{module} {word}")
                continue
            flag, _, value = word[2:].partition("=")
            if flag in _EVERYWHERE:
                continue
            kind, choices = known.get(flag, (None, None))
            if kind is None and flag.startswith("no"):
                kind, choices = known.get(flag[2:], (None, None))
                kind = kind if kind == "bool" else None
            if kind is None or (choices and value not in choices):
                wrong.append(f"{module} {word}")
    assert not wrong, f"{_name(source)}: {wrong}"


@each_page
def test_training_commands_make_a_configuration(page):
    for module, *words in _fenced_commands(page):
        if module != "cmlm.train":
            continue
        given = [word.partition("=") for word in words]
        flagfiles = [value for flag, _, value in given if flag == "--flagfile"]
        overrides = []
        experiment = "cmlm/english"
        lines = [
            line
            for path in flagfiles
            for line in (ROOT / path).read_text("utf-8").splitlines()
        ]
        for line in [*lines, *words]:
            flag, _, value = line.partition("=")
            if flag == "--experiment":
                experiment = value
            elif flag == "--params_override":
                overrides.append(value)
        # Raises UserError for a setting or a value that does not exist.
        recipes.load(experiment, overrides=overrides)


@each_page
def test_settings_that_are_named_exist(page):
    text = page.read_text("utf-8")
    named = re.findall(
        r"`((?:task|trainer|model|runtime|vocabulary)\.[\w.]+)(?:=[^`]*)?`", text
    )
    for name in named:
        node = recipes.load("cmlm/english")
        for key in name.replace("NAME", "cmlm").split("."):
            fields = {field.name for field in dataclasses.fields(node)}
            assert key in fields, f"{_name(page)} names {name}"
            node = getattr(node, key)


# --------------------------------------------------------------- tables are complete


def _table_names(page: str, heading: str) -> set[str]:
    """What stands in backquotes in the first column of the first table below."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    below = text[text.index(f"\n{heading}\n") :]
    rows = re.search(r"(?:^\|.*\n)+", below, re.M)[0].splitlines()[2:]
    return {
        name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }


def test_readme_leads_to_every_page():
    text = (ROOT / "README.md").read_text("utf-8")
    lost = [_name(page) for page in PAGES[1:] if f"({_name(page)})" not in text]
    assert not lost


def test_objectives_are_all_told():
    assert _table_names("training.md", "## Objectives") == set(OBJECTIVES)


def test_families_are_all_told():
    assert _table_names("evaluation.md", "## Tasks") == set(catalogue.FAMILIES)


def test_recipes_are_all_told():
    text = (ROOT / "docs" / "training.md").read_text("utf-8")
    paragraph = text[text.index("The recipes are ") :].partition("\n\n")[0]
    assert re.findall(r"`([^`]+)`", paragraph) == recipes.names()


def test_configurations_are_all_told():
    text = (ROOT / "docs" / "training.md").read_text("utf-8")
    start = text.index("## Configurations")
    told = text[start : text.index("## Settings", start)]
    lost = [
        path.name
        for path in CONFIGS
        if path.name not in told and f"_{path.stem.rpartition('_')[2]}`" not in told
    ]
    assert not lost


def test_flags_that_prose_names_exist():
    known = set(_EVERYWHERE)
    for path in [*(ROOT / "cmlm").glob("*.py"), *(ROOT / "export").glob("*.py")]:
        if "flags.DEFINE_" in path.read_text("utf-8"):
            known |= set(_flags(f"{path.parent.name}.{path.stem}"))
    known |= {f"no{name}" for name in known}
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
        if page.name == "cluster.md":  # It tells Beam's options as well.
            continue
        for name in re.findall(r"`--(\w+)", prose):
            assert name in known, f"{_name(page)} names --{name}"


# ---------------------------------------------------------- the picture of the house

_ON_THE_LANDING = {"cmlm", "cli", "errors", "mteb"}


def _room(module: str) -> str:
    package, _, rest = module.partition(".")
    if package == "export" or not rest:
        return package
    name = rest.partition(".")[0]
    return name if (ROOT / "cmlm" / name).is_dir() else "commands"


def _room_imports() -> dict[str, set[str]]:
    """Which rooms a room imports, without those that every room may."""
    graph: dict[str, set[str]] = {}
    for name in SOURCES:
        rest = name.partition(".")[2]
        if name != "export" and (not rest or rest in _ON_THE_LANDING):
            continue
        room = _room(name)
        targets = graph.setdefault(room, set())
        for imported, _ in _imports(name):
            if imported.split(".")[0] not in ("cmlm", "export"):
                continue
            rest = imported.partition(".")[2]
            if rest and rest not in _ON_THE_LANDING and _room(imported) != room:
                targets.add(_room(imported))
    return graph


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found, waiting = set(), list(graph[start])
    while waiting:
        room = waiting.pop()
        if room not in found:
            found.add(room)
            waiting += graph[room]
    return found


def test_picture_of_the_rooms_is_true():
    graph = _room_imports()
    needed = {
        (room, other)
        for room, others in graph.items()
        for other in others
        if not any(other in _reachable(graph, via) for via in others - {other})
    }
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    picture = re.search(r"^```mermaid\n(.*?)^```", text, re.S | re.M)[1]
    assert set(re.findall(r"^ +(\w+)\[", picture, re.M)) == set(graph)
    assert set(re.findall(r"^ +(\w+) --> (\w+)$", picture, re.M)) == needed
