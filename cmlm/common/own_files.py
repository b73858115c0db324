"""Files that a folder holds itself: opened to be changed only if they are not links.

A folder may come from elsewhere, as in an archive. A link in it could lead to any file.
"""

from __future__ import annotations

import errno
import os

from cmlm.errors import UserError


def opener(path: str, flags: int) -> int:
    """Opens a local file for `open`, or by itself as `os.open` does.

    Raises:
        UserError: the path is a symbolic link, or one of several names of a file.
        OSError: the file cannot be opened.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(
                f"{path} is a symbolic link; allowed: a regular file"
            ) from error
        raise
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise UserError(
            f"{path} is one of several hard links to a file; allowed: a file of the "
            "folder's own, as `cp FILE NEW && mv NEW FILE` makes it"
        )
    return handle
