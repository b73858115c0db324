"""Follows README and docs/ as a newcomer would: every printed command, on real text.

    python -m tests.walk --texts=TEXTS --minilm=FOLDER --directory=EMPTY [PAGE ...]

clones this checkout into EMPTY, writes a small `raw/`, `data/` and `testsets/` there,
and runs the blocks of each page in order. README's first block makes the environment.
Long training commands get fewer steps. `EMPTY/logs` has the output of every block.
"""
