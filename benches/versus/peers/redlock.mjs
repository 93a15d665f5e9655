// The peer from npm: `redlock` over `ioredis`. It exchanges lines of text with `quorate-bench peers`.
import { createInterface } from "node:readline";
import Client from "ioredis";
import Redlock from "redlock";

const TTL = 10_000;
const clients = process.argv[2].split(",").map((url) => new Client(url));
const redlock = new Redlock(clients, { retryCount: 3, automaticExtensionThreshold: 0 });
redlock.on("error", () => {});

const us = () => Number(process.hrtime.bigint() / 1000n);
const cpu = () => {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
};

async function alone(cycles) {
  const acquire = [];
  const release = [];
  let failed = 0;
  for (let n = 0; n < cycles; n += 1) {
    const started = us();
    try {
      const lock = await redlock.acquire([`node:alone:${n % 64}`], TTL);
      const acquired = us();
      await lock.release();
      acquire.push(acquired - started);
      release.push(us() - acquired);
    } catch {
      failed += 1;
    }
  }
  return { acquire, release, failed };
}

async function burst(tasks, ms) {
  const before = cpu();
  const started = us();
  let cycles = 0;
  let failed = 0;
  const work = async (task) => {
    while (us() - started < ms * 1000) {
      try {
        const lock = await redlock.acquire([`node:burst:${task}`], TTL);
        await lock.release();
        cycles += 1;
      } catch {
        failed += 1;
      }
    }
  };
  await Promise.all(Array.from({ length: tasks }, (_, task) => work(task)));
  return { cycles, failed, seconds: (us() - started) / 1e6, cpu: cpu() - before };
}

for await (const line of createInterface({ input: process.stdin })) {
  const [what, first, second] = line.split(" ");
  const seen = what === "alone" ? await alone(Number(first)) : await burst(Number(first), Number(second));
  console.log(JSON.stringify(seen));
}
process.exit(0);
