// Tries to acquire a lock with the npm package `redlock`, and prints "acquired" or "refused".
// Keeps the lock until a line arrives on standard input.
// Usage: node redlock.mjs RESOURCE HOST:PORT ..   (packages from NODE_PATH)
import { createRequire } from "node:module";
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
try {
  const lock = await redlock.acquire([resource], 20000);
  console.log("acquired");
  await new Promise((resolve) => process.stdin.once("data", resolve));
  await lock.release();
  console.log("released");
} catch (error) {
  console.log("refused");
}
clients.forEach((client) => client.disconnect());
process.exit(0);
