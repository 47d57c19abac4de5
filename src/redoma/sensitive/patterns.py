"""What sensitive data looks like, as data: a kind, an RE2 pattern, a check where the shape alone is not proof,
and examples of both, which a test holds every pattern to.

The patterns are joined into one alternation, so three rules keep one hostile text from costing quadratic time:
a pattern that can run on without end must match once it has begun (`{20,}`, never `+\\.`), or must not be able to
begin again inside its own run; whatever needs reading further goes to a check, which is bounded.
"""

from __future__ import annotations

import msgspec

from . import checks


class Pattern(msgspec.Struct, frozen=True):
    kind: str
    regex: bytes
    check: checks.Check | None = None
    match: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()
    personal: bool = False
    """About a person (an address, a card) rather than a key to something."""


# `name = `, `"name": `, `name := `, `name => `, `name: str = `, and \"name\": inside a JSON string.
_IS = rb"""\d?\\?["']?\]?\s{0,3}(?::\s?(?:str|bytes|[Ss]tring|SecretStr)\s{0,2}=|:=|=>|={1,3}|:)\s{0,3}"""
_WORD = rb"[A-Za-z0-9_-]"

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "private-key",
        rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
        checks.key,
        match=(
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nq83v\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nb3Blb",
            '{"key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBg\\n-----END PRIVATE KEY-----\\n"}',
        ),
        not_match=("-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----\nMIIB"),
    ),
    Pattern(
        "private-key",
        rb"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
        checks.key_end,
        match=("q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQ\nEjRWeA==\n-----END EC PRIVATE KEY-----",),
        not_match=("-----END CERTIFICATE-----",),
    ),
    Pattern(
        "aws-access-key",
        rb"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
        match=("AKIAIOSFODNN7EXAMPLE", "key=ASIAQWERTYUIOPASDFGH;"),
        not_match=("AKIAIOSFODNN7EXAMPLEX", "AKIA"),
    ),
    Pattern(
        "aws-secret-key",
        rb"(?i:aws_?secret_?(?:access_?)?key|secret_?access_?key)" + _IS,
        checks.aws_secret,
        match=(
            "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            '"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"',
        ),
        not_match=("AWS_SECRET_ACCESS_KEY=$KEY", "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']"),
    ),
    Pattern(
        "github-token",
        rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})",
        match=("ghp_" + "aB3dE6" * 6, "gho_" + "Zz09yY" * 6, "ghs_" + "Zz09yY" * 6, "github_pat_" + "11ABCDE_0" * 6),
        not_match=("ghp_short", "github_pat_"),
    ),
    Pattern(
        "gitlab-token",
        rb"\bgl(?:pat|ptt|dt|rt|cbt|agent|oas|ft|imt|soat)-[A-Za-z0-9_.-]{20,}",
        match=("glpat-x9Yk2LmN4pQr7StUvWxZ", "glrt-x9Yk2LmN4pQr7StUvWxZ"),
        not_match=("glpat-short",),
    ),
    Pattern(
        "slack-token",
        rb"\bxox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}|\bxapp-[A-Za-z0-9-]{20,}"
        rb"|hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{16,}",
        match=(
            "xoxb-263594206564-FGqddMF8t08v8N7Oq4i57vs1",
            "https://hooks.slack.com/services/T0AB12CD/B0AB12CD/x9Yk2LmN4pQr7StU",
        ),
        not_match=("xoxb-", "https://hooks.slack.com/services/"),
    ),
    Pattern(
        "stripe-key",
        rb"\b(?:[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9]{16,}",
        match=(
            "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
            "rk_test_4eC39HqLyjWDarjtT1zdp7dc",
            "whsec_4eC39HqLyjWDarjtT1zdp7dc",
        ),
        not_match=("pk_live_4eC39HqLyjWDarjtT1zdp7dc", "sk_live_"),
    ),
    Pattern(
        "google-key",
        rb"\bAIza" + _WORD + rb"{35,}|\bGOCSPX-" + _WORD + rb"{28,}|\bya29\." + _WORD + rb"{20,}",
        match=("AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", "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"),
        not_match=("AIzaShort",),
    ),
    Pattern(
        "anthropic-key",
        rb"\bsk-ant-" + _WORD + rb"{20,}",
        match=("sk-ant-api03-x9Yk2LmN4pQr7StUvWxZ-AA",),
        not_match=("sk-ant-short",),
    ),
    Pattern(
        "openai-key",
        rb"\bsk-" + _WORD + rb"{20,}",
        checks.random_token,
        match=("sk-proj-x9Yk2LmN4pQr7StUvWxZ", "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"),
        not_match=("sk-fading-circle-container-dot", "task-x9Yk2LmN4pQr7StUvWxZ"),
    ),
    Pattern(
        "npm-token", rb"\bnpm_[A-Za-z0-9]{36,}", match=("npm_" + "aB3dE6" * 6,), not_match=("npm_config_registry",)
    ),
    Pattern(
        "pypi-token",
        rb"\bpypi-AgE" + _WORD + rb"{16,}",
        match=("pypi-AgEIcHlwaS5vcmcCJDU3NDY2",),
        not_match=("pypi-AgE",),
    ),
    Pattern(
        "sendgrid-key",
        rb"\bSG\." + _WORD + rb"{22}\." + _WORD + rb"{43,}",
        match=("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",),
        not_match=("SG.short.value",),
    ),
    Pattern(
        "twilio-key", rb"\bSK[0-9a-f]{32}\b", match=("SK" + "0a1b2c3d" * 4,), not_match=("SK0a1b2c3d", "0a1b2c3d" * 4)
    ),
    Pattern(
        "telegram-token",
        rb"[0-9]{8,10}:AA" + _WORD + rb"{33,}",
        match=("110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsawx",),
        not_match=("1700000000:ERROR-something-long-happened-here-now",),
    ),
    Pattern(
        "service-token",  # the makers chose prefixes that occur nowhere else
        rb"\bhf_[A-Za-z0-9]{34,}|\bdo[opr]_v1_[0-9a-f]{64,}|\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32,}|\bhv[sb]\."
        + _WORD
        + rb"{24,}"
        rb"|\bdckr_pat_" + _WORD + rb"{27,}|\bdapi[0-9a-f]{32}\b|\bAGE-SECRET-KEY-1[0-9A-Z]{58,}",
        match=(
            "hf_" + "aBcDeFgHiJ" * 3 + "kLmN",
            "dop_v1_" + "0a1b2c3d" * 8,
            "shpat_" + "0a1b2c3d" * 4,
            "hvs." + "x9Yk2LmN" * 3,
        ),
        not_match=("hf_hub_download", "dapi"),
    ),
    Pattern(
        "jwt",
        rb"\beyJ" + _WORD + rb"{7}",
        checks.jwt,
        match=(
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4fwpM",
            "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.",
        ),
        not_match=("eyJhbGciOiJIUzI1NiJ9", "eyJ.eyJ.x", "data:application/json;base64,eyJ2ZXJzaW9uIjozfQ=="),
    ),
    Pattern(
        "url-password",
        rb"""://[^\s/:@"'<>\\]{0,100}:[^\s/@"'<>\\]{1,200}@""",
        checks.url_password,
        match=("postgres://app:s3cr3t@db:5432/app", "https://:tok3n@host/", "redis://:hunter2@cache", "amqp://u:p@h"),
        not_match=(
            "http://localhost:8080/@me",
            "https://host:443",
            "http://u:$PASS@h",
            "https://u:***@h",
            "ftp://me@host",
        ),
    ),
    Pattern(
        "authorization",
        rb"\b(?i:bearer|basic) {1,4}[A-Za-z0-9+/=._~-]{8,}",
        checks.authorization,
        match=(
            "Authorization: Bearer abcdefghijklm",
            "bearer x9Yk2LmN4pQr7StUvWxZ",
            "Authorization: Basic YWRtaW46aHVudGVyMg==",
        ),
        not_match=(
            "basic knowledge of bearers",
            "Basic authentication",
            "Authorization: Bearer $TOKEN",
            'f"Bearer {token}"',
        ),
    ),
    Pattern(
        "password",
        rb"(?i:passw(?:or)?d|passphrase|pwd|[_-]pass|senha|contrase\xc3\xb1a)" + _IS,
        checks.password,
        match=(
            'password = "hunter2"',
            "DB_PASSWORD=abc123!x",
            "senha: s3nh4forte",
            "Server=x;Pwd=Str0ng!;",
            "'password': 'letmein'",
        ),
        not_match=(
            "password = None",
            "password: str",
            "password=os.environ['P']",
            "PASSWORD=$PASS",
            "password=***",
            "password policy: strict",
            "password=get_password()",
            'password="${DB_PASS}"',
            "PWD=/home/me",
            "password: required",
        ),
    ),
    Pattern(
        "credential",
        rb"(?i:secret|token|credentials?|(?:api|access|account|secret|private|signing|encryption|auth|shared|master)[_-]?(?:access)?key)"
        + _IS,
        checks.credential,
        match=(
            'api_key: "8f14e45fceea167a5a36"',
            "secret=x9Yk2LmN4pQr7S",
            'token = "a8f5f167f44f4964e6c998de"',
            "AccountKey=Zm9vYmFyYmF6MTIzNDU2Nzg5MA==;",
            '{\\"token\\": \\"x9Yk2LmN4pQr7S\\"}',
        ),
        not_match=(
            "token = get_token()",
            "token = tokens[0]",
            "eos_token: 151643",
            "max_tokens=4096",
            "secret: my-secret",
            "token: Optional[str] = None",
            "api_key=settings.API_KEY_V2",
            "secret=/run/secrets/db1234",
            'token: "next page"',
        ),
    ),
    Pattern(
        "card",
        rb"\b(?:(?:[456][0-9]{3}|2[2-7][0-9]{2}|35[0-9]{2})(?:(?: [0-9]{4}){3}|(?:-[0-9]{4}){3}|[0-9]{12})"
        rb"|3[47][0-9]{2}(?: [0-9]{6} [0-9]{5}|-[0-9]{6}-[0-9]{5}|[0-9]{11})"
        rb"|3[068][0-9]{2}(?: [0-9]{6} [0-9]{4}|[0-9]{10}))\b",
        checks.card,
        match=(
            "4111 1111 1111 1111",
            "5555-5555-5555-4444",
            "378282246310005",
            "6362970000457013",
            "card:4012888888881881,",
        ),
        not_match=("4111 1111 1111 1112", "1700000000000000", "0.4111111111111111", "9111111111111111"),
        personal=True,
    ),
    Pattern(
        "cpf",
        rb"\b[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}\b|(?i:\bcpf\b[^0-9A-Za-z\n]{1,5})[0-9]{11}\b",
        checks.cpf,
        match=("529.982.247-25", "CPF: 52998224725"),
        not_match=("529.982.247-24", "52998224725", "17000000000"),
        personal=True,
    ),
    Pattern(
        "cnpj",
        rb"\b[0-9A-Z]{2}\.[0-9A-Z]{3}\.[0-9A-Z]{3}/[0-9A-Z]{4}-[0-9]{2}\b|(?i:\bcnpj\b[^0-9A-Za-z\n]{1,5})[0-9A-Z]{12}[0-9]{2}\b",
        checks.cnpj,
        match=("16.727.230/0001-97", "12.ABC.345/01DE-35", "cnpj=16727230000197"),
        not_match=("16.727.230/0001-98", "16727230000197"),
        personal=True,
    ),
    Pattern(
        "iban",
        rb"\b[A-Z]{2}[0-9]{2}(?:(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,4})?|[A-Z0-9]{11,30})\b",
        checks.iban,
        match=(
            "GB82 WEST 1234 5698 7654 32",
            "DE89370400440532013000",
            "BR1800360305000010009795493C1",
            "GB82 WEST 1234 5698 7654 32 PAID",
        ),
        not_match=("GB82 WEST 1234 5698 7654 33", "AB12 3456 7890 1234"),
        personal=True,
    ),
    Pattern(
        "email",
        rb"[A-Za-z0-9_%+-]@[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+[A-Za-z]{2,24}\b",
        checks.email,
        match=("ana.souza+x@exemplo.com.br", "<bob@example.org>", "a@b.io"),
        not_match=("@app.route('/x')", "pkg@1.2.3", "git@github.com:org/repo", "user@localhost", "a@b.dot(c)"),
        personal=True,
    ),
    Pattern(
        "phone",
        rb"\+55 ?\(?[0-9]{2}\)? ?9?[0-9]{4}[ -]?[0-9]{4}\b"
        rb"|\+[1-9][0-9]{0,2}[ .-]\(?[0-9]{2,4}\)?[ .-][0-9]{3,5}[ .-]?[0-9]{3,4}\b",
        checks.phone,
        match=("+55 11 91234-5678", "+5511912345678", "+55 (11) 3123-4567", "+1 415-555-2671", "+44 20 7946 0958"),
        not_match=("+0000", "+5511", "+1234567890", "10:00:00+01:00"),
        personal=True,
    ),
    Pattern(
        "ssn",
        rb"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b",
        checks.ssn,
        match=("078-05-1120", "SSN 219-09-9999."),
        not_match=("000-12-3456", "666-12-3456", "900-12-3456", "123-00-4567", "1-078-05-1120"),
        personal=True,
    ),
)
