// The live page of quorate. It shows what the server sends, and decides nothing about locks.
//
// Data comes from `api/events` (the whole state, then changes), `api/state` (a search among many locks) and
// `api/history`. Times are those of the server: the clock of this browser is not used. Names and notes come from
// strangers, so they are only ever set as text.
// @ts-check

/** @typedef {{host: string, pid: number, process: string, note: string|null, since_ms: number}} Holder */
/** @typedef {{id: string, host: string|null, pid: number|null, since_ms: number|null}} Waiter */
/** @typedef {{state: string, left_ms: number|null, error: string|null}} Answer */
/** @typedef {{id: string, name: string, slot: number|null, kind: string, state: string, holders: Holder[],
 *   since_ms: number|null, since_by: string, left_ms: number|null, read_ms: number, ttl_ms: number|null,
 *   renewed_ms: number|null, margin_ms: number|null, overdue: boolean, token: number|null, waiters: Waiter[],
 *   answers: Answer[], word: string}} Lock */
/** @typedef {{name: string, votes: boolean, state: string, level: string, text: string, server: string|null,
 *   version: string|null, role: string|null, up_since_ms: number|null, round_trip_ms: number|null,
 *   round_trips: (number|null)[], findings: {severity: string, text: string, advice: string}[]}} Master */
/** @typedef {{level: string, title: string, text: string, commands: {why: string, command: string}[], lock: string|null}} Problem */
/** @typedef {{name: string, kind: string, left: number|null, last_ms: number|null, every_ms: number|null,
 *   late: boolean, missing_on: string[]}} Value */
/** @typedef {{seq: number, at_ms: number, kind: string, level: string, lock: string|null, master: string|null,
 *   host: string|null, holder: string|null, token: number|null, from_ms: number|null, ms: number|null, text: string}} Happening */
/** @typedef {{lock: string, host: string|null, holder: string|null, from_ms: number, to_ms: number|null,
 *   end: string|null, token: number|null}} Span */
/** @typedef {{from_ms: number, to_ms: number|null, why: string, master: string|null}} Gap */
/** @typedef {{from_ms: number, to_ms: number, holds: Span[], waits: Span[], gaps: Gap[], events: Happening[],
 *   total: number, longest_holds: Span[], longest_waits: Span[]}} Past */
/** @typedef {{now_ms: number, level: string, sentence: string, detail: string, problems: Problem[],
 *   masters: Master[], quorum: number, counts: Record<string, number>, values: Value[], blind: string,
 *   locks: Lock[], total: number, matching: number, changed?: Lock[], gone?: string[], events?: Happening[]}} Picture */

/** @template {HTMLElement} T @param {string} id @returns {T} */
const at = (id) => /** @type {T} */ (document.getElementById(id));
/** @param {string} tag @param {Record<string, any>} [attributes] @param {...(Node|string)} children */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "click") node.addEventListener("click", value);
    else if (value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children);
  return node;
}
/** Sets a text only if it has changed, so that a selection survives. @param {Element} node @param {string} text */
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
/** Shows control characters, and characters that change the direction of text, as escapes. @param {string} text */
const plain = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g,
  (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);
/** Foreign text, isolated from the direction of the text around it. @param {string} text */
const foreign = (text) => make("bdi", {}, plain(text));

