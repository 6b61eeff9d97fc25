// Prints the results of queries (a JSON list on stdin) as the site's search box has them: pages in their order, each with its headings.
// Runs the worker that the site's pages start, with the script of docs/assets before it. Argument: the site's folder.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const site = process.argv[2];
const folder = path.join(site, "assets/javascripts/workers");
const program = fs.readFileSync(path.join(folder, fs.readdirSync(folder).find((name) => name.endsWith(".js"))), "utf8");
let handle;
let answered;
const inside = { console, addEventListener: (_, handler) => (handle = handler), postMessage: (answer) => answered(answer.data) };
inside.self = inside;
vm.runInNewContext(program, inside);

class Worker {
  postMessage(data) {
    handle({ data });
  }
}
vm.runInNewContext(fs.readFileSync(path.join(site, "assets/search-query.js"), "utf8"), { Worker });
const worker = new Worker();

const ask = (type, data) =>
  new Promise((resolve) => {
    answered = resolve;
    worker.postMessage({ type, data });
  });

(async () => {
  const { config, docs } = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
  await ask(0, { config, docs, options: { suggest: true } });
  const results = {};
  for (const query of JSON.parse(fs.readFileSync(0, "utf8"))) {
    results[query] = (await ask(2, query)).items.map((page) => page.map((entry) => entry.location));
  }
  console.log(JSON.stringify(results));
})();
