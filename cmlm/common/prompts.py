"""Prompts by name, and the prompts of queries and documents.

A prompt is a text that precedes every text to encode. Encoders such as E5
have one for queries and one for documents. The names and their order are those of
sentence-transformers' `encode_query` and `encode_document`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cmlm.common import checksums, fields

QUERY, DOCUMENT = "query", "document"
# The key of the fingerprint without the default prompt, if there is one.
PLAIN = "fingerprint_without_prompt"
# The names of a role's prompt; `name_for` chooses one.
ROLES = {QUERY: ("query",), DOCUMENT: ("document", "passage", "corpus")}


def parse(given: Iterable[str], flag: str = "--prompts") -> dict[str, str]:
    """Reads NAME=TEXT; the value "" alone gives no prompts.

    Raises:
        UserError: a value has another form, or a name occurs twice.
    """
    found: dict[str, str] = {}
    values = [*given]
    for value in values if values != [""] else ():
        name, equals, text = value.partition("=")
        if not (name and equals) or name in found:
            raise fields.refused(flag, value, "NAME=TEXT, each name once")
        found[name] = text
    return found


def check(prompts: Any, flag: str) -> None:
    """Refuses prompts that are not texts by name.

    Raises:
        UserError: see above.
    """
    is_dict = isinstance(prompts, Mapping)
    for name, text in prompts.items() if is_dict else [(prompts, None)]:
        is_text = isinstance(name, str) and isinstance(text, str)
        if not (is_text and name and "=" not in name):
            raise fields.refused(
                flag, prompts, "a dict of names without = and their texts, as str"
            )


def as_settings(prompts: Mapping[str, str]) -> tuple[str, ...]:
    """The prompts as `EncoderConfig.prompts` holds them: NAME=TEXT."""
    return tuple(f"{name}={text}" for name, text in prompts.items())


def check_name(name: str, prompts: Mapping[str, Any], model: str, flag: str) -> None:
    """Refuses the name of a prompt that an encoder lacks.

    Raises:
        UserError: see above.
    """
    if name not in prompts:
        allowed = f"{', '.join(prompts)}, the prompts of {model}"
        if not prompts:
            allowed = f"no {flag}, because {model} states no prompts"
        raise fields.refused(flag, name, allowed)


def describe(info: dict, name: str, prompt: str | None) -> dict:
    """Describes an encoder with another default prompt.

    Args:
        info: the description, as a report has it.
        name: the name of the prompt.
        prompt: its text; None if it is unknown.

    Returns:
        The description, with the fingerprint of the vectors without any prompt as
        `PLAIN`: another prompt may follow.
    """
    found = {**info, "prompt_name": name}
    if prompt is not None:
        found["prompt"] = prompt
    plain = info.get(PLAIN) or info.get("fingerprint")
    if plain:
        found[PLAIN] = plain
        found["fingerprint"] = fingerprint(plain, prompt or "")
    return found


def fingerprint(plain: str, prompt: str) -> str:
    """The fingerprint of an encoder with a default prompt.

    Args:
        plain: its fingerprint without one.
        prompt: the text, perhaps an empty one.
    """
    return checksums.of_values([plain, prompt]) if prompt else plain


def name_for(role: str, known: Mapping[str, Any]) -> str | None:
    """The name of a role's prompt.

    An empty prompt counts only without another one: sentence-transformers adds an empty
    `document` to every folder that it saves, also beside `passage`.

    Args:
        role: a key of `ROLES`.
        known: prompts by name; an unknown text is not "".

    Returns:
        The first name of the role with a text, else its first name; None without one.
    """
    names = [name for name in ROLES[role] if name in known]
    return next((name for name in names if known[name] != ""), next(iter(names), None))


def placeholders(known: Mapping[str, Any]) -> set[str]:
    """The names of empty prompts whose role has a prompt with a text."""
    return {
        name
        for role, names in ROLES.items()
        for name in names
        if known.get(name) == "" != known[name_for(role, known)]
    }


def of_role(encoder: Any, role: str) -> str | None:
    """The name of an encoder's prompt for a role, a key of `ROLES`.

    Returns:
        The name; None for an encoder that lacks it or adds it anyway.
    """
    prompts = getattr(encoder, "prompts", None)
    if not isinstance(prompts, Mapping):
        # Of a class outside this project, which may mean anything by the name.
        return None
    own = getattr(encoder, "info", {}).get("prompt", "")
    name = name_for(role, prompts)
    return None if name is None or prompts[name] == own else name
