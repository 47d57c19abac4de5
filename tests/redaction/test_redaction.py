"""Secrets and personal data are found, ordinary text is left alone, and known values go in every encoding."""

from __future__ import annotations

import base64
import html
import json
import subprocess
import sys
import urllib.parse

import pytest
import sensitive_outputs as outputs
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pace import least_cpu
from redoma.redaction import MIN_SECRET, PERSONAL_KINDS, SECRET_KINDS, Redactor, scan
from redoma.redaction.patterns import PATTERNS, Pattern
from redoma.redaction.redactor import MAX_DEPTH, MAX_ITEMS
from redoma.redaction.services import DISTINCT, PLAUSIBLE, Service

RANDOM = "q7RtY2uI9oP4aS6dF8gH1jK3lZ5xC0vB7nM2wE4r"
KEY = "AKIAIOSFODNN7EXAMPLE"
HEX = "9f86d081884c7d659a2feaa0c55ad015"

# (kind, text with the sensitive part between « and »). Written apart from the patterns' own examples.
SENSITIVE = [
    ("aws-access-key", "aws_access_key_id = «AKIAI44QH7DHBEXAMPLE»"),
    ("aws-access-key", "arn for «ASIAIOSFODNN7EXAMPLE», expired"),
    ("aws-access-key", "https://s3.host/b?AWSAccessKeyId=«AKIAIOSFODNN7EXAMPLE»&Expires=1"),
    ("aws-secret-key", "aws_secret_access_key=«je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY»"),
    ("aws-secret-key", "export AWS_SECRET_ACCESS_KEY='«je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY»'"),
    ("aws-secret-key", '{"SecretAccessKey" : "«je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY»"}'),
    ("github-token", f"git clone with «ghp_{RANDOM[:36]}»"),
    ("github-token", f"GH=«gho_{RANDOM[:36]}»"),
    ("github-token", f"remote: «ghs_{RANDOM[:36]}»."),
    ("github-token", f"«github_pat_{RANDOM[:22]}_{RANDOM}{RANDOM[:19]}»"),
    ("gitlab-token", f"PRIVATE-TOKEN: «glpat-{RANDOM[:20]}»"),
    ("gitlab-token", f"runner «glrt-{RANDOM[:20]}» registered"),
    ("slack-token", f"slack «xoxp-1234567890-{RANDOM[:24]}»"),
    ("slack-token", f"app «xapp-1-A01-{RANDOM[:24]}»"),
    ("slack-token", f"POST https://«hooks.slack.com/services/T024BE7LD/B024BE7LE/{RANDOM[:24]}»"),
    ("stripe-key", f"Stripe(«sk_live_{RANDOM[:24]}»)"),
    ("stripe-key", f"«rk_live_{RANDOM[:24]}»"),
    ("google-key", f"maps?key=«AIza{RANDOM[:35]}»"),
    ("google-key", f"secret «GOCSPX-{RANDOM[:28]}»"),
    ("openai-key", f"OpenAI(«sk-{RANDOM}»)"),
    ("openai-key", f"using «sk-proj-{RANDOM}»"),
    ("anthropic-key", f"x-api-key «sk-ant-api03-{RANDOM}-AA»"),
    ("npm-token", f"//registry/:_authToken «npm_{RANDOM[:36]}»"),
    ("pypi-token", f"twine upload -p «pypi-AgEIcHlwaS5vcmc{RANDOM}»"),
    ("sendgrid-key", f"«SG.{RANDOM[:22]}.{RANDOM}abc»"),
    ("twilio-key", f"twilio «SK{HEX}» ok"),
    ("telegram-token", "bot«123456789:AA" + RANDOM[:33] + "»/getMe"),
    ("service-token", f"login «hf_{RANDOM[:34]}»"),
    ("service-token", f"doctl «dop_v1_{HEX}{HEX}»"),
    ("service-token", f"docker login «dckr_pat_{RANDOM[:27]}»"),
    ("jwt", "cookie «eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9.eyJpZCI6NDJ9.4pcPyMD09olPSyXnrXCjTwXyr4BsezdI1AVTmud2fU4»;"),
    ("jwt", "unsigned «eyJhbGciOiJub25lIiwidCI6MX0.eyJhZG1pbiI6dHJ1ZX0.» accepted"),
    ("private-key", "«-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END PRIVATE KEY-----»\nafter"),
    ("private-key", "«-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----»"),
    ("private-key", "«-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIrYSSNQFaA2Hwf1duRS\nKBf79Q8g»"),
    ("private-key", "«-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIrYSSNQFaA2Hwf1duRS\n»and then other output"),
    ("private-key", "«-----BEGIN PRIVATE KEY-----\nDEK-Info: AES-128-CBC,0A\n\nAA==\n-----END PRIVATE KEY-----»"),
    ("private-key", "cut …\n«QyNTUxOQAAACBb3Blb\nnNzaC1rZXktdjE=\n-----END OPENSSH PRIVATE KEY-----»"),
    ("private-key", 'key: "«-----BEGIN PRIVATE KEY-----\\nMIIEvQ\\n-----END PRIVATE KEY-----»\\n"'),
    ("url-password", "DATABASE_URL=postgresql://app:«Tr0ub4dor»@db.internal:5432/main"),
    ("url-password", "mongodb+srv://root:«p%40ss»@cluster0.host/test"),
    ("url-password", "redis://:«s3cr3t»@cache:6379/0"),
    ("url-password", "git clone https://oauth2:«abc123»@git.host/x.git"),
    ("authorization", "Authorization: Bearer «mF_9.B5f-4.1JqM»"),
    ("authorization", "-H 'authorization: Basic «QWxhZGRpbjpvcGVuIHNlc2FtZQ==»'"),
    ("authorization", '{"Authorization": "Bearer «abcdefghijkl»"}'),
    ("authorization", f"curl: sent Bearer «{RANDOM}»"),
    ("password", 'password = "«correcthorse»"'),
    ("password", "PGPASSWORD=«Tr0ub4dor»\n"),
    ("password", "password: '«letmein»'"),
    ("password", '{"user": "ana", "password": "«s3nh4»"}'),
    ("password", "Server=db;User Id=sa;Password=«Str0ng!Pass»;Encrypt=yes"),
    ("password", "DB_PASS=«tr0ub4dor»\n"),
    ("password", 'password: str = "«hunter2»"'),
    ("password", "senha=«m1nh4s3nh4»"),
    ("password", '{\\"password\\":\\"«hunter2»\\"}'),
    ("password", "login failed, passwd=«abc123def», retry"),
    ("credential", f'api_key = "«{HEX}»"'),
    ("credential", f"API-KEY: «{RANDOM}»"),
    ("credential", f"client_secret=«{RANDOM}»&grant_type=x"),
    ("credential", f"'auth_token': '«{HEX}»'"),
    ("credential", f"AccountName=x;AccountKey=«{RANDOM}==»;EndpointSuffix=core"),
    ("credential", f"os.environ['SECRET_KEY'] = '«{RANDOM}»'"),
    ("card", "paid with «4242 4242 4242 4242» today"),
    ("card", "«5105105105105100»"),
    ("card", "order 4000 «4242 4242 4242 4242»"),
    ("card", "amex «3714 496353 98431»."),
    ("card", "elo «6362-9700-0045-7013»"),
    ("cpf", "CPF «111.444.777-35»"),
    ("cpf", "cpf=«11144477735»;"),
    ("cnpj", "emitente «11.222.333/0001-81»"),
    ("cnpj", "CNPJ: «11222333000181»"),
    ("cnpj", "novo «12.ABC.345/01DE-35»"),
    ("iban", "to «DE89 3704 0044 0532 0130 00» THANK YOU"),
    ("iban", "«FR1420041010050500013M02606»"),
    ("email", "from «maria.silva@empresa.com.br»:"),
    ("email", "mailto:«dev+tag@sub.host.io»?x"),
    ("phone", "ligue «+55 21 98765-4321»"),
    ("phone", "call «+1 (212) 555-0199» now"),
    ("ssn", "SSN: «219-09-9999»"),
]  # fmt: skip

