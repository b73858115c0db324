"""Numbers with their nouns, for messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Returns "1 file" or "2,000 files".

    Args:
        number: the number.
        noun: in the singular; its plural ends in s.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
