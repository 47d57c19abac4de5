"""A certificate authority for one executor: kept in memory, and trusted only in its cells."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..lib.hosts import as_address

_DAYS = 30  # an executor that lives longer makes new ones
_MAX_HOSTS = 1000


class Authority:
    """Issues certificates for hosts, for cells that trust it. Its key never leaves this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._made = _now()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Redoma, for one executor")])
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = (
            _builder(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(own, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def is_old(self) -> bool:
        """Whether its certificates expire soon."""
        return _now() > self._made + datetime.timedelta(days=_DAYS // 2)

    @property
    def certificate(self) -> bytes:
        """Its certificate, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """Return a server context with a certificate for this host. It offers HTTP/1.1 only."""
        with self._lock:
            if host not in self._contexts:
                if len(self._contexts) >= _MAX_HOSTS:
                    self._contexts.clear()
                self._contexts[host] = self._context(host)
            return self._contexts[host]

    def _context(self, host: str) -> ssl.SSLContext:
        address = as_address(host)
        name = x509.DNSName(host) if address is None else x509.IPAddress(ipaddress.ip_address(host))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        issuer = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        public = self._leaf_key.public_key()
        certificate = (
            _builder(subject, self._certificate.subject, public)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # OpenSSL takes a path only; this one is memory that nobody else has a name for.
        memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(key + certificate.public_bytes(serialization.Encoding.PEM))
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
        return context


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
