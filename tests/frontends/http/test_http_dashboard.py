"""The dashboard: who gets in, what other sites can't send, and that nothing of a guest becomes part of a page."""

from __future__ import annotations

import html
import http.client
import json
import re
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright import sync_api as playwright

from serving import Answer, Serving

HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</pre></body><svg onload=document.title='owned'>",
    "\u202egnp.exe\x1b[2J\x1b]0;owned\x07",
)


class Visitor:
    """A browser without scripts: cookies and forms."""

    def __init__(self, server: Serving, key: str = "") -> None:
        self.server, self.cookie, self.csrf = server, "", ""
        if key:
            answer = self.send("POST", "/login", key=server.made[key])
            assert (answer.status, answer.headers["Location"]) == (303, "/")
            self.set = answer.headers["Set-Cookie"]
            self.cookie = self.set.split(";")[0]
            found = re.search('name="csrf" value="([0-9a-f]{64})"', self.get("/").body.decode())
            assert found is not None
            self.csrf = found[1]

    def send(self, method: str, path: str, headers: dict[str, str] | None = None, **fields: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        given = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": self.cookie, **(headers or {})}
        try:
            connection.request(method, path, urlencode(fields) if method == "POST" else None, given)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers)

    def post(self, path: str, headers: dict[str, str] | None = None, **fields: str) -> Answer:
        return self.send("POST", path, headers, **{"csrf": self.csrf, **fields})


@pytest.fixture(scope="session")
def maria(server: Serving) -> Visitor:
    return Visitor(server, "maria")


@pytest.fixture(scope="session")
def boss(server: Serving) -> Visitor:
    return Visitor(server, "boss")


def test_nobody_sees_a_page_without_a_login(server: Serving) -> None:
    nobody = Visitor(server)
    pages = ("/", "/runs/x", "/approvals", "/sessions", "/playground", "/audit", "/checks")
    for path in (*pages, "/changes/x", "/runs/x/events", "/runs/x/files/a", "/runs/x/displays/0/png"):
        answer = nobody.get(path)
        assert (answer.status, answer.headers["Location"], answer.body) == (303, "/login", b"")
    door = nobody.get("/login")
    assert (door.status, b'name="key"' in door.body) == (200, True)
    wrong = nobody.send("POST", "/login", key="rdm_wrong")
    assert (b"unknown, revoked or expired" in wrong.body, "Set-Cookie" in wrong.headers) == (True, False)
    assert nobody.send("POST", "/logout").status == 401
    assert nobody.send("POST", "/sessions/x/close").status == 401
    nobody.cookie = "redoma_login=" + "x" * 43
    assert nobody.get("/").status == 303


def test_the_cookie_is_for_this_site_only_and_ends_with_the_login(server: Serving) -> None:
    visitor = Visitor(server, "boss")
    said = visitor.set.lower()
    assert all(word in said for word in ("httponly", "samesite=strict", "path=/"))
    assert server.made["boss"] not in visitor.set
    assert visitor.post("/logout").status == 303
    assert visitor.get("/").headers["Location"] == "/login"
    # The API takes no cookie: another site could have a browser send it.
    assert visitor.get("/v1/runs").status == 401


def test_a_revoked_key_is_logged_out(server: Serving) -> None:
    server.key("visitor", "run")
    visitor = Visitor(server, "visitor")
    server.keys.revoke("visitor")
    assert visitor.get("/").headers["Location"] == "/login"


def test_a_form_of_another_site_is_refused(server: Serving, maria: Visitor) -> None:
    pending = server.ask("POST", "/v1/runs", {"code": "1", "limits": {"time": 61}, "label": "csrf"}).json
    path = f"/approvals/{pending['approval_id']}"
    fields: Any = {"decision": "approve", "reason": "forged"}
    assert maria.post(path, csrf="", **fields).status == 403
    assert maria.post(path, csrf="0" * 64, **fields).status == 403
    assert maria.post(path, {"Sec-Fetch-Site": "cross-site"}, **fields).status == 403
    assert maria.post(path, {"Origin": "http://evil.example"}, **fields).status == 403
    other = Visitor(server, "boss")
    assert maria.post(path, csrf=other.csrf, **fields).status == 403
    assert server.ask("GET", f"/v1/approvals/{pending['approval_id']}").json["state"] == "open"
    server.ask("POST", f"/v1/runs/{pending['id']}/cancel")


