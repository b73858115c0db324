"""A few cases of the campaign of kills; `python -m tests.campaign.kills` runs many."""

import commands
import pytest


@pytest.mark.large
def test_a_killed_command_ends_as_one_that_was_not_killed():
    result = commands.run(
        "tests.campaign.kills", "--cases=3", "--seed=4", "--commands=ngrams"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("3 passed, 0 failed\n")