ORDINARY = [
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "id 123e4567-e89b-12d3-a456-426614174000",
    "version 1.2.3-rc.1+build.456",
    "numpy==1.26.4 pandas>=2.0,<3",
    "2026-11-15T21:08:00.123456+00:00",
    "1700000000 1700000000000 1700000000000000 1700000000000000000",
    "order 30569309025905 shipped",
    "192.168.0.1 10.0.0.0/8 fe80::1ff:fe23:4567:890a",
    "00:1A:2B:3C:4D:5E",
    "token = get_token()",
    "token = tokens[0]",
    "def f(token: str, password: str | None = None) -> None:",
    "next_token: null",
    "for token in tokens: print(token)",
    "the token is invalid; token: expired",
    "password policy: at least 12 characters",
    "Enter password: ",
    "password=None",
    'password=""',
    "password = os.environ['DB_PASSWORD']",
    "password=getpass.getpass()",
    "PASSWORD=$PASS",
    'PASSWORD="${PASS:-}"',
    "password=********",
    "password: <your password>",
    "password={{ db_password }}",
    'f"password={password}"',
    '"password": {"type": "string"}',
    "PWD=/home/user/project1",
    "secret: my-secret",
    "secret_name = 'db'",
    "max_tokens=4096, total_tokens: 12345",
    "eos_token_id=151643 pad_token: 151643",
    "api_key = config.api_key_v2",
    "SECRET_FILE=/run/secrets/token1",
    "Authorization: Bearer $TOKEN",
    "Authorization: Bearer {token}",
    "Basic usage: bearer authentication explained",
    "http://localhost:8080/path?x=@home",
    "https://user@host/path",
    "ssh://git@host:22/repo",
    "git@github.com:org/repo.git",
    "@app.route('/users')",
    "npm i left-pad@1.3.0 @types/node@20",
    "result = a @ b.T",
    "class='sk-fading-circle sk-circle-fade-dot-container'",
    "task-management-software-comparison-2024",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIE\n-----END CERTIFICATE-----",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
    "0.4111111111111111 3.7828224631000514",
    "4111 1111 1111 1112",
    "111.444.777-36",
    "11144477735",
    "127.0.0.1:8000 - - 200",
    "2023-11-15 10:00:00 +0000",
    "+12345678",
    "000-00-0000 2023-10-1234",
    "x = 123-45-67890",
    "ERROR 500: Internal Server Error (request 4f2a)",
    "Keyboard shortcuts: ctrl+c, key: Enter",
    "public_key = rsa.generate()",
    "Olá, A³X! ação concluída",
    "GB82 WEST 1234 5698 7654 33",
    "EYJAFJALLAJOKULL eyJ",
    "passo 1: password reset e-mail sent",
    "[redacted:password] [redacted:known-secret]",
]