def test_an_approval_is_read_and_given_without_scripts(server: Serving, maria: Visitor) -> None:
    body = {"code": "print('done by hand')", "limits": {"time": 61}, "label": "by hand", "reason": "a long one"}
    pending = server.ask("POST", "/v1/runs", body).json
    path = f"/approvals/{pending['approval_id']}"
    assert f'href="{path}"' in maria.get("/approvals").body.decode()
    page = maria.get(path).body.decode()
    assert "print(&#39;done by hand&#39;)" in page
    assert "a long one" in page
    assert "limits.time" in page
    digest = re.search('name="digest" value="([0-9a-f]{64})"', page)
    assert digest is not None
    assert maria.post(path, decision="approve", reason=" ", digest=digest[1]).status == 422
    assert maria.post(path, decision="approve", reason="read it", digest="0" * 64).status == 409
    assert maria.post(path, decision="approve", reason="read it", digest=digest[1]).status == 303
    assert server.until(pending["id"], "done")["result"]["stdout"] == "done by hand\n"


def test_who_has_asked_gets_no_form_and_is_refused(server: Serving, boss: Visitor) -> None:
    pending = server.ask("POST", "/v1/runs", {"code": "1", "limits": {"time": 62}, "label": "mine"}, key="boss").json
    page = boss.get(f"/approvals/{pending['approval_id']}").body.decode()
    assert "another key has to decide" in page
    digest = server.ask("GET", f"/v1/approvals/{pending['approval_id']}", key="boss").json["digest"]
    answer = boss.post(f"/approvals/{pending['approval_id']}", decision="approve", reason="me", digest=digest)
    assert answer.status == 403
    server.ask("POST", f"/v1/runs/{pending['id']}/cancel", key="boss")


def test_whatever_a_guest_or_a_caller_says_is_text_in_every_page(server: Serving, boss: Visitor) -> None:
    said = "\n".join(HOSTILE)
    body = {
        "code": f"import sys\nprint({said!r}); print({said!r}, file=sys.stderr)\n{said!r}",
        "label": HOSTILE[1],
        "reason": said,
        "limits": {"time": 63},
    }
    pending = server.ask("POST", "/v1/runs", body).json
    pages = [boss.get(path) for path in ("/", "/approvals", f"/approvals/{pending['approval_id']}")]
    server.ask("POST", f"/v1/approvals/{pending['approval_id']}/approve", {"reason": said}, key="maria")
    done = server.until(pending["id"], "done")
    assert done["status"] == "ok"
    pages += [boss.get(path) for path in (f"/runs/{pending['id']}", f"/playground?from={pending['id']}", "/audit")]
    for page in pages:
        text = page.body.decode()
        assert page.status == 200
        for part in ("<script>document", "<img src=x", "<svg onload", "\u202e", "\x1b"):
            assert part not in text
        assert "&lt;script&gt;" in text or "&lt;img src=x" in text
        policy = page.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert not re.search(r"<script(?! src=\"/static/)| style=| on\w+=\"", text)


def test_a_huge_line_is_cut_where_it_is_shown(server: Serving, boss: Visitor) -> None:
    run = server.run("print('x' * 10_000_000)")
    page = boss.get(f"/runs/{run['id']}")
    assert page.status == 200
    assert len(page.body) < 400_000
    assert "the API has all of it" in page.body.decode()


