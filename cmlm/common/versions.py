"""The versions that results depend on; reports and exports name them."""

import importlib.metadata
import platform

# Of this project; the package shows it as `cmlm.__version__`.
VERSION = "0.1.0"
_PACKAGES = (
    *("tensorflow", "tensorflow-text", "tf-models-official"),
    *("numpy", "scipy", "scikit-learn"),
)


def installed() -> dict[str, str]:
    """{name: version} of this project, of Python, and of the packages that count."""
    found = {"cmlm": VERSION, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass  # of an extra
    return found
