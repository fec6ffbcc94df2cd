// The pages work without this script. It asks before bulk actions, refreshes pages, and copies.
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

function isBusy(main) {
  // A hidden page is refreshed in any case, so that its icon stays right.
  if (document.hidden) return false;
  const focused = document.activeElement;
  return (
    (focused !== main && main.contains(focused)) ||
    !document.getSelection().isCollapsed ||
    main.querySelector("details[open] pre, a:hover, button:hover, time:hover") !== null
  );
}

document.documentElement.classList.add("scripted");

document.addEventListener("click", async (event) => {
  if (!event.target.classList.contains("copy")) return;
  await navigator.clipboard.writeText(event.target.parentElement.querySelector("pre").textContent);
  event.target.textContent = "Copied";
});

function isTyped(form) {
  const fields = form.querySelectorAll("input:not([type=hidden]), select, textarea");
  return Array.from(fields).some((field) =>
    field.options
      ? Array.from(field.options).some((option) => option.selected !== option.defaultSelected)
      : field.value !== field.defaultValue,
  );
}

function openDetails(main) {
  return Array.from(main.querySelectorAll("details"), (details) => details.open);
}

async function refresh(main, milliseconds) {
  // A server that is silent is given up, so that the page says that it is out of date.
  const signal = AbortSignal.timeout(milliseconds);
  const answer = await fetch(location.href, { credentials: "same-origin", signal });
  if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const freshMain = fresh.getElementById("main");
  // The server sends a message once, so keep it until the user leaves the page.
  const message = main.querySelector("#message");
  const row = message?.closest("li")?.id;
  // Nor lose what was typed and not sent.
  const filter = main.querySelector("form.filter");
  const open = openDetails(main);
  main.replaceChildren(...freshMain.childNodes);
  if (filter && isTyped(filter)) main.querySelector("form.filter").replaceWith(filter);
  if (message) (document.getElementById(row) || main).prepend(message);
  main.querySelectorAll("details").forEach((details, at) => (details.open = open[at] ?? details.open));
  main.dataset.refresh = freshMain.dataset.refresh ?? "";
  document.title = fresh.title;
  document.querySelector("link[rel=icon]").replaceWith(fresh.querySelector("link[rel=icon]"));
}

function keepFresh(main) {
  const stamp = document.getElementById("stamp");
  const milliseconds = Number(main.dataset.refresh) * 1000;
  let seen = new Date();
  let failures = 0;

  function sayStale() {
    const since = seen.toLocaleTimeString();
    stamp.textContent = `Not refreshed since ${since}`;
    stamp.hidden = false;
    // One failure may be a restart. A page in use is left alone, but not for long.
    if (failures < 2 && new Date() - seen < 8 * milliseconds) return;
    document.documentElement.classList.add("stale");
    document.title = `Out of date since ${since} · Jobs`;
    document.querySelector("link[rel=icon]").href = main.dataset.staleIcon;
  }

  setInterval(async () => {
    if (!main.dataset.refresh) return;
    if (isBusy(main)) {
      if (new Date() - seen >= 2 * milliseconds) sayStale();
      return;
    }
    try {
      await refresh(main, milliseconds);
      seen = new Date();
      failures = 0;
      stamp.hidden = true;
      document.documentElement.classList.remove("stale");
    } catch {
      failures += 1;
      sayStale();
    }
  }, milliseconds);
}

const main = document.getElementById("main");
if (main && main.dataset.refresh) keepFresh(main);
