// Writes pictures of the page: node screenshots.mjs URL FOLDER. The variable CHROMIUM names the browser.
import { chromium } from "playwright-core";

const [url, folder] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"],
});
const open = async (options) => {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  await page.goto(url);
  return page;
};
const wide = await open({ viewport: { width: 1280, height: 1000 }, colorScheme: "light" });
// The timeline needs some holds.
await wide.waitForTimeout(Number(process.env.SHOT_AFTER_MS ?? 90000));
await wide.click("[data-span='300000']");
await wide.waitForTimeout(1500);
await wide.screenshot({ path: `${folder}/page.png` });
await wide.locator("#time").scrollIntoViewIfNeeded();
await wide.screenshot({ path: `${folder}/whole.png`, fullPage: true });
const dark = await open({ viewport: { width: 1280, height: 1000 }, colorScheme: "dark" });
await dark.waitForTimeout(2500);
await dark.screenshot({ path: `${folder}/dark.png` });
const phone = await open({ viewport: { width: 390, height: 844 }, colorScheme: "light" });
await phone.waitForTimeout(2500);
await phone.screenshot({ path: `${folder}/phone.png` });
await browser.close();
