// The pages work without this script. It asks before bulk actions, renews pages, and copies.
"use strict";

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

// Only the browser knows its zone; the server remembers the choice.
const zoneLink = document.querySelector("a[data-browser-zone]");
if (zoneLink) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const query = new URLSearchParams(location.search);
  query.set("zone", zone);
  zoneLink.href = `?${query}`;
  zoneLink.hidden = !zone || zone === zoneLink.dataset.browserZone;
}

document.documentElement.classList.add("scripted");

document.addEventListener("click", async (event) => {
  if (!event.target.classList.contains("copy")) return;
  await copyText(event.target.parentElement.querySelector("pre"));
  event.target.textContent = "Copied";
});

async function copyText(from) {
  if (navigator.clipboard) return navigator.clipboard.writeText(from.textContent);
  // Over plain HTTP there is no clipboard but that of the selection.
  const selection = document.getSelection();
  selection.selectAllChildren(from);
  document.execCommand("copy");
  selection.removeAllRanges();
}

document.addEventListener("keydown", (event) => {
  const box = document.querySelector(".find input");
  if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey || !box) return;
  if (event.target.matches("input, select, textarea")) return;
  event.preventDefault();
  box.focus();
});

// Renewing. A page is fetched on time. What came is shown at once, unless the user selects or types
// just now, or the mouse moves or is pressed: a row may not move away under a click.

let moved = 0;
let pressed = false;
document.addEventListener("pointermove", () => (moved = Date.now()));
document.addEventListener("pointerdown", () => (pressed = true));
for (const name of ["pointerup", "pointercancel", "dragend"]) {
  document.addEventListener(name, () => (pressed = false));
}

function isHeld(main) {
  // A hidden page is renewed in any case.
  if (document.hidden) return false;
  return (
    (main.contains(document.activeElement) &&
      document.activeElement.matches("input:not([type=checkbox]), select, textarea")) ||
    !document.getSelection().isCollapsed
  );
}

function isAimedAt() {
  return !document.hidden && (pressed || Date.now() - moved < 700);
}

// What stands for an element in the page that replaces it.
function nameOf(element) {
  const form = element.closest("form")?.getAttribute("action") ?? "";
  if (element.matches("input, select, textarea")) {
    return `${form} ${element.name} ${element.type === "checkbox" ? element.value : ""}`;
  }
  const label = element.getAttribute("href") ?? element.getAttribute("aria-label");
  return `${element.tagName} ${element.id} ${form} ${label ?? element.textContent}`;
}

// Calls back with each element of the old page and the one of the same name in the fresh page.
function pair(old, fresh, css, act) {
  const named = new Map(Array.from(fresh.querySelectorAll(css), (each) => [nameOf(each), each]));
  for (const each of old.querySelectorAll(css)) {
    const found = named.get(nameOf(each));
    if (found) act(each, found);
  }
}

function keepField(field, fresh) {
  if (field.options) {
    const options = Array.from(field.options);
    if (options.some((each) => each.selected !== each.defaultSelected)) fresh.value = field.value;
  } else if (field.checked !== field.defaultChecked) fresh.checked = field.checked;
  else if (field.value !== field.defaultValue) fresh.value = field.value;
}

const SCROLLED = "pre, .scroll";

function keepScroll(old, [height, top, left], fresh) {
  // The end of a log that grows is followed. Its scroll is counted from there.
  const grown = fresh.matches(".tail") && top < 0 ? fresh.scrollHeight - height : 0;
  fresh.scrollTo(left, top - grown);
}

function show(main, fresh) {
  // The server sends a message once, so keep it until the user leaves the page.
  const message = main.querySelector("#message");
  const row = message?.closest("li")?.id;
  const focused = main.contains(document.activeElement) ? nameOf(document.activeElement) : "";
  const anchor = Array.from(main.querySelectorAll("[id]")).find((each) => each.getBoundingClientRect().top >= 0);
  const top = anchor?.getBoundingClientRect().top;
  const scrolled = [];
  pair(main, fresh, "details", (each, found) => (found.open = each.open));
  pair(main, fresh, "input:not([type=hidden]), select, textarea", keepField);
  pair(main, fresh, SCROLLED, (each, found) =>
    scrolled.push([each, [each.scrollHeight, each.scrollTop, each.scrollLeft], found]),
  );
  main.dataset.refresh = fresh.dataset.refresh ?? "";
  main.replaceChildren(...fresh.childNodes);
  if (message) (document.getElementById(row) || main).prepend(message);
  scrolled.forEach((each) => keepScroll(...each));
  const same = anchor && document.getElementById(anchor.id);
  if (same && scrollY) scrollBy({ top: same.getBoundingClientRect().top - top, behavior: "instant" });
  if (focused) {
    const all = Array.from(main.querySelectorAll("a, button, summary, input, [tabindex]"));
    all.find((each) => nameOf(each) === focused)?.focus({ preventScroll: true });
  }
}

