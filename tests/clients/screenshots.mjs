// Pictures of the consoles for the docs: `cargo xtask screenshots`. The arguments are the quell command, the folder for
// the pictures, and for how many seconds a fleet of three nodes is asked before it is looked at.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { browser, window, servers } from "./browser.mjs";

const [quell, pictures, seconds] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "quell-screenshots-"));
const rules = join(folder, "shop.yaml");
writeFileSync(rules, `# the limits of the shop
domain: shop
rules:
  # Everybody together, on all nodes of the fleet.
  - { name: api, rate: 300/s, burst: 60, rung: shares, cluster_size: auto }
  # Nobody guesses passwords.
  - name: login
    match: { path: /login }
    per: [user]
    algorithm: sliding_log
    limit: 5/min
    rung: local
`);

const started = [];
process.on("exit", () => started.forEach((child) => child.kill()));
// Its ports, in the order in which it says that it is ready on them.
function start(...words) {
  const child = spawn(quell, words, { stdio: ["ignore", "ignore", "pipe"] });
  started.push(child);
  let log = "";
  child.on("exit", (code) => { if (code) throw new Error(`quell ${words.join(" ")}: ${code}\n${log}`); });
  return new Promise((resolve) => child.stderr.setEncoding("utf8").on("data", (words) => {
    log += words;
    const [ready] = /^ready: .*\n/m.exec(log) ?? [];
    if (ready) resolve(Array.from(ready.matchAll(/http:\/\/127\.0\.0\.1:(\d+)/g), ([, port]) => port));
  }));
}

const anyPort = "127.0.0.1:0";
const [listen, admin] = await start("fleet", "coordinator", "--embedded", join(folder, "fleet.db"), "--rules", rules,
  "--listen", anyPort, "--admin", anyPort);
const nodes = await Promise.all([1, 2, 3].map((number) => start("serve", "--rules", rules,
  "--fleet", `http://127.0.0.1:${listen}`, "--fleet-member", `node-${number}`, "--http", anyPort, "--resp", "off")));

const [operators, ...consoles] = servers(admin, ...nodes.flat());
const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis));
for (const url of [operators, ...consoles]) {
  while (!(await fetch(`${url}/readyz`).catch(() => null))?.ok) await sleep(100);
}

// The second node is asked more than the others, and some people guess passwords.
const people = ["mallory", "eve", "trudy", "ann", "bob"];
async function ask(url, entries) {
  const body = JSON.stringify({ domain: "shop", entries });
  const headers = { "Content-Type": "application/json" };
  await fetch(`${url}/v1/acquire`, { method: "POST", headers, body }).then((answer) => answer.text());
}
async function load(url, pause) {
  for (let call = 0; !isOver; call += 1) {
    const guess = people[Math.floor(Math.random() ** 2 * people.length)];
    await ask(url, call % 10 ? { path: "/search" } : { path: "/login", user: guess });
    await sleep(pause);
  }
}
let isOver = false;
const asking = [load(consoles[0], 20), ...Array.from({ length: 4 }, () => load(consoles[1], 8)), load(consoles[2], 40)];

const size = { viewport: { width: 1000, height: 820 } };
const page = await window(size);
await page.goto(`${consoles[1]}/console`);
const fleet = await window(size);
await fleet.goto(`${operators}/console`);
await sleep(Number(seconds) * 1000);
await page.screenshot({ path: join(pictures, "console-overview.png") });
// From the limits to the end of the charts, looked at in one step: what is above them is replaced as it changes.
await fleet.locator("#shares canvas").waitFor();
const clip = await fleet.evaluate(() => {
  const heading = [...document.querySelectorAll("h2")].find((one) => one.textContent === "Limits");
  const top = heading.getBoundingClientRect().top + scrollY - 16;
  const end = document.querySelector("#below").getBoundingClientRect().bottom + scrollY + 16;
  return { x: 0, y: top, width: innerWidth, height: end - top };
});
await fleet.screenshot({ path: join(pictures, "console-fleet.png"), clip, fullPage: true });
await page.goto(`${consoles[1]}/console/keys?domain=shop&rule=login&entries=path%3D%2Flogin%0Auser%3Dmallory`);
await page.screenshot({ path: join(pictures, "console-keys.png") });
isOver = true;
await Promise.all(asking);
await browser.close();
const stop = (child) => new Promise((resolve) => {
  child.removeAllListeners("exit").once("exit", resolve);
  child.kill();
});
// The coordinator goes last: nodes say to it that they stop.
const [coordinator, ...others] = started;
await Promise.all(others.map(stop));
await stop(coordinator);
rmSync(folder, { recursive: true });
