// Loads a page's figures again every few seconds, unless somebody works on it, and ticks all boxes. All works without it.
"use strict";

const main = () => document.querySelector("main");

function isBusy() {
  return document.hidden || main().querySelector("details[open], :focus, input[type=checkbox]:checked") !== null;
}

async function refresh() {
  if (isBusy()) return;
  const address = new URL(location.href);
  address.searchParams.delete("notice");
  let page;
  try {
    page = new DOMParser().parseFromString(await (await fetch(address)).text(), "text/html");
  } catch {
    document.body.classList.add("stale");
    return;
  }
  if (isBusy()) return;
  document.body.classList.remove("stale");
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