def split(text: str) -> tuple[str, int, int]:
    start, end = text.index("«"), text.index("»") - 1
    return text.replace("«", "").replace("»", ""), start, end


@pytest.mark.parametrize(("kind", "marked"), SENSITIVE)
def test_sensitive_data_is_found_where_it_is(kind: str, marked: str) -> None:
    text, start, end = split(marked)
    assert [(m.kind, text[m.start : m.end]) for m in scan(text)] == [(kind, text[start:end])]
    assert Redactor().redact(text) == (f"{text[:start]}[redacted:{kind}]{text[end:]}", {kind: 1})


def test_the_lists_are_as_long_as_promised() -> None:
    assert len(SENSITIVE) >= 60
    assert len(ORDINARY) >= 40


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert Redactor().redact(text) == (text, {})


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.kind)
def test_each_pattern_keeps_its_own_examples(pattern: Pattern) -> None:
    assert pattern.match
    for text in pattern.match:
        assert pattern.kind in {m.kind for m in scan(text)}, text
    for text in pattern.not_match:
        assert scan(text) == [], text


@pytest.mark.parametrize("service", [*DISTINCT, *PLAUSIBLE], ids=lambda s: s[0])
def test_each_service_keeps_its_example(service: Service) -> None:
    _, _, example = service
    assert Redactor().redact(f"got {example}, once")[0] in {f"got [redacted:{kind}], once" for kind in SECRET_KINDS}
    assert scan(f"got {example[: len(example) // 6]}, once") == []


# --- what tools print ----------------------------------------------------------------------------------------


