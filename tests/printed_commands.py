"""The commands that pages and headers of flagfiles print."""

import re
import shlex


def found_in(text: str) -> list[list[str]]:
    """The words of every `python -m MODULE ...` in fences or in a flagfile's header."""
    source = re.sub(r"^#( |$)", "", text, flags=re.M)
    joined = re.sub(r"\\\n\s*", " ", source)
    found = []
    for line in joined.splitlines():
        start = line.find("python -m ")
        if start < 0 or (start and not line[:start].isspace()):
            continue
        lexer = shlex.shlex(line[start:], posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words = list(lexer)
        end = next((i for i, w in enumerate(words) if w in ("|", "&", "&&", ";")), None)
        found.append(words[2:end])
    return found
