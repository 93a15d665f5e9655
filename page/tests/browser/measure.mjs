// Measures the page on five Redis masters that scripts/page has started, and prints a table.
//
// The locks are keys with the form of lock keys, written directly to the masters, because 100,000 holders would need
// more processor time than this machine has.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { chromium } from "playwright-core";

const { CLI, PORTS, PIDS, WORK, CHROMIUM } = process.env;
const ports = PORTS.split(" ").map(Number);
const masters = PIDS.split(" ");
const SECONDS = Number(process.env.MEASURE_SECONDS ?? 20);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const row = (...cells) => console.log(`| ${cells.join(" | ")} |`);

/** Processor time of a process in seconds. */
function used(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}
const memory = (pid) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]) / 1024;

/** Sends commands to one master, and waits for all answers. */
function redis(port, commands) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, "127.0.0.1");
    let answers = 0;
    socket.on("data", (data) => {
      for (const byte of data) if (byte === 10) answers += 1;
      if (answers >= commands.length) { socket.end(); resolve(); }
    });
    socket.on("error", reject);
    const text = commands.map((words) => `*${words.length}\r\n${words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`).join("")}`);
    socket.write(text.join(""));
  });
}
const token = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
async function hold(names) {
  const values = names.map((name) => ["SET", name, token(), "PX", "3600000"]);
  for (let start = 0; start < values.length; start += 5000) {
    await Promise.all(ports.map((port) => redis(port, values.slice(start, start + 5000))));
  }
}
const release = (names) => Promise.all(ports.map((port) => redis(port, [["DEL", ...names]])));

async function startPage(port, options = []) {
  const page = spawn(CLI, ["page", "--listen", String(port), ...options], { stdio: "ignore" });
  for (let tries = 0; tries < 100; tries += 1) {
    try { await get(port, "/healthz"); break; } catch { await sleep(50); }
  }
  return page;
}
function get(port, path) {
  return new Promise((resolve, reject) => {
    http.get({ port, path, host: "127.0.0.1" }, (answer) => {
      let text = "";
      answer.on("data", (data) => { text += data; });
      answer.on("end", () => resolve(text));
    }).on("error", reject);
  });
}
/** Watches the page. `seen` is called with each message. */
function watch(port, seen = () => {}) {
  const request = http.get({ port, path: "/api/events", host: "127.0.0.1", agent: false }, (answer) => {
    let text = "";
    answer.on("data", (data) => {
      text += data;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        seen(text.slice(0, end));
        text = text.slice(end + 2);
      }
    });
  });
  request.on("error", () => {});
  return request;
}

let port = 31000 + Math.floor(Math.random() * 2000);

/** The times from the last answer of a master to a SET until a viewer gets the lock, in milliseconds. */
async function delays(count) {
  const waiting = new Map();
  const viewer = watch(port, (message) => {
    for (const [name, resolve] of waiting) if (message.includes(`"id":"l:${name}"`)) { waiting.delete(name); resolve(performance.now()); }
  });
  await sleep(3000);
  const times = [];
  for (let index = 0; index < count; index += 1) {
    const name = `measured:${port}:${index}`;
    const seen = new Promise((resolve) => waiting.set(name, resolve));
    await hold([name]);
    const began = performance.now();
    const ended = await Promise.race([seen, sleep(120000)]);
    times.push(ended ? ended - began : Infinity);
    await release([name]);
    await sleep(300 + Math.random() * 900);
  }
  viewer.destroy();
  times.sort((a, b) => a - b);
  return `median ${Math.round(times[Math.floor(count / 2)])} ms, longest ${Math.round(times[count - 1])} ms`;
}
async function processors(viewers) {
  const watching = Array.from({ length: viewers }, () => watch(port));
  await sleep(8000);
  const before = [used(page.pid), ...masters.map(used)];
  const began = performance.now();
  await sleep(SECONDS * 1000);
  const seconds = (performance.now() - began) / 1000;
  const after = [used(page.pid), ...masters.map(used)];
  watching.forEach((viewer) => viewer.destroy());
  const percent = after.map((time, index) => ((time - before[index]) / seconds) * 100);
  return [`${percent[0].toFixed(1)} %`, `${Math.max(...percent.slice(1)).toFixed(2)} %`];
}

row("measure", "value");
row("---", "---");
const idle = masters.map(used);
await sleep(SECONDS * 1000);
row("processor of an idle master without the page", `${Math.max(...masters.map((pid, index) => ((used(pid) - idle[index]) / SECONDS) * 100)).toFixed(2)} %`);
let page = await startPage(port);
let known = 0;
for (const count of (process.env.MEASURE_LOCKS ?? "10,5000,100000").split(",").map(Number)) {
  await hold(Array.from({ length: count - known }, (_, index) => `many:${String(known + index).padStart(6, "0")}`));
  known = count;
  row(`time from acquire to page, ${count} locks`, await delays(Number(process.env.MEASURE_TRIES ?? (count > 10000 ? 5 : 20))));
  for (const viewers of [1, 64]) {
    const [own, master] = await processors(viewers);
    row(`processor, ${count} locks, ${viewers} viewers: page; busiest master`, `${own}; ${master}`);
  }
  row(`memory of the page, ${count} locks`, `${memory(page.pid).toFixed(0)} MiB`);
}
const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"] });
const tab = await browser.newPage();
await tab.goto(`http://127.0.0.1:${port}/`);
await tab.waitForTimeout(3000);
const paint = await tab.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
row(`time to first paint, ${known} locks`, `${Math.round(paint)} ms`);
await browser.close();
page.kill();
await Promise.all(ports.map((one) => redis(one, [["FLUSHALL"]])));

const now = Date.now();
const event = (seq) => JSON.stringify({ seq, at_ms: now - (100000 - seq) * 800, kind: seq % 2 ? "taken" : "released", lock: `l:tenant:${(seq >> 1) % 500}`, host: `app-${(seq >> 1) % 20}`, holder: `app-${(seq >> 1) % 20} pid ${(seq >> 1) % 9000} (python3)`, token: 1700000000000000 + (seq >> 1), from_ms: now - (100000 - (seq - 1 + (seq % 2))) * 800 });
port += 1;
page = await startPage(port);
await sleep(2000);
row("memory of the page without events", `${memory(page.pid).toFixed(0)} MiB`);
page.kill();
writeFileSync(`${WORK}/events`, Array.from({ length: 100000 }, (_, index) => `${event(index + 1)}\n`).join(""));
port += 1;
page = await startPage(port, ["--history", `${WORK}/events`, "--history-size", "100"]);
await sleep(3000);
row("memory of the page with 100,000 events", `${memory(page.pid).toFixed(0)} MiB`);
const began = performance.now();
const past = await get(port, `/api/history?from=${now - 86400000}&to=${now}`);
row("answer about 24 hours with 100,000 events", `${Math.round(performance.now() - began)} ms, ${Math.round(past.length / 1024)} KiB`);
page.kill();
process.exit(0);
