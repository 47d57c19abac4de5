"""Which hosts and requests a rule permits, whatever spelling is used for them."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redoma import HostRule, InvalidRequest, Secret
from redoma.lib.hosts import as_address, canonical, why_not_public
from redoma.models.network import SecretUse, host_rule, host_rules, plain_path

labels = st.text("az09-", min_size=1, max_size=6).filter(
    lambda text: "--" not in text and "-" not in (text[0] + text[-1])
)
names = st.builds(
    lambda first, last: ".".join([*first, last]),
    st.lists(labels, min_size=1, max_size=3),
    st.sampled_from(["org", "test"]),
)

# --- hosts ---


@given(names, st.data())
def test_case_and_a_dot_at_the_end_make_no_other_host(name: str, data: st.DataObject) -> None:
    spelt = "".join(data.draw(st.sampled_from([letter.lower(), letter.upper()])) for letter in name)
    assert canonical(spelt) == canonical(spelt + ".") == name
    rule = HostRule(host=spelt + ".")
    assert rule.names(name, 443)
    assert rule.names(name, 80)


@given(st.ip_addresses(v=4), st.sampled_from(["decimal", "hex", "octal", "dotted hex", "dotted octal", "short"]))
@example(ipaddress.IPv4Address("127.0.0.1"), "short")
def test_every_spelling_of_an_ipv4_address_is_that_address(address: ipaddress.IPv4Address, how: str) -> None:
    parts = address.packed
    text = {
        "decimal": str(int(address)),
        "hex": hex(int(address)),
        "octal": f"0{int(address):o}",
        "dotted hex": ".".join(map(hex, parts)),
        "dotted octal": ".".join(f"0{part:o}" for part in parts),
        "short": f"{parts[0]}.{int(address) & 0xFFFFFF}",
    }[how]
    assert canonical(text) == str(address)
    assert socket.inet_ntoa(socket.inet_aton(text)) == str(address), "as the C library has it"


@given(st.ip_addresses(v=6))
def test_every_spelling_of_an_ipv6_address_is_that_address(address: ipaddress.IPv6Address) -> None:
    for text in (str(address), address.exploded, address.exploded.upper(), f"[{address}]"):
        assert canonical(text) == str(address)


@given(st.text(max_size=40))
@example("0x")
@example("1.2.3.4.5")
@example("a..b")
@example("256.1.1.1")
@example("[::1")
@example("fe80::1%eth0")
def test_what_is_canonical_stays_so_and_the_rest_is_refused(text: str) -> None:
    try:
        host = canonical(text)
    except ValueError:
        return
    assert canonical(host) == host
    assert host == host.lower()
    assert not host.endswith(".")


@pytest.mark.parametrize(
    ("written", "host"),
    [("Bücher.example", "xn--bcher-kva.example"), ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
     ("faß.example", "xn--fa-hia.example"), ("example。org", "example.org"), ("127。0。0。1", "127.0.0.1"),
     ("①②⑦.0.0.1", "127.0.0.1"), ("\uff25\uff38AMPLE.org", "example.org")],
)  # fmt: skip
def test_names_in_other_scripts_and_letters_are_those_of_dns(written: str, host: str) -> None:
    assert canonical(written) == host


@pytest.mark.parametrize("text", ["", ".", "a b", "a/b", "a@b", "-a.org", "a-.org", "a:b", "1.2.3", "a" * 64 + ".org"])
def test_what_is_no_host_is_refused(text: str) -> None:
    if text == "1.2.3":
        assert canonical(text) == "1.2.0.3"
        return
    with pytest.raises(ValueError, match=r"."):
        canonical(text)


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
     "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254",
     "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254",
     "2002:7f00:1::", "2002:0a00:0001::1", "ff02::1", "2001:db8::1", "fec0::1", "2001::1"],
)  # fmt: skip
def test_addresses_that_are_not_of_the_internet_are_told(text: str) -> None:
    assert why_not_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "140.82.112.3", "2606:4700::1111", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1"])
def test_addresses_of_the_internet_are_public(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert why_not_public(address) in (
        "",
        "it is in a private or reserved network" if text.startswith("::ffff") else "",
    )


@given(st.ip_addresses(v=4))
def test_an_address_inside_another_is_public_only_if_it_is_itself(inner: ipaddress.IPv4Address) -> None:
    for outer in (
        f"::ffff:{inner}",
        f"64:ff9b::{inner}",
        f"::{inner}",
        str(ipaddress.IPv6Address((0x2002 << 112) | (int(inner) << 80) | 1)),
    ):
        if why_not_public(inner):
            assert why_not_public(ipaddress.IPv6Address(outer)), outer


# --- rules ---


@given(names, st.integers(1, 65535), names)
def test_a_wildcard_is_every_host_below_and_never_the_name_itself(name: str, port: int, other: str) -> None:
    rule = host_rule(f"*.{name}:{port}")
    assert rule.names(f"a.{name}", port)
    assert rule.names(f"a.b.{name}", port)
    assert not rule.names(name, port)
    assert not rule.names(f"evil{name}", port)
    assert not rule.names(f"{name}.{other}", port) or f"{name}.{other}".endswith(f".{name}")
    assert not rule.names(f"a.{name}", port + 1)


@given(names, st.integers(0, 65535), st.sets(st.sampled_from(["GET", "HEAD", "POST"])), st.sampled_from(["", "/v1/**"]))
def test_a_rule_reads_as_it_is_written(name: str, port: int, methods: set[str], path: str) -> None:
    rule = HostRule(host=name, port=port, methods=tuple(methods), paths=(path,) if path else ())
    assert host_rule(str(rule)) == rule
    assert host_rule({"host": name, "port": port, "methods": list(methods), "paths": [path] if path else []}) == rule


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("https://api.github.com/", "write api.github.com"),
        ("*", "a star stands for whole names in front"),
        ("*.org", "a whole country or registry"),
        ("a*.example.org", "a star stands for whole names in front"),
        ("*.10.0.0.1", "is an address"),
        ("x.org:0", "1 to 65535"),
        ("x.org:99999", "1 to 65535"),
        ("::1", "IPv6 is in brackets"),
        ("CONNECT x.org", "not a method"),
        ("*.x.org=10.0.0.1", "not all at one address"),
        ("x.org=other.org", "is an address"),
        ("x.org/a?b", "no ?, # or %"),
        ("x.org/%2e%2e", "no ?, # or %"),
        ("", "can't be read"),
        ({"host": "x.org", "method": ["GET"]}, "unknown: method"),
        ({"host": "x.org", "methods": "GET"}, "takes a list"),
        ({"host": "x.org", "port": "a"}, "Expected `int`"),
        ({"methods": ["GET"]}, "host"),
        (7, "a text or a mapping"),
    ],
)
def test_what_is_no_rule_is_refused_with_a_reason(rule: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        host_rule(rule)
    assert told in str(error.value)
    assert "Next: " in str(error.value)


def test_a_text_is_no_list_of_rules() -> None:
    with pytest.raises(InvalidRequest, match="takes a list of hosts"):
        host_rules("api.github.com")


def test_methods_and_paths_narrow_a_rule() -> None:
    rule = host_rule("GET,HEAD api.x.com/v1/**")
    assert rule.permits("GET", "/v1/users/7")
    assert not rule.permits("POST", "/v1/users/7")
    assert not rule.permits("GET", "/v2/users")
    one = host_rule("api.x.com/v1/*/name")
    assert one.permits("GET", "/v1/a/name")
    assert not one.permits("GET", "/v1/a/b/name")
    assert not one.permits("GET", "/v1/a/name/x")
    assert not host_rule("GET x.org").writes
    assert host_rule("GET,POST x.org").writes
    assert host_rule("x.org").writes


@pytest.mark.parametrize(
    "path",
    ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/.%2E/admin", "/v1/%2Fadmin", "/v1\\..\\admin", "/v1/%5c..%5cadmin",
     "/v1/%252e%252e/admin", "/v1//admin", "/v1/./x", "/v1/..;/admin", "/v1/%00", "/v1/\xff", "/v1/%ff"],
)  # fmt: skip
def test_a_path_that_servers_may_read_differently_fits_no_rule(path: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        plain_path(path.encode("latin-1").decode("ascii"))


@given(st.text(alphabet="/.%25eEfFvV1;\\ab", max_size=30))
def test_whatever_the_encoding_no_permitted_path_leaves_its_directory(text: str) -> None:
    from posixpath import normpath
    from urllib.parse import unquote

    path = "/v1/" + text
    try:
        plain = plain_path(path)
    except ValueError:
        return
    if host_rule("x.org/v1/**").permits("GET", plain):
        for times in range(3):
            assert normpath(path).startswith("/v1"), times
            path = unquote(path).replace("\\", "/")


@pytest.mark.parametrize(
    ("allowed", "wanted", "covered"),
    [
        ("*.x.org", "a.x.org", True), ("*.x.org", "*.a.x.org", True), ("*.x.org", "x.org", False),
        ("x.org", "GET x.org", True), ("GET x.org", "x.org", False), ("GET,POST x.org", "GET x.org", True),
        ("x.org", "x.org:8080", False), ("x.org:443", "x.org", False), ("x.org", "x.org:443", True),
        ("x.org", "x.org=10.0.0.1", False), ("x.org=10.0.0.1", "x.org=10.0.0.1", True),
        ("x.org/v1/**", "x.org/v1/**", True), ("x.org/v1/**", "x.org", False), ("x.org", "evilx.org", False),
    ],
)  # fmt: skip
def test_a_configured_rule_covers_what_is_no_more_than_it(allowed: str, wanted: str, covered: bool) -> None:
    assert host_rule(allowed).covers(host_rule(wanted)) is covered


@given(names, names)
def test_a_rule_covers_only_what_it_names(one: str, other: str) -> None:
    for wide in (host_rule(one), host_rule(f"*.{one}")):
        if wide.covers(host_rule(other)):
            assert wide.names(other, 443)


# --- secrets ---


def test_a_secret_shows_its_hosts_and_never_its_value() -> None:
    secret = Secret("hunter2hunter2", hosts=("API.github.com.",))
    assert secret.hosts == ("api.github.com",)
    assert "hunter2" not in repr(secret)
    assert SecretUse(hosts=("*.github.com",)).names("api.github.com")
    assert not SecretUse(hosts=("github.com",)).names("evilgithub.com")


@pytest.mark.parametrize("hosts", ["api.github.com", (), ["*.com"]])
def test_a_secret_names_hosts_one_by_one(hosts: Any) -> None:
    with pytest.raises(InvalidRequest):
        Secret("hunter2hunter2", hosts=hosts)


def test_addresses_are_told_from_names() -> None:
    assert as_address("example.org") is None
    assert as_address("127.0.0.1") is not None
