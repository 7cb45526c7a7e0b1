// Chromium for the tests of consoles: windows that notice what is wrong with a page.

import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const AXE = readFileSync("node_modules/axe-core/axe.min.js", "utf8");

// Bounds a step that hangs, in milliseconds, and measures nothing.
export const PATIENCE = 150_000;

export const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium-headless-shell",
  timeout: PATIENCE,
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-proxy-server",
  ],
});

export function fail(...seen) {
  console.error("unexpected:", ...seen);
  process.exit(1);
}

export function expect(condition, ...seen) {
  if (!condition) fail(...seen);
}

// The servers that pages may ask.
const known = ["data:"];
export const servers = (...ports) => ports.map((port) => {
  const server = `http://127.0.0.1:${port}`;
  known.push(server);
  return server;
});

// A window whose pages may not break their own policy, fail, or ask another server.
export async function window(options) {
  const context = await browser.newContext(options);
  // No step of a page takes long, but many nodes do, beside other tests, until the last one has joined.
  context.setDefaultTimeout(PATIENCE);
  context.on("weberror", (error) => fail("in a page", error.error()));
  context.on("console", (message) => {
    const isRefusal = /Refused|Content Security Policy/.test(message.text());
    if (isRefusal) fail("in a page", message.text());
  });
  context.on("request", (request) => {
    const url = request.url();
    expect(known.some((server) => url.startsWith(server)), url);
  });
  const page = await context.newPage();
  // A person who is asked whether they mean it does.
  page.on("dialog", (dialog) => dialog.accept());
  return page;
}

// Nothing is in the way of people who cannot see the page, and it fits on a telephone.
export async function inspect(page) {
  const size = page.viewportSize();
  await page.evaluate(AXE);
  // In the dark only colours are others.
  const schemes = { light: {}, dark: { runOnly: ["color-contrast", "link-in-text-block"] } };
  for (const [colorScheme, rules] of Object.entries(schemes)) {
    await page.emulateMedia({ colorScheme });
    const options = { resultTypes: ["violations"], ...rules };
    const { violations } = await page.evaluate((options) => window.axe.run(options), options);
    const found = violations.map(({ id, nodes }) => [id, ...nodes.map(({ html, failureSummary }) => [html, failureSummary])]);
    expect(found.length === 0, page.url(), colorScheme, JSON.stringify(found, null, 1));
  }
  await page.setViewportSize({ width: 320, height: 640 });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  expect(width <= 320, page.url(), "is", width, "wide");
  await page.setViewportSize(size);
}

// Waits until the page was sent what is live so many times more, whatever it makes of it.
export async function hears(page, times) {
  await page.waitForFunction((left) => new Promise((resolve) => {
    document.body.addEventListener("htmx:sseBeforeMessage", ({ detail }) => {
      if (detail.type === "now" && (left -= 1) === 0) resolve(true);
    });
  }), times);
}

// Goes on with Tab until what has the focus has this text or name, and is seen to have it.
export async function tabTo(page, name) {
  for (let presses = 0; presses < 60; presses += 1) {
    await page.keyboard.press("Tab");
    const focus = await page.evaluate(() => {
      const element = document.activeElement;
      const { outlineStyle, outlineWidth } = getComputedStyle(element);
      const seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
      return { name: element.matches("input, select, textarea") ? element.name : element.textContent.trim(), seen };
    });
    if (focus.name === name) {
      expect(focus.seen, name, "does not show its focus");
      return;
    }
  }
  fail("Tab never comes to", name, "on", page.url());
}

// The same, and presses it.
export async function press(page, name) {
  await tabTo(page, name);
  await page.keyboard.press("Enter");
}

// Whoever has no mouse comes to everything on a page that can be used, once each, in the order of the page, and sees
// where they are.
export async function walk(page) {
  const all = await page.evaluate(() => {
    const usable = "a[href], button:enabled, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
    globalThis.stops = [...document.querySelectorAll(usable)].filter((one) => one.checkVisibility());
    globalThis.stops[0].focus();
    return globalThis.stops.length;
  });
  for (let at = 1; at < all; at += 1) {
    await page.keyboard.press("Tab");
    const [has, wants, seen] = await page.evaluate((at) => {
      const element = document.activeElement;
      const { outlineStyle, outlineWidth } = getComputedStyle(element);
      const seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
      const [has, wants] = [element, globalThis.stops[at]].map((one) => globalThis.stops.indexOf(one) + one.outerHTML.slice(0, 200));
      return [has, wants, seen];
    }, at);
    expect(has === wants, page.url(), "Tab comes to", has, "and not to", wants);
    expect(seen, page.url(), has, "does not show its focus");
  }
  await page.keyboard.press("Tab");
  const last = await page.evaluate(() => globalThis.stops.indexOf(document.activeElement));
  expect(last === -1 || last === 0, page.url(), "Tab goes on to", last);
}

// What has the focus keeps it while the live part of the page around it is replaced.
export async function keepsFocus(page) {
  const before = await page.evaluateHandle(() => document.activeElement);
  await page.waitForFunction((element) => !element.isConnected, before);
  const [had, has] = await page.evaluate((element) => [element, document.activeElement].map((one) => one.outerHTML), before);
  expect(had === has, had, "lost the focus to", has);
}

// Keeps the charts of a page, whose pictures no test can read.
export function keepCharts() {
  let plot;
  const keep = (made) => {
    const make = function (...words) { globalThis.charts.push(new made(...words)); return globalThis.charts.at(-1); };
    plot = Object.assign(make, made);
  };
  globalThis.charts = [];
  Object.defineProperty(globalThis, "uPlot", { get: () => plot, set: keep });
}
