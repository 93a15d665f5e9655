// Runs one scenario in Chromium, against a page that a Rust test serves (page/tests/all/browser.rs).
//
//   node driver.mjs SCENARIO URL
//
// A scenario asks the Rust test to change something with `act("lose_majority")`: a line on stdout, answered by a line
// on stdin. It fails by throwing an error. The variable CHROMIUM names the browser.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import { SCENARIOS } from "./scenarios.mjs";

const [scenario, url] = process.argv.slice(2);
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Asks the Rust test to do something, and waits until it is done. */
async function act(words) {
  process.stdout.write(`DO ${words}\n`);
  const { value, done } = await answers.next();
  if (done || value !== "done") throw new Error(`${words}: ${value}`);
}

/** How many times slower Chromium may be on a busy machine than on an idle one. */
const SLOWER = 4;

/** Waits until `check` returns something that is true, and returns it. */
async function until(text, idleLimitMs, check) {
  const limitMs = SLOWER * idleLimitMs;
  const end = Date.now() + limitMs;
  let last;
  for (;;) {
    try { last = await check(); } catch (error) { last = undefined; }
    if (last) return last;
    if (Date.now() > end) throw new Error(`not within ${limitMs} ms: ${text}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function assert(condition, text) {
  if (!condition) throw new Error(text);
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"],
});
let code = 0;
try {
  const problems = [];
  const open = async (options = {}) => {
    const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
    const page = await context.newPage();
    page.on("pageerror", (error) => problems.push(`an error in the page: ${error.message}`));
    page.on("dialog", (dialog) => { problems.push("a dialog"); dialog.dismiss(); });
    page.on("console", (message) => {
      // A lost connection is part of a scenario.
      if (message.type() === "error" && !/net::|503|Failed to load/.test(message.text())) problems.push(`console: ${message.text()}`);
    });
    page.on("request", (request) => {
      if (!request.url().startsWith(url) && !request.url().startsWith("data:")) problems.push(`an outside request: ${request.url()}`);
    });
    await page.goto(url);
    return page;
  };
  const axe = readFileSync(new URL("./node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
  await SCENARIOS[scenario]({ open, act, until, assert, axe, url });
  assert(problems.length === 0, problems.join("\n"));
  process.stdout.write("OK\n");
} catch (error) {
  process.stdout.write(`FAILED ${String(error?.stack ?? error).replaceAll("\n", " | ")}\n`);
  code = 1;
} finally {
  await browser.close();
}
process.exit(code);
