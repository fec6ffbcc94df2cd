// The pages work without this script. It asks before some actions, copies texts, and refreshes pages.
"use strict";

document.documentElement.classList.add("scripted");

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

document.addEventListener("click", async (event) => {
  if (!event.target.classList.contains("copy")) return;
  await copyText(event.target.parentElement.querySelector("pre"));
  event.target.textContent = "Copied";
});

async function copyText(from) {
  if (navigator.clipboard) return navigator.clipboard.writeText(from.textContent);
  // Over plain HTTP, only a selection can be copied.
  const selection = document.getSelection();
  selection.selectAllChildren(from);
  document.execCommand("copy");
  selection.removeAllRanges();
}

// Refreshing: a page is fetched regularly. It is shown at once, unless the user types or selects
// something, or the mouse moves or is pressed, since a row must not move away under a click.

let moved = 0;
let pressed = false;
document.addEventListener("pointermove", () => (moved = Date.now()));
document.addEventListener("pointerdown", () => (pressed = true));
for (const name of ["pointerup", "pointercancel", "dragend"]) {
  document.addEventListener(name, () => (pressed = false));
}

function isChanged(field) {
  if (field.options) {
    const usual = Array.from(field.options).findIndex((option) => option.defaultSelected);
    return field.selectedIndex !== Math.max(usual, 0);
  }
  return field.checked !== field.defaultChecked || field.value !== field.defaultValue;
}

function isHeld(main) {
  // A hidden page is refreshed in any case.
  if (document.hidden) return false;
  const fields = Array.from(main.querySelectorAll("input:not([type=hidden]), select, textarea"));
  return fields.some((field) => field === document.activeElement || isChanged(field)) || !document.getSelection().isCollapsed;
}

function isAimedAt() {
  return !document.hidden && (pressed || Date.now() - moved < 700);
}

// The name by which an element is found in the page that replaces it.
function nameOf(element) {
  const form = element.closest("form")?.getAttribute("action") ?? "";
  const label = element.getAttribute("href") ?? element.getAttribute("aria-label");
  return `${element.tagName} ${element.id} ${form} ${label ?? element.textContent}`;
}

// Calls *act* with each element of the old page and its namesake in the fresh page.
function pair(old, fresh, css, act) {
  const freshByName = new Map(Array.from(fresh.querySelectorAll(css), (element) => [nameOf(element), element]));
  for (const element of old.querySelectorAll(css)) {
    const namesake = freshByName.get(nameOf(element));
    if (namesake) act(element, namesake);
  }
}

function show(main, fresh) {
  // The server sends a message once, so keep it until the user leaves the page.
  const message = main.querySelector("#message");
  const focused = main.contains(document.activeElement) ? nameOf(document.activeElement) : "";
  const anchor = Array.from(main.querySelectorAll("[id]")).find((element) => element.getBoundingClientRect().top >= 0);
  const top = anchor?.getBoundingClientRect().top;
  const scrolled = [];
  pair(main, fresh, "summary", (summary, namesake) => (namesake.parentElement.open = summary.parentElement.open));
  pair(main, fresh, "pre, .scroll", (box, namesake) => scrolled.push([namesake, box.scrollLeft, box.scrollTop]));
  main.dataset.refresh = fresh.dataset.refresh ?? "";
  main.replaceChildren(...fresh.childNodes);
  if (message) main.prepend(message);
  for (const [box, x, y] of scrolled) box.scrollTo(x, y);
  const same = anchor && document.getElementById(anchor.id);
  if (same && scrollY) scrollBy({ top: same.getBoundingClientRect().top - top, behavior: "instant" });
  if (focused) {
    const targets = Array.from(main.querySelectorAll("a, button, summary, [tabindex]"));
    targets.find((element) => nameOf(element) === focused)?.focus({ preventScroll: true });
  }
}

function setTab(title, icon) {
  document.title = title;
  document.querySelector("link[rel=icon]").href = icon;
}

function printAge(seconds) {
  const [size, unit] = seconds < 90 ? [1, "s"] : seconds < 5400 ? [60, "min"] : [3600, "h"];
  return `${Math.floor(seconds / size)}\u00a0${unit}`;
}

function printTime(moment, zone) {
  const date = new Date(moment);
  try {
    return date.toLocaleTimeString("en-GB", { timeZone: zone });
  } catch {
    // The server has zones that the browser lacks, such as "localtime".
    return date.toLocaleTimeString("en-GB", { timeZone: "UTC", timeZoneName: "short" });
  }
}

function addPause(stamp, act) {
  const button = document.createElement("button");
  const [words, sign] = [document.createElement("span"), document.createElement("span")];
  words.className = "wide";
  sign.className = "narrow";
  sign.ariaHidden = "true";
  const say = (paused) => {
    words.textContent = button.ariaLabel = paused ? "Resume refreshing" : "Stop refreshing";
    sign.textContent = paused ? "▶" : "❚❚";
  };
  say(false);
  button.append(words, sign);
  button.addEventListener("click", () => say(act()));
  stamp.append(button);
}

function keepFresh(main, stamp) {
  const [age, trouble] = [stamp.firstElementChild, document.getElementById("trouble")];
  const period = () => Number(main.dataset.refresh) * 1000;
  let [etag, waiting, paused, asking, failures, why] = ["", null, false, false, 0, ""];
  let [shown, seen, asked] = [Date.now(), Date.now(), Date.now()];

  // Returns the page, or null if it has not changed.
  async function ask() {
    // Give up if the server does not answer.
    const signal = AbortSignal.timeout(Math.max(period(), 5000));
    const headers = etag ? { "If-None-Match": etag } : {};
    const answer = await fetch(location.href, { credentials: "same-origin", headers, signal });
    if (answer.status === 304) return null;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.redirected || !answer.ok) {
      const heading = page.querySelector("#main h1")?.textContent.trim();
      throw new Error(answer.redirected ? "Please log in" : heading || `The server answered ${answer.status}`);
    }
    etag = answer.headers.get("ETag") ?? "";
    return page;
  }

  async function refresh() {
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

  function report(held) {
    const [now, long] = [Date.now(), 8 * period()];
    const since = printTime(seen, stamp.dataset.zone);
    const lost = failures > 1 || now - seen > long;
    age.textContent = `${printAge((now - shown) / 1000)} old`;
    const text = failures
      ? `Not refreshed since ${since}: ${why}. Trying again.`
      : held ? "Not refreshed while you select or type." : "";
    if (trouble.textContent !== text) trouble.textContent = text;
    // One failure may be a restart.
    document.documentElement.classList.toggle("stale", lost || now - shown > long);
    if (lost) setTab(`Out of date since ${since} · Jobs`, main.dataset.staleIcon);
  }

  function beat() {
    if (!main.dataset.refresh) return;
    if (!asking && !paused && Date.now() - asked >= period()) refresh();
    const held = waiting !== null && isHeld(main);
    if (waiting && !paused && !held && !isAimedAt()) {
      show(main, waiting);
      waiting = null;
      shown = seen;
    }
    report(held);
  }

  addPause(stamp, () => {
    paused = !paused;
    asked = 0;
    beat();
    return paused;
  });
  main.dataset.tab = document.title;
  main.dataset.icon = document.querySelector("link[rel=icon]").href;
  setInterval(beat, Math.min(1000, period()));
}

const main = document.getElementById("main");
if (main?.dataset.refresh) keepFresh(main, document.getElementById("stamp"));