def test_a_file_of_a_run_is_shown_only_if_it_is_a_picture(server: Serving, boss: Visitor) -> None:
    code = "open('a.html', 'w').write('<script>1</script>'); open('b.png', 'wb').write(b'\\x89PNG')"
    run = server.run(code, outputs=["*"])
    page = boss.get(f"/runs/{run['id']}/files/a.html")
    assert page.headers["Content-Type"] == "application/octet-stream"
    assert page.headers["Content-Disposition"].startswith("attachment")
    assert "sandbox" in page.headers["Content-Security-Policy"]
    assert boss.get(f"/runs/{run['id']}/files/b.png").headers["Content-Type"] == "image/png"
    for name in ("../../etc/passwd", "%2e%2e%2fx", "nothing"):
        assert boss.get(f"/runs/{run['id']}/files/{name}").status == 404
    assert Visitor(server, "other").get(f"/runs/{run['id']}/files/b.png").status == 404


SHOWN = (
    "class Table:\n"
    "    def _repr_html_(self): return '<b>1</b><script>top.document.title = \"owned\"</script>'\n"
    "class Drawing:\n"
    '    def _repr_svg_(self): return \'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">'
    '<script>top.document.title = "owned"</script><rect width="9" height="9"/></svg>\'\n'
    "display(Table()); display(Drawing())\n"
)


@pytest.fixture
def session(server: Serving) -> Iterator[str]:
    made = server.ask("POST", "/v1/sessions", {"label": "of the dashboard <b>"}).json["id"]
    yield made
    server.ask("DELETE", f"/v1/sessions/{made}")


def test_sessions_are_listed_and_closed_by_whom_they_belong_to(server: Serving, boss: Visitor, session: str) -> None:
    agent, other = Visitor(server, "agent"), Visitor(server, "other")
    page = agent.get("/sessions").body.decode()
    assert "of the dashboard &lt;b&gt;" in page
    assert f"/sessions/{session}/close" in page
    assert f"/sessions/{session}/close" in boss.get("/sessions").body.decode()
    assert "of the dashboard" not in other.get("/sessions").body.decode()
    assert other.post(f"/sessions/{session}/close").status == 404
    assert agent.post(f"/sessions/{session}/close", csrf="").status == 403
    assert agent.post(f"/sessions/{session}/close").status == 303
    assert server.ask("GET", f"/v1/sessions/{session}").status == 404


def test_what_a_run_showed_is_on_its_page_without_rights(server: Serving, boss: Visitor, session: str) -> None:
    run = server.ask("POST", f"/v1/sessions/{session}/run", {"code": SHOWN}).json
    assert len(run["displays"]) == 2, run
    page = boss.get(f"/runs/{run['id']}").body.decode()
    assert f'<iframe sandbox src="/runs/{run["id"]}/displays/0/html"' in page
    assert f'<img src="/runs/{run["id"]}/displays/1/svg"' in page
    framed = boss.get(f"/runs/{run['id']}/displays/0/html")
    assert framed.headers["Content-Security-Policy"].endswith("; sandbox")
    assert "script-src" not in framed.headers["Content-Security-Policy"]
    assert framed.headers["X-Frame-Options"] == "SAMEORIGIN"
    drawn = boss.get(f"/runs/{run['id']}/displays/1/svg")
    assert (drawn.headers["Content-Type"], "sandbox" in drawn.headers["Content-Security-Policy"]) == (
        "image/svg+xml",
        True,
    )
    for path in ("0/png", "0/exe", "7/html", "0/..%2fx"):
        assert boss.get(f"/runs/{run['id']}/displays/{path}").status == 404
    assert Visitor(server, "other").get(f"/runs/{run['id']}/displays/0/html").status == 404


def test_what_the_monitor_found_is_shown_to_who_reads_everything(server: Serving, boss: Visitor) -> None:
    from redoma.monitor.history import History
    from redoma.monitor.model import Check, CheckResult, Round, State

    assert "redoma monitor watch" in boss.get("/checks").body.decode()
    verdict = CheckResult(check="disk", state=State.CRITICAL, found=State.CRITICAL, message="<b>97 % full</b>")
    found = Round(time=time.time(), host="here", facts={}, verdicts=(verdict,))
    History(server.state / "monitor.db").add(found, [Check(name="disk", rule="True")])
    page = boss.get("/checks").body.decode()
    assert "disk" in page
    assert "&lt;b&gt;97 % full&lt;/b&gt;" in page
    assert Visitor(server, "agent").get("/checks").status == 403


