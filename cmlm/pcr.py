"""Fits the principal components that PCR removes, one matrix a language.

    python -m cmlm.pcr --model=OUT --text=de=german.txt.gz --text='fr=fr/*.txt' \\
        --output=pcr.npz
    python -m cmlm.pcr --model=OUT --vectors=de=de.npy --vectors=fr=fr.npy \\
        --output=pcr.npz
    python -m export.tfhub --model_dir=RUN --export_dir=OUT --pcr=pcr.npz

Text is monolingual, one sentence a line. Vectors are those of the same model, as
cmlm.encode writes them without --normalize. The file names the model it belongs to, and
is refused with any other. See cmlm/encoders/pcr.py for the method.
"""

import sys

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "model", None, "An export or a model_dir, which may have best: in front."
)
flags.DEFINE_multi_string(
    "text", [], "LANGUAGE=FILES: files, globs or a list of them; repeatable."
)
flags.DEFINE_multi_string(
    "vectors", [], "LANGUAGE=FILE.npy, float [n, dim], instead of text; repeatable."
)
flags.DEFINE_integer(
    "components", 1, "k, components a language; the paper removes 1.", lower_bound=1
)
flags.DEFINE_integer(
    "max_sentences",
    100_000,
    "Sentences of a language to use, the first ones; 0 means all.",
    lower_bound=0,
)
flags.DEFINE_string("output", None, "The .npz file to write.")
flags.DEFINE_bool("overwrite", False, "Replace an output file that exists.")

FLAGS = flags.FLAGS


_ROWS_AT_ONCE = 16_384


def main(_) -> None:
    if not FLAGS.model:
        raise UserError("--model is not given; allowed: an export or a model_dir")
    if not FLAGS.output or not FLAGS.output.endswith(".npz"):
        raise UserError(f"--output={FLAGS.output or ''} must name a .npz file")
    if not FLAGS.text and not FLAGS.vectors:
        raise UserError("nothing to fit: give --text=LANGUAGE=FILES or --vectors=...")
    with cli.quiet_imports():
        from cmlm.common import files
        from cmlm.encoders import opening, pcr

    files.refuse_existing(FLAGS.output, FLAGS.overwrite)

    # ----------------------------------------------------- languages, model
    sources = {}
    for flag in ("text", "vectors"):
        for value in FLAGS[flag].value:
            language, equals, path = value.partition("=")
            if not equals or not path:
                raise UserError(f"--{flag}={value}; allowed: LANGUAGE=FILE")
            language = pcr.check_language(language)
            if language in sources:
                raise UserError(f"--{flag}={value}: {language} is given twice")
            sources[language] = (flag, files.expand(path))
    encoder = opening.open_encoder(FLAGS.model)
    if "fingerprint" not in encoder.info:
        raise UserError(f"--model={FLAGS.model} has no fingerprint: export it again")

    # -------------------------------------------------------------- fitting
    fitted = {}
    for language, (flag, paths) in sources.items():
        moment = pcr.SecondMoment(encoder.dim)
        read = _encode_text if flag == "text" else _read_vectors
        try:
            for vectors in read(paths, encoder, FLAGS.max_sentences or sys.maxsize):
                moment.add(vectors)
            fitted[language] = moment.components(FLAGS.components)
        except UserError as error:
            raise UserError(f"{language}, {', '.join(paths)}: {error}") from error
        shares = ", ".join(f"{share:.1%}" for share in fitted[language].shares)
        print(
            f"{language}: {fitted[language].sentences:,} sentences, "
            f"{shares} of their squared length along the components",
            file=sys.stderr,
        )
    pcr.save(
        FLAGS.output,
        pcr.PrincipalComponents(encoder.info["fingerprint"], fitted),
    )

    # --------------------------------------------------- what, and where it is
    print(f"{FLAGS.output}  {', '.join(fitted)}; {FLAGS.components} a language")
    print(
        f"serve  python -m export.tfhub --pcr={FLAGS.output} --model_dir=... "
        "--export_dir=..."
    )


def _encode_text(paths, encoder, limit):
    """Yields the vectors of at most `limit` sentences, in windows; no empty lines."""
    from cmlm.common import arrays, progress

    with progress.bar(None) as bar:
        for lines in arrays.windows(paths):
            lines = [line for line in lines if line.strip()][:limit]
            limit -= len(lines)
            yield encoder.encode(lines, progress=False)
            bar.update(len(lines))
            if not limit:
                return


def _read_vectors(paths, encoder, limit):
    """Yields at most `limit` rows of .npy files, in windows."""
    import numpy as np

    for path in paths:
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"not an .npy file of numbers: {error}") from error
        if rows.ndim != 2 or rows.dtype.kind != "f":
            raise UserError(
                f"{rows.dtype} {list(rows.shape)}; allowed: float [n, {encoder.dim}]"
            )
        for start in range(0, min(len(rows), limit), _ROWS_AT_ONCE):
            yield rows[start : min(start + _ROWS_AT_ONCE, limit)]
        limit -= min(len(rows), limit)


if __name__ == "__main__":
    cli.run(main)
