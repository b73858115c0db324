"""The flags of the layers that text determines: --sif and --whitening."""

from __future__ import annotations

import sys

from absl import flags

from cmlm.common import choices
from cmlm.common.counts import counted
from cmlm.errors import naming

FLAGS = flags.FLAGS
# The flags belong to the command that defines them, so its --help lists them.
flags.disclaim_key_flags()

_TEXT = (
    "Text, one sentence a line: files, globs or a list of them; or en=FILES,de=FILES. "
)
NAMES = choices.FITTED


def define() -> None:
    """Defines the flags."""
    flags.DEFINE_string(
        "sif",
        None,
        f"{_TEXT}Weight the tokens in the mean pooling by how rare they are in this "
        "text (smooth inverse frequency).",
    )
    flags.DEFINE_string(
        "whitening",
        None,
        f"{_TEXT}Whiten the vectors: over this text, they get the mean 0 and nearly "
        "one variance in every direction.",
    )


def inputs() -> dict[str, str | None]:
    """The values of the flags, by flag."""
    return {f"--{name}": FLAGS[name].value for name in NAMES}


def files() -> dict[str, list[str]]:
    """The files of each flag that is given, by its name.

    A warning tells the user of a file that looks like another format.

    Raises:
        UserError: no file matches, or some paths have a language and others do not.
    """
    from cmlm.common import files as files_lib
    from cmlm.data import languages, other_formats

    found = {}
    for name in NAMES:
        if FLAGS[name].value:
            with naming(f"--{name}"):
                # The layers are the same for all languages.
                patterns = languages.split(FLAGS[name].value).values()
                found[name] = files_lib.expand(",".join(patterns))
                other_formats.warn(
                    found[name], effect="each line counts as one sentence"
                )
    return found


def add_layers(opened, seq_length: int, texts: dict[str, list[str]]) -> None:
    """Adds the layers to an encoder that is exported, and tells what text they read.

    Args:
        opened: `OpenedWeights`, which get the layers.
        seq_length: the longest sentence in tokens.
        texts: as `files` returns them.

    Raises:
        UserError: a file is damaged, the text is too short, or the pooling is not the
            mean.
    """
    from export import text_fitting

    add = {"sif": text_fitting.weigh_words, "whitening": text_fitting.whiten}
    if texts:
        # A layer depends on the ones before it.
        later = NAMES[min(map(NAMES.index, texts)) :]
        opened.leave_out(name for name in later if name not in texts)
    for name, paths in texts.items():
        with naming(f"--{name}"):
            count = add[name](opened, seq_length, paths)
        read = f"{counted(count, 'sentence')} of {counted(len(paths), 'file')}"
        print(f"{name}: {read}", file=sys.stderr)