function setTab(title, icon) {
  document.title = title;
  document.querySelector("link[rel=icon]").href = icon;
}

function printAge(seconds) {
  const [size, unit] = seconds < 90 ? [1, "s"] : seconds < 5400 ? [60, "min"] : [3600, "h"];
  return `${Math.floor(seconds / size)} ${unit} old`;
}

function keepFresh(main, stamp) {
  const [age, trouble] = stamp.children;
  const pause = document.createElement("button");
  const period = () => Number(main.dataset.refresh) * 1000;
  let [etag, waiting, paused, asking] = ["", null, false, false];
  let [shown, seen, asked] = [Date.now(), Date.now(), Date.now()];
  let failures = 0;
  let why = "";

  // Returns the page, or null if it is still as it was.
  async function ask() {
    // A server that is silent is given up.
    const signal = AbortSignal.timeout(Math.max(period(), 5000));
    const headers = etag ? { "If-None-Match": etag } : {};
    const answer = await fetch(location.href, { credentials: "same-origin", headers, signal });
    if (answer.status === 304) return null;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.redirected || !answer.ok) {
      const said = page.querySelector("#main h1")?.textContent.trim();
      throw new Error(answer.redirected ? "Please log in" : said || `The server answered ${answer.status}`);
    }
    etag = answer.headers.get("ETag") ?? "";
    return page;
  }

  async function renew() {
    asking = true;
    asked = Date.now();
    try {
      const page = await ask();
      seen = Date.now();
      failures = 0;
      if (page && "failed" in main.dataset) return location.reload();
      if (page) {
        waiting = page.getElementById("main");
        main.dataset.tab = page.title;
        main.dataset.icon = page.querySelector("link[rel=icon]").href;
      }
      if (!waiting) shown = seen;
      setTab(main.dataset.tab, main.dataset.icon);
    } catch (error) {
      failures += 1;
      why = error.constructor === Error ? error.message : "The server does not answer";
    }
    asking = false;
    beat();
  }

  function tell(held) {
    const now = Date.now();
    const long = 8 * period();
    const clock = (moment) => new Date(moment).toLocaleTimeString("en-GB", { timeZone: stamp.dataset.zone });
    const lost = failures > 1 || now - seen > long;
    age.textContent = (paused ? "Stopped, " : "") + printAge((now - shown) / 1000) + (held ? ", held while you select or type" : "");
    const text = failures ? `Not renewed since ${clock(seen)}: ${why}. Trying again.` : "";
    if (trouble.textContent !== text) trouble.textContent = text;
    // One failure may be a restart.
    document.documentElement.classList.toggle("stale", lost || now - shown > long);
    if (lost) setTab(`Out of date since ${clock(seen)} · Jobs`, main.dataset.staleIcon);
  }

  function beat() {
    if (!main.dataset.refresh) return;
    if (!asking && !paused && Date.now() - asked >= period()) renew();
    const held = waiting !== null && isHeld(main);
    if (waiting && !paused && !held && !isAimedAt()) {
      show(main, waiting);
      waiting = null;
      shown = seen;
    }
    tell(held);
  }

  pause.append("Stop renewing");
  age.after(" ", pause);
  pause.addEventListener("click", () => {
    paused = !paused;
    asked = 0;
    pause.firstChild.data = paused ? "Renew again" : "Stop renewing";
    beat();
  });
  main.dataset.tab = document.title;
  main.dataset.icon = document.querySelector("link[rel=icon]").href;
  setInterval(beat, Math.min(1000, period()));
}

const main = document.getElementById("main");
if (main?.dataset.refresh) keepFresh(main, document.getElementById("stamp"));