def test_of_what_tools_print_nearly_every_secret_goes() -> None:
    found, missed = 0, []
    for seed in (1, 2, 3):
        for output in outputs.with_secrets(seed):
            spans = [(match.start, match.end) for match in scan(output.text)]
            for start, end in output.marked:
                if all(any(first <= at < last for first, last in spans) for at in range(start, end)):
                    found += 1
                else:
                    missed.append((output.title, output.text[max(0, start - 20) : end]))
    assert found / (found + len(missed)) > 0.98, missed


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_what_tools_print_nothing_else_goes(seed: int) -> None:
    for output in outputs.harmless(seed):
        assert [output.text[m.start : m.end] for m in scan(output.text)] == [], output.title
    for output in outputs.with_secrets(seed):
        for match in scan(output.text):
            assert any(start < match.end and match.start < end for start, end in output.marked), output.title


def test_secrets_and_personal_data_are_told_apart() -> None:
    assert {"jwt", "password"} <= SECRET_KINDS
    assert {"email", "cpf"} <= PERSONAL_KINDS
    assert not SECRET_KINDS & PERSONAL_KINDS


def test_positions_count_characters_not_bytes() -> None:
    text = "ação é AKIAIOSFODNN7EXAMPLE 👍 ana@exemplo.com.br"
    assert [text[m.start : m.end] for m in scan(text)] == ["AKIAIOSFODNN7EXAMPLE", "ana@exemplo.com.br"]


def test_a_long_value_goes_whole() -> None:
    assert Redactor().redact(f'credentials="{RANDOM * 200}" x')[0] == 'credentials="[redacted:credential]" x'


fragments = st.sampled_from(
    [split(marked)[0] for _, marked in SENSITIVE]
    + ORDINARY
    + [" ", "\n", "=", '"', "@", "password=", "://", "é", "-", "4"]
)


@given(st.lists(fragments, max_size=4).map("".join))
@example("POST https://hooks.slack.com/services/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git@github.com:org/repo")
@example("postgresql://app:Tr0ub4dor@db.internal:5432/main5105105105105100mailto:dev+tag@sub.host.io?x")
@settings(max_examples=300, deadline=None)
def test_redacting_twice_changes_nothing(text: str) -> None:
    redactor = Redactor(["hunter2", "redacted", "password"])
    once, _ = redactor.redact(text)
    assert redactor.redact(once) == (once, {})


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_matches_are_sorted_and_apart_in_any_text(text: str) -> None:
    ends = [0]
    for match in scan(text + "password=" + text):
        assert ends[-1] <= match.start < match.end <= 2 * len(text) + 9
        ends.append(match.end)


# --- by value ------------------------------------------------------------------------------------------------

VALUES = ["hunter2hunter2", "p@ss w/rd+é&1", 'quo"te\\back', "senha\tcom\tação", "\U0001f511nicode?-_.~", "ab/cd+ef=="]


def forms(value: str) -> list[str]:
    data = value.encode()
    padded = [b"x" * before + data + b"y" * after for before in range(4) for after in range(4)]
    return [
        value,
        *(base64.b64encode(p).decode() for p in padded),
        *(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in padded),
        base64.encodebytes(
            b"a line that is long enough to be broken in the middle" + data + b"and more of it"
        ).decode(),
        urllib.parse.quote(value),
        urllib.parse.quote(value, safe="").lower() if value.islower() else urllib.parse.quote(value, safe=""),
        urllib.parse.quote_plus(value),
        data.hex(),
        data.hex().upper(),
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False),
        html.escape(value),
        html.escape(value).replace("&#x27;", "&#039;").replace("&quot;", "&#34;"),
        "".join(char if char.isalnum() or char in "-_.~" else f"&#{ord(char)};" for char in value),
        value.encode("ascii", "xmlcharrefreplace").decode(),
        urllib.parse.quote(urllib.parse.quote(value, safe="")),
        repr(value),
    ]


@pytest.mark.parametrize("value", VALUES)
def test_a_known_value_is_found_in_every_encoding(value: str) -> None:
    redactor = Redactor([value])
    for form in forms(value):
        cleaned, counts = redactor.redact(f"before {form} after")
        assert counts == {"known-secret": 1}, form
        assert cleaned.startswith("before ")
        assert cleaned.endswith(" after")


