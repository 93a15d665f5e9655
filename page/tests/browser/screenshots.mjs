// Writes pictures of the page: node screenshots.mjs URL FOLDER. The variable CHROMIUM names the browser. The first picture
// is taken after SHOT_AFTER_MS milliseconds (default: 280000), because the timeline of five minutes must fill first.
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
  page.setDefaultTimeout(120000); // a busy machine draws slowly
  await page.goto(url);
  return page;
};
const wide = await open({ viewport: { width: 1280, height: 1000 }, colorScheme: "light" });
await wide.waitForTimeout(Number(process.env.SHOT_AFTER_MS ?? 280000));
await wide.click("[data-span='300000']");
// The click scrolls the page. The fixed header belongs at the top of the pictures.
await wide.evaluate(() => window.scrollTo(0, 0));
await wide.waitForTimeout(1500);
await wide.screenshot({ path: `${folder}/page.png` });
await wide.screenshot({ path: `${folder}/whole.png`, fullPage: true });
const dark = await open({ viewport: { width: 1280, height: 1000 }, colorScheme: "dark" });
await dark.waitForTimeout(2500);
await dark.screenshot({ path: `${folder}/dark.png` });
const phone = await open({ viewport: { width: 390, height: 844 }, colorScheme: "light" });
await phone.waitForTimeout(2500);
await phone.screenshot({ path: `${folder}/phone.png` });
await browser.close();
