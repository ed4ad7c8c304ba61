"""One HTTP request to a registry: time limits, retries, redirects, and a cap on what is read."""

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.auth import AuthBase

from locks.failures import RegistryError
from locks.patience import Patience
from locks.references import is_loopback, is_nearby, strip_port

# The distribution specification asks clients to take manifests of 4 MiB; a config blob is smaller.
MAX_BODY_BYTES = 4 * 1024 * 1024
_MAX_REDIRECTS = 5


@dataclass(frozen=True)
class Limits:
    """Seconds to connect, between two reads, and for a whole answer; how often to ask again."""

    connect_s: float = 10.0
    read_s: float = 30.0
    answer_s: float = 60.0
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class Answer:
    """What came: a status below 500 other than 429, headers without regard to case, the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """Asks over HTTP. Proxies come from the environment, as requests reads them."""

    def __init__(self, limits: Limits, insecure: frozenset[str]) -> None:
        self._limits = limits
        self._insecure = insecure
        self._session = requests.Session()

    def plain_allowed(self, host: str) -> bool:
        """Whether `host[:port]` may be asked without TLS: near by, or listed as insecure."""
        return is_nearby(host) or host in self._insecure or strip_port(host) in self._insecure

    def speaks_tls(self, host: str, asked: str) -> bool:
        """Whether a host that may be asked without TLS has it anyway. Sends no credentials.

        Raises RegistryError when it has TLS with a certificate that nobody vouches for: falling
        back to no TLS there would be worse than stopping.
        """
        try:
            self._once("GET", f"https://{host}/v2/", {}, None, None)
        except _Failed as failed:
            if failed.certificate:
                raise failed.error(f"https://{host}", asked) from None
            return False
        return True

    def ask(
        self,
        method: str,
        url: str,
        *,
        asked: str,
        headers: Mapping[str, str] | None = None,
        authorization: str | None = None,
        form: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask until something other than 429, 5xx or a broken connection comes.

        `asked` says in words what is asked for. Raises RegistryError when patience ends.
        """
        base = base_of(url)
        waiting = self._limits.patience.begin()
        while True:
            try:
                answer = self._followed(method, url, headers or {}, authorization, form)
            except _Failed as failed:
                if not failed.lasting and waiting.again():
                    continue
                raise failed.error(base, asked) from None
            if answer.status != 429 and answer.status < 500:
                return answer
            retry_after = answer.headers.get("Retry-After")
            if not waiting.again(retry_after):
                raise _refused(urlsplit(url).netloc, asked, answer.status, retry_after)

    def _followed(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        authorization: str | None,
        form: Mapping[str, str] | None,
    ) -> Answer:
        """Follow redirects. What proves who we are goes to the first host alone."""
        origin = base_of(url)
        for _ in range(_MAX_REDIRECTS):
            answer = self._once(method, url, headers, authorization, form)
            location = answer.headers.get("Location")
            if answer.status not in (301, 302, 303, 307, 308) or not location or form is not None:
                return answer
            try:
                url = urljoin(url, location)
                scheme, host = urlsplit(url)[:2]
            except ValueError:
                raise _Failed("a redirect to no address", garbage=True) from None
            if scheme != "https" and not (scheme == "http" and self.plain_allowed(host)):
                raise _Failed("a redirect to an address without TLS", garbage=True)
            if f"{scheme}://{host}" != origin:
                authorization = None
        raise _Failed(f"more than {_MAX_REDIRECTS} redirects", garbage=True)

    def _once(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        authorization: str | None,
        form: Mapping[str, str] | None,
    ) -> Answer:
        limits = self._limits
        host = urlsplit(url).netloc
        ends = time.monotonic() + limits.answer_s
        try:
            with self._session.request(
                method,
                url,
                # identity: digests are over the bytes as the registry keeps them.
                headers={"Accept-Encoding": "identity", "User-Agent": "sglang-node", **headers},
                data=form,
                auth=_Authorization(authorization),
                timeout=(limits.connect_s, limits.read_s),
                allow_redirects=False,
                stream=True,
                # Nothing on this machine is reached through a proxy, whatever the environment says.
                proxies={"no_proxy": strip_port(host)} if is_loopback(host) else None,
            ) as response:
                body = bytearray()
                for chunk in response.iter_content(65536):
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        raise _Failed("more than 4 MiB, which no manifest has", garbage=True)
                    if time.monotonic() > ends:
                        raise _Failed(f"an answer not finished in {limits.answer_s:.0f} s")
                return Answer(response.status_code, response.headers, bytes(body))
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _why(error, limits) from None
        except ValueError:  # what libraries say of an address or header they cannot put together
            raise _Failed("an address or header that is not valid", garbage=True) from None


