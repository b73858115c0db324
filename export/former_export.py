"""Comparisons with the export that a new one replaces."""

from __future__ import annotations

from collections.abc import Mapping

from cmlm.common import json_files
from cmlm.encoders.components_file import PrincipalComponents
from cmlm.encoders.signatures import SIGNATURES
from cmlm.errors import UserError
from cmlm.modeling import export_layout
from export import fitting_flags, serving

# The values that a description leaves out, see `fingerprints.describe`.
_LEFT_OUT = {
    "prompt": "",
    "prompts": {},
    "dimensions": 0,
    **dict.fromkeys(fitting_flags.NAMES),
}


def changes(
    former: str,
    described: Mapping[str, object],
    components: PrincipalComponents | None,
) -> list[str]:
    """Names what clients of a server will miss or see changed.

    Args:
        former: the folder `serving` of the export that is replaced; it may not exist.
        described: values of its successor's description, each by the name of its flag.
        components: those of its successor.

    Returns:
        "KEY VALUE, now VALUE" for each change from the newest version in `former`.
    """
    newest = next(iter(export_layout.versions(former)), "")
    try:
        before = json_files.optional(former, newest, export_layout.PROVENANCE)
    except UserError:
        # It is damaged, and --overwrite replaces it.
        return []
    if not before:
        return []
    found = []
    old, new = before.get("pcr"), serving.describe_components(components)
    if old and not new:
        lost = [name for name, row in SIGNATURES.items() if row.with_components]
        found.append(f"the signatures {' and '.join(lost)}, now without (--pcr)")
    elif old:
        for name in ("languages", "components"):
            was, now = old.get(name, new[name]), new[name]
            if was != now:
                found.append(f"PCR {name} {was}, now {now} (--pcr)")
    for name, now in described.items():
        # Early versions lack other values, too.
        was = before.get(name, _LEFT_OUT.get(name, now))
        if was != now:
            texts = (was, now)
            if name == "prompt":
                texts = tuple(map(repr, texts))
            elif name == "prompts":
                texts = (_lacking(was, now), _lacking(now, was))
            elif name in fitting_flags.NAMES:
                texts = [
                    f"by {each['sentences']:,} sentences" if each else "none"
                    for each in (was, now)
                ]
            found.append(f"{name} {texts[0]}, now {texts[1]} (--{name})")
    return found


def _lacking(prompts: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The prompts that others lack, for messages: "query 'query: '"."""
    found = [
        f"{name} {text!r}" for name, text in prompts.items() if there.get(name) != text
    ]
    return ", ".join(found) or "none"


def refuse_other_versions(directory: str, version: int) -> None:
    """Refuses to write into an export that holds versions besides the one to write.

    Args:
        directory: the folder `serving` of the export; it may not exist.
        version: the version to write.

    Raises:
        UserError: there are other versions.
    """
    versions = sorted(map(int, export_layout.versions(directory)))
    others = ", ".join(str(found) for found in versions if found != version)
    if others:
        raise UserError(
            f"--version is {version}; {directory} holds {others}, and an export holds "
            f"one version; allowed: another --export_dir (then copy its "
            f"serving/{version} to the server's folder)"
        )
