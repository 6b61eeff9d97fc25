// Loads a page's figures again every few seconds, unless somebody works on it or has stopped that, shows times in the browser's
// zone where that is wanted, and ticks all boxes. All works without it.
"use strict";

const main = () => document.querySelector("main");

// What this browser was told last, where it may keep that.
const kept = {
  get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
  set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* It holds for this page. */ } },
};
let isPaused = kept.get("reload") === "off";
let isLocal = kept.get("times") === "local";

function isBusy() {
  const works = "details.action[open], input:focus, select:focus, textarea:focus, summary:focus, input[type=checkbox]:checked";
  return document.hidden || main().querySelector(works) !== null;
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

// The n-th link or button of the figures has the focus; -1: none has.
const focusable = () => [...main().querySelectorAll("a, button")];

async function refresh() {
  if (isBusy() || isPaused) return;
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
  if (isBusy() || isPaused) return;
  complain([]);
  const before = document.activeElement;
  const place = focusable().indexOf(before);
  const open = [...main().querySelectorAll("details")].map((one) => one.open);
  main().replaceWith(page.querySelector("main"));
  main().querySelectorAll("details").forEach((one, number) => { one.open = open[number] ?? false; });
  if (place >= 0) {
    const same = focusable().find((one) => before.href && one.href === before.href) ?? focusable()[place];
    same?.focus({ preventScroll: true });
  }
  const footer = page.querySelector("footer");
  if (footer && !document.querySelector("footer :focus")) document.querySelector("footer")?.replaceWith(footer);
  showTimes();
  // An action that goes on is shown more often than one that is over.
  document.body.dataset.refresh = page.body.dataset.refresh ?? "";
}

function plan() {
  const seconds = Number(document.body.dataset.refresh);
  if (seconds) setTimeout(() => refresh().finally(plan), seconds * 1000);
}

const two = (number) => String(number).padStart(2, "0");

function shown(date) {
  const [utc] = date.toISOString().replace("T", " ").split(".");
  if (!isLocal) return utc;
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function showTimes() {
  for (const one of document.querySelectorAll("time[datetime]")) {
    const date = new Date(one.dateTime);
    if (!Number.isNaN(date.valueOf())) one.textContent = shown(date);
  }
  const zone = document.querySelector("#zone");
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "this browser's zone";
  if (zone) zone.textContent = isLocal ? `Times are in ${name}.` : "Times are in UTC.";
}

// A button that has two states, each with its text.
function addSwitch(texts, isOn, turn) {
  const button = document.createElement("button");
  const label = () => { button.textContent = texts[Number(isOn())]; };
  button.type = "button";
  button.className = "plain";
  button.addEventListener("click", () => { turn(); label(); });
  label();
  document.querySelector(".switches")?.append(button);
}

addSwitch(["Show local times", "Show UTC"], () => isLocal, () => {
  isLocal = !isLocal;
  kept.set("times", isLocal ? "local" : "utc");
  showTimes();
});
if (document.body.dataset.refresh) {
  addSwitch(["Stop reloading", "Reload every few seconds"], () => isPaused, () => {
    isPaused = !isPaused;
    kept.set("reload", isPaused ? "off" : "on");
  });
}
showTimes();
plan();

document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-all]")) return;
  for (const box of event.target.form.querySelectorAll("input[name=tag], input[name=message]")) box.checked = event.target.checked;
});
