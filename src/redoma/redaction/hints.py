"""What a text must contain before it can have sensitive data of a kind in it.

Building the automaton of all patterns takes longer than a short run. So a short text is first searched for these hints,
and only the patterns that they allow are built. A test derives from every pattern that it can't match without its hint.
"""

from __future__ import annotations

_SERVICES = b"""
    %7c | . -us _v1_ a3- absk access- access_token$ age-secret-key-1 akcp akid api_org_ app_usr- aqvn atatt3 atbb atctt3
    atta bkaj_ bkcat_ bkct_ bkpt_ bkua_ bundle_ ccip cfpat- cio clojars_ cmvmdgtu csk- dapi dckr_ dnkey- dt0 duffel_ eaa
    ezak eztk figd_ figo_ figu_ fio-u- flwseck fm1 fm2 fo1_ fw_ glc_eyj glsa_ gsk_ hf_ hrku- ico- jina_ k10 key- lin_
    live_ lsv2_ ltai napi_ nfb_ nfc_ nfo_ nfp_ nfu_ nraa- nrak- nral nrbr- nrii- nriq- nrjs- nrra- ntn_ nvapi- ops_eyj
    ovsx oy2 p8e- pat- pcsk_ phs_ phx_ pmak- pnb_ pnu_ pplx- pscale_ pul- r8_ rdme_ re_ rnd_ rubygems_ rzp_ sb_secret_
    sbp_ sdk- secret_ sgp_ sha256~ shippo_ shpat_ shpca_ shpit_ shppa_ shpss_ shpua_ sntry sq0atp- sq0csp- sq0idp- sqa_
    sqp_ squ_ ssws test_ tfp_ tskey- tvly- vercel_blob_rw_ xai- xkeysib- xsmtpsib- y0_ aaaaaaaaaaaaaaaaaaaa
    """.split()
"""Parts of the tokens of services. Some have no more than a `.` or `|` that is certain, so most texts are searched."""

HINTS: dict[str, tuple[int, tuple[bytes, ...]]] = {
    "service-token": (0, tuple(_SERVICES)),
    "private-key": (
        0,
        (
            b"-----begin ",
            b"private key",
            b"private-lines: ",
            b"ls0tls1crudjti",
            b"mnemonic",
            b"phrase",
            b'"d"',
            b"\"d'",
            b'"k"',
            b"\"k'",
            b"'d\"",
            b"'d'",
            b"'k\"",
            b"'k'",
        ),
    ),
    "aws-secret-key": (0, (b"akia", b"asia", b"secret")),
    "aws-access-key": (0, (b"abia", b"acca", b"akia", b"asia")),
    "github-token": (0, (b"gho_", b"ghp_", b"ghr_", b"ghs_", b"ghu_", b"github_pat_")),
    "gitlab-token": (0, (b"gl",)),
    "slack-token": (0, (b"xapp-", b"xox", b"hooks.slack.com")),
    "stripe-key": (0, (b"k_live_", b"k_test_", b"whsec_")),
    "google-key": (0, (b"aiza", b"gocspx-", b"ya29.")),
    "anthropic-key": (0, (b"sk-ant-",)),
    "npm-token": (0, (b"npm_",)),
    "pypi-token": (0, (b"pypi-age",)),
    "sendgrid-key": (0, (b"sg.",)),
    "twilio-key": (0, (b"ac", b"sk")),
    "telegram-token": (8, (b":aa",)),
    "openai-key": (0, (b"sk-",)),
    "webhook": (
        0,
        (b"/webhooks/", b".webhook.office.com", b"chat.googleapis.com", b"hooks.slack.com", b"hooks.zapier.com"),
    ),
    "password-hash": (0, (b"$", b"{ssha")),
    "jwt": (0, (b"eyj",)),
    "url-password": (0, (b"://",)),
    "signature": (0, (b"&sig", b";sig", b"?sig", b'response="', b"signature")),
    "authorization": (0, (b"authorization", b"basic", b"bearer")),
    "cookie": (0, (b"-b ", b"-b=", b"cookie")),
    "password": (
        0,
        (
            b"pass",
            b"pwd",
            b"psk",
            b"auth",
            b"basic",
            b"senha",
            b"contrase",
            b"kennwort",
            b"bindpw",
            b"identified",
            b"convertto-securestring",
            b"define(",
            b'variable "',
            b"echo ",
            b"-a",
            b"-p",
            b"-u",
            b"-w",
            b" /user:",
            b"*:*:",
            b":5432:",
            b"@tcp(",
            b"@unix(",
            b"334 ugfzc3dvcmq6",
        ),
    ),
    "credential": (
        0,
        (
            b"key",
            b"secret",
            b"token",
            b"pass",
            b"auth",
            b"credential",
            b"api",
            b"_session",
            b"sessid",
            b"sessionid",
            b"connect.sid",
            b"connection",
            b"connect ",
            b"username ",
            b" login",
            b"sonar.login",
            b"senha",
            b"segredo",
            b"geheimnis",
            b"aces",
            b"priv",
            b"sec",
            b"schl",
            b".dockerc",
            b"honeycomb-team",
            b"-pat",
            b"_pat",
            b"appid=",
            b"code=",
            b"define ",
            b"enable ",
            b"set",
            b"sqlplus ",
            b"pdo->__construct('",
            b"\tfalse\t",
            b"\ttrue\t",
        ),
    ),
    "card": (14, ()),
    "cpf": (11, ()),
    "cnpj": (2, (b".", b"cnpj")),
    "iban": (2, ()),
    "email": (0, (b".",)),
    "phone": (2, (b"(", b"+", b"cel", b"fax", b"fone", b"mobile", b"phone", b"tel", b"whatsapp")),
    "ssn": (9, ()),
    "national-id": (
        0,
        (
            b"aadha",
            b"bsn",
            b"codice fiscale",
            b"dni",
            b"national insurance",
            b"nhs",
            b"ni number",
            b"nie",
            b"nif",
            b"nino",
            b"nir",
            b"passaporte",
            b"passport",
            b"pesel",
            b"pis",
            b"social security",
            b"ssn",
            b"steuer",
        ),
    ),
    "card-code": (3, ()),
    "birth-date": (6, ()),
}
"""For a kind, how many digits a text must have, and texts of which it must contain one (none: any will do), in lower
case. Every kind is here; a test checks it."""

MIN_LENGTHS = {"iban": 14, "phone": 12, "birth-date": 11, "card-code": 7}
"""How many bytes a text must have for kinds whose hints nearly every text has."""

_DIGITS = b"0123456789"


def possible_kinds(text: bytes) -> frozenset[str]:
    """Return the kinds of which there may be something in the text, of those in `HINTS`."""
    text = text.lower()
    length = len(text)
    digits = length - len(text.translate(None, _DIGITS))
    has = text.__contains__  # with `map`, the hundreds of searches are one loop in C
    return frozenset(
        [
            kind
            for kind, (least, hints) in HINTS.items()
            if digits >= least and length >= MIN_LENGTHS.get(kind, 0) and (not hints or any(map(has, hints)))
        ]
    )
