"""FlashInfer's index as a small server: pages of links, and wheels with metadata alone."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field

from locks.kernels import KernelOptions
from locks.patience import Patience
from tests.unit.lock_servers import Asked, Reply

VERSION = "0.7.2"
WANTED = f"{VERSION}+cu130"
KEY = f"flashinfer-jit-cache=={WANTED}"
PROVIDERS = ("sm80", "sm89", "sm90a", "sm100a", "sm120f", "sm121a")
MACHINES = ("x86_64", "aarch64")


def wheel(name: str, version: str, requires: tuple[str, ...] = (), filler: int = 4000) -> bytes:
    """Return a wheel that can be installed: its metadata, and bytes in place of its kernels."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    out = io.BytesIO()
    files = {
        f"{folder}/METADATA": "\n".join(lines) + "\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name.replace('-', '_')}/kernels.bin": name * filler,
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{folder}/RECORD"])
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in {**files, f"{folder}/RECORD": record}.items():
            archive.writestr(path, text)
    return out.getvalue()


def file_name(name: str, version: str, tags: str = "py3-none-any") -> str:
    return f"{name.replace('-', '_')}-{version}-{tags}.whl"


@dataclass
class KernelIndex:
    """What stands on it, by page (`cu130/flashinfer-jit-cache`) and file."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    hashes: bool = True  # links say them
    as_json: bool = False
    yanked: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)  # files whose link says another hash

    def add(self, page: str, file: str, data: bytes) -> None:
        self.files.setdefault(page, {})[file] = data

    def answer(self, one: Asked) -> Reply:
        path = one.path.partition("?")[0].strip("/")
        if path in self.files:
            return self._json(path) if self.as_json else self._html(path)
        page, _, file = path.rpartition("/")
        data = self.files.get(page, {}).get(file.replace("%2B", "+"))
        return Reply(404) if data is None else Reply(200, body=data)

    def _digest(self, file: str, data: bytes) -> str:
        return "0" * 64 if file in self.wrong else hashlib.sha256(data).hexdigest()

    def _html(self, page: str) -> Reply:
        lines = ["<!DOCTYPE html><html><body>"]
        for file, data in self.files[page].items():
            fragment = f"#sha256={self._digest(file, data)}" if self.hashes else ""
            yanked = ' data-yanked="broken"' if file in self.yanked else ""
            address = file.replace("+", "%2B")
            lines.append(f'<a href="{address}{fragment}"{yanked}>{file}</a><br>')
        body = "\n".join([*lines, "</body></html>"]).encode()
        return Reply(200, {"Content-Type": "text/html"}, body)

    def _json(self, page: str) -> Reply:
        files = [
            {
                "filename": file,
                "url": f"/{page}/{file}",
                "hashes": {"sha256": self._digest(file, data)} if self.hashes else {},
                "size": len(data),
                "yanked": file in self.yanked,
            }
            for file, data in self.files[page].items()
        ]
        kind = "application/vnd.pypi.simple.v1+json"
        return Reply(200, {"Content-Type": kind}, json.dumps({"files": files}).encode())


def kernel_index(version: str = WANTED, label: str = "cu130") -> KernelIndex:
    """Return FlashInfer's index with the shim, its providers and the cubins of one version."""
    index = KernelIndex()
    names = [f"flashinfer-jit-cache-{target}" for target in PROVIDERS]
    shim = wheel("flashinfer-jit-cache", version, tuple(f"{n}=={version}" for n in names))
    index.add(f"{label}/flashinfer-jit-cache", file_name("flashinfer-jit-cache", version), shim)
    for name in names:
        for machine in MACHINES:
            file = file_name(name, version, f"py3-none-manylinux_2_28_{machine}")
            index.add(f"{label}/{name}", file, wheel(name, version, filler=len(machine) * 500))
    public = version.partition("+")[0]
    cubin = wheel("flashinfer-cubin", public)
    index.add("flashinfer-cubin", file_name("flashinfer-cubin", public), cubin)
    return index


def options(host: str | None, sleep: Callable[[float], None] = lambda s: None) -> KernelOptions:
    """Return options for a server on loopback that is asked twice at most."""
    patience = Patience(attempts=2, sleep=sleep)
    return KernelOptions(f"http://{host}" if host else None, patience, 5.0)
