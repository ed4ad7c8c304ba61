"""An index of Python packages over HTTP: its pages of links (PEP 503, 691), sizes, files."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import requests
import urllib3
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from requests.auth import AuthBase

from locks.patience import Patience
from locks.references import is_loopback, strip_port

JSON = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON}, text/html;q=0.5"
MAX_PAGE_BYTES = 16 * 1024 * 1024
"""Far above the page of any one package."""


class KernelProblem(Exception):
    """What is wrong with FlashInfer's index: a stable `code` and a sentence without secrets."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Link:
    """A wheel on a page: its address, name and version, and what the page says of it."""

    url: str
    file: str
    version: Version
    sha256: str | None = None
    size: int | None = None

    @property
    def host(self) -> str:
        """Who serves it."""
        return urlsplit(self.url).netloc


class _NoLogin(AuthBase):
    """Without this, requests would look into ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class Index:
    """Asks an index. Proxies come from the environment, as requests reads them."""

    def __init__(self, patience: Patience, timeout_s: float) -> None:
        self._patience = patience
        self._timeout_s = timeout_s
        self._session = requests.Session()

    def page(self, base: str, name: str) -> list[Link]:
        """Return the wheels of a package below BASE that were not taken back; none for 404."""
        url = f"{base}/{name}/"
        with self._asked("GET", url, {"Accept": ACCEPT}) as response:
            if response.status_code == 404:
                return []
            data = self._read(response, MAX_PAGE_BYTES)
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            found = _of_json(data, response.url) if kind == JSON else _of_html(data, response.url)
        if found is None:
            raise _garbage(url, "an answer that is no page of links")
        return [link for link in map(_link, found) if link is not None and _is(link, name)]

    def size(self, link: Link) -> int | None:
        """Return the bytes of a file as its server says them, or None."""
        try:
            with self._asked("HEAD", link.url, {"Accept-Encoding": "identity"}) as response:
                length = response.headers.get("Content-Length", "")
                return int(length) if response.status_code == 200 and length.isdigit() else None
        except KernelProblem:
            return None

    def download(self, link: Link, most: int) -> bytes:
        """Return a small file, its hash compared with what its link says."""
        with self._asked("GET", link.url, {"Accept-Encoding": "identity"}) as response:
            if response.status_code != 200:
                raise _garbage(link.url, f"HTTP {response.status_code}")
            data = self._read(response, most)
        if link.sha256 not in (None, hashlib.sha256(data).hexdigest()):
            raise _garbage(link.url, "a file with another hash than its link says")
        return data

    def hash(self, link: Link) -> tuple[str, int]:
        """Return the SHA-256 of a file, hexadecimal, and its bytes: all of it is downloaded."""
        with self._asked("GET", link.url, {"Accept-Encoding": "identity"}) as response:
            if response.status_code != 200:
                raise _garbage(link.url, f"HTTP {response.status_code}")
            digest, size = hashlib.sha256(), 0
            for chunk in response.iter_content(1 << 20):
                digest.update(chunk)
                size += len(chunk)
            length = response.headers.get("Content-Length", "")
            if length.isdigit() and int(length) != size:
                raise _unreachable(link.url, "the answer broke off")
        return digest.hexdigest(), size

    @contextmanager
    def _asked(self, method: str, url: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        waiting = self._patience.begin()
        while True:
            try:
                response = self._once(method, url, headers)
            except (requests.RequestException, ValueError) as error:
                if waiting.again():
                    continue
                raise _unreachable(url, _why(error, self._timeout_s)) from None
            if response.status_code == 429 or response.status_code >= 500:
                response.close()
                if waiting.again(response.headers.get("Retry-After")):
                    continue
                raise _unreachable(url, f"HTTP {response.status_code}")
            break
        try:
            yield response
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError):
            raise _unreachable(url, "the answer broke off") from None
        finally:
            response.close()

    def _once(self, method: str, url: str, headers: dict[str, str]) -> requests.Response:
        host = urlsplit(url).netloc
        response = self._session.request(
            method,
            url,
            headers={"User-Agent": "sglang-node", **headers},
            auth=_NoLogin(),
            timeout=self._timeout_s,
            allow_redirects=True,
            stream=True,
            proxies={"no_proxy": strip_port(host)} if is_loopback(host) else None,
        )
        if url.startswith("https:") and not response.url.startswith("https:"):
            response.close()
            raise _garbage(url, "a redirect to an address without TLS")
        return response

    def _read(self, response: requests.Response, most: int) -> bytes:
        data = bytearray()
        for chunk in response.iter_content(65536):
            data += chunk
            if len(data) > most:
                raise _garbage(response.url, f"more than {most} bytes")
        if response.status_code != 200:
            raise _garbage(response.url, f"HTTP {response.status_code}")
        return bytes(data)


@dataclass(frozen=True)
class _Raw:
    url: str
    sha256: str | None
    size: int | None


class _Anchors(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.found: list[_Raw] = []
        self.is_page = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_page = self.is_page or tag in ("html", "a", "body")
        given = dict(attrs)
        href = given.get("href")
        if tag != "a" or not href or "data-yanked" in given:
            return
        url, fragment = urldefrag(urljoin(self.base, href))
        self.found.append(_Raw(url, _sha256(fragment.removeprefix("sha256=")), None))


def _sha256(text: object) -> str | None:
    good = isinstance(text, str) and len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return str(text) if good else None


def _of_html(data: bytes, base: str) -> list[_Raw] | None:
    parser = _Anchors(base)
    try:
        parser.feed(data.decode("utf-8"))
        parser.close()
    except (UnicodeDecodeError, ValueError):
        return None
    return parser.found if parser.is_page else None


def _of_json(data: bytes, base: str) -> list[_Raw] | None:
    try:
        document: Any = json.loads(data)
        found = []
        for one in document["files"]:
            if one.get("yanked"):
                continue
            size = one.get("size")
            url = urldefrag(urljoin(base, str(one["url"]))).url
            sha256 = _sha256(one.get("hashes", {}).get("sha256"))
            found.append(_Raw(url, sha256, size if type(size) is int and size >= 0 else None))
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _link(raw: _Raw) -> Link | None:
    try:
        parts = urlsplit(raw.url)
        file = unquote(parts.path.rpartition("/")[2])
        _, version, _, _ = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion, ValueError):
        return None
    if parts.scheme not in ("http", "https"):
        return None
    return Link(raw.url, file, version, raw.sha256, raw.size)


def _is(link: Link, name: str) -> bool:
    return canonicalize_name(parse_wheel_filename(link.file)[0]) == name


def _why(error: Exception, timeout_s: float) -> str:
    """Say in words what ended a request: the exception's own text may hold a proxy's password."""
    if isinstance(error, requests.exceptions.SSLError):
        return "its TLS certificate is not trusted here, or the TLS connection failed"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy did not let the connection through"
    if isinstance(error, requests.exceptions.Timeout):
        return f"no answer in {timeout_s:.0f} s"
    return "the connection failed"


def _base_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _unreachable(url: str, came: str) -> KernelProblem:
    return KernelProblem("KERNEL_INDEX_UNREACHABLE", f"{_base_of(url)}: {came}")


def _garbage(url: str, came: str) -> KernelProblem:
    return KernelProblem(
        "KERNEL_INDEX_GARBAGE", f"{_base_of(url)}: there came {came}: is this FlashInfer's index?"
    )
