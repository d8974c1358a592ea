"""What the tests of the server commands share: the command in this process, and stand-ins for engines."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from ckpt_tools.cli import main
from tests.conftest import FIXTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PAIR = FIXTURES / "pair"
RAW, TARGET = PAIR / "draft", PAIR / "target"
LOGS = FIXTURES / "logs"


def ckpt(*args: str | Path, stdin: str = "") -> Result:
    """Run a command in this process; a bug of ckpt fails the test."""
    done = CliRunner().invoke(main, [str(a) for a in args], input=stdin)
    assert done.exit_code != 70, done.stderr
    return done


def report(*args: str | Path, stdin: str = "") -> tuple[int, dict[str, Any]]:
    """Exit status and JSON report of a command; the report holds to its schema."""
    from ckpt_tools.schemas import violations

    done = ckpt(*args, "--format", "json", stdin=stdin)
    data = json.loads(done.stdout)
    assert list(violations("report.v1.json", data)) == []
    verdict = {0: "pass", 1: "fail", 3: "error", 4: "error"}[done.exit_code]
    assert data["verdict"] == verdict, "verdict and status say the same"
    assert (data["error"] is not None) == (verdict == "error")
    return done.exit_code, data


def program(path: Path, code: str) -> Path:
    """An executable in Python."""
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return path


def interpreter(path: Path, **versions: str) -> Path:
    """A Python that says it has these packages."""
    found = {name: [version, None] for name, version in versions.items()}
    return program(path, f"import json\nprint(json.dumps({{'python': '3.12.1', 'found': {found!r}}}))\n")


@contextmanager
def serving(routes: Mapping[str, Any | Callable[[dict[str, Any]], Any]]) -> Iterator[str]:
    """A server on the loopback; its address.

    Args:
        routes: Path -> text, bytes or JSON to answer, a status to refuse with, or a function of the posted JSON.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self, body: dict[str, Any]) -> None:
            found = routes.get(self.path, 404)
            found = found(body) if callable(found) else found
            data = b"" if isinstance(found, int) else found if isinstance(found, bytes) else None
            if data is None:
                data = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(found if isinstance(found, int) else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
