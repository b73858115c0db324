"""A few cases of the campaign of kills; `python -m tests.campaign.kills` runs many."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.large
def test_a_killed_command_ends_as_one_that_was_not_killed():
    result = subprocess.run(
        [
            *(sys.executable, "-m", "tests.campaign.kills", "--cases=3", "--seed=4"),
            "--commands=ngrams",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("3 passed, 0 failed\n")