def test_a_known_value_beats_what_it_looks_like_and_overlaps_are_taken_out_whole() -> None:
    assert Redactor(["hunter2"]).redact("password=hunter2") == ("password=[redacted:known-secret]", {"known-secret": 1})
    redactor = Redactor(["EXAMPLE-and-more"])
    assert redactor.redact("x AKIAIOSFODNN7EXAMPLE-and-more y")[0] == "x [redacted:aws-access-key] y"
    assert Redactor(["abcdef", "abcd"]).redact("abcdef abcd") == (
        "[redacted:known-secret] [redacted:known-secret]",
        {"known-secret": 2},
    )


def test_what_is_glued_to_a_secret_is_found_once_that_is_gone() -> None:
    text = f"correcthorsesk-ant-{RANDOM * 5} and {KEY}correcthorse"
    expected = "[redacted:known-secret][redacted:anthropic-key] and [redacted:aws-access-key][redacted:known-secret]"
    assert Redactor(["correcthorse"]).redact(text)[0] == expected


def test_values_too_short_to_redact_are_ignored() -> None:
    assert Redactor(["1", "", "abc", " abc\n"]).redact("abc 1") == ("abc 1", {})
    assert Redactor(["x" * MIN_SECRET]).redact("xxxx") == ("[redacted:known-secret]", {"known-secret": 1})
    # Control characters may be missing from what is printed, so they don't count.
    assert Redactor(["\x01\x02\x03\x04", "\x01\x02\x03a"]).redact("banana") == ("banana", {})


def test_the_lines_of_a_known_value_go_one_by_one() -> None:
    redactor = Redactor(["-----BEGIN THING-----\nfirst-line-of-the-secret\nsecond-line-of-the-secret\n"])
    assert redactor.redact("log: second-line-of-the-secret")[0] == "log: [redacted:known-secret]"
    assert redactor.redact("-----BEGIN THING-----") == ("-----BEGIN THING-----", {})


def test_large_and_many_values_are_found_too() -> None:
    large = "".join(f"{n:x}/é " for n in range(20_000))
    many = [f"value-{n * 7919:08x}-{RANDOM}" for n in range(500)]
    redactor = Redactor([large, *many])
    for value in [large, *many[::50]]:
        for form in [
            value,
            json.dumps(value),
            urllib.parse.quote(value),
            base64.b64encode(b"x" + value.encode()).decode(),
        ]:
            assert redactor.redact(f"a {form} z")[1] == {"known-secret": 1}


# --- nested data ---------------------------------------------------------------------------------------------


def test_nested_data_is_redacted_in_keys_values_numbers_and_bytes() -> None:
    value = {
        "AKIAIOSFODNN7EXAMPLE": [1, 2.5, None, True, ("x hunter2x", b"raw hunter2x \xff")],
        "AKIAI44QH7DHBEXAMPLE": {4242424242424242: {"hunter2x"}},
    }
    cleaned, counts = Redactor(["hunter2x"]).redact_data(value)
    known = "[redacted:known-secret]"
    assert cleaned == {
        "[redacted:aws-access-key]": [1, 2.5, None, True, (f"x {known}", b"raw " + known.encode() + b" \xff")],
        "[redacted:aws-access-key] (2)": {"[redacted:card]": {known}},
    }
    assert counts == {"aws-access-key": 2, "known-secret": 3, "card": 1}


@pytest.mark.parametrize(
    ("data", "cleaned", "kind"),
    [
        ({"password": "hunter2abcX9"}, {"password": "[redacted:password]"}, "password"),
        ({"PASSWORD": "hunter2abcX9"}, {"PASSWORD": "[redacted:password]"}, "password"),
        ({"db": {"password": 'quo"te\\ and\nline 22'}}, {"db": {"password": "[redacted:password]"}}, "password"),
        ([{"api_key": HEX}], [{"api_key": "[redacted:credential]"}], "credential"),
        ({"Authorization": "Bearer abcdefghij"}, {"Authorization": "[redacted:authorization]"}, "authorization"),
        ({"password": f"{KEY} or x1"}, {"password": "[redacted:password]"}, "password"),
        ({"password": KEY}, {"password": "[redacted:aws-access-key]"}, "aws-access-key"),
        ({"user": f"{KEY} or x1"}, {"user": "[redacted:aws-access-key] or x1"}, "aws-access-key"),
    ],
)
def test_a_name_gives_its_value_away_in_data_as_in_text(data: object, cleaned: object, kind: str) -> None:
    assert Redactor().redact_data(data) == (cleaned, {kind: 1})
    assert Redactor().redact_data(cleaned) == (cleaned, {})


