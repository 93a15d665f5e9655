// The client of npm `redlock` for `scripts/compare-tools`: `using`, which renews the lock and aborts a signal when a
// renewal fails. The lines of text that the client reads and prints are described in `compare.py`.
import { createInterface } from "node:readline";
import Client from "ioredis";
import Redlock from "redlock";

const [addresses, name, ttl] = process.argv.slice(2);
const clients = addresses.split(",").map((address) => new Client(`redis://${address}`));
for (const client of clients) client.on("error", () => {});
await Promise.all(clients.map((client) => client.ping()));

let held;
let finish = () => {};

function acquire(seconds) {
  // Retries every 200 ms with up to 200 ms more, the defaults, until `seconds` have passed.
  const redlock = new Redlock(clients, { retryCount: Math.ceil((seconds * 1000) / 300) });
  redlock.on("error", () => {});
  let acquired = false;
  redlock
    .using([name], Number(ttl), async (signal) => {
      acquired = true;
      held = signal;
      signal.addEventListener("abort", () => console.log(`lost ${signal.error?.message ?? ""}`));
      console.log("acquired -");
      await new Promise((resolve) => {
        finish = resolve;
      });
    })
    .then(() => console.log("released"))
    .catch((error) => console.log(`${acquired ? "failed" : "refused"} ${error.message}`));
}

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, what] = line.split(" ");
  if (verb === "acquire") acquire(Number(what));
  if (verb === "held") console.log(held && !held.aborted ? "held yes" : "held no");
  if (verb === "release") finish();
}
process.exit(0);
