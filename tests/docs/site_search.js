// Prints the results of queries (a JSON list on stdin) as the site's search box has them: pages in their order, each with its headings.
// Runs the worker that the site's pages start. Argument: the site's folder.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const site = process.argv[2];
const folder = path.join(site, "assets/javascripts/workers");
const program = fs.readFileSync(path.join(folder, fs.readdirSync(folder).find((name) => name.endsWith(".js"))), "utf8");
let handle;
let answered;
const worker = { console, addEventListener: (_, handler) => (handle = handler), postMessage: (answer) => answered(answer.data) };
worker.self = worker;
vm.runInNewContext(program, worker);

const ask = (type, data) =>
  new Promise((resolve) => {
    answered = resolve;
    handle({ data: { type, data } });
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
