// Loads a page's figures again every few seconds, unless somebody works on it, and ticks all boxes. All works without it.
"use strict";

const main = () => document.querySelector("main");

function isBusy() {
  return document.hidden || main().querySelector("details[open], :focus, input[type=checkbox]:checked") !== null;
}

// Says why there are no new figures, above the old ones, which turn grey; says nothing without nodes.
function complain(nodes) {
  const alert = document.querySelector("aside[role=alert]");
  document.body.classList.toggle("stale", nodes.length > 0);
  const told = document.createElement("div");
  told.append(...nodes);
  // Whoever logs in there is not disturbed, and nothing is read out twice.
  if (alert.querySelector(":focus") || alert.textContent === told.textContent) return;
  alert.replaceChildren(...told.childNodes);
  alert.hidden = !nodes.length;
}

async function refresh() {
  if (isBusy()) return;
  const address = new URL(location.href);
  address.searchParams.delete("notice");
  let answer, page;
  try {
    answer = await fetch(address);
    page = new DOMParser().parseFromString(await answer.text(), "text/html");
  } catch {
    complain(["The server of this page does not answer."]);
    return;
  }
  if (!answer.ok) {
    complain([...page.querySelectorAll("main > :not(.home)")]);
    return;
  }
  if (isBusy()) return;
  complain([]);
  main().replaceWith(page.querySelector("main"));
  const footer = page.querySelector("footer");
  if (footer) document.querySelector("footer")?.replaceWith(footer);
  // An action that goes on is shown more often than one that is over.
  document.body.dataset.refresh = page.body.dataset.refresh ?? "";
}

function plan() {
  const seconds = Number(document.body.dataset.refresh);
  if (seconds) setTimeout(() => refresh().finally(plan), seconds * 1000);
}

plan();

document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-all]")) return;
  for (const box of event.target.form.querySelectorAll("input[name=tag]")) box.checked = event.target.checked;
});