class _Authorization(AuthBase):
    """Our own header or none: without this, requests would look into ~/.netrc."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value is not None:
            request.headers["Authorization"] = self._value
        return request


class _Failed(Exception):
    """One attempt that brought no answer."""

    def __init__(self, came: str, *, garbage: bool = False, certificate: bool = False) -> None:
        super().__init__(came)
        self.came = came
        self.garbage = garbage
        self.certificate = certificate
        self.lasting = garbage or certificate

    def error(self, base: str, asked: str) -> RegistryError:
        host = urlsplit(base).netloc
        command = f"curl -sI {base}/v2/"
        if self.garbage:
            return RegistryError(
                "REGISTRY_GARBAGE",
                host=host,
                asked=asked,
                came=f"there came {self.came}",
                mend="Is this a registry? A login page or proxy may stand before it.",
                command=command,
            )
        mend = f"See whether this machine reaches it{_proxy(host)}: {command}"
        if self.certificate:
            mend = (
                "Add the certificate of its authority to this machine, or name the file in "
                "REQUESTS_CA_BUNDLE."
            )
        return RegistryError(
            "REGISTRY_UNREACHABLE",
            host=host,
            asked=asked,
            came=self.came,
            mend=mend,
            command=command,
        )


def _why(error: Exception, limits: Limits) -> _Failed:
    """Say in words what ended a request. Never the exception's own text: it may hold a URL."""
    causes = list(_causes(error))
    text = " ".join(str(cause) for cause in causes)
    if any(isinstance(cause, requests.exceptions.SSLError) for cause in causes):
        if "CERTIFICATE_VERIFY_FAILED" in text or "doesn't match" in text:
            return _Failed("its TLS certificate is not trusted here", certificate=True)
        return _Failed("the TLS connection failed")
    if isinstance(error, requests.exceptions.ConnectTimeout):
        return _Failed(f"no connection in {limits.connect_s:.0f} s")
    if isinstance(error, requests.exceptions.ProxyError):
        return _Failed("the proxy did not let the connection through")
    if isinstance(error, requests.exceptions.Timeout) or "Read timed out" in text:
        return _Failed(f"connected, and then silence for {limits.read_s:.0f} s")
    if any(isinstance(cause, urllib3.exceptions.NameResolutionError) for cause in causes):
        return _Failed("its name was not found")
    for cause in causes:
        if isinstance(cause, http.client.RemoteDisconnected):
            return _Failed("it closed the connection without an answer")
        if isinstance(cause, ConnectionRefusedError):
            return _Failed("it refused the connection")
        if isinstance(cause, http.client.IncompleteRead | urllib3.exceptions.IncompleteRead):
            return _Failed("the answer broke off")
    if any(isinstance(cause, http.client.HTTPException) for cause in causes):
        return _Failed("something that is not HTTP", garbage=True)
    if isinstance(error, requests.exceptions.ContentDecodingError | requests.exceptions.InvalidURL):
        return _Failed("an answer that cannot be read", garbage=True)
    return _Failed("the connection failed")


def _causes(error: BaseException) -> list[BaseException]:
    """An exception and all that stands behind it, each once."""
    found: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(found) < 50:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and all(one is not other for other in found):
            found.append(one)
            waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
    return found


def _refused(host: str, asked: str, status: int, retry_after: str | None) -> RegistryError:
    if status == 429:
        when = (
            retry_after if retry_after and retry_after.isdigit() and retry_after.isascii() else ""
        )
        later = f"in {when[:9]} s" if when else "later"
        return RegistryError(
            "REGISTRY_RATE_LIMITED",
            host=host,
            asked=asked,
            came="too many requests from this address or user (HTTP 429)",
            mend=f"Try again {later}, log in (docker login {login_name(host)}), or name a mirror.",
            command=f"docker login {login_name(host)}",
        )
    return RegistryError(
        "REGISTRY_UNAVAILABLE",
        host=host,
        asked=asked,
        came=f"it failed with HTTP {status}",
        mend="The registry itself is in trouble: try again later, or name a mirror.",
    )


def base_of(url: str) -> str:
    """Return scheme and host of a URL, without anything that may be a secret."""
    scheme, host = urlsplit(url)[:2]
    return f"{scheme}://{host}"


def login_name(host: str) -> str:
    """Return what `docker login` calls a host."""
    return "docker.io" if host == "registry-1.docker.io" else host


def _proxy(host: str) -> str:
    """Say which proxy the environment names for a host, without the password in it."""
    if is_loopback(host):
        return ""
    url = requests.utils.select_proxy(
        f"https://{host}", requests.utils.get_environ_proxies(f"https://{host}", no_proxy=None)
    )
    if not url:
        return " (no proxy is set in the environment)"
    try:
        place = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        place = "which cannot be read"
    return f" (through the proxy {place}; HTTPS_PROXY and NO_PROXY decide that)"
