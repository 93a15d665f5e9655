// The scenarios of the browser tests. Each is one test in page/tests/all/browser.rs.

const sentence = (page) => page.locator("#sentence").textContent();
const level = (page) => page.locator("#verdict").getAttribute("data-level");
const row = (page, name) => page.locator("#rows .row", { has: page.locator(".open", { hasText: name }) });
const isLive = async (page) => (await page.locator("#link").getAttribute("data-live")) === "yes";

export const SCENARIOS = {
  async lost_majority({ open, act, until, assert }) {
    const page = await open();
    await until("green", 5000, async () => (await level(page)) === "good");
    await act("lose_majority");
    // The rule is 3 s. Other programs run on the machine, so the limit is longer; the measured time is printed.
    const began = Date.now();
    await until("red", 10000, async () => (await level(page)) === "bad");
    console.error(`red after ${Date.now() - began} ms`);
    assert((await sentence(page)).startsWith("No quorum: 1 of 3 masters vote, 2 are needed"), await sentence(page));
    assert((await page.title()).startsWith("✕ No quorum"), await page.title());
    assert((await page.locator(".tile[data-level=bad]").count()) === 2, "two red tiles");
    await until("the event", 5000, () => page.locator("#log li[data-kind=quorum_lost]").count());
    await act("restore_majority");
    await until("not red", 10000, async () => (await level(page)) !== "bad");
  },

  async hold_appears_moves_and_ends({ open, act, until, assert }) {
    const page = await open();
    await until("no lock", 5000, async () => (await page.locator("#none").textContent()).startsWith("No lock is held"));
    await act("hold billing 30");
    await until("the row", 8000, () => row(page, "billing").count());
    const width = () => row(page, "billing").locator(".meter i").evaluate((bar) => bar.getBoundingClientRect().width);
    const before = await width();
    await until("the bar moves", 5000, async () => (await width()) !== before);
    // The holder writes its note about 100 ms after it took the lock.
    await until("the holder", 5000, async () => /pid \d+/.test(await row(page, "billing").textContent()));
    await act("release billing");
    await until("no row", 8000, async () => !(await row(page, "billing").count()));
    await until("the event", 5000, () => page.locator("#log li[data-kind=released]", { hasText: "billing" }).count());
    await until("the ranking", 5000, async () => (await page.locator("#holds").textContent()).includes("billing"));
  },

  async waiters_in_order({ open, act, until, assert }) {
    const page = await open();
    await act("hold queue 30");
    for (const waiter of ["first", "second", "third"]) await act(`wait queue ${waiter}`);
    await until("three waiters", 8000, async () => (await row(page, "queue").locator(".queue").textContent().catch(() => "")) === "3");
    const order = await page.evaluate(async () => {
      const state = await (await fetch("api/state")).json();
      return state.locks.find((lock) => lock.name === "queue").waiters.map((waiter) => waiter.since_ms);
    });
    assert(order.length === 3 && order[0] <= order[1] && order[1] <= order[2], JSON.stringify(order));
    await row(page, "queue").click();
    await until("the drawer", 3000, async () => (await page.locator("#drawer h3", { hasText: "Waiters" }).textContent()).includes("(3)"));
    assert((await page.locator("#drawer").textContent()).includes("quorate break --yes queue"), "the command");
    await page.keyboard.press("Escape");
    await until("closed", 3000, async () => !(await page.locator("#drawer").evaluate((drawer) => drawer.open)));
    assert((await sentence(page)).includes("3 clients wait"), await sentence(page));
  },

  async hostile_names_are_text({ open, act, until, assert }) {
    const page = await open();
    await act("hostile");
    await until("the rows", 10000, async () => (await page.locator("#rows .row").count()) >= 5);
    const names = await page.locator("#rows .open").allTextContents();
    assert(names.includes("<img src=x onerror=alert(1)>"), JSON.stringify(names));
    assert(names.some((name) => name.includes("\\u{202e}")), `the direction is not changed: ${JSON.stringify(names)}`);
    assert((await page.locator("main img, main script, main iframe, main b b").count()) === 0, "no element from a name");
    for (const opener of await page.locator("#rows .open").all()) {
      await opener.click();
      await until("the drawer", 3000, () => page.locator("#drawer code").count());
      assert((await page.locator("#drawer img, #drawer script").count()) === 0, "no element in the drawer");
      await page.keyboard.press("Escape");
    }
    assert((await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth)), "a long name must not widen the page");
  },

  async dropped_connection_comes_back({ open, act, until, assert }) {
    const page = await open();
    await until("live", 5000, () => isLive(page));
    await act("stop_page");
    await until("the age of the picture", 15000, async () => /no connection: this picture is .* old/.test(await page.locator("#link").textContent()));
    await act("hold later 30");
    await act("start_page");
    await until("live again", 20000, () => isLive(page));
    await until("the lock of the meantime", 8000, () => row(page, "later").count());
  },

  async five_thousand_locks_scroll({ open, act, until, assert }) {
    await act("many 5000");
    const page = await open();
    let rows = "";
    await until("all locks", 60000, async () => {
      rows = await page.locator("#table").getAttribute("aria-rowcount");
      return rows === "5001";
    }).catch((error) => { throw new Error(`${error.message}: ${rows} rows`); });
    // How long a step takes depends on what else the machine does, so the times are only printed. What keeps scrolling
    // fast is judged: at each step, only the rows around the visible part exist.
    const steps = await page.evaluate(async () => {
      const scroll = document.getElementById("scroll");
      const steps = [];
      for (let step = 0; step <= 50; step += 1) {
        const began = performance.now();
        scroll.scrollTop = ((scroll.scrollHeight - scroll.clientHeight) * step) / 50;
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        const numbers = [...document.querySelectorAll("#rows .row")].map((row) => Number(row.getAttribute("aria-rowindex")));
        steps.push({ step, ms: performance.now() - began, rows: numbers.length, first: Math.min(...numbers), last: Math.max(...numbers) });
      }
      return steps;
    });
    for (const { step, rows, first, last } of steps) {
      const expected = 2 + (5000 * step) / 50;
      assert(rows < 60 && first <= expected && last >= Math.min(expected, 5001) - 60 && last - first === rows - 1,
        `step ${step}: ${rows} rows, from ${first} to ${last}, instead of those around ${expected}`);
    }
    assert(steps.at(-1).last === 5001, "the last row is shown at the end");
    const times = steps.map((step) => step.ms).sort((a, b) => a - b);
    console.error(`steps of scrolling: median ${Math.round(times[25])} ms, longest ${Math.round(times.at(-1))} ms`);
    await page.fill("#search", "many:4321");
    await until("the search", 3000, async () => (await page.locator("#rows .row").count()) === 1);
    await page.fill("#search", "no such name");
    await until("an empty search", 3000, async () => (await page.locator("#none").textContent()).startsWith("No lock matches"));
  },

  async accessible_in_both_themes({ open, act, until, assert, axe }) {
    await act("hold billing 30");
    await act("wait billing first");
    for (const options of [{ colorScheme: "light" }, { colorScheme: "dark" }, { viewport: { width: 390, height: 800 } }]) {
      const page = await open({ ...options, bypassCSP: true });
      await until("the row", 10000, () => row(page, "billing").count());
      const check = () => page.evaluate(`${axe}; axe.run().then((result) => result.violations
        .filter((fault) => fault.impact === "serious" || fault.impact === "critical")
        .map((fault) => fault.id + ": " + fault.nodes.map((node) => node.html.slice(0, 120)).join(" ")))`);
      const faults = await check();
      assert(faults.length === 0, `${JSON.stringify(options)}: ${faults.join("; ")}`);
      await row(page, "billing").locator(".open").click();
      const inDrawer = await check();
      assert(inDrawer.length === 0, `drawer, ${JSON.stringify(options)}: ${inDrawer.join("; ")}`);
      assert(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing is wider than the window");
      await page.context().close();
    }
  },

  async wrong_clock_of_the_browser({ open, act, until, assert }) {
    await act("hold billing 30");
    const page = await open();
    await page.context().addInitScript(() => { const real = Date.now; Date.now = () => real() + 3600e3; });
    await page.reload();
    await until("the row", 8000, () => row(page, "billing").count());
    const held = await row(page, "billing").locator(".cell").nth(2).textContent();
    assert(/^(≥ )?\d+(\.\d+)? s$/.test(held), `held for ${held}`);
  },

  async keyboard_alone({ open, act, until, assert }) {
    await act("hold billing 30");
    const page = await open();
    await until("the row", 8000, () => row(page, "billing").count());
    await page.keyboard.press("/");
    assert(await page.evaluate(() => document.activeElement?.id === "search"), "the search has the focus");
    await page.keyboard.type("bill");
    await row(page, "billing").locator(".open").focus();
    await page.keyboard.press("Enter");
    await until("the drawer", 3000, () => page.locator("#drawer[open] h2", { hasText: "billing" }).count());
    await page.keyboard.press("Escape");
  },
};
