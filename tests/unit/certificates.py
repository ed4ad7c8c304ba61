"""Certificates made for a test, each signed by itself."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def pair(
    *names: str, begins: float = -1, days: float = 90, passphrase: str | None = None
) -> tuple[str, str]:
    """Return a certificate for these names and its key, in PEM; ``begins``: days from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "door")])
    begin = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=begins)
    dns = [x509.DNSName(name) for name in names or ("llm.example.org",)]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(dns), critical=False)
        .sign(key, hashes.SHA256())
    )
    shut: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        shut = serialization.BestAvailableEncryption(passphrase.encode())
    form = serialization.Encoding.PEM
    text = key.private_bytes(form, serialization.PrivateFormat.PKCS8, shut).decode()
    return made.public_bytes(form).decode(), text
