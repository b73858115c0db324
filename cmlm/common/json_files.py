"""JSON files: written whole; read with their types, every mistake in one line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cmlm.common import atomic
from cmlm.errors import UserError, shown


def write(path: str, values: Any, **options: Any) -> None:
    """Writes values as JSON, whole or not at all.

    Args:
        path: the file.
        values: what JSON can hold.
        **options: of `json.dump`.
    """
    with atomic.text(path) as file:
        json.dump(values, file, **options)
        file.write("\n")


def read(path: str, kind: type = dict) -> dict | list[dict]:
    """Reads a JSON object, or a list of objects with `kind=list`.

    Raises:
        UserError: the file is missing, is not JSON, has half of a surrogate pair (which
            UTF-8 cannot hold), or holds something else.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
        values = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(values, ensure_ascii=False).encode()
    except tf.errors.OpError as error:
        raise UserError(f"{path} cannot be read: {error.message}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    rows = values if kind is list and isinstance(values, list) else [values]
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} does not hold a JSON {kind.__name__} of objects")
    return rows if kind is list else values


def optional(*parts: str) -> dict:
    """Reads a JSON object; a missing file counts as an empty object."""
    path = os.path.join(*parts)
    return read(path) if tf.io.gfile.exists(path) else {}


def field(
    values: Mapping[str, Any],
    name: str,
    kind: type,
    path: str,
    default: Any = None,
    at_least: int | None = None,
):
    """Returns a value of a JSON object and checks its type.

    Args:
        values: the object.
        name: the key of the value.
        kind: the type of the value; an integer counts as a float.
        path: the file of the object, for the message.
        default: the value of a missing key, or of null; None: the key is required.
        at_least: the lowest allowed number.

    Raises:
        UserError: the value is missing and has no default, or has another type, or is
            not finite, or is too low.
    """
    value = values.get(name)
    if value is None:
        if default is None:
            raise UserError(f"{path} has no {name}")
        value = default
    allowed = kind.__name__ if at_least is None else f"{kind.__name__} from {at_least}"
    refused = UserError(f"{path} has {name}={shown(value)}; allowed: {allowed}")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise refused from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise refused
    if isinstance(value, float) and not math.isfinite(value):
        raise refused
    if at_least is not None and value < at_least:
        raise refused
    return value
