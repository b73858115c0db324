"""The number of examples of public test sets.

A download that was cut off at the end of a line reads like a whole file. Its scores
look like those of the whole set, and compare with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized

# By task, as the papers of the sets state them; of SentEval's sets, for each part. The
# years of STS are the sum over their subsets. A set with a part for each language has
# as many examples in each.
SIZES: Mapping[str, int | Mapping[str, int]] = {
    "mr": {"train": 10_662},
    "cr": {"train": 3_775},
    "subj": {"train": 10_000},
    "mpqa": {"train": 10_606},
    "sst2": {"train": 67_349, "dev": 872, "test": 1_821},
    "sst5": {"train": 8_544, "dev": 1_101, "test": 2_210},
    "trec": {"train": 5_452, "test": 500},
    "mrpc": {"train": 4_076, "test": 1_725},
    "sick-e": {"train": 4_500, "dev": 500, "test": 4_927},
    "sick-r-trained": {"train": 4_500, "dev": 500, "test": 4_927},
    "stsb-trained": {"train": 5_749, "dev": 1_500, "test": 1_379},
    "sts12": 3_108,
    "sts13": 1_500,
    "sts14": 3_750,
    "sts15": 3_000,
    "sts16": 1_186,
    "stsb-dev": 1_500,
    "stsb-test": 1_379,
    "sick-r": 4_927,
    "stsb-multilingual": 1_379,
    "sts17": 250,
    "simlex999": 999,
    "wordsim353": 353,
}


def differences(task: str, data: Mapping[str, Sized], each: bool = False) -> list[str]:
    """Names the parts of a copy that have another size than in the public set.

    Args:
        task: the name of the task; one without a public size has no differences.
        data: the examples of each part.
        each: whether a public size that is one number is that of each part, and not
            the sum over the parts.

    Returns:
        A line for each such part.
    """
    public = SIZES.get(task, {})
    found = {part: len(examples) for part, examples in data.items()}
    if isinstance(public, int):
        if not each:
            found = {"": sum(found.values())}
        public = dict.fromkeys(found, public)
    return [
        f"{part}{': ' if part else ''}{found[part]:,} examples; the public set has "
        f"{size:,}, so do not compare the scores with published ones"
        for part, size in public.items()
        if part in found and found[part] != size
    ]