/** A duration for people. @param {number} ms */
function human(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (ms < 1000) return `${Math.max(0, Math.round(ms / 100) / 10)} s`;
  if (s < 120) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  const h = Math.floor(m / 60);
  return h < 48 ? `${h} h ${m % 60} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
}
/** @param {number} ms */
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
/** @param {number} ms */
const moment = (ms) => Math.abs(now() - ms) < 20 * 3600e3 ? clock(ms)
  : new Date(ms).toLocaleString([], { hour12: false, month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
/** The name of a lock from its id: `l:NAME`, or `p3:NAME` for permit 3; with a `b` before the colon if NAME is escaped. @param {string} id */
function title(id) {
  const colon = id.indexOf(":");
  return id[0] === "p" ? `${id.slice(colon + 1)}, permit ${parseInt(id.slice(1), 10)}` : id.slice(colon + 1);
}
/** @param {Holder} holder */
const person = (holder) => `${holder.host} pid ${holder.pid}`;

// The clock of the server: its time in the last message, plus the time since that message.
let serverTime = { at: 0, since: performance.now() };
const now = () => serverTime.at ? serverTime.at + performance.now() - serverTime.since : Date.now();

/** @type {Picture|null} */
let picture = null;
/** @type {Map<string, Lock>} */
const locks = new Map();
let [received, isLive] = [performance.now(), false];
let refusal = "";

// ---- The connection

/** @type {EventSource|null} */
let source = null;
function connect() {
  source?.close();
  received = performance.now();
  const stream = new EventSource("api/events");
  source = stream;
  stream.addEventListener("state", (message) => { showWhole(JSON.parse(message.data)); past = null; loadPast(); });
  stream.addEventListener("change", (message) => showChange(JSON.parse(message.data)));
  stream.addEventListener("error", () => {
    isLive = false;
    if (stream.readyState === EventSource.CLOSED) fetch("api/state?limit=1").then(async (answer) => {
      refusal = answer.ok ? "" : (await answer.text()).slice(0, 200);
    }, () => { refusal = ""; }).finally(() => setTimeout(() => { if (source === stream) connect(); }, 3000));
    showLink();
  });
}
/** @param {Picture} message */
function arrived(message) {
  serverTime = { at: message.now_ms, since: performance.now() };
  received = performance.now();
  [isLive, refusal] = [true, ""];
}
/** @param {Picture} message */
function showWhole(message) {
  arrived(message);
  picture = message;
  locks.clear();
  for (const lock of message.locks) locks.set(lock.id, lock);
  if (isPartial() && isFiltered()) searchServer();
  showAll();
}
/** @param {Picture} message */
function showChange(message) {
  arrived(message);
  if (!picture) return;
  const trips = new Map(picture.masters.map((master) => [master.name, master.round_trips]));
  for (const master of message.masters) {
    master.round_trips = [...(trips.get(master.name) ?? []), master.round_trip_ms].slice(-120);
  }
  const wasPartial = isPartial();
  Object.assign(picture, message, { locks: picture.locks, matching: picture.matching });
  for (const id of message.gone ?? []) locks.delete(id);
  for (const lock of message.changed ?? []) if (!wasPartial || locks.has(lock.id)) locks.set(lock.id, lock);
  for (const event of message.events ?? []) happen(event);
  if (message.events?.length) showPast();
  showAll();
}
/** Whether there are more locks than the browser got: then the server searches. */
const isPartial = () => !!picture && picture.total > 5000;
const isFiltered = () => !!(filter.search || filter.kind || filter.state || filter.host || filter.sort !== "since" || filter.down);

let searchTimer = 0;
async function searchServer() {
  clearTimeout(searchTimer);
  const query = new URLSearchParams({ search: filter.search, kind: filter.kind, state: filter.state, host: filter.host,
    sort: filter.sort, down: String(filter.down), limit: "1000" });
  try {
    const answer = await fetch(`api/state?${query}`);
    if (answer.ok && isPartial()) {
      const found = /** @type {Picture} */ (await answer.json());
      locks.clear();
      for (const lock of found.locks) locks.set(lock.id, lock);
      if (picture) picture.matching = found.matching;
      showLocks();
    }
  } catch { /* The line at the top shows that there is no connection. */ }
  if (isPartial()) searchTimer = setTimeout(searchServer, 5000);
}
function showLink() {
  const age = performance.now() - received;
  const link = at("link");
  link.dataset.live = isLive && age < 6000 ? "yes" : "no";
  put(link, isLive && age < 6000 ? `live, ${clock(now())}`
    : refusal ? refusal
    : picture ? `no connection: this picture is ${human(age)} old` : `no connection for ${human(age)}`);
  document.body.dataset.old = link.dataset.live === "yes" ? "no" : "yes";
  if (age > 15000 && source?.readyState !== EventSource.CONNECTING && !refusal) connect();
}

// ---- The sentence, the problems and the masters

const LEVELS = /** @type {Record<string, string>} */ ({ good: "All is well", warn: "Look at this", bad: "Act now" });
function showVerdict() {
  if (!picture) return;
  const verdict = at("verdict");
  if (verdict.dataset.level !== picture.level) verdict.dataset.level = picture.level;
  put(at("level"), LEVELS[picture.level] ?? picture.level);
  put(at("sentence"), plain(picture.sentence));
  put(at("detail"), plain(picture.detail));
  const page = `${{ good: "✓", warn: "!", bad: "✕" }[picture.level] ?? ""} ${plain(picture.sentence)}`;
  if (document.title !== page) document.title = page;
  const list = at("problems");
  const key = JSON.stringify(picture.problems);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...picture.problems.map((problem) => {
    const heading = make("strong", {}, foreign(problem.title));
    const item = make("li", { "data-level": problem.level }, heading, make("p", {}, foreign(problem.text)));
    for (const { why, command: text } of problem.commands) item.append(command(text, why));
    if (problem.lock) item.append(make("div", { class: "copy" }, opener(problem.lock, "Show this lock")));
    return item;
  }));
}
/** A command with a button that copies it, and when to use it. @param {string} text @param {string} [why] */
function command(text, why = "") {
  const done = make("span", { role: "status" });
  const copy = async () => {
    try { await navigator.clipboard.writeText(text); put(done, "copied"); }
    catch { put(done, "select the command and copy it: this browser gives no access to the clipboard"); }
    setTimeout(() => put(done, ""), 4000);
  };
  return make("div", { class: "copy" }, make("code", {}, text), make("button", { type: "button", click: copy, "aria-label": `Copy the command ${text}` }, "Copy"), make("span", {}, why), done);
}
/** @param {string} id @param {string} text */
const opener = (id, text) => make("button", { type: "button", click: () => openDrawer(id) }, text);

/** @param {(number|null)[]} trips */
function sparkline(trips) {
  const SVG = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(SVG, "svg");
  const known = trips.filter((trip) => trip !== null);
  const top = Math.max(1, ...known) * 1.15;
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 28");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", known.length ? `Round trips: the longest took ${Math.max(...known).toFixed(1)} ms` : "No round trips");
  let points = /** @type {string[]} */ ([]);
  const line = () => {
    const node = document.createElementNS(SVG, "polyline");
    node.setAttribute("points", points.join(" "));
    if (points.length > 1) svg.append(node);
    points = [];
  };
  trips.forEach((trip, index) => {
    const x = index + 120 - trips.length;
    if (trip !== null) { points.push(`${x},${(26 - (trip / top) * 24).toFixed(1)}`); return; }
    line();
    const gap = document.createElementNS(SVG, "rect");
    for (const [name, value] of [["x", x], ["y", 0], ["width", 1], ["height", 28]]) gap.setAttribute(String(name), String(value));
    svg.append(gap);
  });
  line();
  return svg;
}
function showMasters() {
  if (!picture) return;
  const votes = picture.masters.filter((master) => master.votes).length;
  put(at("quorum"), `${votes} of ${picture.masters.length} vote, ${picture.quorum} are needed`);
  at("tiles").replaceChildren(...picture.masters.map((master) => {
    const tile = make("li", { class: "tile", "data-level": master.level }, make("h3", {}, foreign(master.name)),
      make("p", { class: "badge", "data-level": master.level }, plain(master.state) + (master.votes && master.findings.length ? ", with a warning" : "")));
    const line = (/** @type {string} */ text) => tile.append(make("p", { class: "small" }, foreign(text)));
    if (master.text) line(master.text);
    line([master.server, master.version, master.role].filter(Boolean).join(" ")
      + (master.up_since_ms ? `, up for ${human(now() - master.up_since_ms)}` : ""));
    tile.append(sparkline(master.round_trips));
    line(master.round_trip_ms === null ? "no answer" : `answers in ${master.round_trip_ms.toFixed(1)} ms`);
    for (const finding of master.findings) line(`${finding.severity}: ${finding.text}`);
    return tile;
  }));
}

// ---- The list of locks: only the visible rows exist

const ROW = 50;
const filter = { search: "", kind: "", state: "", host: "", sort: "since", down: false };
const COLUMNS = [["name", "Name"], ["host", "Holder"], ["since", "Held for"], ["left", "Time left"], ["token", "Token"], ["waiters", "Waiters"]];
/** @type {Lock[]} */
let shown = [];
/** @type {Map<string, {node: HTMLElement, update: (lock: Lock) => void}>} */
const rows = new Map();
/** @type {Record<string, (lock: Lock) => string|number>} */
const KEYS = {
  name: (lock) => lock.name, host: (lock) => lock.holders[0]?.host ?? "~", since: (lock) => lock.since_ms ?? Infinity,
  left: (lock) => leftOf(lock) ?? Infinity, token: (lock) => lock.token ?? 0, waiters: (lock) => -lock.waiters.length,
};
/** The time left now, by the last answer of the masters. @param {Lock} lock */
const leftOf = (lock) => lock.left_ms === null ? null : lock.left_ms - (now() - lock.read_ms);
/** Whether the last answer about the lock is too old to say how much time is left. @param {Lock} lock */
const isOld = (lock) => document.body.dataset.old === "yes" || now() - lock.read_ms > Math.max(3000, (lock.left_ms ?? 0) / 2);
/** @param {Lock} lock */
const stateWord = (lock) => lock.state === "held" && lock.waiters.length ? "waited for" : lock.state;
/** @param {Lock} lock */
const holderText = (lock) => lock.holders.length > 1 ? `${lock.holders.length} ${lock.kind === "readers" ? "readers" : "holds"}: ${lock.holders.slice(0, 3).map(person).join("; ")}`
  : lock.holders.length ? person(lock.holders[0]) : { held: "holder without a note", undecided: "no holder has a majority", unknown: "no majority answers" }[lock.state] ?? "";

function chooseShown() {
  const search = filter.search.toLowerCase();
  const wanted = (/** @type {Lock} */ lock) => (!search || title(lock.id).toLowerCase().includes(search))
    && (!filter.kind || lock.kind === filter.kind) && (!filter.state || stateWord(lock) === filter.state)
    && (!filter.host || lock.holders.some((holder) => holder.host === filter.host) || lock.waiters.some((waiter) => waiter.host === filter.host));
  const key = KEYS[filter.sort];
  const way = filter.down ? -1 : 1;
  shown = [...locks.values()].filter(wanted).sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    return (x < y ? -way : x > y ? way : 0) || (a.id < b.id ? -1 : 1);
  });
}
/** @param {string} id @param {Iterable<string>} values */
function fillChoice(id, values) {
  const select = /** @type {HTMLSelectElement} */ (at(id));
  const wanted = [...new Set(values)].sort().slice(0, 500);
  const key = wanted.join("\n");
  if (select.dataset.key === key || document.activeElement === select) return;
  select.dataset.key = key;
  const chosen = select.value;
  select.replaceChildren(make("option", { value: "" }, "all"), ...wanted.map((value) => make("option", { value }, plain(value))));
  if (chosen && !wanted.includes(chosen)) select.append(make("option", { value: chosen }, plain(chosen)));
  select.value = chosen;
}
function makeRow() {
  const name = make("button", { type: "button", class: "open", tabindex: "0" });
  const kind = make("small");
  const holder = make("span");
  const note = make("small");
  const since = make("span");
  const meter = make("div", { class: "meter", "aria-hidden": "true" }, make("i"));
  const left = make("small");
  const token = make("span", { class: "mono" });
  const queue = make("span", { class: "queue" });
  const cell = (/** @type {Node[]} */ ...children) => make("div", { class: "cell", role: "cell" }, ...children);
  const node = make("div", { class: "row", role: "row" }, cell(name, kind), cell(holder, note), cell(since), cell(meter, left), cell(token), cell(queue));
  node.addEventListener("click", () => openDrawer(node.dataset.id ?? ""));
  return { node, update: (/** @type {Lock} */ lock) => {
    node.dataset.id = lock.id;
    node.dataset.late = lock.overdue ? "yes" : "no";
    put(name, plain(title(lock.id)));
    put(kind, `${lock.kind}, ${stateWord(lock)}`);
    put(holder, plain(holderText(lock)));
    const [first] = lock.holders;
    put(note, first ? plain([first.process, first.note].filter(Boolean).join(": ")) : "");
    node.title = plain([title(lock.id), holderText(lock), first?.note].filter(Boolean).join("\n"));
    put(token, lock.token === null ? "–" : String(lock.token));
    put(queue, String(lock.waiters.length));
    queue.dataset.any = lock.waiters.length ? "yes" : "no";
    put(since, lock.since_ms === null ? "–" : (lock.since_by === "page" ? "" : "≥ ") + human(now() - lock.since_ms));
    showLeft(lock, meter, left);
  } };
}
/** @param {Lock} lock @param {HTMLElement} meter @param {HTMLElement} text */
function showLeft(lock, meter, text) {
  const left = leftOf(lock);
  const old = isOld(lock);
  const isUnknown = lock.state === "unknown";
  const part = isUnknown ? 0 : left === null || !lock.ttl_ms ? (lock.state === "held" ? 1 : 0) : Math.min(1, Math.max(0, left / lock.ttl_ms));
  const bar = /** @type {HTMLElement} */ (meter.firstElementChild);
  bar.style.transform = `scaleX(${part.toFixed(3)})`;
  meter.dataset.level = old || isUnknown ? "old" : lock.overdue ? "warn" : "good";
  put(text, isUnknown ? "unknown: too few masters answer" : lock.left_ms === null ? (lock.state === "held" ? "no expiry" : "–")
    : old ? `last read ${human(now() - lock.read_ms)} ago`
    : lock.overdue ? `${human(left ?? 0)}, not renewed for ${human(now() - (lock.renewed_ms ?? lock.since_ms ?? lock.read_ms))}`
    : `${human(left ?? 0)}${lock.margin_ms === null ? "" : `, renewed with ${human(lock.margin_ms)} to spare`}`);
}
function showLocks() {
  if (!picture) return;
  chooseShown();
  const all = [...locks.values()];
  fillChoice("kind", all.map((lock) => lock.kind));
  fillChoice("state", all.map(stateWord));
  fillChoice("host", all.flatMap((lock) => lock.holders.map((holder) => holder.host)));
  put(at("count"), isPartial() ? `${shown.length} of ${picture.matching} matching, ${picture.total} in all: search to find others`
    : shown.length === locks.size ? `${locks.size} in all, ${picture.counts.waiters} ${picture.counts.waiters === 1 ? "client waits" : "clients wait"}` : `${shown.length} of ${locks.size}`);
  put(at("none"), shown.length ? "" : locks.size ? "No lock matches this search." : picture.level === "bad" ? "No lock can be read now." : "No lock is held now. Take one to see it here:  quorate hold demo");
  showHead();
  showVisibleRows();
}
function showHead() {
  const head = at("head");
  if (!head.childElementCount) head.append(...COLUMNS.map(([key, text]) => make("div", { role: "columnheader", class: "cell", "data-key": key },
    make("button", { type: "button", click: () => { filter.down = filter.sort === key && !filter.down; filter.sort = key; filtersChanged(); } }, text))));
  for (const node of /** @type {Iterable<HTMLElement>} */ (head.children)) {
    const sorted = node.dataset.key === filter.sort;
    node.setAttribute("aria-sort", sorted ? (filter.down ? "descending" : "ascending") : "none");
    const button = /** @type {HTMLElement} */ (node.firstElementChild);
    put(button, (COLUMNS.find(([key]) => key === node.dataset.key)?.[1] ?? "") + (sorted ? (filter.down ? " ↓" : " ↑") : ""));
  }
}
function showVisibleRows() {
  const scroll = at("scroll");
  const body = at("rows");
  body.style.height = `${shown.length * ROW}px`;
  const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - 6);
  const last = Math.min(shown.length, first + Math.ceil((scroll.clientHeight || 600) / ROW) + 14);
  at("table").setAttribute("aria-rowcount", String(shown.length + 1));
  const visible = shown.slice(first, last);
  const ids = new Set(visible.map((lock) => lock.id));
  for (const [id, row] of rows) if (!ids.has(id)) { row.node.remove(); rows.delete(id); }
  visible.forEach((lock, index) => {
    let row = rows.get(lock.id);
    if (!row) { row = makeRow(); rows.set(lock.id, row); body.append(row.node); }
    row.update(lock);
    row.node.style.top = `${(first + index) * ROW}px`;
    row.node.setAttribute("aria-rowindex", String(first + index + 2));
  });
}
function filtersChanged() {
  at("scroll").scrollTop = 0;
  if (isPartial()) { clearTimeout(searchTimer); searchTimer = setTimeout(searchServer, 200); }
  showLocks();
}

// ---- One lock, in detail

/** @type {string|null} */
let opened = null;
/** @param {string} id */
function openDrawer(id) {
  opened = id;
  const drawer = /** @type {HTMLDialogElement} */ (at("drawer"));
  drawer.replaceChildren(make("p", {}, "Loading"));
  if (!drawer.open) drawer.showModal();
  showDrawer();
  fetch(`api/history?lock=${encodeURIComponent(id)}`).then((answer) => answer.json()).then((/** @type {Past} */ past) => {
    const list = drawer.querySelector("#past");
    if (opened !== id || !list) return;
    const holds = past.holds.slice().sort((a, b) => b.from_ms - a.from_ms).slice(0, 20);
    list.replaceChildren(...holds.map((hold) => make("tr", {}, make("td", {}, moment(hold.from_ms)), make("td", {}, human((hold.to_ms ?? now()) - hold.from_ms)),
      make("td", {}, foreign(hold.holder ?? "without a note")), make("td", {}, hold.end ?? "held now"))));
  }, () => {});
}
/** @param {string} caption @param {string[]} head @param {HTMLElement[]} body @param {string} [id] */
function list(caption, head, body, id) {
  return [make("h3", {}, caption), make("table", {}, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))), make("tbody", { id }, ...body))];
}
function showDrawer() {
  const drawer = /** @type {HTMLDialogElement} */ (at("drawer"));
  if (!opened || !drawer.open || !picture) return;
  const lock = locks.get(opened);
  const kept = [...(drawer.querySelector("#past")?.children ?? [])];
  const focus = document.activeElement instanceof HTMLElement && drawer.contains(document.activeElement) ? document.activeElement.dataset.key : "";
  const close = make("button", { type: "button", class: "close", "data-key": "close", click: () => drawer.close() }, "Close");
  const parts = /** @type {Node[]} */ ([close, make("h2", { id: "drawer-title" }, foreign(title(opened)))]);
  if (!lock) {
    parts.push(make("p", {}, "Nobody holds this lock now."));
  } else {
    const cells = (/** @type {string[]} */ ...texts) => make("tr", {}, ...texts.map((text) => make("td", {}, foreign(text))));
    parts.push(make("p", {}, `${lock.kind}, ${stateWord(lock)}${lock.token === null ? "" : `, fencing token ${lock.token}`}`));
    const meter = make("div", { class: "meter" }, make("i"));
    const left = make("small");
    showLeft(lock, meter, left);
    parts.push(meter, left);
    parts.push(...list(lock.holders.length > 1 ? "Holders" : "Holder", ["host", "pid", "program", "note", "since (its clock)"],
      lock.holders.map((holder) => cells(holder.host, String(holder.pid), holder.process, holder.note ?? "", moment(holder.since_ms)))));
    parts.push(...list(`Waiters, the next one first (${lock.waiters.length})`, ["host", "pid", "waits for"],
      lock.waiters.slice(0, 100).map((waiter) => cells(waiter.host ?? "unknown", waiter.pid === null ? "" : String(waiter.pid), waiter.since_ms === null ? "unknown" : human(now() - waiter.since_ms)))));
    const names = picture.masters;
    parts.push(...list("Answer of each master", ["master", "state", "time left"],
      lock.answers.map((answer, index) => cells(names[index]?.name ?? "", answer.error ?? answer.state, answer.left_ms === null ? "" : human(answer.left_ms - (now() - lock.read_ms))))));
    parts.push(make("h3", {}, "Commands"), command(`quorate status ${lock.word}`));
    if (lock.state === "held" || lock.state === "undecided") parts.push(make("p", {}, "Only if the process of the holder has ended:"),
      command(`quorate break --yes ${lock.slot === null ? "" : `--slot ${lock.slot} `}${lock.word}`));
    if (lock.kind === "foreign") parts.push(make("p", {}, "Another program wrote this key. If it is not a lock, give the locks a prefix of their own."));
  }
  parts.push(...list("Last holds", ["from", "for", "holder", "end"], [], "past"));
  drawer.replaceChildren(...parts);
  drawer.querySelector("#past")?.replaceChildren(...kept);
  if (focus) /** @type {HTMLElement|null} */ (drawer.querySelector(`[data-key="${focus}"]`))?.focus();
}

// ---- The timeline

/** @type {Past|null} */
let past = null;
const view = { span: 3600e3, end: 0 };
const viewEnd = () => view.end || now();
let pastTimer = 0;
async function loadPast() {
  clearTimeout(pastTimer);
  pastTimer = setTimeout(loadPast, 60000);
  const [from, to] = [Math.floor(viewEnd() - view.span), Math.ceil(viewEnd())];
  try {
    const answer = await fetch(`api/history?from=${from}&to=${to}`);
    if (!answer.ok) return;
    past = await answer.json();
    showPast();
  } catch { /* The line at the top shows that there is no connection. */ }
}
/** Adds an event to the loaded past, unless it was loaded already; the caller shows it. @param {Happening} event */
function happen(event) {
  if (!past || view.end || (past.events[0]?.seq ?? 0) >= event.seq) return;
  past.events.unshift(event);
  past.events.length = Math.min(past.events.length, 1000);
  past.total += 1;
  const open = (/** @type {Span[]|Gap[]} */ spans, /** @type {(span: any) => boolean} */ is) => /** @type {any} */ (spans).findLast((/** @type {any} */ span) => span.to_ms === null && is(span));
  const { kind, lock, at_ms } = event;
  if (lock && ["released", "expired", "ended", "taken"].includes(kind)) {
    const hold = open(past.holds, (span) => span.lock === lock && span.from_ms === event.from_ms && (span.holder === event.holder || span.holder === null));
    if (kind !== "taken" && hold) Object.assign(hold, { to_ms: at_ms, end: kind, holder: event.holder, host: event.host });
    if (kind === "taken" && !hold) past.holds.push({ lock, host: event.host, holder: event.holder, from_ms: event.from_ms ?? at_ms, to_ms: null, end: null, token: event.token });
  }
  if (lock && kind === "wait_ended" && event.ms !== null) past.waits.push({ lock, host: event.host, holder: event.holder, from_ms: at_ms - event.ms, to_ms: at_ms, end: null, token: null });
  const starts = /** @type {Record<string, string>} */ ({ quorum_lost: "no quorum", watch_paused: "nobody watched", master_down: "master", master_guarded: "master" });
  const ends = /** @type {Record<string, string>} */ ({ quorum_restored: "no quorum", watch_began: "nobody watched", master_up: "master" });
  if (ends[kind]) { const gap = open(past.gaps, (span) => span.why === ends[kind] && span.master === event.master); if (gap) gap.to_ms = at_ms; }
  if (starts[kind] && !open(past.gaps, (span) => span.why === starts[kind] && span.master === event.master)) past.gaps.push({ from_ms: at_ms, to_ms: null, why: starts[kind], master: event.master });
}
/** A colour for a host: always the same one. @param {string|null} host */
function colour(host) {
  if (host === null) return "hsl(0 0% 55%)";
  let hash = 7;
  for (const char of host) hash = (hash * 31 + char.charCodeAt(0)) % 100003;
  return `hsl(${(hash * 47) % 360} 52% ${45 + (hash % 3) * 6}%)`;
}
const LANE = 24;
/** @type {{x: number, y: number, w: number, h: number, text: string, lock: string|null}[]} */
let targets = [];
/** The lanes: locks with the most recent activity, the longest holds first. */
function lanes() {
  const busy = /** @type {Map<string, number>} */ (new Map());
  const [from, to] = [viewEnd() - view.span, viewEnd()];
  for (const span of [...(past?.holds ?? []), ...(past?.waits ?? [])]) {
    const part = Math.min(span.to_ms ?? now(), to) - Math.max(span.from_ms, from);
    if (part > 0) busy.set(span.lock, (busy.get(span.lock) ?? 0) + part);
  }
  for (const lock of locks.values()) if (lock.waiters.length || lock.overdue) busy.set(lock.id, 1e15 + lock.waiters.length);
  return [...busy].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 24).map(([id]) => id);
}
function drawTimeline() {
  const canvas = /** @type {HTMLCanvasElement} */ (at("canvas"));
  const ids = lanes();
  const width = at("chart").clientWidth;
  const height = (ids.length + 1) * LANE + 30;
  const ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(document.documentElement);
  const tone = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  targets = [];
  const [from, to] = [viewEnd() - view.span, viewEnd()];
  const gutter = Math.min(220, Math.max(90, width * .2));
  const x = (/** @type {number} */ ms) => gutter + ((Math.min(Math.max(ms, from), to) - from) / (to - from)) * (width - gutter - 8);
  const box = (/** @type {Span|Gap} */ span, /** @type {number} */ y, /** @type {number} */ h, /** @type {string} */ text, /** @type {string|null} */ lock) => {
    const end = span.to_ms ?? now();
    if (end < from || span.from_ms > to) return null;
    const left = x(span.from_ms);
    const target = { x: left, y, w: Math.max(2, x(end) - left), h, text, lock };
    targets.push(target);
    return target;
  };
  drawGrid(pen, x, from, to, height, tone);
  const label = (/** @type {string} */ text, /** @type {number} */ y) => {
    pen.fillStyle = tone("ink");
    let shownText = text.slice(0, 80);
    while (shownText.length > 4 && pen.measureText(shownText).width > gutter - 20) shownText = `${shownText.slice(0, -3)}…`;
    pen.fillText(shownText, 10, y);
  };
  ids.forEach((id, index) => {
    const y = (index + 1) * LANE + 4;
    pen.fillStyle = index % 2 ? "transparent" : tone("inset");
    pen.globalAlpha = .55; pen.fillRect(0, y, width, LANE); pen.globalAlpha = 1;
    label(plain(title(id)), y + LANE / 2);
    for (const hold of past?.holds ?? []) if (hold.lock === id) {
      const text = `${plain(title(id))}\n${plain(hold.holder ?? "holder without a note")}\n${moment(hold.from_ms)}, ${human((hold.to_ms ?? now()) - hold.from_ms)}, ${hold.end ?? "held now"}`;
      const target = box(hold, y + 4, LANE - 10, text, id);
      if (!target) continue;
      pen.fillStyle = colour(hold.host);
      pen.beginPath(); pen.roundRect(target.x, target.y, target.w, target.h, 3); pen.fill();
      if (hold.end === "expired") { pen.fillStyle = tone("bad"); pen.fillRect(target.x + target.w - 3, target.y - 3, 4, target.h + 6); }
    }
    const waits = [...(past?.waits ?? []).filter((wait) => wait.lock === id), ...(locks.get(id)?.waiters ?? []).filter((waiter) => waiter.since_ms).map((waiter) => (
      { from_ms: waiter.since_ms ?? 0, to_ms: null, lock: id, host: waiter.host, holder: `${waiter.host} pid ${waiter.pid}`, end: null, token: null }))];
    for (const wait of waits) {
      const target = box(wait, y + LANE - 6, 4, `${plain(wait.holder ?? "a client")} waited for ${plain(title(id))}\n${human((wait.to_ms ?? now()) - wait.from_ms)}`, id);
      if (target) { pen.fillStyle = tone("wait"); pen.fillRect(target.x, target.y, target.w, target.h); }
    }
  });
  const downs = (past?.gaps ?? []).filter((gap) => gap.why === "master");
  label("Masters without a vote", LANE / 2 + 4);
  downs.forEach((gap) => {
    const row = Math.max(0, picture?.masters.findIndex((master) => master.name === gap.master) ?? 0);
    const target = box(gap, 6 + row * 3.4, 3, `${plain(gap.master ?? "")} gave no vote\n${human((gap.to_ms ?? now()) - gap.from_ms)}`, null);
    if (target) { pen.fillStyle = tone("bad"); pen.fillRect(target.x, target.y, target.w, target.h); }
  });
  for (const gap of past?.gaps ?? []) if (gap.why !== "master") {
    const target = box(gap, 4, height - 30, `${gap.why}\n${moment(gap.from_ms)}, ${human((gap.to_ms ?? now()) - gap.from_ms)}`, null);
    if (target) hatch(pen, target, gap.why === "no quorum" ? tone("bad") : tone("soft"));
  }
  put(at("span"), `${moment(from)} to ${view.end ? moment(to) : "now"}`);
}
/** @param {CanvasRenderingContext2D} pen @param {{x: number, y: number, w: number, h: number}} box @param {string} tone */
function hatch(pen, box, tone) {
  pen.save();
  pen.beginPath(); pen.rect(box.x, box.y, box.w, box.h); pen.clip();
  pen.strokeStyle = tone; pen.globalAlpha = .5; pen.lineWidth = 1.5;
  for (let x = box.x - box.h; x < box.x + box.w; x += 7) { pen.beginPath(); pen.moveTo(x, box.y + box.h); pen.lineTo(x + box.h, box.y); pen.stroke(); }
  pen.restore();
}
/** @param {CanvasRenderingContext2D} pen @param {(ms: number) => number} x @param {number} from @param {number} to
 * @param {number} height @param {(name: string) => string} tone */
function drawGrid(pen, x, from, to, height, tone) {
  const steps = [1e3, 5e3, 15e3, 60e3, 300e3, 900e3, 3600e3, 3 * 3600e3, 6 * 3600e3];
  const step = steps.find((one) => (to - from) / one <= 8) ?? steps[8];
  const zone = new Date(to).getTimezoneOffset() * 60e3;
  pen.strokeStyle = tone("line");
  for (let time = Math.ceil((from - zone) / step) * step + zone; time < to; time += step) {
    pen.beginPath(); pen.moveTo(x(time), 4); pen.lineTo(x(time), height - 24); pen.stroke();
    pen.fillStyle = tone("soft");
    const text = step < 60e3 ? clock(time) : clock(time).slice(0, 5);
    if (x(time) + 40 < x(to)) pen.fillText(text, x(time) - 14, height - 12);
  }
}
/** @param {MouseEvent} mouse */
function targetAt(mouse) {
  const frame = at("canvas").getBoundingClientRect();
  const [x, y] = [mouse.clientX - frame.left, mouse.clientY - frame.top];
  return targets.findLast((target) => x >= target.x - 2 && x <= target.x + target.w + 2 && y >= target.y - 2 && y <= target.y + target.h + 2);
}
function showTip(/** @type {MouseEvent} */ mouse) {
  const tip = at("tip");
  const target = targetAt(mouse);
  tip.hidden = !target;
  if (!target) return;
  put(tip, target.text);
  const frame = at("chart").getBoundingClientRect();
  tip.style.left = `${Math.min(mouse.clientX - frame.left + 12, Math.max(0, frame.width - 260))}px`;
  tip.style.top = `${Math.min(mouse.clientY - frame.top + 14, Math.max(0, frame.height - 60))}px`;
}
/** Moves or zooms the timeline. @param {number} span @param {number} end */
function setView(span, end) {
  view.span = Math.min(24 * 3600e3, Math.max(10e3, span));
  view.end = end >= now() - view.span * .01 ? 0 : end;
  at("live").hidden = !view.end;
  for (const button of document.querySelectorAll("[data-span]")) button.setAttribute("aria-pressed", String(Number(/** @type {HTMLElement} */ (button).dataset.span) === view.span));
  drawTimeline();
  clearTimeout(pastTimer);
  pastTimer = setTimeout(loadPast, 250);
}
function showPast() {
  if (!past) return;
  drawTimeline();
  const hosts = [...new Set(past.holds.map((hold) => hold.host))].slice(0, 16);
  const hatched = (/** @type {string} */ tone) => `repeating-linear-gradient(135deg, var(--${tone}) 0 1.5px, transparent 1.5px 5px)`;
  const square = (/** @type {string} */ tone) => { const node = make("i"); node.style.background = tone; return node; };
  at("legend").replaceChildren(...hosts.map((host) => make("li", {}, square(colour(host)), foreign(host ?? "unknown host"))),
    make("li", {}, square("var(--wait)"), "a client waits"), make("li", {}, square("var(--bad)"), "expired, or a master without a vote"),
    make("li", {}, square(hatched("bad")), "no quorum"), make("li", {}, square(hatched("soft")), "nobody watched"));
  const ranking = (/** @type {string} */ id, /** @type {Span[]} */ spans, /** @type {string} */ none) => at(id).replaceChildren(
    ...(spans.length ? spans.map((span) => make("li", {}, make("b", {}, human((span.to_ms ?? now()) - span.from_ms)), make("span", {}, foreign(title(span.lock)), ": ", foreign(span.holder ?? "without a note"), span.to_ms === null ? ", until now" : "")))
      : [make("li", {}, make("b", {}, "–"), make("span", {}, none))]));
  const [from, to] = [viewEnd() - view.span, viewEnd()];
  const part = (/** @type {Span} */ span) => Math.min(span.to_ms ?? now(), to) - Math.max(span.from_ms, from);
  const longest = (/** @type {Span[]} */ spans) => spans.filter((span) => part(span) > 0).sort((a, b) => part(b) - part(a)).slice(0, 8);
  ranking("holds", longest(past.holds), "no holds in this time");
  ranking("waits", longest(past.waits), "nobody waited in this time");
  put(at("events-count"), past.total > past.events.length ? `the last ${past.events.length} of ${past.total}` : `${past.total} in this time`);
  at("log").replaceChildren(...past.events.slice(0, 400).map((event) => make("li", { "data-kind": event.kind }, make("time", { datetime: new Date(event.at_ms).toISOString() }, moment(event.at_ms)),
    make("b", { "data-level": event.level }, event.kind.replaceAll("_", " ")), make("span", {}, event.lock ? foreign(`${title(event.lock)}: `) : "", foreign(event.text)))));
}

// ---- Elections, quotas and jobs

function showValues() {
  if (!picture) return;
  const leaders = [...locks.values()].filter((lock) => lock.kind === "election").map((lock) => make("li", { class: "tile" }, make("h3", {}, foreign(lock.name)),
    make("p", {}, foreign(`led by ${holderText(lock)}`)), make("p", { class: "small" }, foreign(`election, term ${lock.token ?? "unknown"}${lock.holders[0]?.note ? `, ${lock.holders[0].note}` : ""}`))));
  const values = picture.values.map((value) => make("li", { class: "tile", "data-level": value.late || value.missing_on.length ? "warn" : "good" }, make("h3", {}, foreign(value.name)),
    make("p", {}, value.kind === "quota" ? `${value.left} units left` : value.kind === "job" ? (value.last_ms === null ? "has never run" : `last period began ${moment(value.last_ms)}, ${human(now() - value.last_ms)} ago`) : "its content is being written, or is not known"),
    make("p", { class: "small" }, value.kind + (value.every_ms ? `, seen to run every ${human(value.every_ms)}` : "") + (value.late ? ": the run of this period is missing" : "")),
    ...(value.missing_on.length ? [make("p", { class: "small" }, foreign(`not on ${value.missing_on.join(", ")}`))] : [])));
  const none = make("li", { class: "tile" }, make("p", { class: "small" }, "No election, quota or job is known."));
  at("cards").replaceChildren(...(leaders.length + values.length ? [...leaders, ...values] : [none]));
}

// ---- Putting it together

let planned = false;
function showAll() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    showVerdict(); showMasters(); showLocks(); showValues(); showLink(); showDrawer();
    if (picture) put(at("blind"), picture.blind);
    if (!past) drawTimeline();
  });
}
setInterval(() => { showLink(); showVisibleRows(); }, 250);
setInterval(() => { if (!document.hidden) { drawTimeline(); showDrawer(); } }, 1000);

for (const id of ["search", "kind", "state", "host"]) at(id).addEventListener("input", (event) => {
  /** @type {any} */ (filter)[id] = /** @type {HTMLInputElement} */ (event.target).value;
  filtersChanged();
});
at("filters").addEventListener("submit", (event) => event.preventDefault());
at("scroll").addEventListener("scroll", showVisibleRows, { passive: true });
at("drawer").addEventListener("close", () => { opened = null; });
at("drawer").addEventListener("click", (event) => { if (event.target === at("drawer")) /** @type {HTMLDialogElement} */ (at("drawer")).close(); });
addEventListener("resize", () => { drawTimeline(); showVisibleRows(); });
addEventListener("keydown", (event) => {
  if (event.key === "/" && !(event.target instanceof HTMLInputElement)) { event.preventDefault(); at("search").focus(); }
});
for (const button of document.querySelectorAll("[data-span]")) button.addEventListener("click", () => setView(Number(/** @type {HTMLElement} */ (button).dataset.span), 0));
for (const button of document.querySelectorAll("[data-span]")) button.setAttribute("aria-pressed", String(/** @type {HTMLElement} */ (button).dataset.span === "3600000"));
at("live").addEventListener("click", () => setView(view.span, 0));
const chart = at("canvas");
chart.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { setView(view.span, viewEnd() + view.span * Math.sign(event.deltaX || event.deltaY) * .1); return; }
  const frame = chart.getBoundingClientRect();
  const gutter = Math.min(220, Math.max(90, frame.width * .2));
  const part = Math.min(1, Math.max(0, (event.clientX - frame.left - gutter) / (frame.width - gutter)));
  const span = Math.min(24 * 3600e3, Math.max(10e3, view.span * (event.deltaY > 0 ? 1.25 : .8)));
  setView(span, viewEnd() + (span - view.span) * (1 - part));
}, { passive: false });
/** @type {{x: number, end: number}|null} */
let dragged = null;
chart.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, end: viewEnd() }; chart.setPointerCapture(event.pointerId); });
chart.addEventListener("pointerup", (event) => {
  const moved = dragged && Math.abs(event.clientX - dragged.x) > 4;
  dragged = null;
  const lock = moved ? null : targetAt(event)?.lock;
  if (lock) openDrawer(lock);
});
chart.addEventListener("pointermove", (event) => {
  if (dragged && event.buttons) setView(view.span, dragged.end - ((event.clientX - dragged.x) / chart.clientWidth) * view.span);
  else showTip(event);
});
chart.addEventListener("pointerleave", () => { at("tip").hidden = true; });

const THEMES = ["system", "light", "dark"];
/** The storage of the browser can be turned off. @param {() => string|null|void} use */
const stored = (use) => { try { return use() ?? null; } catch { return null; } };
let theme = stored(() => localStorage.getItem("theme")) ?? "system";
function showTheme() {
  if (theme === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  put(at("theme"), `Theme: ${theme}`);
  drawTimeline();
}
at("theme").addEventListener("click", () => { theme = THEMES[(THEMES.indexOf(theme) + 1) % 3]; stored(() => localStorage.setItem("theme", theme)); showTheme(); });
showTheme();
connect();
