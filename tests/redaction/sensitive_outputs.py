"""Texts as programs, tools and files print them, with secrets and personal data marked, and texts with none.

They say what ought to be found, not what is: written without a look at the patterns, from what tools print and from the
kinds that public scanners list. Values are drawn anew from a fixed seed, so that no real-looking key stands in this
file. What has to go is between « and »; `{hex40}` is 40 random hexadecimal digits, likewise `an` (letters and digits),
`AN` (capitals and digits), `low` (small letters and digits), `url` (with - and _), `b64` (with + and /), `dig`.
"""

# ruff: noqa: E501 - one thing a line

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator
from typing import NamedTuple

_ALPHABETS = {
    "hex": "0123456789abcdef",
    "HEX": "0123456789ABCDEF",
    "an": string.ascii_letters + string.digits,
    "AN": string.ascii_uppercase + string.digits,
    "A2": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "low": string.ascii_lowercase + string.digits,
    "url": string.ascii_letters + string.digits + "-_",
    "b64": string.ascii_letters + string.digits + "+/",
    "dig": string.digits,
}
_SLOT = re.compile(r"\{(hex|HEX|an|AN|A2|low|url|b64|dig)(\d+)\}")


class Output(NamedTuple):
    """A text, and the character ranges of it that have to go."""

    title: str
    text: str
    marked: list[tuple[int, int]]


