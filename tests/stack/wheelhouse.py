"""Small wheels made for tests, and indexes in directories that hold them."""

from __future__ import annotations

import base64
import hashlib
import shutil
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def make_wheel(directory: Path, name: str, version: str, requires: Sequence[str] = (), content: str = "") -> Path:
    """Write a pure Python wheel of one module ``name``."""
    directory.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {requirement}" for requirement in requires)]
    file = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", content)
        wheel.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *metadata, ""]))
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return file


def make_index(directory: Path, wheels: Sequence[Path]) -> str:
    """Write a simple index of the wheels; returns its ``file:`` URL."""
    for wheel in wheels:
        page = directory / wheel.name.split("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        with page.open("a") as file:
            file.write(f'<a href="{wheel.as_uri()}#sha256={digest}">{wheel.name}</a>\n')
    directory.mkdir(parents=True, exist_ok=True)
    return directory.as_uri()


@contextmanager
def served(index: Path, login: str) -> Iterator[str]:
    """Serve an index of ``make_index`` at the yielded URL to those who know the login, ``user:password``."""
    for page in index.glob("*/index.html"):
        for wheel in page.parent.parent.parent.glob("*/*.whl"):
            if wheel.as_uri() in page.read_text():
                shutil.copy(wheel, page.parent)
                page.write_text(page.read_text().replace(wheel.as_uri(), wheel.name))
    expected = f"Basic {base64.b64encode(login.encode()).decode()}"

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *words: object, **keys: object) -> None:
            super().__init__(*words, directory=str(index), **keys)  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            if self.headers.get("Authorization") == expected:
                super().do_GET()
            else:
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
