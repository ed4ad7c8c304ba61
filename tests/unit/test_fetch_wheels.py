"""The program that fetches the wheels of a bundle, from a small server on loopback."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "templates/fetch_wheels.py"
FILES = {"idna-3.15-py3-none-any.whl": b"i" * 5000, "torch-2.13.0+cpu-py3.whl": b"t" * 3_000_000}
TORCH = "torch-2.13.0+cpu-py3.whl"


@dataclass
class Server:
    """Files, and how they are served: each entry of ``cuts`` ends one answer after so many bytes."""

    files: dict[str, bytes]
    cuts: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    """A running server of the two files."""
    data = Server(dict(FILES))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2].replace("%2B", "+")
            asked = self.headers.get("Range")
            data.asked.append((name, asked))
            content = data.files[name]
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            self.send_response(data.status.get(name, 206 if asked else 200))
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            cuts = data.cuts.get(name)
            self.wfile.write(content[start : cuts.pop(0) if cuts else None])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        data.address = f"http://127.0.0.1:{http.server_port}/files"
        yield data
        http.shutdown()


def ran(folder: Path, server: Server, files: dict[str, bytes] | None = None) -> tuple[int, str]:
    """Run the program for these files, as the lock has them; return how it ended."""
    wanted = files or FILES
    pylock = folder / "pylock.bundle.toml"
    pylock.write_text(
        'lock-version = "1.0"\n'
        + "".join(
            f'[[packages]]\nname = "{name.partition("-")[0]}"\nwheels = [{{ url = '
            f'"{server.address}/{name.replace("+", "%2B")}", '
            f'hashes = {{ sha256 = "{hashlib.sha256(content).hexdigest()}" }} }}]\n'
            for name, content in wanted.items()
        ),
        encoding="utf-8",
    )
    (folder / "wheels").mkdir(exist_ok=True)
    job = {
        "pylock": str(pylock),
        "directory": str(folder / "wheels"),
        "parallel": 2,
        "files": [[n, [hashlib.sha256(FILES[n]).hexdigest()]] for n in FILES],
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", str(PROGRAM), str(folder / "job.json")],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def there(folder: Path) -> dict[str, bytes]:
    """Return the files that came."""
    return {path.name: path.read_bytes() for path in (folder / "wheels").iterdir()}


def test_each_wheel_comes_and_is_told_by_hash_and_size(tmp_path: Path, server: Server) -> None:
    code, out = ran(tmp_path, server)
    assert code == 0
    assert there(tmp_path) == FILES
    lines = sorted(line for line in out.splitlines() if line.startswith("@file "))
    assert lines == sorted(
        f"@file {hashlib.sha256(c).hexdigest()} {len(c)} - {tmp_path}/wheels/{n}"
        for n, c in FILES.items()
    )


def test_a_file_that_broke_off_is_gone_on_with(tmp_path: Path, server: Server) -> None:
    server.cuts[TORCH] = [1_000_000, 2_500_000]
    assert ran(tmp_path, server)[0] == 0
    assert there(tmp_path) == FILES
    assert [asked for name, asked in server.asked if name == TORCH] == [
        None,
        "bytes=1000000-",
        "bytes=2500000-",
    ]


def test_what_an_earlier_run_brought_is_not_fetched_again(tmp_path: Path, server: Server) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / f"{TORCH}.part").write_bytes(FILES[TORCH][:2_000_000])
    assert ran(tmp_path, server)[0] == 0
    assert (TORCH, "bytes=2000000-") in server.asked
    server.asked.clear()
    assert ran(tmp_path, server)[0] == 0
    assert server.asked == []


def test_another_content_than_the_lock_s_is_refused_and_not_kept(
    tmp_path: Path, server: Server
) -> None:
    server.files[TORCH] = b"x" * 3_000_000
    code, out = ran(tmp_path, server)
    assert code == 1
    assert out.splitlines()[-1] == f"{TORCH} came twice with another hash than the lock has"
    assert set(there(tmp_path)) <= {"idna-3.15-py3-none-any.whl"}


def test_a_damaged_part_gets_a_second_chance(tmp_path: Path, server: Server) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / f"{TORCH}.part").write_bytes(b"?" * 2_000_000)
    assert ran(tmp_path, server)[0] == 0
    assert there(tmp_path) == FILES


def test_an_index_without_the_locked_file_is_one_sentence(tmp_path: Path, server: Server) -> None:
    code, out = ran(tmp_path, server, {TORCH: FILES[TORCH]})
    assert code == 1
    assert "the index has no file of idna-3.15-py3-none-any.whl with the hash" in out


def test_a_server_that_refuses_is_one_sentence(tmp_path: Path, server: Server) -> None:
    server.status[TORCH] = 403
    code, out = ran(tmp_path, server)
    assert code == 1
    assert f"answered 403 for {TORCH}" in out