# Named by the place that they come from.
SECRET = {
    ".env": """
# production
DATABASE_URL=postgres://app:«{an16}»@db.internal:5432/app
REDIS_URL=rediss://default:«{an24}»@cache.internal:6379
SECRET_KEY=«django-insecure-{low12}#{low10}&{low8}»
JWT_SECRET=«{an32}»
SESSION_SECRET="«keyboard-cat-{low8}»"
APP_KEY=base64:«{b64_43}»=
RAILS_MASTER_KEY=«{hex32}»
STRIPE_SECRET_KEY=«sk_live_{an24}»
SENDGRID_API_KEY=«SG.{url22}.{url43}»
MAILGUN_API_KEY=«key-{hex32}»
MAILCHIMP_API_KEY=«{hex32}-us14»
TWILIO_ACCOUNT_SID=AC{hex32}
TWILIO_AUTH_TOKEN=«{hex32}»
DD_API_KEY=«{hex32}»
DD_APP_KEY=«{hex40}»
NEW_RELIC_LICENSE_KEY=«{hex36}NRAL»
ALGOLIA_ADMIN_KEY=«{hex32}»
HEROKU_API_KEY=«{hex8}-{hex4}-{hex4}-{hex4}-{hex12}»
SENTRY_AUTH_TOKEN=«sntrys_{url60}»
SMTP_PASS=«{an12}»
MYSQL_ROOT_PASSWORD=«correct-horse-battery»
ENCRYPTION_KEY=«{hex64}»
LOG_LEVEL=info
PORT=8080
""",
    "docker-compose.yml": """
services:
  db:
    image: postgres:16
    environment:
      POSTGRES_USER: app
      POSTGRES_PASSWORD: «sunflower»
      PGADMIN_DEFAULT_PASSWORD: "«{an10}»"
  broker:
    environment:
      - RABBITMQ_DEFAULT_PASS=«{an14}»
      - MINIO_ROOT_PASSWORD=«minio-{low9}»
      - GF_SECURITY_ADMIN_PASSWORD=«{an14}»
""",
    "settings.ini": """
[smtp]
host = smtp.example.net
user = mailer
password = «winter2024»
[api]
key = «{hex32}»
secret = «{an40}»
""",
    "config.toml": """
[registry]
token = "«cio{an32}»"
[database]
url = "mysql://root:«{an12}»@10.0.0.4/shop"
passphrase = '«open sesame 42»'
""",
    "application.properties": """
spring.datasource.username=app
spring.datasource.password=«{an14}»
spring.mail.password=«swordfish»
jwt.secret=«{an48}»
server.ssl.key-store-password=«changeit99»
""",
    "netrc": """
machine api.example.com
  login ana
  password «{an12}»
machine github.com login bot password «{an20}»
default login anonymous password «guestword»
""",
    ".npmrc": """
//registry.npmjs.org/:_authToken=«npm_{an36}»
//npm.pkg.github.com/:_authToken=«{hex40}»
//nexus.corp/repository/:_auth=«{b64_28}»
//nexus.corp/repository/:_password=«{b64_20}»
registry=https://registry.npmjs.org/
""",
    ".pypirc": """
[pypi]
username = __token__
password = «pypi-AgEIcHlwaS5vcmc{url80}»
[private]
repository = https://pypi.corp/simple
username = ci
password = «blueberry»
""",
    "docker config.json": """
{
  "auths": {
    "https://index.docker.io/v1/": {"auth": "«{b64_32}»"},
    "registry.corp": {"identitytoken": "«{url64}»"}
  }
}
""",
    "kubeconfig": """
users:
- name: admin
  user:
    client-certificate-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1J{b64_40}
    client-key-data: «LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQo{b64_80}»
- name: sa
  user:
    token: «{url64}»
""",
    "kubectl get secret -o yaml": """
apiVersion: v1
kind: Secret
data:
  password: «{b64_15}»=
  tls.key: «LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk{b64_90}»
  username: YWRtaW4=
metadata:
  name: db
""",
    "http request": """
> POST /v1/charge HTTP/1.1
> Host: api.example.com
> Authorization: Bearer «{url40}»
> X-Api-Key: «{an32}»
> Cookie: sessionid=«{low32}»; theme=dark; csrftoken=«{an32}»
> X-Request-Id: {hex8}-{hex4}-{hex4}-{hex4}-{hex12}
> Content-Type: application/json
< HTTP/1.1 200 OK
< Set-Cookie: session=«{url43}»; Path=/; HttpOnly
< Set-Cookie: connect.sid=«s%3A{url32}.{url43}»; Path=/
< ETag: "{hex32}"
""",
    "other headers": """
Authorization: token «{hex40}»
Authorization: ApiKey «{an22}»
Authorization: Token token="«{an24}»"
Proxy-Authorization: Basic «{b64_20}»
X-Auth-Token: «{an32}»
X-Vault-Token: «s.{an24}»
PRIVATE-TOKEN: «{url20}»
Ocp-Apim-Subscription-Key: «{hex32}»
X-Amz-Security-Token: «IQoJb3JpZ2luX2VjE{b64_120}»
X-Goog-Api-Key: «{url39}»
X-Shopify-Access-Token: «shpat_{hex32}»
X-Hub-Signature-256: sha256={hex64}
Authorization: Digest username="ana", realm="x", nonce="{hex16}", uri="/", response="«{hex32}»"
Authorization: AWS4-HMAC-SHA256 Credential=«AKIA{A216}»/20261116/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=«{hex64}»
""",
    "python headers dict": """
{'User-Agent': 'python-requests/2.32', 'Authorization': 'Bearer «{an30}»', 'x-api-key': '«{an28}»', 'Cookie': 'sid=«{an26}»'}
""",
    "urls": """
GET https://api.example.com/v1/me?access_token=«{url40}»&fields=id 200
https://maps.example.com/js?key=«{an32}»&v=3
https://storage.blob.core.windows.net/c/f.txt?sv=2024-01-01&se=2026-12-01&sr=b&sp=r&sig=«{an40}%2B{an2}%3D»
https://bucket.s3.amazonaws.com/f?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=«AKIA{A216}»%2F20261116&X-Amz-Signature=«{hex64}»
https://storage.googleapis.com/b/f?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Signature=«{hex128}»
https://example.com/reset?token=«{hex32}»
https://example.com/login?user=ana&password=«{an9}»
https://example.com/cb?code=«{url40}»&state=ok
https://discord.com/api/webhooks/{dig18}/«{url68}»
https://hooks.slack.com/services/«T{AN8}/B{AN10}/{an24}»
https://corp.webhook.office.com/webhookb2/«{hex8}-{hex4}-{hex4}-{hex4}-{hex12}@{hex8}-{hex4}-{hex4}-{hex4}-{hex12}/IncomingWebhook/{hex32}/{hex8}-{hex4}-{hex4}-{hex4}-{hex12}»
ftp://backup:«{an10}»@ftp.example.com/x
git remote: https://x-access-token:«ghs_{an36}»@github.com/o/r.git
https://«{hex40}»@git.corp/o/r.git
""",
    "connection strings": """
Server=tcp:x.database.windows.net;Database=d;User ID=sa;Password=«{an12}!»;Encrypt=true
DefaultEndpointsProtocol=https;AccountName=x;AccountKey=«{b64_86}==»;EndpointSuffix=core.windows.net
Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=«{b64_43}=»
jdbc:postgresql://db/app?user=app&password=«{an11}»
mongodb+srv://app:«{an14}»@cluster0.example.mongodb.net/db
host=db port=5432 dbname=app user=app password=«hunter22» sslmode=require
amqps://svc:«{an18}»@mq.example.com/vhost
db.internal:5432:app:appuser:«{an13}»
""",
    "shell history": """
mysql -u root -p«{an10}» shop
curl -u admin:«{an10}» https://x.example.com
curl --user 'ana:«s3same!x»' https://x.example.com
curl -H "X-Api-Key: «{an24}»" https://x.example.com
sshpass -p '«{an10}»' ssh root@10.0.0.9
docker login -u bot -p «{an20}» registry.corp
docker login --username bot --password «{an18}» registry.corp
export AWS_SESSION_TOKEN=«FwoGZXIvYXdzE{b64_80}»
redis-cli -a «{an16}» ping
vault login «hvs.{url90}»
PGPASSWORD='«{an10}»' psql -h db -U app
echo "«{an14}»" | docker login --password-stdin -u bot
openssl rsa -passin pass:«{an10}» -in k.pem
wget --password=«{an10}» ftp://h/x
""",
    "aws cli": """
{
    "Credentials": {
        "AccessKeyId": "«ASIA{A216}»",
        "SecretAccessKey": "«{b64_40}»",
        "SessionToken": "«IQoJb3JpZ2luX2VjE{b64_160}»",
        "Expiration": "2026-11-17T00:00:00Z"
    }
}
""",
    "gcp service account": """
{
  "type": "service_account",
  "project_id": "demo",
  "private_key_id": "{hex40}",
  "private_key": "«-----BEGIN PRIVATE KEY-----\\n{b64_64}\\n{b64_64}\\n-----END PRIVATE KEY-----»\\n",
  "client_email": "«robot@demo.iam.gserviceaccount.com»",
  "client_id": "{dig21}"
}
refresh_token: «1//0g{url90}»
access token ya29 is «ya29.a0{url120}»
""",
    "tokens of services, one a line": """
github    «ghp_{an36}»
github    «github_pat_{an22}_{an59}»
gitlab    «glpat-{url20}»
gitlab    «gldt-{url20}»
gitlab    «glsoat-{url20}»
slack     «xoxb-{dig12}-{dig12}-{an24}»
slack     «xoxe.xoxp-1-{an100}»
npm       «npm_{an36}»
pypi      «pypi-AgEIcHlwaS5vcmc{url80}»
rubygems  «rubygems_{hex48}»
crates    «cio{an32}»
nuget     «oy2{low43}»
docker    «dckr_pat_{url27}»
docker    «dckr_oat_{url32}»
openai    «sk-proj-{url48}T3BlbkFJ{url48}»
openai    «sk-svcacct-{url40}T3BlbkFJ{url40}»
anthropic «sk-ant-api03-{url93}AA»
openrouter «sk-or-v1-{hex64}»
groq      «gsk_{an52}»
xai       «xai-{an80}»
replicate «r8_{an37}»
hugging   «hf_{an34}»
perplexity «pplx-{an48}»
fireworks «fw_{an24}»
langsmith «lsv2_pt_{hex32}_{hex10}»
pinecone  «pcsk_{an6}_{an63}»
cerebras  «csk-{low48}»
tavily    «tvly-{an32}»
nvidia    «nvapi-{url64}»
databricks «dapi{hex32}»
digitalocean «dop_v1_{hex64}»
linode    {hex64} is not told by its looks but LINODE_TOKEN=«{hex64}» is
fly       «fo1_{url43}»
render    «rnd_{an32}»
netlify   «nfp_{an36}»
vercel    VERCEL_TOKEN=«{an24}»
supabase  «sbp_{hex40}»
supabase  «sb_secret_{url31}»
planetscale «pscale_tkn_{url43}»
planetscale «pscale_pw_{url43}»
neon      «napi_{low64}»
tailscale «tskey-auth-{an16}-{an32}»
doppler   «dp.pt.{an43}»
vault     «hvs.{url90}»
terraform «{an14}.atlasv1.{url67}»
pulumi    «pul-{hex40}»
linear    «lin_api_{an40}»
notion    «secret_{an43}»
notion    «ntn_{dig11}{an35}»
figma     «figd_{url40}»
airtable  «pat{an14}.{hex64}»
asana     ASANA_PAT=«1/{dig16}:{hex32}»
atlassian «ATATT3xFfGF0{url180}={HEX8}»
bitbucket «ATBB{an32}»
postman   «PMAK-{hex24}-{hex34}»
grafana   «glsa_{an32}_{hex8}»
grafana   «glc_eyJ{an80}=»
sentry    «sntryu_{hex64}»
newrelic  «NRAK-{AN27}»
dynatrace «dt0c01.{AN24}.{AN64}»
sonar     «squ_{hex40}»
snyk      SNYK_TOKEN=«{hex8}-{hex4}-{hex4}-{hex4}-{hex12}»
circleci  «CCIPAT_{an22}_{hex40}»
buildkite «bkua_{hex40}»
shopify   «shpat_{hex32}»
shopify   «shpss_{hex32}»
square    «sq0atp-{url22}»
square    «EAAA{url60}»
stripe    «rk_live_{an24}»
stripe    «whsec_{an32}»
paypal    «access_token$production${low16}${hex32}»
razorpay  «rzp_live_{an14}» key, RAZORPAY_KEY_SECRET=«{an24}»
mercado   «APP_USR-{dig16}-{dig6}-{hex32}-{dig9}»
plaid     «access-production-{hex8}-{hex4}-{hex4}-{hex4}-{hex12}»
flutter   «FLWSECK-{hex32}-X»
easypost  «EZAK{an54}»
shippo    «shippo_live_{hex40}»
duffel    «duffel_live_{url43}»
brevo     «xkeysib-{hex64}-{an16}»
resend    «re_{an8}_{an24}»
hubspot   «pat-na1-{hex8}-{hex4}-{hex4}-{hex4}-{hex12}»
typeform  «tfp_{url44}_{url14}»
discord   «MTA{an21}.G{an5}.{url38}»
telegram  «{dig10}:AA{url33}»
facebook  «EAAJ{an120}»
alibaba   «LTAI5t{an18}»
tencent   «AKID{an32}»
yandex    «AQVN{url35}»
azure ad  AZURE_CLIENT_SECRET=«{an3}8Q~{url34}»
1password «ops_eyJ{an200}»
age       «AGE-SECRET-KEY-1{AN58}»
artifactory «AKCp{an69}»
clojars   «CLOJARS_{hex60}»
contentful «CFPAT-{url43}»
adobe     «p8e-{low32}»
dropbox   «sl.{url130}»
mapbox    «sk.eyJ{an60}.{url22}»
okta      SSWS «00{url40}»
openshift «sha256~{url43}»
sourcegraph «sgp_{hex16}_{hex40}»
prefect   «pnu_{low36}»
readme    «rdme_{low70}»
infracost «ico-{an32}»
scalingo  «tk-us-{url48}»
harness   «pat.{an22}.{hex24}.{an20}»
launchdarkly «sdk-{hex8}-{hex4}-{hex4}-{hex4}-{hex12}»
jwt       «eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.{url43}»
""",
    "json log": """
{"level":"info","msg":"login","user":"ana","password":"«{an9}»","ts":1763337600}
{"level":"debug","request":{"headers":{"authorization":"Bearer «{an40}»","x-api-key":"«{an32}»"},"body":"{\\"refreshToken\\":\\"«{an40}»\\"}"}}
{"clientSecret":"«{an32}»","clientId":"web","accessToken":"«{an40}»","idToken":null}
{"event":"{\\\\\\"apiKey\\\\\\":\\\\\\"«{an32}»\\\\\\"}"}
{"q":"password\\u003d«{an12}»\\u0026x=1"}
""",
    "html": """
<input type="password" name="password" value="«{an12}»">
<pre>{&quot;api_key&quot;: &quot;«{an32}»&quot;}</pre>
<td>password=&#39;«{an10}»&#39;</td>
<password>«{an10}»</password>
<add key="ApiKey" value="«{an32}" />»
""".replace('«{an32}" />»', '«{an32}»" />'),
    "url-encoded": """
body: grant_type=password&username=ana&password=«{an12}»&client_secret=«{an32}»
next=https%3A%2F%2Fapi.example.com%2Fcb%3Faccess_token%3D«{an40}»%26x%3D1
%7B%22password%22%3A%22«{an11}»%22%7D
""",
    "python": """
client = Client(api_key="«{an32}»", base_url="https://x")
os.environ["OPENAI_KEY"] = "«{an40}»"
conn = psycopg2.connect(host="db", user="app", password='«orange-juice»')
requests.get(url, auth=("ana", "«{an12}»"))
PASSWORD: Final = "«{an10}»"
config = {'secret_key': b'«{an24}»'}
login(username="bot", passwd="«tangerine»")
""",
    "javascript and go": """
const apiKey = '«{an32}»';
axios.defaults.headers.common["Authorization"] = "Bearer «{an40}»";
password := "«{an10}»"
SetBasicAuth("ana", "«{an12}»")
privateKey: "«0x{hex64}»"
""",
    "terraform and ansible": """
  password             = "«{an14}»"
  access_key = "«AKIA{A216}»"
  secret_key = "«{b64_40}»"
ansible_become_pass: «{an10}»
ansible_ssh_pass=«{an10}»
vault_token: "«{an26}»"
""",
    "wifi, htpasswd, shadow": """
psk="«{an12}»"
wpa_passphrase=«{an10}»
ana:«$apr1${an8}${an22}»
root:«$6${an16}${an86}»:19000:0:99999:7:::
web:«$2y$10${an53}»
""",
    "keys": """
«-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAA{b64_46}
{b64_70}
-----END OPENSSH PRIVATE KEY-----»
PuTTY-User-Key-File-3: ssh-ed25519
Public-Lines: 2
AAAAC3NzaC1lZDI1NTE5{b64_44}
Private-Lines: 1
«{b64_48}»
""",
    "error messages": """
sqlalchemy.exc.OperationalError: could not connect: postgresql+psycopg2://app:«{an12}»@db:5432/app
fatal: Authentication failed for 'https://ana:«{an14}»@git.corp/x.git/'
KeyError: 'token' in {'token': '«{an24}»', 'id': 3}
ValueError: invalid api key provided: «sk-{an48}»
ERROR 1045 (28000): Access denied; tried password '«{an9}»'
Incorrect API key provided: «{an32}». You can find your API key at https://x
Your new password is: «{an10}»
Token: «{an30}»
""",
    "people": """
name,email,phone,card
Ana Souza,«ana.souza@example.com.br»,«+55 11 91234-5678»,«4111 1111 1111 1111»
Bob,«bob@example.org»,«(415) 555-2671»,«5555555555554444»
tel: «415-555-2671»
Telefone: «(11) 91234-5678»
phone=«+14155552671»
mobile: «+44 7911 123456»
SSN: «219-09-9999»
ssn=«219099999»
CPF «529.982.247-25» CNPJ «16.727.230/0001-97»
IBAN «DE89 3704 0044 0532 0130 00»
IBAN «GB82WEST12345698765432»
Passport No: «X1234567»
NINO «AB 12 34 56 C»
Aadhaar: «2341 2341 2346»
PIS: «120.12345.67-2»
NIF: «123456789»
mail%20to=«ana%40example.com»
cvv: «123»
date of birth: «1984-03-21»
codice fiscale «RSSMRA85T10A562S»
DNI «12345678Z»
""",
}

