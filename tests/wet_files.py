"""WET files of Common Crawl for tests."""

import io
from collections.abc import Iterable
from pathlib import Path

from warcio.warcwriter import WARCWriter


def write(
    path: Path,
    pages: Iterable[str | bytes],
    packed: bool = True,
    kind: str = "conversion",
) -> None:
    """Writes a file with a record for each page."""
    with open(path, "wb") as file:
        writer = WARCWriter(file, gzip=packed)
        writer.write_record(writer.create_warcinfo_record("a", {"software": "test"}))
        for page in pages:
            data = page if isinstance(page, bytes) else page.encode()
            writer.write_record(
                writer.create_warc_record(
                    "http://example.org/",
                    kind,
                    payload=io.BytesIO(data),
                    warc_content_type="text/plain",
                )
            )
