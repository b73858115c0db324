"""Fits the principal components of each language, which PCR removes from vectors.

    python -m cmlm.pcr --model=MODEL --text=de=german.txt.gz --text='fr=fr/*.txt' \\
        --output=pcr.npz
    python -m cmlm.pcr --model=MODEL --vectors=de=de.npy --vectors=fr=fr.npy \\
        --output=pcr.npz
    python -m export.tfhub --model_dir=RUN --export_dir=OUT --pcr=pcr.npz

Text is monolingual, one sentence a line. Vectors must come from the same model; write
them with cmlm.encode, without --normalize. The output names its model and works with
this model only. cmlm/common/components.py describes the method.
"""

import shlex
import sys
from contextlib import AbstractContextManager

from absl import flags

from cmlm import cli
from cmlm.common.counts import counted
from cmlm.encoders import reading_flags
from cmlm.errors import UserError, listed, naming

flags.DEFINE_string(
    "model",
    None,
    "An export, a model_dir (best:, untrained:, bow: or both: may precede it), a "
    "checkpoint, or weights of another program.",
)
flags.DEFINE_multi_string("text", [], "LANGUAGE=FILES: files, globs or a list of them")
flags.DEFINE_multi_string(
    "vectors", [], "LANGUAGE=FILE.npy, float [n, dim], instead of text"
)
flags.DEFINE_integer(
    "components",
    1,
    "Principal components of each language to fit; CMLM's paper removes 1 (section "
    "5.2).",
    lower_bound=1,
)
flags.DEFINE_integer(
    "max_sentences",
    100_000,
    "Use the first N sentences of each language; 0 uses all.",
    lower_bound=0,
)
flags.DEFINE_string("output", None, "The .npz file to write.")
flags.DEFINE_bool("overwrite", False, "Replace --output if it exists.")
reading_flags.define()
reading_flags.define_precision()

FLAGS = flags.FLAGS


def main(_) -> None:
    cli.require(model="an export, a model_dir, or weights of another program")
    cli.require_npz("output")
    if not FLAGS.text and not FLAGS.vectors:
        raise UserError(
            "--text and --vectors are not given; allowed: --text=LANGUAGE=FILES, "
            "--vectors=LANGUAGE=FILE"
        )
    with cli.quiet_imports():
        from cmlm.common import outputs
        from cmlm.data import other_formats
        from cmlm.encoders import components_file, locating, vector_moments

    place = locating.locate(FLAGS.model)
    if place.kind == "external":
        raise UserError(
            f"--model is {FLAGS.model}; allowed: an export, a model_dir or weights, "
            "not a server and not stored vectors"
        )
    outputs.check(
        {"--output": FLAGS.output},
        {"--text": FLAGS.text, "--vectors": FLAGS.vectors, "--model": FLAGS.model},
        FLAGS.overwrite,
    )

    sources = _sources()
    for language, (flag, paths) in sources.items():
        if flag == "text":
            with _naming(language, paths):
                other_formats.warn(paths, effect="each line counts as one sentence")
    encoder = cli.open_encoder(FLAGS.model, reading_flags.reading())
    if FLAGS.components > encoder.dim:
        raise UserError(
            f"--components is {FLAGS.components}; allowed: at most {encoder.dim}, the "
            "dimensions of a vector"
        )

    for language, (flag, paths) in sources.items():
        with _naming(language, paths):
            vector_moments.check(encoder, flag, paths)
    fitted = {
        language: _fit(encoder, language, flag, paths)
        for language, (flag, paths) in sources.items()
    }
    components_file.save(
        FLAGS.output,
        components_file.PrincipalComponents(encoder.info["fingerprint"], fitted),
    )

    print(f"{FLAGS.output}  {', '.join(fitted)}; {FLAGS.components} a language")
    print(_next_command(place))


def _next_command(place) -> str:
    """The command that takes the components of the model at a `Location`."""
    path = shlex.quote(FLAGS.model)
    # The components belong to this way of reading the model.
    given = [f"--pcr={shlex.quote(FLAGS.output)}"]
    names = ("pooling", "sentence_vector", "dimensions", "prompt", "prompt_name")
    for name in names:
        if FLAGS[name].value is not None:
            given.append(f"--{name}={shlex.quote(str(FLAGS[name].value))}")
    given += [f"--prompts={shlex.quote(prompt)}" for prompt in FLAGS.prompts or ()]
    if place.prefix in ("untrained", "bow", "both"):
        # Such an encoder cannot be exported.
        given += [f"--model={path}", "--data_dir=..."]
        return f"evaluate  python -m cmlm.evaluate {' '.join(given)}"
    if place.kind == "run":
        given.append(f"--model_dir={shlex.quote(place.path)}")
        given += ["--checkpoint=best"] if place.prefix == "best" else []
    elif place.kind == "weights":
        given.append(f"--from={path}")
    else:
        # The source of an export, which the export does not name.
        given.append("--model_dir=...")
    return f"export  python -m export.tfhub {' '.join(given)} --export_dir=..."


def _sources() -> dict[str, tuple[str, list[str]]]:
    """The flag of each language, `text` or `vectors`, and its files.

    Raises:
        UserError: a value is malformed, a language is given twice, or no file matches.
    """
    from cmlm.common import files
    from cmlm.data import languages
    from cmlm.encoders import components_file

    sources: dict[str, tuple[str, list[str]]] = {}
    for flag in ("text", "vectors"):
        for value in FLAGS[flag].value:
            language, equals, path = value.partition("=")
            if not equals or not path:
                raise UserError(f"--{flag} is {value}; allowed: LANGUAGE=FILES")
            if any(languages.names_language(part.strip()) for part in path.split(",")):
                raise UserError(
                    f"--{flag} is {value}; allowed: LANGUAGE=FILES, and one --{flag} "
                    "for each language"
                )
            language = components_file.check_language(language)
            if language in sources:
                raise UserError(
                    f"--{flag} is {value}; allowed: each language once, and {language} "
                    "is given twice"
                )
            with naming(f"--{flag}"):
                sources[language] = (flag, files.expand(path))
    return sources


def _naming(language: str, paths: list[str]) -> AbstractContextManager[None]:
    """Names the language and its files in a UserError of the block."""
    return naming(f"{language}, {listed(paths, 3)}")


def _fit(encoder, language: str, kind: str, paths: list[str]):
    """Fits and describes the `LanguageComponents` of a language.

    Raises:
        UserError: a file is damaged, or has too few sentences.
    """
    from cmlm.common import components
    from cmlm.encoders import vector_moments

    with _naming(language, paths):
        moments = vector_moments.read(encoder, kind, paths, FLAGS.max_sentences)
        fitted = components.fit(moments, FLAGS.components)
    shares = ", ".join(f"{share:.1%}" for share in fitted.shares)
    print(
        f"{language}: {counted(fitted.sentences, 'sentence')}, {shares} of the squared "
        "length of their vectors is along the components",
        file=sys.stderr,
    )
    if fitted.sentences < encoder.dim:
        print(
            f"note: {language} has {counted(fitted.sentences, 'sentence')}, fewer than "
            f"the {encoder.dim} dimensions of a vector: more text gives steadier "
            "components",
            file=sys.stderr,
        )
    return fitted


if __name__ == "__main__":
    cli.run(main, never_trains=True)