HARMLESS = {
    "git log": """
commit {hex40} (HEAD -> main, origin/main)
Merge: {hex7} {hex7}
Date:   Mon Nov 16 10:00:00 2026 +0000
    fix: rotate token when the password changes
 src/auth/token.py | 12 ++++++------
index {hex7}..{hex7} 100644
key: fix the primary_key of users
""",
    "uuids and ids": """
request_id={hex8}-{hex4}-{hex4}-{hex4}-{hex12}
X-Request-Id: {hex8}-{hex4}-{hex4}-{hex4}-{hex12}
traceparent: 00-{hex32}-{hex16}-01
trace_id={hex32} span_id={hex16}
arn:aws:iam::{dig12}:role/deploy
i-{hex17} subnet-{hex8} sg-{hex17}
client_id: {hex8}-{hex4}-{hex4}-{hex4}-{hex12}
session_count=4 token_count=1234 max_tokens: 4096
ETag: "{hex32}"
If-None-Match: W/"{hex32}"
""",
    "lock files": """
    "integrity": "sha512-{b64_86}=="
    "resolved": "https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz",
requests==2.32.3 --hash=sha256:{hex64}
golang.org/x/oauth2 v0.15.0 h1:{b64_43}=
checksum = "{hex64}"
  version = "1.0.3"
  resolution: {integrity: sha512-{b64_86}==}
content-hash = "{hex64}"
sha256 = "{low52}"
""",
    "docker": """
Digest: sha256:{hex64}
Status: Downloaded newer image for postgres:16
{hex12}   postgres:16   "docker-entrypoint.s…"   2 hours ago   Up 2 hours   0.0.0.0:5432->5432/tcp   db
 => => writing image sha256:{hex64}
docker login --password-stdin
docker login -u bot -p "$PASSWORD" registry.corp
""",
    "kubectl": """
NAME                     READY   STATUS    RESTARTS   AGE
web-{low9}-{low5}   1/1     Running   0          3d
secret/db-credentials created
serviceaccount/default   1   10d
Mounts: /var/run/secrets/kubernetes.io/serviceaccount from kube-api-access-{low5} (ro)
  password:  16 bytes
  token:     1024 bytes
kubernetes.io/service-account-token   3      41d
    secretKeyRef:
      name: db-credentials
      key: password
    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1J{b64_60}
""",
    "base64 and images": """
<img src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA{b64_200}">
"data": {"image/png": "iVBORw0KGgo{b64_300}"}
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{b64_43} ana
ssh-rsa AAAAB3NzaC1yc2E{b64_300}
-----BEGIN CERTIFICATE-----
{b64_64}
{b64_64}
-----END CERTIFICATE-----
-----BEGIN PUBLIC KEY-----
{b64_64}
-----END PUBLIC KEY-----
""",
    "source code": """
def login(user: str, password: str, token: str | None = None) -> Session:
    token = token or os.environ.get("API_TOKEN")
    password = getpass.getpass("Password: ")
    if not token: raise ValueError("token is required")
    headers = {"Authorization": f"Bearer {token}", "X-Api-Key": api_key}
    self.api_key = api_key or settings.API_KEY
    key = lambda item: item.name
    for key, value in sorted(d.items(), key=itemgetter(1)):
    sort_key = "created_at"; cache_key = f"user:{user_id}:v2"
    PRIMARY_KEY = "id"
    token_type = "refresh_token"
    secret = load_secret(name="db-password")
    cookie = cookies.get("sessionid")
    assert response.status_code == 401, "bad password"
    auth=(user, password)
    auth = HTTPBasicAuth(username, password)
    password = hash_password(plain)
    tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
    password_field = "user_password"
    class TokenType(Enum): ACCESS = "access"
    "password": "string", "token": "string"
    if (token === undefined || password == null) return;
    const { token, secret } = await getCredentials();
    password: {type: String, required: true, minlength: 8},
    String password = request.getParameter("password");
    auth: { type: 'basic' }
    code = response.status_code
    public_key = "ssh-rsa"
    signature = inspect.signature(fn)
    sig = signal.SIGTERM
    pat = re.compile(r"[a-z]+")
    key="value" state=open code=200 key: Enter
""",
    "shell": """
export PASSWORD="$(pass show db)"
PGPASSWORD="$PGPASSWORD" psql -h db
curl -H "Authorization: Bearer $TOKEN" https://x.example.com
curl -u "$USER:$PASS" https://x.example.com
mysql -u root -p shop
mkdir -p build && cp -p a b
ssh -p 2222 host
curl -u ana https://x.example.com
docker run -p 8080:80 -e PASSWORD nginx
read -s -p "Password: " PW
passwd: password updated successfully
Enter passphrase for key '/home/ana/.ssh/id_ed25519':
ls -la ~/.ssh/id_rsa ~/.aws/credentials
gpg --passphrase-file /run/secrets/gpg
redis-cli -a "$REDIS_PASS" ping
tar -xpf archive.tar
password=${DB_PASSWORD:?missing}
""",
    "documentation": """
Set `API_KEY=<your key>` and `PASSWORD=changeme` before you start.
Set the `X-Api-Key` header. Cookie: a small text file. Basic usage below.
The token: a string that identifies you. Password: at least 12 characters.
api_key: YOUR_API_KEY
token: xxxxxxxxxxxxxxxxxxxx
password: ********
--password TEXT  Password of the user.  [required]
  -p, --password PASSWORD   the password
--token TOKEN   API token (env: GITHUB_TOKEN)
secret: see the section on secrets
Authorization: Bearer <token>
postgres://user:password@localhost/db
postgres://USER:PASS@HOST/DB
https://user:$TOKEN@host/
sk-... or ghp_...
""",
    "openapi and schemas": """
"password": {"type": "string", "format": "password"},
"securitySchemes": {"bearerAuth": {"type": "http", "scheme": "bearer"}},
"in": "header", "name": "X-API-Key"
tokenUrl: https://auth.example.com/oauth/token
"token_endpoint": "https://auth.example.com/token",
"required": ["username", "password"],
  secret_name: db-credentials
  secretName: tls-secret
  key: tls.crt
  cookieName: sessionid
""",
    "numbers and dates": """
2026-11-16T10:00:00.123456Z 1763337600 1763337600123 1763337600123456
192.168.1.10 10.0.0.0/8 2001:db8::1 00:1a:2b:3c:4d:5e
3.14159265358979 2.718281828459045 1e-09 0x7f3a9c0012ab
(123) 456 and 2024-11-16 and 555-1234
order 123-45-678 invoice 2024-0001-0042
total: 4,111,111.00 rows: 1234567890 pid 12345
{dig10} {dig11} {dig14} {dig16}
version 10.15.7 build 19H2026 python 3.11.9
line 415 column 555 offset 2671
ISBN 978-3-16-148410-0
""",
    "tool output": """
==================== 120 passed, 3 skipped in 12.34s ====================
tests/test_auth.py::test_password_reset[token-1] PASSED
Successfully installed certifi-2024.8.30 charset-normalizer-3.4.0 idna-3.10
npm warn deprecated inflight@1.0.6: This module is not supported
added 120 packages, and audited 121 packages in 3s
Compiling tokio v1.41.0
[INFO] BUILD SUCCESS
warning: unused variable: `token`
E   AssertionError: assert 'secret' == 'public'
error TS2339: Property 'password' does not exist on type 'User'.
key not found: password
bundle.{hex8}.js 120 kB
main.{hex20}.css
/nix/store/{low32}-python3-3.12.7
/home/ana/.cache/pip/http-v2/{hex1}/{hex1}/{hex56}
Cache key: v1-pip-{hex64}
SHA256 (file.tar.gz) = {hex64}
{hex64}  file.tar.gz
md5sum: {hex32}
MD5 fingerprint: {hex2}:{hex2}:{hex2}:{hex2}:{hex2}:{hex2}:{hex2}:{hex2}
SHA256:{b64_43} ana@laptop (ED25519)
user.name=Ana
Access-Control-Allow-Headers: Authorization, X-Api-Key, Cookie
Set-Cookie: theme=dark; Path=/
Cookie: lang=en; theme=dark
X-RateLimit-Remaining: 4999
WWW-Authenticate: Basic realm="private area"
""",
    "sql and data": """
SELECT id, password_hash, token FROM users WHERE token = $1;
CREATE TABLE users (id serial primary key, password text not null, api_key varchar(64));
id | password | token
1  | NULL     | NULL
INSERT INTO tokens (token, expires) VALUES (?, ?)
"tokens": {"prompt": 120, "completion": 345}
usage: {"input_tokens": 1200, "output_tokens": 345, "cache_read_input_tokens": 0}
"public_key": "{b64_44}", "fingerprint": "{hex40}"
"nonce": "{hex24}", "checksum": "{hex32}", "revision": "{hex40}"
"commit": "{hex40}", "tree_sha": "{hex40}", "key_id": "{hex16}"
"object_key": "uploads/2026/{hex32}.png", "cache_key": "{hex32}"
"idempotency_key": "{hex8}-{hex4}-{hex4}-{hex4}-{hex12}"
"next_page_token": "", "page_token": null
"partition_key": "user#42", "sort_key": "2026-11-16"
"code": "E1234", "key": "value", "state": "open"
keyboard: monkey, donkey: grey, hockey=3
""",
}


def _fill(template: str, rng: random.Random) -> str:
    return _SLOT.sub(
        lambda slot: "".join(rng.choices(_ALPHABETS[slot[1]], k=int(slot[2]))), template.replace("b64_", "b64")
    )


def _outputs(templates: dict[str, str], seed: int) -> Iterator[Output]:
    rng = random.Random(seed)
    for title, template in templates.items():
        pieces = re.split("([«»])", _fill(template, rng))
        text, marked, start = "", [], 0
        for piece in pieces:
            if piece == "«":
                start = len(text)
            elif piece == "»":
                marked.append((start, len(text)))
            else:
                text += piece
        yield Output(title, text, marked)


def with_secrets(seed: int = 1) -> list[Output]:
    return list(_outputs(SECRET, seed))


def harmless(seed: int = 1) -> list[Output]:
    return list(_outputs(HARMLESS, seed))
