"""What programs inside of a cell are given so that they find the proxy: variables and files."""

from __future__ import annotations

import ssl
from contextlib import suppress
from importlib import resources
from pathlib import Path

CERTIFICATES, _NODE, _WGET = "certificates.pem", "node_proxy.cjs", "wgetrc"
_TRUST = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT"),
    *("AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "NPM_CONFIG_CAFILE"),
)
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where distributions keep all authorities in one file, if Python does not know."""


def variables(address: str, place: str, certificate: bytes) -> dict[str, str]:
    """Return environment variables that tell programs where the proxy is (`address`, host and port), and which
    certificates to trust. `place` is the directory that has `files`; `certificate` is empty if no TLS is read.
    """
    http, socks = f"http://{address}", f"socks5h://{address}"
    # Not SOCKS for everything: httpx refuses to start with it unless a further package is there.
    found = {"HTTP_PROXY": http, "HTTPS_PROXY": http, "ALL_PROXY": http, "SOCKS_PROXY": socks, "NO_PROXY": ""}
    found |= {name.lower(): value for name, value in found.items()}
    found["NODE_USE_ENV_PROXY"] = "1"  # Node's own fetch looks at the others only then, and before 24 never
    found["NODE_OPTIONS"] = f"--require {place}/{_NODE}"
    if certificate:
        found |= {**dict.fromkeys(_TRUST, f"{place}/{CERTIFICATES}"), "WGETRC": f"{place}/{_WGET}"}
    return found


def files(place: str, certificate: bytes) -> dict[str, bytes]:
    """Return the files that go with `variables`, by their path in the cell."""
    found = {_NODE: resources.files(__package__).joinpath(_NODE).read_bytes()}
    if certificate:
        found[CERTIFICATES] = certificate + _bundle()
        found[_WGET] = f"ca_certificate={place}/{CERTIFICATES}\n".encode()
    return {f"{place}/{name}": content for name, content in found.items()}


def _bundle() -> bytes:
    """Return the certificates of all authorities that this machine trusts, as PEM; nothing if it has no such file."""
    for path in (ssl.get_default_verify_paths().cafile, *_BUNDLES):
        with suppress(OSError, TypeError):
            return Path(path or "").read_bytes()
    return b""  # then only hosts that our authority vouches for can be verified there
