"""Tokens with a distinctive prefix or form, as tables. A test checks the examples.

`TOKENS` have their own kinds; the others are of the kind `service-token`. `DISTINCT` ones don't occur elsewhere by
chance, so 40 characters of a longer one are enough: each counted character makes the automaton larger, and slower to
build. `PLAUSIBLE` ones begin like ordinary names (`re_`, `pat`), so the rest must look random as well.
"""

# ruff: noqa: E501 - one thing a line

from __future__ import annotations

_AN, _HEX, _URL = rb"[A-Za-z0-9]", rb"[0-9a-f]", rb"[A-Za-z0-9_-]"
_UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

# For examples.
_MIXED, _DIGITS, _UUID_EXAMPLE = "x9Yk2LmN4pQr7StU" * 13, "0a1b2c3d" * 20, "0a1b2c3d-4e5f-4a6b-8c7d-0e1f2a3b4c5d"

Token = tuple[str, bytes, str, str]
"""A kind, its pattern, texts that it matches and texts that it doesn't, separated by spaces."""
Service = tuple[str, bytes, str]
"""A service, the pattern of its tokens, and an example that it matches."""

TOKENS: tuple[Token, ...] = (
    ("aws-access-key", rb"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b", "AKIAIOSFODNN7EXAMPLE key=ASIAQWERTYUIOPASDFGH;", "AKIAIOSFODNN7EXAMPLEX AKIA"),
    ("github-token", rb"\b(?:gh[pousr]_" + _AN + rb"{36,}|github_pat_[A-Za-z0-9_]{40,})", f"ghp_{_MIXED[:36]} gho_{_MIXED[:36]} ghs_{_MIXED[:36]} github_pat_{'11ABCDE_0' * 6}", "ghp_short github_pat_"),
    ("gitlab-token", rb"\bgl(?:pat|ptt|dt|rt|cbt|agent|oas|ft|imt|soat)-[A-Za-z0-9_.-]{20,}", f"glpat-{_MIXED[:20]} glrt-{_MIXED[:20]}", "glpat-short"),
    ("slack-token", rb"\bxox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}|\bxapp-[A-Za-z0-9-]{20,}", "xoxb-263594206564-FGqddMF8t08v8N7Oq4i57vs1", "xoxb-"),
    ("slack-token", rb"hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/" + _AN + rb"{16,}", f"https://hooks.slack.com/services/T0AB12CD/B0AB12CD/{_MIXED[:16]}", "https://hooks.slack.com/services/"),
    ("stripe-key", rb"\b(?:[sr]k_(?:live|test)_|whsec_)" + _AN + rb"{16,}", f"sk_live_{_MIXED[:24]} rk_test_{_MIXED[:24]} whsec_{_MIXED[:24]}", f"pk_live_{_MIXED[:24]} sk_live_"),
    ("google-key", rb"\bAIza" + _URL + rb"{35,}|\bGOCSPX-" + _URL + rb"{28,}|\bya29\.[A-Za-z0-9_.-]{20,}", f"AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY GOCSPX-{_MIXED[:28]}", "AIzaShort"),
    ("anthropic-key", rb"\bsk-ant-" + _URL + rb"{20,}", f"sk-ant-api03-{_MIXED[:20]}-AA", "sk-ant-short"),
    ("npm-token", rb"\bnpm_" + _AN + rb"{36,}", "npm_" + _MIXED[:36], "npm_config_registry"),
    ("pypi-token", rb"\bpypi-AgE" + _URL + rb"{16,}", "pypi-AgEIcHlwaS5vcmcCJDU3NDY2", "pypi-AgE"),
    ("sendgrid-key", rb"\bSG\." + _URL + rb"{22}\." + _URL + rb"{43,}", "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", "SG.short.value"),
    ("twilio-key", rb"\bSK" + _HEX + rb"{32}\b|\bAC" + _HEX + rb"{32}[\"']?[,:]\s?[\"']?" + _HEX + rb"{32}\b", f"SK{_DIGITS[:32]} AC{_DIGITS[:32]}:{_DIGITS[:32]}", "SK0a1b2c3d " + _DIGITS[:32]),
    ("telegram-token", rb"[0-9]{8,10}:AA" + _URL + rb"{33,}", "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsawx", "1700000000:ERROR-something-long-happened-here-now"),
)  # fmt: skip

