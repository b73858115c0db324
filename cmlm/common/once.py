"""Warnings that a process gives once, however often their cause occurs."""

from __future__ import annotations

import functools
import logging

logger = logging.getLogger(__name__)


@functools.cache
def warn(message: str) -> None:
    """Logs a warning, unless the process has logged the same before."""
    logger.warning("%s", message)
