"""One place that serves images: a registry or a mirror of it, and how it wants to be asked."""

import json
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import quote, urlencode, urlsplit

from locks.challenges import Challenge, parse_challenges
from locks.credentials import Found
from locks.failures import RegistryError
from locks.references import is_host
from locks.transport import Answer, Transport, login_name


@dataclass(frozen=True)
class Address:
    """`host[:port]`; `scheme` when it is settled; `prefix` before every repository (a mirror's)."""

    host: str
    scheme: str | None = None
    prefix: str = ""


class Endpoint:
    """Asks one registry, authenticates when it wants that, and turns refusals into sentences."""

    def __init__(self, address: Address, transport: Transport, found: Found) -> None:
        self.host = address.host
        self._address = address
        self._transport = transport
        self._found = found
        self._scheme = address.scheme
        self._authorization: dict[str, str] = {}

    def ask(
        self, method: str, repository: str, kind: str, name: str, *, accept: str, asked: str
    ) -> Answer:
        """Ask for a manifest or blob (`kind`) of a repository and return an answer with HTTP 200.

        Raises RegistryError for everything else.
        """
        repository = f"{self._address.prefix}{repository}"
        url = f"{self._base(asked)}/v2/{repository}/{kind}/{name}"
        answer = self._with_token(method, url, repository, accept, asked)
        if answer.status == 401:
            self._authenticate(answer, repository, asked)
            answer = self._with_token(method, url, repository, accept, asked)
        if answer.status == 200:
            return answer
        if answer.status in (401, 403):
            self._refuse(asked, f"it refused (HTTP {answer.status}{_server_code(answer)})")
        if answer.status == 404:
            raise RegistryError(
                "REGISTRY_NOT_FOUND",
                host=self.host,
                asked=asked,
                came=f"it has none (HTTP 404{_server_code(answer)})",
                mend="Check the spelling of repository and tag.",
            )
        raise self._garbage(asked, f"HTTP {answer.status}")

    def _base(self, asked: str) -> str:
        if self._scheme is None:
            plain = self._transport.plain_allowed(self.host)
            tls = not plain or self._transport.speaks_tls(self.host, asked)
            self._scheme = "https" if tls else "http"
        return f"{self._scheme}://{self.host}"

    def _with_token(
        self, method: str, url: str, repository: str, accept: str, asked: str
    ) -> Answer:
        return self._transport.ask(
            method,
            url,
            asked=asked,
            headers={"Accept": accept},
            authorization=self._authorization.get(repository),
        )

    def _authenticate(self, refusal: Answer, repository: str, asked: str) -> None:
        """Do what the first challenge we understand asks for; keep the outcome per repository."""
        challenges = parse_challenges(refusal.headers.get("WWW-Authenticate", ""))
        for challenge in challenges:
            if challenge.scheme == "bearer" and "realm" in challenge.parameters:
                token = self._token(challenge, repository, asked)
                self._authorization[repository] = f"Bearer {token}"
                return
            if challenge.scheme == "basic":
                credentials = self._found.credentials
                if credentials is None or not credentials.username:
                    self._refuse(asked, f"it wants a login (HTTP 401{_server_code(refusal)})")
                self._authorization[repository] = credentials.basic()
                return
        raise self._garbage(asked, "HTTP 401 without a way to log in that this program knows")

    def _token(self, challenge: Challenge, repository: str, asked: str) -> str:
        realm = challenge.parameters["realm"]
        service = challenge.parameters.get("service", "")
        scope = challenge.parameters.get("scope") or f"repository:{repository}:pull"
        try:
            parts = urlsplit(realm)
            host = parts.netloc
            secure = parts.scheme == "https"
            plain = parts.scheme == "http" and self._transport.plain_allowed(host)
        except ValueError:
            raise self._garbage(asked, "a challenge whose realm is no address") from None
        if not is_host(host) or not (secure or plain):
            raise self._garbage(asked, "a challenge that sends the login to a place without TLS")
        credentials = self._found.credentials
        words = f"a token for {asked}"
        if credentials is not None and credentials.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": credentials.identity_token,
                "service": service,
                "scope": scope,
                "client_id": "sglang-node",
            }
            answer = self._transport.ask("POST", realm, asked=words, form=form)
        else:
            query = urlencode({"service": service, "scope": scope}, quote_via=quote)
            url = f"{realm}{'&' if parts.query else '?'}{query}"
            basic = credentials.basic() if credentials is not None else None
            answer = self._transport.ask("GET", url, asked=words, authorization=basic)
        if answer.status in (400, 401, 403):
            self._refuse(asked, f"{host} gave no token (HTTP {answer.status})")
        token = _token_in(answer)
        if token is None:
            raise self._garbage(asked, f"HTTP {answer.status} without a token from {host}")
        return token

    def _refuse(self, asked: str, came: str) -> NoReturn:
        found = self._found
        name = login_name(self.host)
        if found.credentials is not None:
            mend = f"The login from {found.credentials.source} does not open it: log in anew"
        elif found.note is not None:
            mend = f"No login was found, and {found.note}: mend that, or log in"
        else:
            mend = "It does not exist, or it is private and no login is known: log in"
        raise RegistryError(
            "REGISTRY_UNAUTHORIZED",
            host=self.host,
            asked=asked,
            came=came,
            mend=f"{mend} (docker login {name}), or check the spelling.",
            command=f"docker login {name}",
        )

    def _garbage(self, asked: str, came: str) -> RegistryError:
        return RegistryError(
            "REGISTRY_GARBAGE",
            host=self.host,
            asked=asked,
            came=f"there came {came}",
            mend="Is this a registry? A login page or proxy may stand before it.",
            command=f"curl -sI {self._scheme or 'https'}://{self.host}/v2/",
        )


# The codes of the distribution specification, so that no other text of a server is ever repeated.
_KNOWN_CODES = {
    "BLOB_UNKNOWN",
    "DENIED",
    "DIGEST_INVALID",
    "MANIFEST_INVALID",
    "MANIFEST_UNKNOWN",
    "NAME_INVALID",
    "NAME_UNKNOWN",
    "TAG_INVALID",
    "TOOMANYREQUESTS",
    "UNAUTHORIZED",
    "UNSUPPORTED",
}


def _server_code(answer: Answer) -> str:
    try:
        code = json.loads(answer.body)["errors"][0]["code"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    return f", {code}" if isinstance(code, str) and code in _KNOWN_CODES else ""


def _token_in(answer: Answer) -> str | None:
    """The token in an answer; None unless it is one that may stand in a header."""
    try:
        data = json.loads(answer.body)
        token = data.get("token") or data.get("access_token")
    except (ValueError, AttributeError, RecursionError):
        return None
    good = isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token
    return token if answer.status == 200 and good else None
