"""A campaign of damaged inputs: seeded mutations of every file that a command reads.

    python -m tests.campaign --cases=5000 --seed=1

Each case damages one input, runs the command that reads it and judges the outcome: exit
code 0, or exit code 1 with one line; at most 60 s of a processor and 4 GB; no file
outside the output.

warm.py        runs commands in forks of one process that has imported TensorFlow
mutations.py   damage to bytes, texts, JSON, YAML and arrays
base.py       the whole inputs that need no training; whole.py: all of them
formats.py     the inputs, each with the command that reads it
later.py       commands that read what an earlier run has left
judge.py       what a command may do with a damaged input
"""
