// A lock of the npm package `redlock`, driven by lines on standard input:
// "try" tries to acquire the lock, and prints "acquired" or "refused"; "release" releases it, and prints "released".
// Usage: node redlock.mjs RESOURCE HOST:PORT ..   (packages from NODE_PATH)
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
const require = createRequire(process.env.NODE_PATH + "/");
const Redis = require("ioredis");
const { default: Redlock } = require("redlock");

const [resource, ...masters] = process.argv.slice(2);
const clients = masters.map((master) => {
  const [host, port] = master.split(":");
  return new Redis({ host, port: Number(port) });
});
const redlock = new Redlock(clients, { retryCount: 0 });
redlock.on("error", () => {});
let lock;
for await (const line of createInterface({ input: process.stdin })) {
  if (line === "try") {
    try {
      lock = await redlock.acquire([resource], 20000);
      console.log("acquired");
    } catch (error) {
      // With one attempt, the package also reports this error if masters cannot be reached.
      console.log(error.name === "ExecutionError" ? "refused" : String(error));
    }
  } else {
    await lock.release();
    console.log("released");
  }
}
process.exit(0);
