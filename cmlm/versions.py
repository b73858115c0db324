"""The versions that decide what numbers come out; reports and exports name them."""

import importlib.metadata
import platform

from cmlm import __version__

_PACKAGES = (
    *("tensorflow", "tensorflow-text", "tf-models-official"),
    *("numpy", "scipy", "scikit-learn"),
)


def installed() -> dict[str, str]:
    """{name: version} of this project, of Python, and of the packages that count."""
    found = {"cmlm": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass  # of an extra
    return found