def test_cells_memory_and_latency_are_plotted(server: Serving, boss: Visitor) -> None:
    server.run("1")
    page = boss.get("/").body.decode()
    assert page.count("<polyline") == 6
    for name in ("How long they took", "Cells", "Memory"):
        assert f'aria-label="{name}"' in page
    assert page.count('points=""') < 6
    assert 'aria-label="Memory"' not in Visitor(server, "agent").get("/").body.decode()


def test_no_line_of_a_diff_is_hidden_as_if_it_were_a_header() -> None:
    from redoma.frontends.http.dashboard.looks import diff

    text = "--- a.sql\n+++ a.sql\n@@ -1,2 +1,2 @@\n--- drop nothing\n+++ __import__('os').abort()\n same\n"
    assert diff(text) == (
        [
            ("hunk", "@@ -1,2 +1,2 @@"),
            ("del", "--- drop nothing"),
            ("add", "+++ __import__('os').abort()"),
            ("same", " same"),
        ],
        False,
    )


def test_the_playground_works_without_scripts(server: Serving) -> None:
    agent = Visitor(server, "agent")
    answer = agent.post("/playground", code="print('played')", language="python", backend="auto", time="30")
    assert answer.status == 303
    run = answer.headers["Location"].rpartition("/")[2]
    assert server.until(run, "done")["result"]["stdout"] == "played\n"
    for code, value in (("kept = 5", None), ("kept + 1", 6)):
        answer = agent.post("/playground", code=code, language="python", place="session")
        done = server.until(answer.headers["Location"].rpartition("/")[2], "done")
        assert (done["result"]["value"], done["session"] != "") == (value, True)
    wrong = agent.post("/playground", code="1", network="not a host!")
    assert (wrong.status, b"not a host!" in wrong.body) == (422, True)
    assert agent.post("/playground", code="1", place="session", network="api.example.org").status == 422
    wrong = agent.post("/playground", code="1", language="cobol")
    assert wrong.status == 422
    assert agent.post("/playground", code="", language="python").status == 422
    assert agent.post("/playground", code="1", time="soon").status == 422


def test_pages_speak_portuguese(server: Serving, boss: Visitor) -> None:
    assert "Execuções" in boss.get("/", **{"Accept-Language": "pt-BR,pt;q=0.9"}).body.decode()
    answer = boss.get("/?lang=pt")
    assert "redoma_language=pt" in answer.headers["Set-Cookie"]
    assert '<html lang="pt">' in answer.body.decode()


def test_every_text_of_the_pages_is_in_the_table() -> None:
    from redoma.frontends.http import dashboard
    from redoma.frontends.http.dashboard import texts

    known = set(texts._PORTUGUESE)
    for template in (Path(dashboard.__file__).parent / "templates").iterdir():
        for used in re.findall(r"""\bt\(\s*(?:"([^"]+)"|'([^']+)')\s*\)""", template.read_text()):
            assert html.unescape(used[0] or used[1]) in known, (template.name, used)


