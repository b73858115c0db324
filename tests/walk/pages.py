"""The printed commands of a page, and shorter forms of those that take long."""

import dataclasses
import re
from pathlib import Path

# Multilingual pages need runs of the training page, and so on.
IN_ORDER = (
    *("README.md", "docs/training.md", "docs/runs.md", "docs/multilingual.md"),
    *("docs/serving.md", "docs/evaluation.md", "docs/mining.md", "docs/corpus.md"),
    *("docs/adapting.md", "docs/foreign.md", "docs/misad.md"),
)
_LONG = re.compile(r"# Long: (.*)")
_TRAINING = re.compile(r"python -m cmlm\.train (?:[^\\\n]|\\\n)*")
_SOAK = re.compile(r"python benchmarks/serving_soak\.py [^\n]*")
_FEW_STEPS = " ".join(
    f"'--params_override=trainer.{setting}'"
    for setting in (
        *("validation_interval=20", "checkpoint_interval=20"),
        *("train_steps=20", "optimizer.warmup_steps=2"),
    )
)


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block: its page, its number there, the language of its fence."""

    page: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{Path(self.page).stem}-{self.number:02}"

    @property
    def long(self) -> str:
        """The time that the page promises for a long block, else empty."""
        found = _LONG.search(self.text)
        return found[1] if found else ""

    def shortened(self) -> str:
        """The block with few training steps; a soak of the server lasts a minute."""
        if not self.long:
            return self.text
        text = _TRAINING.sub(lambda found: f"{found[0]} {_FEW_STEPS}", self.text)
        return _SOAK.sub(lambda found: f"{found[0]} --seconds=60", text)


def blocks(root: Path, page: str) -> list[Block]:
    """The fenced blocks of a page of the checkout, in order."""
    text = (root / page).read_text("utf-8")
    fences = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.M | re.S)
    return [Block(page, number, *fence) for number, fence in enumerate(fences)]
