"""The door's certificate, as the survey read it: whether clients would take it, and until when."""

from __future__ import annotations

import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta

from cryptography import x509

from facts.records import DoorState, Survey, known
from plans.doorwish import Tls
from plans.findings import Findings
from plans.refusals import Caution

SOON = timedelta(days=14)
"""Before its end: certbot renews one of 90 days 30 days before, so that by now that did not happen."""

_KEY = {
    "differs": ("is of another certificate", "give both files of one pair"),
    "encrypted": (
        "needs a passphrase, which nobody can give when the node starts",
        "openssl pkey -in {key} -out NEW, readable for root alone",
    ),
    "unreadable": ("could not be read", "sudo head -c 30 {key} on the node, then plan again"),
    "absent": ("is not there", "ls -l {key} on the node"),
    "unknown": (
        "could not be compared with it: neither Python's ssl nor openssl is on the node",
        "apt-get install openssl, or dnf install openssl",
    ),
}


def is_renewed(there: DoorState) -> bool:
    """Say whether a door that runs has another certificate than the one in place."""
    text = there.tls.certificate
    if not known(text) or not known(there.certificate):
        return False
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest() != there.certificate


def check_certificate(tls: Tls, survey: Survey, found: Findings) -> tuple[str, ...]:
    """Say until when the certificate is good, and for whom; refuse one that clients would not take."""
    there = survey.door.tls
    if there.key == "holds-key":
        found.refuse(
            "DOOR_CERTIFICATE_UNREAD",
            None,
            f"{tls.certificate} holds a private key too, which is not to leave the node",
            "the certificate, and those that signed it, in a file without the key",
            f"sed -n '/BEGIN CERT/,/END CERT/p' {tls.certificate} > NEW on the node, as root",
        )
        return ()
    if not known(there.certificate):
        _refuse_unread(tls, f"{tls.certificate} could not be read ({there.certificate})", found)
        return ()
    try:
        certificate = x509.load_pem_x509_certificates(there.certificate.encode())[0]
        names = _names(certificate)
    except (ValueError, IndexError, x509.DuplicateExtension, UnicodeEncodeError) as problem:
        _refuse_unread(tls, f"{tls.certificate} is no certificate in PEM ({problem})", found)
        return ()
    if there.key != "fits":
        word = there.key if known(there.key) and there.key in _KEY else "unknown"
        seen, mends = _KEY[word]
        found.refuse(
            "DOOR_CERTIFICATE_KEY",
            None,
            f"the key {tls.key} of the door's certificate {seen}",
            f"the private key of {tls.certificate}, without a passphrase",
            mends.format(key=tls.key),
        )
    if tls.name is not None and not any(_is_for(one, tls.name) for one in names):
        found.refuse(
            "DOOR_CERTIFICATE_NAME",
            None,
            f"{tls.certificate} is for {', '.join(names) or 'no name'}, and not for {tls.name}",
            f"a certificate for {tls.name}",
            "have one made for that name, or write the other as name under door.tls",
        )
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = survey.host.time_epoch
    said = f"the door speaks TLS, its certificate is for {', '.join(names) or 'no name'}"
    if not known(clock):
        return (f"{said}, from {_day(begins)} to {_day(ends)}; the node's clock was not read",)
    now = datetime.fromtimestamp(clock, UTC)
    if not begins <= now <= ends:
        found.refuse(
            "DOOR_CERTIFICATE_DATES",
            None,
            f"{tls.certificate} is good from {_day(begins)} to {_day(ends)}, and on the node it is "
            f"{_day(now)}",
            "a certificate that is good now",
            "renew it (certbot renew), or set the node's clock: timedatectl",
        )
    elif ends - now < SOON:
        found.cautions.append(
            Caution(
                "DOOR_CERTIFICATE_ENDS",
                f"the door's certificate ends on {_day(ends)}: what renews it has not done so; the "
                "door takes a new one within ten minutes, or at systemctl start sglang-door-renew",
            )
        )
    return (f"{said}, until {_day(ends)}",)


def _refuse_unread(tls: Tls, seen: str, found: Findings) -> None:
    found.refuse(
        "DOOR_CERTIFICATE_UNREAD",
        None,
        seen,
        "the door's certificate, and those that signed it, as a file in PEM on the node",
        f"openssl x509 -in {tls.certificate} -noout -dates on the node, as root",
    )


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        given = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (
        *given.get_values_for_type(x509.DNSName),
        *(str(one) for one in given.get_values_for_type(x509.IPAddress)),
    )


def _is_for(given: str, wanted: str) -> bool:
    """Say whether a certificate's name covers another; a star stands for one label (RFC 9525, 6.3)."""
    try:
        return ipaddress.ip_address(given) == ipaddress.ip_address(wanted)
    except ValueError:
        pass
    given, wanted = given.lower(), wanted.lower()
    first, _, rest = wanted.partition(".")
    return given == wanted or (bool(first and rest) and given == f"*.{rest}")


def _day(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