DISTINCT: tuple[Service, ...] = (
    ("1Password", rb"\bops_eyJ" + _AN + rb"{40,}", "ops_eyJ" + _MIXED),
    ("1Password", rb"\bA3-[A-Z0-9]{6}-[A-Z0-9]{11}(?:-[A-Z0-9]{5}){3}\b", "A3-ABC123-ABCDE12345F-ABC12-ABC12-ABC12"),
    ("Adobe", rb"\bp8e-[A-Za-z0-9]{32}\b", "p8e-" + _MIXED[:32]),
    ("age", rb"\bAGE-SECRET-KEY-1[0-9A-Z]{40,}", "AGE-SECRET-KEY-1" + "QPZRY9X8" * 8),
    ("Airtable", rb"\bpat" + _AN + rb"{14}\." + _HEX + rb"{40,}\b", "pat" + _MIXED[:14] + "." + _DIGITS[:64]),
    ("Alibaba", rb"\bLTAI" + _AN + rb"{16,22}\b", "LTAI5t" + _MIXED[:18]),
    ("Amazon Bedrock", rb"\bABSK[A-Za-z0-9+/]{40,}={0,2}", "ABSK" + _MIXED[:128]),
    ("Amazon MWS", rb"\bamzn\.mws\." + _UUID, "amzn.mws." + _UUID_EXAMPLE),
    ("Atlassian", rb"\bAT[AC]TT3" + _URL + rb"{40,}(?:=[0-9A-F]{8})?", "ATATT3xFfGF0" + _MIXED[:180] + "=0A1B2C3D"),
    ("Artifactory", rb"\b(?:AKCp|cmVmdGtu)" + _AN + rb"{40,}", "AKCp" + _MIXED[:69]),
    ("Bitbucket", rb"\bATBB" + _AN + rb"{28,}", "ATBB" + _MIXED[:32]),
    ("Brevo", rb"\bx(?:keysib|smtpsib)-" + _HEX + rb"{40,}-" + _AN + rb"{16}", f"xkeysib-{_DIGITS[:64]}-{_MIXED[:16]}"),
    ("Buildkite", rb"\bbk(?:ua|ct|pt|cat|aj)_" + _HEX + rb"{40,}", "bkua_" + _DIGITS[:40]),
    ("CircleCI", rb"\bCCI(?:PAT|PRJ)_" + _AN + rb"{20,}_" + _HEX + rb"{40}", f"CCIPAT_{_MIXED[:22]}_{_DIGITS[:40]}"),
    ("Clojars", rb"\bCLOJARS_" + _HEX + rb"{40,}", "CLOJARS_" + _DIGITS[:60]),
    ("Cloudflare", rb"\bv1\.0-" + _HEX + rb"{24}-" + _HEX + rb"{40,}", f"v1.0-{_DIGITS[:24]}-{_DIGITS[:146]}"),
    ("Contentful", rb"\bCFPAT-" + _URL + rb"{40,}", "CFPAT-" + _MIXED[:43]),
    ("Databricks", rb"\bdapi" + _HEX + rb"{32}(?:-[0-9])?\b", "dapi" + _DIGITS[:32]),
    ("Defined Networking", rb"\bdnkey-" + _URL + rb"{40,}", "dnkey-" + _MIXED[:79]),
    ("DigitalOcean", rb"\bdo[opr]_v1_" + _HEX + rb"{40,}", "dop_v1_" + _DIGITS[:64]),
    ("Docker", rb"\bdckr_(?:pat|oat)_" + _URL + rb"{27,}", "dckr_oat_" + _MIXED[:32]),
    ("Doppler", rb"\bdp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?" + _AN + rb"{40,}", "dp.pt." + _MIXED[:43]),
    ("Duffel", rb"\bduffel_(?:live|test)_" + _URL + rb"{40,}", "duffel_live_" + _MIXED[:43]),
    ("Dynatrace", rb"\bdt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{40,}", f"dt0c01.{'ABCD1234' * 3}.{'ABCD1234' * 8}"),
    ("EasyPost", rb"\bEZ[AT]K" + _AN + rb"{40,}", "EZAK" + _MIXED[:54]),
    ("Facebook", rb"\bEAA[A-Z]" + _AN + rb"{40,}", "EAAJ" + _MIXED[:120]),
    ("Facebook", rb"\b[0-9]{13,17}(?:\||%7C)" + _URL + rb"{27}\b", "821593482823714|" + _MIXED[:27]),
    ("Figma", rb"\bfig[dou]_" + _URL + rb"{36,}", "figd_" + _MIXED[:40]),
    ("Flutterwave", rb"\bFLWSECK(?:_TEST)?-" + _HEX + rb"{12,32}(?:-X)?", f"FLWSECK-{_DIGITS[:32]}-X"),
    ("Fly.io", rb"\b(?:fo1_|fm[12][ar]?_)[A-Za-z0-9+/_-]{40,}={0,2}", "fo1_" + _MIXED[:43]),
    ("Frame.io", rb"\bfio-u-" + _URL + rb"{40,}", "fio-u-" + _MIXED[:64]),
    ("Grafana", rb"\bglsa_" + _AN + rb"{32}_[0-9A-Fa-f]{8}|\bglc_eyJ[A-Za-z0-9+/]{32,}={0,2}", f"glsa_{_MIXED[:32]}_0a1b2c3d"),
    ("Groq", rb"\bgsk_" + _AN + rb"{40,}", "gsk_" + _MIXED[:52]),
    ("Harness", rb"\b[ps]at\." + _URL + rb"{22}\." + _HEX + rb"{24}\." + _AN + rb"{20}", f"pat.{_MIXED[:22]}.{_DIGITS[:24]}.{_MIXED[:20]}"),
    ("HashiCorp", rb"\b" + _AN + rb"{14}\.atlasv1\." + _URL + rb"{40,}", f"{_MIXED[:14]}.atlasv1.{_MIXED[:67]}"),
    ("HashiCorp Vault", rb"\bhv[sbr]\." + _URL + rb"{24,}", "hvs." + _MIXED[:24]),
    ("Heroku", rb"\bHRKU-[A-Za-z0-9_-]{36,}", "HRKU-" + _UUID_EXAMPLE),
    ("HubSpot", rb"\bpat-(?:na|eu|ap)[0-9]-" + _UUID, "pat-na1-" + _UUID_EXAMPLE),
    ("Hugging Face", rb"\b(?:hf|api_org)_[A-Za-z0-9]{34,}", "hf_" + _MIXED[:34]),
    ("Infracost", rb"\bico-" + _AN + rb"{32}\b", "ico-" + _MIXED[:32]),
    ("K3s", rb"\bK10" + _HEX + rb"{40,}::[a-z]{1,12}:" + _AN + rb"{16,}", f"K10{_DIGITS[:64]}::server:{_DIGITS[:32]}"),
    ("LangSmith", rb"\blsv2_(?:pt|sk)_" + _HEX + rb"{32}_" + _HEX + rb"{10}", f"lsv2_pt_{_DIGITS[:32]}_{_DIGITS[:10]}"),
    ("LaunchDarkly", rb"\bsdk-" + _UUID, "sdk-" + _UUID_EXAMPLE),
    ("Linear", rb"\blin_(?:api|oauth)_" + _AN + rb"{32,}", "lin_api_" + _MIXED[:40]),
    ("Lob", rb"\b(?:live|test)_" + _HEX + rb"{35}\b", "live_" + _DIGITS[:35]),
    ("Mailchimp", rb"\b" + _HEX + rb"{32}-us[0-9]{1,2}\b", _DIGITS[:32] + "-us14"),
    ("Mailgun", rb"\bkey-" + _HEX + rb"{32}\b", "key-" + _DIGITS[:32]),
    ("Mapbox", rb"\b[st]k\.eyJ" + _AN + rb"{40,}\." + _URL + rb"{20,}", f"sk.eyJ{_MIXED[:60]}.{_MIXED[:22]}"),
    ("Mercado Pago", rb"\bAPP_USR-[0-9]{10,}-[0-9]{6}-" + _HEX + rb"{32}-[0-9]{5,}", f"APP_USR-{'12345678' * 2}-123456-{_DIGITS[:32]}-123456789"),
    ("Neon", rb"\bnapi_[a-z0-9]{40,}", "napi_" + _DIGITS[:64]),
    ("Netlify", rb"\bnf[pucob]_" + _AN + rb"{36,}", "nfp_" + _MIXED[:36]),
    ("New Relic", rb"\bNR(?:AK|AA|II|IQ|JS|RA|BR)-[A-Za-z0-9_-]{19,}|\b" + _HEX + rb"{36}NRAL\b", "NRAK-" + "ABC1D2E3F" * 3),
    ("Notion", rb"\bntn_[A-Za-z0-9]{40,}|\bsecret_[A-Za-z0-9]{40,}\b", "ntn_" + _MIXED[:46]),
    ("NVIDIA", rb"\bnvapi-" + _URL + rb"{40,}", "nvapi-" + _MIXED[:64]),
    ("Okta", rb"\bSSWS 00" + _URL + rb"{40}", "SSWS 00" + _MIXED[:40]),
    ("OpenShift", rb"\bsha256~" + _URL + rb"{40,}", "sha256~" + _MIXED[:43]),
    ("OpenVSX", rb"\bovsx[pa]t?_" + _URL + rb"{30,}", "ovsxp_" + _MIXED[:36]),
    ("PayPal", rb"\baccess_token\$(?:production|sandbox)\$[a-z0-9]{16}\$" + _HEX + rb"{32}", f"access_token$production$abcd1234abcd1234${_DIGITS[:32]}"),
    ("Perplexity", rb"\bpplx-" + _AN + rb"{40,}", "pplx-" + _MIXED[:48]),
    ("Pinecone", rb"\bpcsk_" + _AN + rb"{5,8}_" + _AN + rb"{40,}", f"pcsk_{_MIXED[:6]}_{_MIXED[:63]}"),
    ("Plaid", rb"\baccess-(?:production|development|sandbox)-" + _UUID, "access-production-" + _UUID_EXAMPLE),
    ("PlanetScale", rb"\bpscale_(?:tkn|pw|oauth)_[A-Za-z0-9_=.-]{32,}", "pscale_pw_" + _MIXED[:43]),
    ("PostHog", rb"\bph[xs]_" + _AN + rb"{40,}", "phx_" + _MIXED[:43]),
    ("Postman", rb"\bPMAK-" + _HEX + rb"{24}-" + _HEX + rb"{34}", f"PMAK-{_DIGITS[:24]}-{_DIGITS[:34]}"),
    ("Prefect", rb"\bpn[ub]_" + _AN + rb"{36}\b", "pnu_" + _DIGITS[:36]),
    ("Pulumi", rb"\bpul-" + _HEX + rb"{40}\b", "pul-" + _DIGITS[:40]),
    ("ReadMe", rb"\brdme_[a-z0-9]{40,}", "rdme_" + _DIGITS[:70]),
    ("RubyGems", rb"\brubygems_" + _HEX + rb"{40,}", "rubygems_" + _DIGITS[:48]),
    ("Scalingo", rb"\btk-us-" + _URL + rb"{40,}", "tk-us-" + _MIXED[:48]),
    ("Sentry", rb"\bsntry[su]_[A-Za-z0-9+/=_-]{40,}", "sntryu_" + _DIGITS[:64]),
    ("Shippo", rb"\bshippo_(?:live|test)_[0-9a-fA-F]{40}", "shippo_live_" + _DIGITS[:40]),
    ("Shopify", rb"\bshp(?:at|ca|pa|ss|it|ua)_[0-9a-fA-F]{32,}", "shpat_" + _DIGITS[:32]),
    ("Sonar", rb"\bsq[upa]_" + _HEX + rb"{40}\b", "squ_" + _DIGITS[:40]),
    ("Sourcegraph", rb"\bsgp_(?:[0-9a-f]{16}_|local_)?" + _HEX + rb"{40}\b", f"sgp_{_DIGITS[:16]}_{_DIGITS[:40]}"),
    ("Square", rb"\bsq0(?:atp|csp|idp)-" + _URL + rb"{22,}|\bEAAA" + _URL + rb"{40,}", "sq0atp-" + _MIXED[:22]),
    ("Supabase", rb"\bsbp_" + _HEX + rb"{40}\b|\bsb_secret_" + _URL + rb"{20,}", "sbp_" + _DIGITS[:40]),
    ("Tailscale", rb"\btskey-[a-z]{3,12}-" + _AN + rb"{8,}(?:-" + _AN + rb"{20,})?", f"tskey-auth-{_MIXED[:16]}-{_MIXED[:32]}"),
    ("Tavily", rb"\btvly-(?:dev-|prod-)?" + _AN + rb"{24,}", "tvly-" + _MIXED[:32]),
    ("Tencent", rb"\bAKID" + _AN + rb"{32}\b", "AKID" + _MIXED[:32]),
    ("Trello", rb"\bATTA" + _HEX + rb"{40,}", "ATTA" + _DIGITS[:72]),
    ("Twitter", rb"\bA{20,22}[A-Za-z0-9%]{40,}", "A" * 21 + _MIXED[:64]),
    ("Sidekiq", rb"\bBUNDLE_[A-Z_]{1,40}__COM=" + _HEX + rb"{8}:" + _HEX + rb"{8}\b", "BUNDLE_GEMS__CONTRIBSYS__COM=0a1b2c3d:4e5f6a7b"),
    ("Typeform", rb"\btfp_" + _URL + rb"{40,}", f"tfp_{_MIXED[:44]}_{_MIXED[:14]}"),
    ("Vercel", rb"\bvercel_blob_rw_" + _AN + rb"{16,}_" + _AN + rb"{24,}", f"vercel_blob_rw_{_MIXED[:16]}_{_MIXED[:30]}"),
    ("xAI", rb"\bxai-" + _AN + rb"{40,}", "xai-" + _MIXED[:80]),
    ("Yandex", rb"\bAQVN" + _URL + rb"{35,}|\bt1\.[A-Z0-9a-z_-]{2,}\." + _URL + rb"{40,}|\by0_" + _URL + rb"{50,}", "AQVN" + _MIXED[:35]),
    ("Zoho", rb"\b1000\." + _HEX + rb"{32}\." + _HEX + rb"{32}\b", f"1000.{_DIGITS[:32]}.{_DIGITS[:32]}"),
)  # fmt: skip

