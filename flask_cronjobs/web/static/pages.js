// The pages work without this. It asks before bulk actions, and renews pages that change.
"use strict";

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

function isBusy(main) {
  // Behind another tab nobody is disturbed, and the icon is what tells.
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

async function renew(main) {
  const answer = await fetch(location.href, { credentials: "same-origin" });
  if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const freshMain = fresh.getElementById("main");
  // A message is said once: it stays until the reader goes on.
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
      await renew(main);
      seen = new Date();
      stamp.hidden = true;
    } catch {
      // What is shown may be wrong by now, and must say so.
      stamp.textContent = `Not renewed since ${seen.toLocaleTimeString()}`;
      stamp.hidden = false;
    }
  }, seconds * 1000);
}

const main = document.getElementById("main");
if (main && main.dataset.refresh) keepFresh(main);