def test_ordinary_data_comes_back_as_it_was() -> None:
    same = {
        "token": "next page", "password": "required", "PWD": "/home/me", "secret": "", "name\"": "\ud800",
        "max_tokens": "4096", "numbers": [2**5000, -(10**4299), 0.5],
        "sets": [{1, 2}, frozenset({3}), {frozenset({4}), (5,)}, {frozenset({6}): None}],
    }  # fmt: skip
    cleaned, counts = Redactor().redact_data(same)
    assert (repr(cleaned), counts) == (repr(same), {})


def test_hostile_nesting_and_size_are_bounded() -> None:
    deep: list[object] = []
    for _ in range(10 * MAX_DEPTH):
        deep = [deep]
    assert "too deep" in repr(Redactor().redact_data(deep)[0])
    many, _ = Redactor().redact_data([None] * (2 * MAX_ITEMS))
    assert len(many) == MAX_ITEMS
    assert "too many" in many[-1]
    keys = {f"user{n}@host.io": n for n in range(20_000)}
    assert sorted(Redactor().redact_data(keys)[0].values()) == list(range(20_000))
    huge = 10**5000  # Python itself refuses to spell it
    assert "left out" in str(Redactor().redact_data([huge])[0])


# --- cost ----------------------------------------------------------------------------------------------------

NEAR_MISSES = [
    "token:", "password=x ", "eyJaaaaaaa-", "eyJ-AKIAIOSFODNN7EXAMPLE-", "sk-aaaaaaaaaaaaaaaaaaaaaaaa ", "4111 ",
    "GB82 WEST ", "a@a.", "://a:", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----,",
    "A\n-----END PRIVATE KEY-----\n",
    "Cookie: a=b; ", "cookie:", "Authorization: aaaaaaaa ", "Authorization:", "password>", "password is ", "token '",
    " -p x", "curl -u a:", "login a password ", "x_key=", "\nkey=", "?key=", "LS0tLS1CRUdJTi" + "A" * 30 + " ",
    "M" + "a" * 24 + ".", "Private-Lines: 9\n", "password%3D", "&quot;token&quot;:", "token\\\\\":", "(11) 91234-567 ",
    "ssn 1-1-1-1-1-1 ", "phone: 1", "aaaaaaaaaaaaaa.atlasv1.", "$6$aaaaaaaa", "name='token'\n value=", ":5432:a:b:",
    "://aaaaaaaaaaaaaaaaaaaaaaaa@a", "DB_PASS=a\n",
    "529.982.247-24 ", 'password="', "bearer aaaaaaaa ", "[redacted:", "-----BEGIN PRIVATE KEY-----A\n",
]  # fmt: skip


@pytest.mark.parametrize("unit", NEAR_MISSES)
def test_near_misses_cost_time_in_proportion(unit: str) -> None:
    scan(unit)

    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        return least_cpu(lambda: scan(text))

    # Eight times the text: 8 when linear, 64 when quadratic.
    assert seconds(80_000) < 24 * seconds(10_000) + 0.1


def test_nothing_slow_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, redoma.redaction, redoma.output.capture; print([m for m in ('re2', 'stdnum') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_flood_of_near_misses_is_taken_out_unread_and_hides_nothing() -> None:
    secret = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    cleaned, counts = Redactor().redact("kept " + "token:" * 30_000 + secret)
    assert cleaned.startswith("kept token:")
    assert cleaned.endswith("[redacted:unchecked]")
    assert secret not in cleaned
    assert counts == {"unchecked": 1}
    assert Redactor().redact(cleaned)[0] == cleaned
