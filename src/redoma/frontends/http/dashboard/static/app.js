"use strict";
// Small helpers; every page can be read, and everything decided, without them. Text is only ever set as text.

const find = (selector, within = document) => within.querySelector(selector);

// A part of a page that changes by itself is fetched again and replaced, unless somebody is using it.
function keepFresh() {
  const live = find("[data-live]");
  if (!live) return;
  const seconds = Number(live.dataset.live);
  setInterval(async () => {
    if (document.hidden || live.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live], [data-count]")) {
        const fresh = page.getElementById(part.id);
        // Asked again: somebody may have begun to use it while the page was fetched.
        if (part.contains(document.activeElement)) continue;
        if (fresh && fresh.innerHTML !== part.innerHTML) part.replaceChildren(...fresh.childNodes);
      }
    } catch { /* the server is away: what is shown stays */ }
  }, 1000 * seconds);
}

// Add a piece of a run's output, up to a bound.
function addPiece(out, event) {
  const piece = JSON.parse(event.data);
  if (out.textContent.length > 65536) return;
  const part = document.createElement("span");
  if (piece.stream === "stderr") part.className = "err";
  part.textContent = piece.text;
  out.append(part);
  out.hidden = false;
}

// A run that goes on: its output is added as it comes, and the page is loaded again when it was approved, and at its end.
function followRun() {
  const page = find("[data-follow]");
  if (!page) return;
  const out = find("[data-output]");
  const events = new EventSource(page.dataset.follow);
  let state = page.dataset.state;
  events.addEventListener("output", (event) => addPiece(out, event));
  events.addEventListener("state", (event) => {
    const now = JSON.parse(event.data).state;
    if (now !== state && (state === "waiting" || ["done", "waiting", "cancelled", "interrupted"].includes(now))) {
      events.close();
      location.reload();
    }
    state = now;
    const pill = find("[data-pill]");
    if (now === "running") { pill.textContent = pill.dataset.running; pill.className = "pill busy"; }
  });
  events.onerror = () => events.close();
}

const TYPES = { png: "image/png", jpeg: "image/jpeg", svg: "image/svg+xml", html: "text/html" };

// The playground: the run is followed on the same page.
function play() {
  const form = find("[data-play]");
  if (!form) return;
  const show = find("[data-shown]"), out = find("[data-output]"), status = find("[data-status]");
  const pictures = find("[data-pictures]"), more = find("[data-more]"), button = find("[data-run]");
  const waits = find("[data-waits]"), words = JSON.parse(form.dataset.words);
  let leave = () => {};  // stops following the run before
  const say = (text, tone) => { status.textContent = text; status.className = "pill " + tone; };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    leave();
    button.disabled = true;
    waits.hidden = true;
    show.hidden = false;
    find("[data-idle]").hidden = true;
    out.replaceChildren();
    pictures.replaceChildren();
    more.hidden = true;
    say("…", "busy");
    try {
      const answer = await fetch(form.action, {
        method: "POST", body: new URLSearchParams(new FormData(form)), credentials: "same-origin",
        headers: { Accept: "application/json" },
      });
      const said = await answer.json();
      if (!answer.ok) {
        say("×", "bad");
        out.textContent = [said.error, said.why, said.next].filter(Boolean).join("\n");
        return;
      }
      more.href = "/runs/" + said.id;
      more.hidden = false;
      await follow(said.id);
    } catch {
      say("×", "bad");
    } finally {
      button.disabled = false;
    }
  });
  const follow = (id) => new Promise((done) => {
    const events = new EventSource("/runs/" + id + "/events");
    const end = () => { events.close(); done(); };
    leave = end;
    events.addEventListener("output", (event) => addPiece(out, event));
    let shown = 0;
    events.addEventListener("display", (event) => {
      const data = JSON.parse(event.data).data;
      const kind = ["png", "jpeg", "svg", "html"].find((each) => TYPES[each] in data);
      later.push([shown++, kind, data["text/plain"] || ""]);
    });
    const later = [];
    const draw = () => {
      for (const [number, kind, text] of later) {
        const part = document.createElement(!kind ? "pre" : kind === "html" ? "iframe" : "img");
        if (!kind) {
          part.className = "out";
          part.textContent = text;
        } else {
          if (kind === "html") { part.setAttribute("sandbox", ""); part.title = text; } else { part.alt = text || "·"; }
          part.src = "/runs/" + id + "/displays/" + number + "/" + kind;
        }
        pictures.append(part);
      }
    };
    events.addEventListener("state", (event) => {
      const { state: now, approval_id: approval } = JSON.parse(event.data);
      if (now !== "done") say(words[now] || now, now === "waiting" ? "asks" : "busy");
      waits.hidden = now !== "waiting";
      if (now === "waiting") {
        find("a", waits).href = "/approvals/" + approval;
        done();  // something else may be run meanwhile
      }
      if (now === "cancelled" || now === "interrupted") end();
    });
    events.addEventListener("result", (event) => {
      const result = JSON.parse(event.data);
      const refused = ["denied", "expired", "forbidden"].includes(result.status);
      say(words[result.status] || result.status, result.status === "ok" ? "good" : refused ? "asks" : "bad");
      const drawn = later.some(([, kind, text]) => kind && text === result.value_repr);
      const last = [drawn ? null : result.value_repr, result.status === "ok" ? null : result.error].filter(Boolean).join("\n");
      if (last) {
        const part = document.createElement("span");
        part.textContent = (out.textContent && !out.textContent.endsWith("\n") ? "\n" : "") + last;
        if (result.status !== "ok") part.className = "err";
        out.append(part);
      }
      draw();
      for (const name of Object.keys(result.files).slice(0, 12)) {
        if (!/\.(png|jpe?g|gif|webp)$/i.test(name)) continue;
        const figure = document.createElement("figure"), picture = document.createElement("img");
        const caption = document.createElement("figcaption");
        picture.alt = caption.textContent = name;
        picture.src = "/runs/" + id + "/files/" + name.split("/").map(encodeURIComponent).join("/");
        figure.append(picture, caption);
        pictures.append(figure);
      }
      end();
    });
    events.onerror = end;
  });
}

// Keys: Ctrl+Enter sends the form one writes in; r goes to the reason of an approval; j and k walk through a list.
function listen() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (typing && event.key === "Enter" && (event.ctrlKey || event.metaKey) && typing.form) {
      event.preventDefault();
      typing.form.requestSubmit(find("button.main", typing.form));
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "r" && find("[data-reason]")) { event.preventDefault(); find("[data-reason]").focus(); }
    if (event.key === "j" || event.key === "k") {
      const rows = [...document.querySelectorAll("a.row")];
      const at = rows.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
      if (rows[at]) rows[at].focus();
    }
  });
}

keepFresh();
followRun();
play();
listen();
