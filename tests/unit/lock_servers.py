"""Registries and hubs for the tests of `locks`: Debian's real registry, and small played ones."""

import hashlib
import ipaddress
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from requests.auth import HTTPBasicAuth

from locks.manifests import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST
from tests.skipping import skip

REGISTRY_PROGRAM = "docker-registry"


def need(program: str) -> str:
    """Return the path of a program, or skip and say so; fail where skips are not allowed."""
    path = shutil.which(program)
    if path is not None:
        return path
    reason = f"{program} is not installed (apt-get install docker-registry)"
    skip(reason)


def one_line(error: Exception) -> None:
    """Assert that an error's message is one line that a terminal can show."""
    assert str(error).isprintable()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def certify(folder: Path) -> None:
    """Write key.pem and certificate.pem, which speaks for itself alone and for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


@contextmanager
def real_registry(
    folder: Path, user: tuple[str, str] | None = None, tls: bool = False
) -> Iterator[str]:
    """Run Debian's docker-registry on loopback; give its host:port."""
    program = need(REGISTRY_PROGRAM)
    port = free_port()
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if tls:
        certify(folder)
        key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
        config["http"]["tls"] = {"key": key, "certificate": certificate}
    if user is not None:
        hashed = bcrypt.hashpw(user[1].encode(), bcrypt.gensalt(4)).decode()
        (folder / "htpasswd").write_text(f"{user[0]}:{hashed}\n")
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
    )
    try:
        _until_answers(port, process, folder / "log")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
        log.close()


def _until_answers(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + 10
    while time.monotonic() < ends and process.poll() is None:
        try:
            requests.get(f"http://127.0.0.1:{port}/v2/", timeout=2)
            return
        except requests.ConnectionError:
            time.sleep(0.02)
    pytest.fail(f"the registry did not start: {log.read_text()[-500:]}")


@dataclass
class Image:
    """A made-up image: the bodies of its manifests and blobs by digest, and its own digest."""

    digest: str = ""
    media_type: str = ""
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    platforms: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, platform: str, words: str, media_type: str) -> dict[str, Any]:
        """Add the image for one platform; return its descriptor."""
        os_name, architecture, *variant = platform.split("/")
        named = {"os": os_name, "architecture": architecture}
        if variant:
            named["variant"] = variant[0]
        config = json.dumps({**named, "rootfs": {"type": "layers", "diff_ids": []}}).encode()
        layer = words.encode()
        for blob in (config, layer):
            self.blobs[sha(blob)] = blob
        docker = media_type == DOCKER_MANIFEST
        kind = "application/vnd.docker" if docker else "application/vnd.oci"
        body = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": media_type,
                "config": {
                    "mediaType": f"{kind}.container.image.v1+json"
                    if docker
                    else f"{kind}.image.config.v1+json",
                    "digest": sha(config),
                    "size": len(config),
                },
                "layers": [
                    {
                        "mediaType": f"{kind}.image.rootfs.diff.tar.gzip"
                        if docker
                        else f"{kind}.image.layer.v1.tar+gzip",
                        "digest": sha(layer),
                        "size": len(layer),
                    }
                ],
            }
        ).encode()
        self.manifests[sha(body)] = (media_type, body)
        self.platforms[platform] = sha(body)
        self.sizes[platform] = len(config) + len(layer)
        return {
            "mediaType": media_type,
            "digest": sha(body),
            "size": len(body),
            "platform": named,
        }


def sha(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()


def make_image(
    *platforms: str, words: str = "a layer", docker: bool = False, index: bool = True
) -> Image:
    """Make an image for some platforms, in the OCI form or Docker's."""
    image = Image()
    single, over_all = (DOCKER_MANIFEST, DOCKER_LIST) if docker else (OCI_MANIFEST, OCI_INDEX)
    entries = [image.add(one, f"{words} for {one}", single) for one in platforms]
    image.digest, image.media_type = entries[0]["digest"], single
    if index:
        body = json.dumps(
            {"schemaVersion": 2, "mediaType": over_all, "manifests": entries}
        ).encode()
        image.digest, image.media_type = sha(body), over_all
        image.manifests[image.digest] = (over_all, body)
    return image


def push(
    host: str, repository: str, tag: str, image: Image, user: tuple[str, str] | None = None
) -> None:
    """Push an image over the registry's HTTP API."""
    base = f"http://{host}/v2/{repository}"
    auth = HTTPBasicAuth(*(part.encode() for part in user)) if user is not None else None
    for digest, blob in image.blobs.items():
        begun = requests.post(f"{base}/blobs/uploads/", auth=auth, timeout=10)
        assert begun.status_code == 202, begun.text
        put = requests.put(
            begun.headers["Location"], params={"digest": digest}, data=blob, auth=auth, timeout=10
        )
        assert put.status_code == 201, put.text
    ordered = sorted(image.manifests.items(), key=lambda item: item[0] == image.digest)
    for digest, (media_type, body) in ordered:
        name = tag if digest == image.digest else digest
        put = requests.put(
            f"{base}/manifests/{name}",
            data=body,
            headers={"Content-Type": media_type},
            auth=auth,
            timeout=10,
        )
        assert put.status_code == 201, put.text


@dataclass
class Reply:
    """What a played server says. `hang_s`: stay silent so long instead."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang_s: float = 0.0
    raw: bytes | None = None


@dataclass
class Asked:
    """What a played server was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Played:
    """A played server: where it is and what it was asked."""

    host: str
    asked: list[Asked]


@contextmanager
def played(answer: Callable[[Asked], Reply]) -> Iterator[Played]:
    """Run a small HTTP server on loopback that answers as a test says."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            one = Asked(self.command, self.path, dict(self.headers.items()), body)
            asked.append(one)
            reply = answer(one)
            if reply.hang_s:
                time.sleep(reply.hang_s)
                self.close_connection = True
                return
            if reply.raw is not None:
                self.wfile.write(reply.raw)
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_HEAD = do_POST = serve

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield Played(f"127.0.0.1:{server.server_port}", asked)
    finally:
        server.shutdown()
        server.server_close()


def serving(image: Image, tag: str, prefix: str = "/v2/") -> Callable[[Asked], Reply]:
    """Answer like a registry that holds one image under one tag, in any repository."""

    def answer(one: Asked) -> Reply:
        name = one.path.partition("?")[0].rpartition("/")[2]
        digest = image.digest if name == tag else name
        if not one.path.startswith(prefix):
            return Reply(404)
        if one.path.rstrip("/") == "/v2":
            return Reply(200, body=b"{}")
        if digest in image.manifests:
            media_type, body = image.manifests[digest]
            headers = {"Content-Type": media_type, "Docker-Content-Digest": digest}
            return Reply(200, headers, body)
        if digest in image.blobs:
            return Reply(200, {"Content-Type": "application/octet-stream"}, image.blobs[digest])
        return Reply(404, body=b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')

    return answer
