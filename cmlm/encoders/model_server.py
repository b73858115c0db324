"""Requests vectors from a running TensorFlow Serving, over REST or gRPC.

    server = model_server.connect("http://localhost:8501")  # or grpc://localhost:8500
    server.encode(["Where is the file?"])  # float32 [1, dim]
    server.encode(["Wo ist die Datei?"], "pcr", languages=["de"])

`served_model.ServedModel` describes the result.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

from cmlm.encoders.grpc_client import GrpcClient
from cmlm.encoders.rest_client import RestClient
from cmlm.encoders.served_model import ServedModel
from cmlm.errors import UserError

DEFAULT_MODEL = "cmlm"
_ADDRESS = re.compile(
    r"((?:https?|grpcs?)://[^/].*?)"
    r"(?:/v1/models/([^/:]+)(?:/versions/([0-9]+))?(?::predict)?)?/*"
)


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a server, perhaps with one of its models.

    Attributes:
        server: SCHEME://HOST:PORT; the scheme is http, https, grpc or grpcs.
        model: the name of the model, or None.
        version: the version of the model, or None for the newest.
    """

    server: str
    model: str | None = None
    version: int | None = None


def parse_address(address: str) -> Address:
    """Reads SCHEME://HOST:PORT[/v1/models/NAME[/versions/N][:predict]].

    Raises:
        UserError: the address has another form.
    """
    match = _ADDRESS.fullmatch(address)
    try:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme in ("grpc", "grpcs") and parts.port is None:
            # gRPC would take 443, the port of HTTPS.
            match = None
    except ValueError:
        # A bracket around IPv6 is missing, or the port is no number.
        match = None
    if not match or "/v1/models" in match[1]:
        raise UserError(
            f"server is {address!r}; allowed: http://HOST:PORT, https://HOST:PORT "
            "(REST), grpc://HOST:PORT or grpcs://HOST:PORT, each with or without a "
            "final /v1/models/NAME[/versions/N]"
        )
    server, name, version = match.groups()
    if not server.isascii():
        raise UserError(
            f"server is {address!r}; allowed: a host in ASCII (xn--...), and %-escapes"
        )
    return Address(
        server,
        None if name is None else urllib.parse.unquote(name),
        None if version is None else int(version),
    )


def connect(
    address: str,
    model: str | None = None,
    version: int | None = None,
    timeout: float = 60,
) -> ServedModel:
    """Makes a client of one model without sending a request.

    Args:
        address: http://HOST:PORT or https://HOST:PORT for REST (TensorFlow Serving's
            port is 8501), grpc://HOST:PORT for gRPC (8500), grpcs:// with TLS. The
            address may go on with the model, see `parse_address`.
        model: the name of the model on the server; None takes the one of the address,
            else `cmlm`.
        version: the version of the model; None takes the one of the address, else the
            version that is the newest at the first request.
        timeout: seconds for one request.

    Raises:
        UserError: the address has another form, or names another model or version; or
            the version is not a number of 64 bits.
    """
    found = parse_address(address)
    for name, own, given in (
        ("model", found.model, model),
        ("version", found.version, version),
    ):
        if None not in (own, given) and own != given:
            raise UserError(
                f"{name} is {given!r}; allowed with {address}: {own!r}, or none"
            )
    version = found.version if version is None else version
    if version is not None and not 0 <= version < 1 << 63:
        raise UserError(f"version is {version}; allowed: 0 to {(1 << 63) - 1}")
    kind = GrpcClient if found.server.startswith("grpc") else RestClient
    return kind(
        found.server,
        model=model or found.model or DEFAULT_MODEL,
        version=version,
        timeout=timeout,
    )
