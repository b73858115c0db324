"""The versions that results depend on, for reports and exports."""

import importlib.metadata
import platform

# The version of this project, also `cmlm.__version__`.
VERSION = "0.2.0"
_PACKAGES = (
    "tensorflow",
    "tensorflow-text",
    "tf-models-official",
    "numpy",
    "scipy",
    "scikit-learn",
)


def installed() -> dict[str, str]:
    """Returns the versions of this project, Python and the main packages by name."""
    found = {"cmlm": VERSION, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass  # The package belongs to an extra.
    return found
