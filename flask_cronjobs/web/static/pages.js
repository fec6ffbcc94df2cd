// The pages work without this script. It asks before bulk actions, and refreshes pages.
"use strict";

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

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

function openDetails(main) {
  return Array.from(main.querySelectorAll("details"), (details) => details.open);
}

async function refresh(main) {
  const answer = await fetch(location.href, { credentials: "same-origin" });
  if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const freshMain = fresh.getElementById("main");
  // The server sends a message once, so keep it until the user leaves the page.
  const said = main.querySelector(".said");
  const open = openDetails(main);
  main.replaceChildren(...freshMain.childNodes);
  if (said) main.prepend(said);
  main.querySelectorAll("details").forEach((details, at) => (details.open = open[at] ?? details.open));
  main.dataset.refresh = freshMain.dataset.refresh ?? "";
  document.title = fresh.title;
  document.querySelector("link[rel=icon]").replaceWith(fresh.querySelector("link[rel=icon]"));
}

function keepFresh(main) {
  const stamp = document.getElementById("stamp");
  const seconds = Number(main.dataset.refresh);
  let seen = new Date();
  setInterval(async () => {
    if (!main.dataset.refresh || isBusy(main)) return;
    try {
      await refresh(main);
      seen = new Date();
      stamp.hidden = true;
    } catch {
      // Say that the page may be out of date.
      stamp.textContent = `Not refreshed since ${seen.toLocaleTimeString()}`;
      stamp.hidden = false;
    }
  }, seconds * 1000);
}

const main = document.getElementById("main");
if (main && main.dataset.refresh) keepFresh(main);
