"""The forms of sensitive data, as data: a kind, an RE2 pattern, a check if the form alone is not proof, and examples
that match and don't, which a test verifies.

The patterns are joined into one alternation. Three rules prevent quadratic time on hostile text: a pattern that can
continue without bound must match once it has begun (`{20,}`, never `+\\.`), or must not be able to begin again inside
its own match; and whatever must read further is left to a check, which is bounded.
"""

from __future__ import annotations

import msgspec

from . import checks, services


class Pattern(msgspec.Struct, frozen=True):
    """One form of one kind of sensitive data."""

    kind: str
    regex: bytes
    check: checks.Check | None = None
    match: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()
    personal: bool = False
    """Whether it concerns a person (an address, a card) rather than being a credential."""


# A quote: literal, in a JSON string (also nested), in HTML, in a URL, and as \u0022.
_QUOTE = rb"""(?:\\{0,7}["']|&(?i:quot|apos|\#0{0,2}3[49]|\#x0{0,2}2[27]);|%2[27]|\\{1,3}u002[27])"""
# The colour of text in a terminal.
_COLOUR = rb"(?:\x1b\[[0-9;]*m)?"
# What connects a name and its value: `name = `, `"name": `, `name := `, `name => `, `name: str = `, `<name>`, the same
# escaped; `name="name" value=`, `"name": "name", "value": `, as in forms and in lists of variables; and the next cell
# of a table, or the empty line after a field of a form.
_IS = (
    rb"""\d?"""
    + _QUOTE
    + rb"""?\]?"""
    + _COLOUR
    + rb"""(?:[ \t]{0,16}\n?[ \t]?(?::\s?(?:str|bytes|[Ss]tring|SecretStr|Final|&(?:'static )?str)\s{0,2}=|:="""
    rb"""|=>|={1,3}|:|%3[AaDd]|&\#(?:61|58|x3[AaDd]);|\\{1,3}u003[AaDd]|</key>\s{0,8}<string>|>)"""
    rb"""(?:[ \t]{4,}|\s{0,3})(?:%20)?"""
    + _COLOUR
    + rb"""|&gt;|</td>\s{0,8}<td[^<>\n]{0,20}>|"\r?\n\r?\n|(?:"""
    + _QUOTE
    + rb""",?\s{0,8}|\n\s{1,16})["']?value["']?\s?[:=]\s?)"""
)
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
        not_match=(
            "-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----\nMIIB",
            'looking for "-----BEGIN RSA PRIVATE KEY-----" in the file',
        ),
    ),
    Pattern(
        "private-key",
        rb"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
        checks.key_end,
        match=("q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQ\nEjRWeA==\n-----END EC PRIVATE KEY-----",),
        not_match=("-----END CERTIFICATE-----",),
    ),
    Pattern(
        "aws-secret-key",
        rb"(?i:aws[_ ]?secret[_ ]?(?:access[_ ]?)?key|secret[_ ]?access[_ ]?key)(?: \[[^\]\n]{1,24}\])?"
        + _IS,
        checks.aws_secret,
        match=(
            "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            '"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"',
            "AWS Secret Access Key [None]: wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ),
        not_match=("AWS_SECRET_ACCESS_KEY=$KEY", "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']"),
    ),
    Pattern(
        "aws-secret-key",  # as in the file that the console offers
        rb"\b(?:AKIA|ASIA)[A-Z2-7]{16}[,;:\t|]{1,2}[A-Za-z0-9/+]{40}\b",
        match=("bot,AKIAIOSFODNN7EXAMPLE,wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",),
        not_match=("AKIAIOSFODNN7EXAMPL,wJalrXUtnFEMI",),
    ),
    *(
        Pattern(kind, shape, match=tuple(examples.split()), not_match=tuple(near.split()))
        for kind, shape, examples, near in services.TOKENS
    ),
    Pattern(
        "openai-key",
        rb"\bsk-" + _WORD + rb"{20,}",
        checks.random_token,
        match=("sk-proj-x9Yk2LmN4pQr7StUvWxZ", "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"),
        not_match=("sk-fading-circle-container-dot", "task-x9Yk2LmN4pQr7StUvWxZ"),
    ),
    Pattern(
        "service-token",
        b"|".join(shape for _, shape, _ in services.DISTINCT),
        match=tuple(example for _, _, example in services.DISTINCT),
        not_match=(
            "hf_hub_download", "dapi", "sdk-tools-linux", "key-value", "pat.match", "xai-grok", "glsa_name",
            "access-token-ttl", "sha256:" + "0a1b2c3d" * 8, "v1.0-rc1", "rubygems_version", "secret_name",
            "napi_create_function", "nfp_report", "pat-na1-region", "AKIDS", "FLWSECK", "APP_USR", "lin_api", "dp.pt",
            "EZAK", "squ_x", "1000.5",
        ),
    ),
    Pattern(
        "service-token",
        b"|".join(shape for _, shape, _ in services.PLAUSIBLE),
        checks.random_token,
        match=tuple(example for _, _, example in services.PLAUSIBLE),
        not_match=("re_compile", "fw_version", "sl." + "a-very-long-name-" * 8, "rnd_state", "csk-" + "a" * 44),
    ),
    Pattern(
        "webhook",
        rb"discord(?:app)?\.com/api/webhooks/[0-9]{15,20}/[A-Za-z0-9_-]{40,}"
        rb"|\.webhook\.office\.com/webhookb2/[A-Za-z0-9@/-]{40,}|hooks\.zapier\.com/hooks/catch/[0-9]{4,}/[A-Za-z0-9]{6,}"
        rb"|hooks\.slack\.com/(?:workflows|triggers)/[A-Za-z0-9/]{30,}|chat\.googleapis\.com/v1/spaces/[\w-]{6,}/messages\?key=[\w&=%.-]{20,}",
        match=(
            "https://discord.com/api/webhooks/123456789012345678/" + "x9Yk2LmN4pQr7StU" * 4,
            "https://corp.webhook.office.com/webhookb2/0a1b2c3d-4e5f-4a6b-8c7d-0e1f2a3b4c5d@0a1b2c3d-4e5f/IncomingWebhook/0a1b2c3d",
            "https://hooks.zapier.com/hooks/catch/123456/abc123de/",
        ),
        not_match=(
            "https://discord.com/api/webhooks/", "https://hooks.zapier.com/hooks/catch/", "docs at webhook.office.com",
        ),
    ),
    Pattern(
        "password-hash",
        rb"\$(?:1|5|6|7|y|apr1|2[abxy]|argon2(?:id|i|d)|scrypt|pbkdf2-sha(?:1|256|512))\$[A-Za-z0-9./$=,+-]{20,}"
        rb"|\bpbkdf2_sha(?:1|256)\$[0-9]{4,8}\$[A-Za-z0-9]{8,32}\$[A-Za-z0-9+/]{27,}={0,2}|\{SSHA(?:256|512)?\}[A-Za-z0-9+/]{24,}={0,2}",
        match=(
            "root:$6$" + "x9Yk2LmN" * 12 + ":19000:0", "$2y$10$" + "x9Yk2LmN" * 6 + "x9Yk2",
            "$argon2id$v=19$m=65536,t=3,p=4$x9Yk2LmN4pQr$x9Yk2LmN4pQr7StU",
            "pbkdf2_sha256$600000$x9Yk2LmN4pQr$" + "x9Yk2LmN" * 5 + "x9Y=",
        ),
        not_match=("echo $1$2", "$6 a day", "pbkdf2_sha256", "argon2id"),
    ),
    Pattern(
        "private-key",  # a PEM file in base64, as in Kubernetes
        rb"LS0tLS1CRUdJTi[A-Za-z0-9+/]{30,}={0,2}",
        checks.encoded_key,
        match=("client-key-data: LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQo" + "x9Yk2LmN" * 6,),
        not_match=("certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1J" + "x9Yk2LmN" * 6,),
    ),
    Pattern(
        "private-key",
        rb"Private-Lines: [0-9]{1,3}\r?\n",
        checks.putty_key,
        match=("Private-Lines: 2\n" + "x9Yk2LmN" * 8 + "\n" + "x9Yk2LmN" * 4,),
        not_match=("Public-Lines: 2\n" + "x9Yk2LmN" * 8, "Private-Lines: many"),
    ),
    Pattern(
        "private-key",  # a JSON Web Key
        rb"""["'](?:d|k)["']\s?:\s?["'][A-Za-z0-9_-]{40,}""",
        checks.json_web_key,
        match=('{"kty": "EC", "d": "' + "x9Yk2LmN" * 5 + '"}', '{"k":"' + "x9Yk2LmN" * 5 + '","kty":"oct"}'),
        not_match=('{"d": "' + "x9Yk2LmN" * 5 + '"}', '{"kty": "RSA", "n": "' + "x9Yk2LmN" * 5 + '", "e": "AQAB"}'),
    ),
    Pattern(
        "private-key",  # of a cryptocurrency wallet
        rb"""(?i:mnemonic|(?:seed|recovery)[ _]phrase)["']?\s?[:=]\s{0,3}["']?(?:[a-z]{3,8} ){11,23}[a-z]{3,8}\b""",
        checks.signature,
        match=(
            "mnemonic: " + "legal winner thank year " * 3,
            "your recovery phrase:\n\n" + "legal winner thank year " * 3,
        ),
        not_match=("mnemonic: a memory aid", "Recovery phrase: twelve words that you keep"),
    ),
    Pattern(
        "jwt",
        rb"\beyJ" + _WORD + rb"{7}",
        checks.jwt,
        match=(
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4fwpM", "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.",
        ),
        not_match=("eyJhbGciOiJIUzI1NiJ9", "eyJ.eyJ.x", "data:application/json;base64,eyJ2ZXJzaW9uIjozfQ=="),
    ),
    Pattern(
        "url-password",
        rb"""://[^\s/:@"'<>\\]{0,100}:[^\s/@"'<>\\]{1,200}@""",
        checks.url_password,
        match=("postgres://app:s3cr3t@db:5432/app", "https://:tok3n@host/", "redis://:hunter2@cache", "amqp://u:p@h"),
        not_match=(
            "http://localhost:8080/@me", "https://host:443", "http://u:$PASS@h", "https://u:***@h", "ftp://me@host",
            "postgres://user:password@localhost/db", "postgres://USER:PASS@HOST/DB",
        ),
    ),
    Pattern(
        "url-password",
        rb"://[A-Za-z0-9_-]{20,200}@[A-Za-z0-9]",
        checks.url_token,
        match=("git clone https://x9Yk2LmN4pQr7StUvWxZ@git.host/o/r.git",),
        not_match=("https://some-user-name-of-mine@host/x", "https://host/x9Yk2LmN4pQr7StUvWxZ@1"),
    ),
    Pattern(
        "signature",
        rb"(?:(?i:\bx-(?:amz|goog)-signature|[?&, ]signature)|[?&;]sig)(?:=|%3[dD])[0-9A-Za-z%+/_~-]{24,}={0,2}"
        rb'|\bresponse="[0-9a-f]{32,64}"',
        checks.signature,
        match=(
            "https://b.s3.amazonaws.com/f?X-Amz-Signature=" + "0a1b2c3d" * 8,
            "https://x.blob.core.windows.net/c?sv=1&sig=" + "x9Yk2LmN" * 5 + "%3D",
            'Authorization: Digest username="a", response="' + "0a1b2c3d" * 4 + '"',
            "SignedHeaders=host, Signature=" + "0a1b2c3d" * 8,
            "https://h/f?Expires=1&Signature=" + "x9Yk2LmN" * 4 + "%3D",
        ),
        not_match=(
            "signature = inspect.signature(f)", "sig=SIGTERM", 'response="ok"',
            "X-Hub-Signature-256: sha256=" + "0a" * 32,
        ),
    ),
    Pattern(
        "authorization",
        rb"(?i:\bauthorization)"
        + _IS
        + rb"""["']?(?:[A-Za-z][A-Za-z0-9-]{1,24} {1,4})?(?:token=|key=)?["']?[A-Za-z0-9+/=._~%:-]{8,}""",
        checks.authorization_header,
        match=(
            "Authorization: token 0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b", "Authorization: ApiKey x9Yk2LmN4pQr7StU",
            'Authorization: Token token="x9Yk2LmN4pQr7StU"', "authorization: x9Yk2LmN4pQr7StU",
            "Authorization: key=AAAAx9Yk2Lm:APA91bx9Yk2LmN4pQr7StU",
        ),
        not_match=(
            "Authorization: required", "Authorization: token $TOKEN", "Authorization: see section 4",
            "authorization: {type: basic}",
        ),
    ),
    Pattern(
        "cookie",
        rb"(?i:\b(?:set-)?cookie)" + _IS,
        checks.cookie,
        match=(
            "Cookie: sessionid=x9yk2lmn4pqr7stu; theme=dark",
            "Set-Cookie: sid=x9Yk2LmN4pQr7StU; Path=/; Expires=Wed, 21 Oct 2026 07:28:00 GMT",
            "{'Cookie': 'lang=en; auth=x9Yk2LmN4pQr7StU'}",
        ),
        not_match=(
            "Cookie: lang=en; theme=dark",
            "Set-Cookie: theme=dark; Path=/; Expires=Wed, 21 Oct 2026 07:28:00 GMT; Max-Age=31536000",
            "Cookie: a small text file", "cookie = request.cookies['sid']",
        ),
    ),
    Pattern(
        "password",
        rb"""(?:(?i:basic_?auth)|\bauth ?= ?)\(\s?["'][^"'\n]{1,64}["'],\s?""",
        checks.password,
        match=(
            'requests.get(u, auth=("ana", "hunter2"))', 'r.SetBasicAuth("ana", "hunter2x")',
            "HTTPBasicAuth('ana', 'hunter2')",
        ),
        not_match=("auth=(user, password)", 'HTTPBasicAuth("ana", password)'),
    ),
    Pattern(
        "password",
        rb"\s-(?:passin|passout|-user|-proxy-user|[uUpPaw])[ =]{0,2}['\"]?[^\s'\"$-]",
        checks.short_option,
        match=(
            "curl -u ana:hunter2 https://h", "curl --user 'ana:pa55 word' https://h", "mysql -u root -phunter2 shop",
            "sshpass -p 'hunter2' ssh h", "docker login -u bot -p hunter2x h", "redis-cli -a hunter2x ping",
            "openssl rsa -passin pass:hunter2 -in k.pem", "openssl rsa -passin pass:'hunter2'",
            "ldapsearch -x -D cn=a -w hunter2 -b dc=x", "curl -u ana:'hunter2' https://h", "7z x a.7z -phunter2",
            "zip -P hunter2 a.zip b", "sshpass -p'hunter2' ssh h", "smbclient //h/s -U ana%hunter2",
        ),
        not_match=(
            "curl -u ana https://h", 'curl -u "$USER:$PASS" https://h', "mysql -u root -p shop", "mkdir -p build2024",
            "ssh -p 2222 host", "docker run -p 8080:80 nginx", "ps -a -u root:root", "cp -a src1 dst1",
            "grep -w main2 f", "unzip -p a.zip f1.txt", "ping -w 10 host1", "cp -P link1 dir1",
        ),
    ),
    Pattern(
        "password",  # ~/.netrc
        rb"\blogin[ \t]{1,4}[^\s]{1,64}\s{1,12}password[ \t]{1,4}",
        checks.netrc,
        match=("machine h login ana password hunter2", "machine h\n  login ana\n  password correcthorse"),
        not_match=("a login form password field", "login and password reset", "login x password $PW"),
    ),
    Pattern(
        "password",  # SQL
        rb"(?i:\bidentified[ \t]{1,4}(?:with[ \t]{1,4}\w{1,40}[ \t]{1,4})?by[ \t]{1,4}(?:password[ \t]{1,4})?)['\"]"
        rb"|: PSK ['\"]|(?i:\bconvertto-securestring[ \t]{1,4}(?:-string[ \t]{1,4})?)['\"]",
        checks.quoted_password,
        match=(
            "ConvertTo-SecureString 'hunter2' -AsPlainText", '@a @b : PSK "hunter2"',
            "CREATE USER ana IDENTIFIED BY 'hunter2'",
            "alter user ana identified with sha256 by 'correct horse'",
        ),
        not_match=("identified by 'the'", "IDENTIFIED BY '$PW'", "it is identified by its name", "IDENTIFIED BY '{}'"),
    ),
    Pattern(
        "password",  # redis.conf
        rb"(?m:^[ \t]{0,8}(?:requirepass|masterauth|bindpw)[ \t]{1,4})",
        checks.setting_password,
        match=("requirepass hunter2", "port 6379\nmasterauth correcthorse\n", "bindpw hunter2"),
        not_match=("requirepass $PW", "the option requirepass sets it", "requirepass", "# requirepass <password>"),
    ),
    Pattern(
        "password",  # ~/.pgpass
        rb"(?::5432|\*:\*):[A-Za-z0-9_.*-]{1,64}:[A-Za-z0-9_.*-]{1,64}:",
        checks.password,
        match=("db.host:5432:app:ana:hunter2", "*:*:*:ana:hunter2"),
        not_match=("listening on 0.0.0.0:5432: ok", "db:5432:app:ana:$PW"),
    ),
    Pattern(
        "password",  # of Go's MySQL driver
        rb""":[^\s:@/"'(){}$]{4,40}@(?:tcp|unix)\(""",
        checks.dsn_password,
        match=("app:hunter2@tcp(10.0.3.9:3306)/crm?parseTime=true", "ana:correct-horse@unix(/run/mysqld.sock)/x"),
        not_match=("app:$PW@tcp(db:3306)/x", "ana:password@tcp(db:3306)/x", "dial tcp(4)"),
    ),
    Pattern(
        "password",  # ~/.npmrc, an SMTP dialogue and Windows' shares, where anything is one
        rb":_password ?= ?|334 UGFzc3dvcmQ6\r?\n(?:[A-Z>]{1,3}:? )?|[ ]/user:\S{1,40} ",
        checks.whole_value,
        match=(
            "//npm.host/:_password=aHVudGVyaHVudGVy", "S: 334 UGFzc3dvcmQ6\nC: aHVudGVyMg==",
            "net use Z: \\\\nas\\s /user:CORP\\ana hunter2",
        ),
        not_match=("//npm.host/:_password=${NPM_PASSWORD}", "net use Z: \\\\nas\\s /user:ana *"),
    ),
    Pattern(
        "password",  # given to a program through its input
        rb"""\becho (?:-[ne] )?["']?[^\s"'|$`<>]{6,64}["']? ?\| ?"""
        rb"""(?:sudo )?(?:chpasswd|sudo -S|\w[^\n|]{1,40}-stdin)\b""",
        checks.piped,
        match=(
            "echo x9Yk2LmN4pQr | docker login -u ci --password-stdin h", "echo 'ana:hunter2x' | chpasswd",
            "echo x9Yk2LmN | sudo -S apt update",
        ),
        not_match=("echo $PW | docker login --password-stdin", "echo finished | tee --no-stdin", "echo started | cat"),
    ),
    Pattern(
        "credential",
        rb"\b(?:setx|setenv|set -[gU]?x) [A-Za-z0-9_]{0,24}(?i:passw(?:or)?d|pass|token|secret|key) {1,2}"
        rb"|\t(?:TRUE|FALSE)\t[0-9]{1,12}\t[\w.-]{1,40}\t",  # a browser's cookies as text
        checks.credential,
        match=(
            'setx API_TOKEN "x9Yk2LmN4pQr"', "set -gx GITEA_TOKEN x9Yk2LmN4pQr",
            ".h.org\tTRUE\t/\tTRUE\t1790000000\tsession_token\tx9Yk2LmN4pQr7StU",
        ),
        not_match=(".h.org\tTRUE\t/\tFALSE\t0\ttheme\tdark", "set -x PATH_KEY value", "setx API_TOKEN %TOKEN%"),
    ),
    Pattern(
        "cookie",
        rb"\s(?:-b|--cookie)[ =][\"']?[\w.-]{1,24}=",
        checks.cookie_option,
        match=('curl -b "auth_session=x9Yk2LmN4pQr7StU" https://h', "curl --cookie sid=x9Yk2LmN4pQr7StU https://h"),
        not_match=("git checkout -b name=x9Yk2LmN4pQr7StU", "curl -b theme=dark https://h"),
    ),
    Pattern(
        "credential",
        rb"-(?i:passw(?:or)?d|(?:src|dest)?(?:store|key)?pass|passphrase|token|secret|(?:api|access|secret|auth)-?key|credentials?)"
        rb"(?:[ \t]{1,2}|[\"'],\s{0,2})",
        checks.credential,
        match=(
            '["app", "--admin-token", "x9Yk2LmN4pQr"]', "kubeadm join h --token ba065d.xk98467y1uyyvc79",
            "docker login --username bot --password x9Yk2LmN h", "cli --api-key x9Yk2LmN4pQr",
            "keytool -storepass x9Yk2LmN", "keytool -srcstorepass x9Yk2LmN",
        ),
        not_match=(
            "--password TEXT  The password", "--token TOKEN", '--password "$PW"', "--password-stdin", "-pass the ball",
        ),
    ),
    Pattern(
        "authorization",
        rb"\b(?i:bearer|basic) {1,4}[A-Za-z0-9+/=._~%-]{8,}",
        checks.authorization,
        match=(
            "Authorization: Bearer abcdefghijklm", "bearer x9Yk2LmN4pQr7StUvWxZ",
            "Authorization: Basic YWRtaW46aHVudGVyMg==",
        ),
        not_match=(
            "Authorization: Bearer YOUR_ACCESS_TOKEN",
            "basic knowledge of bearers", "Basic authentication", "Authorization: Bearer $TOKEN", 'f"Bearer {token}"',
        ),
    ),
    Pattern(
        "password",
        rb"(?i:passw(?:or)?d|passphrase|passcode|pwd|[_.&?-]pass|\bpsk|senha(?:[_-][a-z]{2,12})?|contrase(?:\xc3\xb1|n)a"
        rb"|passwort|kennwort|authtok|mot[ _]de[ _]passe)"
        + _IS
        + rb"|(?:^|\s)pass ?= ?|(?i:[<:]passw(?:or)?d type=[^<>\n]{1,40}>)"
        rb"|(?i:type=['\"]?password['\"]?[^<>\n]{0,80}\svalue=)"
        rb"|(?i:\bdefine\(\s?['\"](?:[a-z_]{0,40}passw(?:or)?d|(?:secure_)?(?:auth|logged_in|nonce)_(?:key|salt))['\"],\s?)"
        rb"|(?i:\bvariable \"[\w-]{0,40}passw(?:or)?d\" \{[^{}]{0,200}\bdefault\s{0,9}=\s{0,9})",
        checks.password,
        match=(
            'password = "hunter2"', "DB_PASSWORD=abc123!x", "senha: s3nh4forte", "Server=x;Pwd=Str0ng!;",
            "'password': 'letmein'", "POSTGRES_PASSWORD: sunflower", "DB_PASS=correct-horse-battery\n",
            "spring.mail.password=swordfish", "username = ci\npassword = blueberry\n",
            "?user=ana&password=sunflower&x=1", "<password>hunter2</password>", "password=&#39;hunter2&#39;",
            "%22password%22%3A%22hunter2%22", "password\\u003dhunter2\\u0026",
            '<input name="password" value="hunter2">', "- name: DB_PASSWORD\n  value: hunter2",
            "Passwort: hunter2", "<password>{a+1,b}</password>", '<input type="password" id="p" value="hunter2">',
            "define( 'DB_PASSWORD', 'hunter2' );", "define('AUTH_KEY', 'x9#Yk 2LmN 4pQr');", "user=ana&pass=hunter2",
            'variable "db_password" {\n  type = string\n  default = "hunter2"\n}', "[drive]\npass = x9Yk2LmN4pQr",
            "senha_banco = 'hunter2'", "mot_de_passe=hunter2", "\x1b[33mpassword\x1b[0m: \x1b[32mhunter2\x1b[0m",
            '<wsse:Password Type="PasswordText">hunter2</wsse:Password>', '{"name":"DB_PASSWORD","value":"hunter2"}',
            'name="password"\r\n\r\nhunter2\r\n', "ALTER LOGIN sa WITH PASSWORD = N'hunter2'",
            "<td>db_password</td><td class=v>x9Yk2LmN</td>", "login = ana  pass = x9Yk2LmN4pQr",
            "- name: DB_PASSWORD\n            value: hunter2", "SMTP_PASS:       x9Yk2LmN4pQr",
            'password = \"\"\"hunter2\"\"\"',
        ),
        not_match=(
            "password = None", "password: str", "password=os.environ['P']", "PASSWORD=$PASS", "password=***",
            "password policy: strict", "password=get_password()", 'password="${DB_PASS}"', "PWD=/home/me",
            "password: required", "    password = secretword\n", "password: some words", "connect(password=dbpassword)",
            "${DB_PASSWORD:?missing}", "<label>Password</label>", '<input name="password" type="text">',
            "if password > minimum:", "PASS: test_login1", "pass = compute(x1)", '<input type="password" value="">',
            "define('AUTH_KEY', 'put your unique phrase here');", "define('DB_PASSWORD', getenv('PW1234567'));",
            "<password>${env.PW}</password>", "Passwort: erforderlich", "<td>password</td><td>text</td>",
            '<a href="#psk">Pre-shared keys</a>', "<td>password</td><td>varchar</td>",
            "password: !vault_ref db/password",
            "DB_PASSWORD=\nAPI_KEY=\n", '"password"=>"[FILTERED]"', "pass = compute(x1)  # pass = 2",
            '<label for="password" class="wide">Kennwort</label>', '"name":"password","type":"string"',
        ),
    ),
    Pattern(
        "credential",
        rb"(?i:secret[oa]?|segredo(?:[_-][a-z]{2,12})?|token(?:[_-](?:acesso|access|value|auth))?|\"pass|geheimnis"
        rb"|(?:chave|clave|cl\xc3\xa9|cle)[ _-]?(?:de[ _-])?"
        rb"(?:api|acess?o|secr?eta|privada|secr(?:e|\xc3\xa8)te|priv(?:e|\xc3\xa9)e)"
        rb"|api[_-]?schl(?:\xc3\xbc|ue)ssel|\.docker(?:configjson|cfg)|credentials?|[a-z]_session|sessionid|sessid|connect\.sid|secret_key_base|connection_?string|[_\"]auth|client-key-data|x-jfrog-art-api|honeycomb-team|sonar\.login"
        rb"|(?:api|access|account|secret|priv|private|signing|encryption|auth|shared|master|app|application|admin"
        rb"|license|session|cookie|service"
        rb"|role|subscription|server|webhook|deploy|hmac|jwt|fernet|crypt|consumer|client|ingest|write|rest)"
        rb"[ _.-]?(?:access)?key)" + _IS,
        checks.credential,
        match=(
            'api_key: "8f14e45fceea167a5a36"', "secret=x9Yk2LmN4pQr7S", 'token = "a8f5f167f44f4964e6c998de"',
            "AccountKey=Zm9vYmFyYmF6MTIzNDU2Nzg5MA==;", '{\\"token\\": \\"x9Yk2LmN4pQr7S\\"}',
            '"{\\\\\\"token\\\\\\":\\\\\\"x9Yk2LmN4pQr7S\\\\\\"}"', "&quot;api_key&quot;: &quot;x9Yk2LmN4pQr7S&quot;",
            "access_token%3Dx9Yk2LmN4pQr7S%26x%3D1", '<add key="ApiKey" value="x9Yk2LmN4pQr7S" />',
            "//nexus.host/repository/:_auth=YW5hOmh1bnRlcjI=", '{"auths": {"h": {"auth": "YW5hOmh1bnRlcjI="}}}',
            "SECRET_KEY=django-insecure-x9yk#2lmn&4pqr\n", "APP_KEY=base64:x9Yk2LmN4pQr7StU=",
            "X-JFrog-Art-Api: x9Yk2LmN4pQr7StU", "X-Honeycomb-Team: x9Yk2LmN4pQr7StU",
            'API_KEY: &str = "x9Yk2LmN4pQr7S"',
            "<key>ApiToken</key>\n<string>x9Yk2LmN4pQr7S</string>",
            "&lt;input name=&quot;api_key&quot; value=&quot;x9Yk2LmN4pQr7S&quot;&gt;",
            "&lt;apiToken&gt;x9Yk2LmN4pQr7S&lt;/apiToken&gt;",
            "chave_api=x9Yk2LmN4pQr7S", "chaveApi: 'x9Yk2LmN4pQr7S'", "clave_secreta=x9Yk2LmN4pQr7S",
            'NSString *const kUploadToken = @"x9Yk2LmN4pQr7S"', '{"laravel_session": "x9Yk2LmN4pQr7S"}',
            "segredo_cliente: x9Yk2LmN4pQr7S", "token_acesso=x9Yk2LmN4pQr7S", '"user":"ana","pass":"x9Yk2LmN4pQr"',
            "\x1b[1mAPI_KEY\x1b[0m=x9Yk2LmN4pQr7S", ".dockerconfigjson: eyJhdXRocyI6IHsiZ2hjci5pbyI6",
            '{"name":"remember_token","value":"x9Yk2LmN4pQr7S"}', "<td>API_SECRET</td>\n<td>x9Yk2LmN4pQr7S</td>",
        ),
        not_match=(
            "token = get_token()", "token = tokens[0]", "eos_token: 151643", "max_tokens=4096", "secret: my-secret",
            "token: Optional[str] = None", "api_key=settings.API_KEY_V2", "secret=/run/secrets/db1234",
            'token: "next page"', "certtool --generate-privkey &gt; x509-ca-key.pem", "token_access: granted",
            '{"pass": "test_login", "fail": 2}', "chave_api: consulte o manual", "token=settings.token_v2_name",
            "arn:aws:secretsmanager:sa-east-1:497362728643:secret:prod/db-aB3xYz",
        ),
    ),
    Pattern(
        "credential",
        rb"[A-Za-z0-9][_-](?i:key|pat)" + _IS,
        checks.named_key,
        match=(
            "OPENAI_KEY=x9Yk2LmN4pQr7StU", "Ocp-Apim-Subscription-Key: 0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d",
            "AZURE_STORAGE_KEY=x9Yk/2LmN/4pQr/7StU/x9Yk2LmN4pQr7StUx9Yk2LmN==",
        ),
        not_match=(
            '"cache_key": "0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d"', "idempotency-key: 0a1b2c3d-4e5f-4a6b-8c7d-0e1f2a3b4c5d",
            '"public_key": "x9Yk2LmN4pQr7StUx9Yk2LmN"', "s3_key=uploads/0a1b2c3d4e5f0a1b2c3d.png",
            "sort_key = created_at", 'CLUSTER_KEY = "ElasticsearchClusterConfig"', 'HEX_PAT = "[0-9A-Fa-f]{1,4}"',
        ),
    ),
    Pattern(
        "credential",
        rb"[?&](?i:key|code|appid)=|(?:^|\n)[ \t]{0,8}(?i:key)[ \t]{0,8}[=:][ \t]{0,4}",
        checks.key_value,
        match=(
            "https://h/js?key=x9Yk2LmN4pQr7StUvWxZ&v=3", "?code=x9Yk2LmN4pQr7StUvWxZ",
            "[api]\nkey = 0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d",
        ),
        not_match=(
            "?key=value&code=200", "?key=a-rather-long-plain-word", "key: Enter", "Cache key: v1-" + "0a1b2c3d" * 8,
        ),
    ),
    Pattern(
        "credential",
        rb"(?i:(?:passw(?:or)?[dt]|\bpassphrase|\bsenha|\bapi key|\btoken|\bsecret(?: key)?))"
        rb"""(?:(?i: is generated for \S{1,64}| is| was| lautet| provided"""
        rb"""| set to| changed to| reset to| for (?:user )?\S{1,64}(?: is)?):? {1,2}| ["'])"""
        rb"|(?i:\bsenha)(?: [^\s:=]{1,12}){0,8} (?:\xc3\xa9|foi alterada para):? {1,2}"
        rb"|(?i:\bunseal key [0-9]{1,2}: |\benable (?:secret|password) (?:[0-9] )?|\bkey content {1,16}: )|> AUTH "
        rb"|\$\{?[A-Z0-9_]{0,24}(?:TOKEN|SECRET|PASSWORD|API_KEY)\}?[\"']?\n"
        rb"|(?:TOKEN|SECRET|PASSWORD|API_KEY)[\"']\]\n[\"']|\bsqlplus [\w.]{1,32}/"
        rb"|PDO->__construct\('[^'\n]{1,48}', '[^'\n]{1,32}', '"
        rb"|(?i:\b(?:username|connect) \S{1,64} (?:privilege [0-9]{1,2} )?(?:password|secret)(?: [0-9])? )"
        rb"|\b(?:(?:wandb|cargo) login|add-authtoken|mc alias set(?: \S{1,99}){3}|secret set \w{1,60} (?:-b|--body)"
        rb"|configure set \w{0,40}secret\w{0,40}|define \w{0,60}(?:PASSWORD|SECRET|TOKEN|KEY)"
        rb"|config set --secret \S{1,60}) {1,4}"
        rb"""|\(\s?["'][\w.-]{0,60}(?i:passw(?:or)?d|token|secret|api[_.-]?key)["'],\s?["']""",
        checks.quoted_credential,
        match=(
            "Your new password is: x9Yk2LmN", "New password for user ana is: x9Yk2LmN",
            "A senha do usu\u00e1rio ana \u00e9 x9Yk2LmN", "denied for password 'x9Yk2LmN'",
            "Incorrect API key provided: x9Yk2LmN4pQr.", "[sudo] password for ana: x9Yk2LmN",
            "wandb login x9Yk2LmN4pQr", 'os.Setenv("DB_PASSWORD", "x9Yk2LmN")', "Das Passwort lautet x9Yk2LmN",
            "ngrok config add-authtoken x9Yk2LmN4pQr", "Unseal Key 1: x9Yk2LmN4pQr", '#define WIFI_PASSWORD "x9Yk2LmN"',
            "a temporary password is generated for root@localhost: x9Yk2LmN", 'storePassword "x9Yk2LmN4pQr"',
            "enable secret 0 x9Yk2LmN4pQr", "127.0.0.1:6379> AUTH x9Yk2LmN4pQr", "Key Content            : x9Yk2LmN",
            "$ echo $DEPLOY_TOKEN\nx9Yk2LmN4pQr", ">>> os.environ['DB_PASSWORD']\n'x9Yk2LmN4pQr'",
            "sqlplus system/x9Yk2LmN4pQr@//h:1521/X", "PDO->__construct('mysql:host=h', 'ana', 'x9Yk2LmN4pQr', Array)",
            "aws configure set aws_secret_access_key x9Yk2LmN4pQr", "username ana password 7 0A1B2C3D4E5F6071",
        ),
        not_match=(
            "password is required", "the token is invalid", "password 'incorrect'", "token was revoked 2024-11-16",
            "a token 'abc'", 'getattr(user, "password", "none1234")', 'Column("token", "varchar")',
            "$ echo $TOKEN\nfinished the build", "enable secret 5 times", "sqlplus system/manager", "> AUTH required",
            "wandb login --relogin", "password for ana: denied", "cargo login --registry corp",
        ),
    ),
    Pattern(
        "card",
        rb"\b(?:(?:[456][0-9]{3}|2[2-7][0-9]{2}|35[0-9]{2})(?:(?: [0-9]{4}){3}|(?:-[0-9]{4}){3}|[0-9]{12})"
        rb"|3[47][0-9]{2}(?: [0-9]{6} [0-9]{5}|-[0-9]{6}-[0-9]{5}|[0-9]{11})"
        rb"|3[068][0-9]{2}(?: [0-9]{6} [0-9]{4}|[0-9]{10}))\b",
        checks.card,
        match=(
            "4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005", "6362970000457013",
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
            "GB82 WEST 1234 5698 7654 32", "DE89370400440532013000", "BR1800360305000010009795493C1",
            "GB82 WEST 1234 5698 7654 32 PAID",
        ),
        not_match=("GB82 WEST 1234 5698 7654 33", "AB12 3456 7890 1234"),
        personal=True,
    ),
    Pattern(
        "email",
        rb"[A-Za-z0-9_%+-](?:@|%40|&\#64;)[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+[A-Za-z]{2,24}\b",
        checks.email,
        match=(
            "ana.souza+x@exemplo.com.br", "<bob@example.org>", "a@b.io", "to=ana%40exemplo.com.br",
            "ana&#64;exemplo.com.br", "li@163.com", "https://example.org/?to=ana@exemplo.com.br",
            "https://ana%40exemplo.com.br@example.org/", "https://example.org mailto:ana@exemplo.com.br",
            "https://example.org/contact?mailto:ana@exemplo.com.br", "http://u:p@example.org/mailto:a@b.io",
        ),
        not_match=(
            "@app.route('/x')", "pkg@1.2.3", "npm@10.2.3", "react@18.2.0.tgz", "react-dom@18.3.0-rc.beta",
            "logo@2x.png", "getty@tty1.service", "https://user@github.com/org/repo", "git@github.com:org/repo",
            "http://user:pass@example.org/", "user@localhost", "a@b.dot(c)",
        ),
        personal=True,
    ),
    Pattern(
        "phone",
        rb"\+55 ?\(?[0-9]{2}\)? ?9?[0-9]{4}[ -]?[0-9]{4}\b"
        rb"|\+[1-9][0-9]{0,2}[ .-]\(?[0-9]{2,4}\)?[ .-][0-9]{3,5}[ .-]?[0-9]{3,4}\b"
        rb"|\([1-9][0-9]\) ?9?[0-9]{4}-[0-9]{4}\b|\([2-9][0-9]{2}\) ?[2-9][0-9]{2}-[0-9]{4}\b"
        rb"|(?i:\b(?:tel|phone|telephone|mobile|cell|fax|whatsapp|telefone|celular|fone)(?:[ _-]?(?:no|number|nr))?)"
        rb"[^0-9A-Za-z\n+(]{1,6}\+?\(?[0-9][0-9 ().-]{7,18}[0-9]\b",
        checks.phone,
        match=(
            "+55 11 91234-5678", "+5511912345678", "+55 (11) 3123-4567", "+1 415-555-2671", "+44 20 7946 0958",
            "(415) 555-2671", "(11) 91234-5678", "tel: 415-555-2671", "phone=+14155552671",
            '"phone_number": "4155552671"',
        ),
        not_match=(
            "+0000", "+5511", "+1234567890", "10:00:00+01:00", "(123) 456-7890", "(2024) 1234-5678", "phone: 911",
            "cell 12 of 30",
        ),
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
    Pattern(
        "national-id",
        rb"(?i:\b(?:ssn|social security(?: no\.?| number)?|nino|ni number|national insurance(?: no\.?| number)?"
        rb"|nhs(?: no\.?| number)?|aadhaar|aadhar"
        rb"|pis|nif|nie|dni|nir|codice fiscale|steuer-?id|bsn|pesel|passport(?: no\.?| number| nr\.?)?|passaporte)\b)"
        rb"""["']?[^0-9A-Za-z\n]{1,5}[0-9A-Z][0-9A-Z]?[ .-]?[0-9A-Z][0-9A-Z .-]{4,17}[0-9A-Z]\b""",
        checks.national_id,
        match=(
            "ssn=219099999", "NINO AB 12 34 56 C", "NI number AB123456C",
            "Aadhaar: 2341 2341 2346", "NIF: 123456789", "DNI 12345678Z",
            "codice fiscale RSSMRA85T10A562S", "Passport No: X1234567", "NHS number 943 476 5919",
            "PIS: 120.12345.67-2",
        ),
        not_match=(
            "SSN 000000000", "NIF: 123456780", "passport: EXPIRED", "PIS: 11.111", "dni TABLES ONLY", "pis 12345678901",
            "NI number plates",
        ),
        personal=True,
    ),
    Pattern(
        "card-code",
        rb"""(?i:\b(?:cvv2?|cvc2?|card[ _]security[ _]code))["']?[ \t]{0,2}[:=][ \t]{0,2}["']?[0-9]{3,4}\b""",
        checks.last_word,
        match=("cvv: 123", '"cvc": "1234"'),
        not_match=("cvv: 12345", "cvc code"),
        personal=True,
    ),
    Pattern(
        "birth-date",
        rb"(?i:\b(?:date[ _-]?of[ _-]?birth|birth[ _-]?date|birthday|dob|data de nascimento|data_nascimento))"
        rb"""["']?[ \t]{0,2}[:=]?[ \t]{0,2}["']?"""
        rb"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{4})\b",
        checks.last_word,
        match=("date of birth: 1984-03-21", '"dob": "21/03/1984"', "data de nascimento: 21/03/1984"),
        not_match=("created: 1984-03-21", "dob: unknown"),
        personal=True,
    ),
)  # fmt: skip