PLAUSIBLE: tuple[Service, ...] = (
    ("Cerebras", rb"\bcsk-[a-z0-9]{40,}", "csk-" + "a1b2c3d4e5f6g7h8" * 3),
    ("crates.io", rb"\bcio" + _AN + rb"{32}\b", "cio" + _MIXED[:32]),
    ("Discord", rb"\b[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}", f"MTA{_MIXED[:21]}.G{_MIXED[:5]}.{_MIXED[:38]}"),
    ("Dropbox", rb"\bsl\.(?:u\.)?" + _URL + rb"{100,}", "sl." + _MIXED[:130]),
    ("Fireworks", rb"\bfw_" + _AN + rb"{22,}", "fw_" + _MIXED[:24]),
    ("Jina", rb"\bjina_" + _AN + rb"{40,}", "jina_" + _MIXED[:60]),
    ("NuGet", rb"\boy2[a-z0-9]{43}\b", "oy2" + _DIGITS[:43]),
    ("Razorpay", rb"\brzp_(?:live|test)_" + _AN + rb"{14,}", "rzp_live_" + _MIXED[:14]),
    ("Render", rb"\brnd_" + _AN + rb"{28,}", "rnd_" + _MIXED[:32]),
    ("Replicate", rb"\br8_" + _AN + rb"{37,}", "r8_" + _MIXED[:37]),
    ("Resend", rb"\bre_" + _AN + rb"{8}_" + _AN + rb"{20,}", f"re_{_MIXED[:8]}_{_MIXED[:24]}"),
)  # fmt: skip