# --- in a real browser ---


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    import shutil

    program = shutil.which("chromium") or pytest.fail("chromium is missing: scripts/packages chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Tab:
    """A page somebody is logged in on, and everything that the browser complained about."""

    def __init__(self, browser: Any, server: Serving, key: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page, self.url = self.context.new_page(), server.url
        self.complaints: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(self.url)  # from where it leads to the login
        self.page.fill("input[name=key]", "rdm_wrong")
        self.page.click("button.main")
        self.page.wait_for_selector("[role=alert]")
        self.page.fill("input[name=key]", server.made[key])
        self.page.click("button.main")
        self.page.wait_for_selector("a.brand")

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def tab(browser: Any, server: Serving) -> Iterator[Any]:
    opened: list[Tab] = []

    def make(key: str, **options: Any) -> Tab:
        opened.append(Tab(browser, server, key, **options))
        return opened[-1]

    yield make
    complaints = [complaint for each in opened for complaint in each.complaints]
    for each in opened:
        each.close()
    assert complaints == []


def wait_for_picture(page: Any, width: int) -> None:
    """Wait until the first picture has arrived. (`wait_for_function` asks again by `eval`, which the page forbids.)"""
    deadline = time.monotonic() + 60
    while (seen := page.evaluate("document.querySelector('[data-pictures] img')?.naturalWidth")) != width:
        assert time.monotonic() < deadline, seen
        page.wait_for_timeout(50)


def test_code_runs_in_the_playground_and_its_picture_shows(tab: Any) -> None:
    page = tab("agent").page
    page.goto(page.url.rstrip("/") + "/playground")
    pixel = (
        "import base64; open('p.png', 'wb').write(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAD"
        "UlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=='))"
    )
    page.fill("textarea[name=code]", f"print('<b>hello</b>')\n{pixel}\n'last'")
    page.press("textarea[name=code]", "Control+Enter")
    page.wait_for_selector("[data-pictures] img")
    wait_for_picture(page, 1)
    assert page.text_content("[data-status]") == "ok"
    assert "<b>hello</b>" in page.text_content("[data-output]")
    assert page.query_selector("[data-output] b") is None


def test_the_example_of_the_playground_shows_its_figure_once(tab: Any) -> None:
    page = tab("agent").page
    page.goto(page.url.rstrip("/") + "/playground")
    page.press("textarea[name=code]", "Control+Enter")
    page.wait_for_selector("[data-status]:has-text('ok')")
    wait_for_picture(page, 326)
    assert page.locator("[data-pictures] > *").count() == 1
    assert page.text_content("[data-output]") == "sum: 1015\n"
    page.click("[data-more]")
    page.wait_for_selector("h2:has-text('Shown')")
    assert page.locator("main img").count() == 1
    assert page.locator("h2:has-text('Value')").count() == 0


def test_the_playground_waits_for_an_approval_and_then_shows_the_output(server: Serving, tab: Any) -> None:
    page, maria = tab("agent").page, tab("maria").page
    page.goto(f"{server.url}/playground")
    page.fill("textarea[name=code]", "print('said yes')")
    page.fill("input[name=time]", "73")
    page.press("textarea[name=code]", "Control+Enter")
    waits = page.wait_for_selector("[data-waits]:visible")
    maria.goto(server.url + waits.query_selector("a").get_attribute("href"))
    maria.fill("textarea[name=reason]", "harmless")
    maria.click("button:has-text('Approve')")
    page.wait_for_selector("[data-output]:has-text('said yes')")
    page.wait_for_selector("[data-status]:has-text('ok')")
    assert page.query_selector("[data-waits]:visible") is None
    maria.click("a.row:has-text('said yes')")
    maria.click("text=See the run")
    maria.wait_for_selector("pre:has-text('said yes')")


def test_figures_show_in_the_playground_and_are_harmless(server: Serving, tab: Any) -> None:
    opened = tab("agent")
    page = opened.page
    page.goto(f"{server.url}/playground")
    page.select_option("select[name=place]", "session")
    page.fill("textarea[name=code]", SHOWN)
    page.press("textarea[name=code]", "Control+Enter")
    page.wait_for_selector("[data-pictures] iframe")
    wait_for_picture(page, 9)
    assert page.frame_locator("[data-pictures] iframe").locator("b").text_content() == "1"
    assert "owned" not in page.title()
    deadline = time.monotonic() + 30
    while not opened.complaints and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert ["Blocked script execution" in said for said in opened.complaints] == [True]  # as it should be
    opened.complaints.clear()


def test_a_destructive_change_is_approved_after_its_diff_was_read(server: Serving, tab: Any) -> None:
    made = server.run("rm old.txt", language="bash", workspace="overlay", project="app", label="destroys old.txt")
    page = tab("maria").page
    page.goto(f"{server.url}/runs/{made['id']}")
    assert "-old" in page.text_content("#changes .diff")
    page.click("text=Apply to the project")
    page.wait_for_selector("#changes .pill:has-text('applied'), main:has-text('That did not work')")
    if "That did not work" in page.text_content("main"):  # policy wants it approved first, with its effect
        page.goto(f"{server.url}/approvals")
        page.click("a.row")
        assert "-old" in page.text_content(".diff")
        page.press("body", "r")
        page.keyboard.type("the diff is what it says")
        page.click("button:has-text('Approve')")
        page.wait_for_url("**/approvals")
        page.goto(f"{server.url}/runs/{made['id']}")
        page.click("text=Apply to the project")
    page.wait_for_selector("#changes .pill:has-text('applied')")
    assert not (server.home / "project" / "old.txt").exists()
    page.click("button:has-text('Undo')")
    page.wait_for_selector("#changes .pill:has-text('undone')")
    assert (server.home / "project" / "old.txt").exists()


def test_an_approval_is_found_read_and_given_with_the_keyboard(server: Serving, tab: Any) -> None:
    wanted = {"code": "1", "limits": {"time": 66}, "label": "by keyboard", "network": ["GET api.example.org/v1/**"]}
    pending = server.ask("POST", "/v1/runs", wanted).json
    page = tab("maria").page
    page.goto(f"{server.url}/approvals")
    page.wait_for_selector("a.row >> text=by keyboard")
    page.keyboard.press("j")
    while "by keyboard" not in page.evaluate("document.activeElement.closest('a.row')?.textContent ?? ''"):
        page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-reason]")
    assert "GET api.example.org/v1/**" in page.text_content(".facts")  # what it could reach
    page.keyboard.press("r")
    page.keyboard.type("read it")
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/approvals")
    shown = server.ask("GET", f"/v1/approvals/{pending['approval_id']}").json
    assert (shown["state"] in ("approved", "used"), shown["answer_reason"]) == (True, "read it")


def test_hostile_output_does_nothing_in_a_browser(server: Serving, tab: Any) -> None:
    run = server.run(f"print({HOSTILE!r}); print('y' * 10_000_000)", label=HOSTILE[1])
    opened = tab("boss")
    for path in (f"/runs/{run['id']}", "/", "/audit"):
        opened.page.goto(server.url + path)
        opened.page.wait_for_timeout(100)
        assert "owned" not in opened.page.title()


def test_the_list_of_runs_is_live(server: Serving, tab: Any) -> None:
    page = tab("boss").page
    server.run("1", label="appears-by-itself")
    page.wait_for_selector("a.row:has-text('appears-by-itself')", timeout=60_000)


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of axe-core, fetched from npm."""
    place = tmp_path_factory.mktemp("axe")
    try:
        done = subprocess.run(["npm", "pack", "axe-core@4"], cwd=place, capture_output=True, text=True, timeout=240)
    except (OSError, subprocess.TimeoutExpired):
        pytest.fail("axe-core is missing: npm can't be run; scripts/setup dev installs it")
    if done.returncode:
        pytest.fail("axe-core is missing: npm could not fetch it")
    with tarfile.open(place / done.stdout.split()[-1]) as package:
        member = package.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.parametrize("look", ["light", "dark"])
def test_pages_have_no_serious_obstacles_for_anybody(server: Serving, tab: Any, axe: str, look: str) -> None:
    code = "eval('1')\nprint(1)"
    run = server.run(code, language="python")
    pending = server.ask("POST", "/v1/runs", {"code": code, "limits": {"time": 64}, "label": f"axe {look}"}).json
    opened = tab("boss", color_scheme=look, bypass_csp=True, viewport={"width": 390, "height": 844})
    found = {}
    shown = ("/", f"/runs/{run['id']}", "/approvals", f"/approvals/{pending['approval_id']}")
    paths = (*shown, "/sessions", "/playground", "/audit", "/checks")
    for path in paths:
        opened.page.goto(server.url + path)
        opened.page.evaluate(axe)
        result = opened.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [each for each in result["violations"] if each["impact"] in ("serious", "critical")]
        if serious:
            found[path] = [(each["id"], each["nodes"][0]["html"][:120]) for each in serious]
    server.ask("POST", f"/v1/runs/{pending['id']}/cancel")
    assert found == {}, json.dumps(found, indent=1)
