// Opens a page in a real browser, lets it read texts, and prints JSON: `node browse.mjs PAGE_URL BASE_URL COUNT`.
// DIPTYCH_NODE_MODULES is the folder with puppeteer-core and @sparticuz/chromium; DIPTYCH_BROWSER names another browser's
// program. Exit code 77: no browser could be started; standard error says why.
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";

const UNAVAILABLE = 77;
const [page, base, count] = process.argv.slice(2);
const { resolve } = createRequire(process.env.DIPTYCH_NODE_MODULES + "/package.json");

// The package unpacks its browser into the folder for temporary files: one beside the package, to be found again.
async function unpacked() {
  process.env.TMPDIR = process.env.DIPTYCH_NODE_MODULES + "/browser";
  mkdirSync(process.env.TMPDIR, { recursive: true });
  const { default: chromium } = await import(resolve("@sparticuz/chromium"));
  return await chromium.executablePath();
}

async function start() {
  const { default: puppeteer } = await import(resolve("puppeteer-core"));
  const executablePath = process.env.DIPTYCH_BROWSER ?? (await unpacked());
  // Its sandbox needs rights that containers lack; the only page it opens is ours.
  return await puppeteer.launch({ executablePath, headless: "shell", args: ["--no-sandbox"] });
}

const browser = await start().catch((error) => {
  console.error(error.message);
  process.exit(UNAVAILABLE);
});
try {
  const tab = await browser.newPage();
  await tab.goto(page, { waitUntil: "networkidle0" });
  const read = (...given) => window.readTexts(...given).catch((error) => ({ error: String(error) }));
  const results = await tab.evaluate(read, base, Number(count));
  console.log(JSON.stringify({ version: await browser.version(), results }));
} finally {
  await browser.close();
}
