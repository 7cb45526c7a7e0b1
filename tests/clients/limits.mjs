// What a person does with the limits of a fleet in the console of its coordinator: a limit is looked at, set and cut,
// its nodes are watched over time, a call is tried, and all is done to nodes without scripts. The arguments are a part
// that is not used and the coordinator's port.

import { once } from "node:events";
import { PATIENCE, browser, expect, inspect, keepCharts, press, servers, tabTo, walk, window } from "./browser.mjs";

const [, port] = process.argv.slice(2);
const [server] = servers(port);

async function givePassword(page, name) {
  await page.fill("[name=name]", name);
  await page.fill("[name=password]", "four words of theirs");
  await page.click("main button");
  await page.waitForURL(`${server}/console`);
}

async function logIn(name, options) {
  const page = await window(options);
  await page.goto(`${server}/console`);
  await givePassword(page, name);
  return page;
}

// Says how far it has come, and goes on when it is told to.
async function goOn(words) {
  const told = once(process.stdin.resume(), "data");
  console.log(words);
  await told;
  process.stdin.pause();
}

// Loads a page until it is as it should be.
async function reload(page, path, isRight) {
  for (const end = Date.now() + PATIENCE; ;) {
    await page.goto(`${server}/console${path}`);
    if (await isRight()) return;
    expect(Date.now() < end, path, await page.locator("main").textContent());
    await page.waitForTimeout(200);
  }
}

// The numbers in the row of a table.
async function numbers(page, name) {
  const cells = page.getByRole("row", { name }).locator("td.number");
  return (await cells.allTextContents()).map(Number);
}

// A preview of another rate of the limit `api`.
async function preview(page, rate) {
  await page.goto(`${server}/console`);
  await page.fill("#rate", rate);
  await page.getByRole("button", { name: "Show every node's share" }).click();
  await page.getByText(`quell rules set api rate=${rate}/s --store redis://`).waitFor();
}

// Does something while the page that ada sees rests.
async function rested(work) {
  const pause = ada.getByRole("button", { name: "Pause" });
  await pause.click();
  await work(ada);
  await pause.click();
}

// A limit: every node's share before and after, then it is set, by keyboard.
const ada = await logIn("ada");
const bob = await logIn("bob", { javaScriptEnabled: false });
await ada.getByText("applied by 2/2 nodes").waitFor();
await ada.locator("#connection").getByText("Live.", { exact: true }).waitFor();
await ada.locator("#all-limits caption").getByText(`quell fleet status --url ${server}`).waitFor();
await preview(ada, "300");
await preview(bob, "400");
await ada.getByText(`quell fleet preview --limit api --rate 300 --url ${server}`).waitFor();
await bob.getByText(`quell fleet preview --limit api --rate 400 --url ${server}`).waitFor();
await ada.getByRole("row", { name: /node 1 api .* 100 150/ }).waitFor();
await ada.getByRole("row", { name: /node 2 api .* 100 150/ }).waitFor();
await inspect(ada);
await walk(ada);
await tabTo(ada, "note");
await ada.keyboard.type("a sale");
await press(ada, "Set rate=300/s");
await ada.getByText("Version 2 is in the store.").waitFor();
await inspect(ada);
await ada.goto(`${server}/console`);
await ada.getByRole("row", { name: /^api 300 300 / }).waitFor();
await ada.getByRole("link", { name: "Rules" }).click();
await ada.getByRole("row", { name: /^2 .* ada 1 changed \(shop.api\) a sale/ }).waitFor();
await ada.getByText("rate: 300/s, burst: 40 } # all nodes").first().waitFor();
await ada.getByRole("link", { name: "Changes" }).click();
await ada.getByRole("row", { name: /ada\S* 127.0.0.1 version 2 of the rules in redis:.* a sale/ }).waitFor();

// Whoever looked at the limit before is told what would change now, and sets it all the same.
await bob.getByRole("button", { name: "Set rate=400/s" }).click();
await bob.getByRole("alert").getByText("Somebody came first: version 2 by ada").waitFor();
await bob.getByText(/shop.api: .*300.s, burst 40 becomes 400.s/).waitFor();
await bob.getByRole("button", { name: "Push" }).click();
await bob.getByText("Version 3 is in the store.").waitFor();
await ada.goto(`${server}/console`);
await ada.getByRole("row", { name: /^api 400 400 / }).waitFor();
const rea = await logIn("rea");
await preview(rea, "500");
expect(await rea.getByRole("button", { name: /^Set/ }).count() === 0, "a reader may set a limit");
const refused = await rea.request.post(`${server}/console/rules/edit`, {
  form: { store: "0", from: "", rule: "api", set: "rate=1/s", action: "push" },
  headers: { Origin: server, "Sec-Fetch-Site": "same-origin" },
});
expect(refused.status() === 403, refused.status());
await ada.goto(`${server}/console/preview?limit=none&rate=5`);
await ada.getByRole("alert").waitFor();
await inspect(ada);
// What is refused loses nothing that was typed.
await ada.goto(`${server}/console`);
await ada.fill("#rate", "many");
await ada.fill("#burst", "70");
await ada.getByRole("button", { name: "Show every node's share" }).click();
await ada.getByRole("alert").getByText("`many` is not a number of units").waitFor();
const typed = await Promise.all(["#limit", "#rate", "#burst"].map((field) => ada.inputValue(field)));
expect(typed.join() === "api,many,70", typed);
await inspect(ada);
console.log("a limit is looked at and set");

// A page whose session ends says so; what was typed is there, and a login in another tab is enough.
await rea.goto(`${server}/console`);
const status = rea.locator("#connection");
await status.getByText("Live.", { exact: true }).waitFor();
await rea.fill("#rate", "600");
const tab = await rea.context().newPage();
await tab.goto(`${server}/console`);
await tab.getByRole("button", { name: "Log out" }).click();
await status.getByText("Your session is over.", { exact: true }).waitFor();
await givePassword(tab, "rea");
await status.getByText("Connected again.").waitFor();
expect(await rea.inputValue("#rate") === "600", "what was typed is lost");
await rea.context().close();
await ada.goto(`${server}/console/rules/edit?store=0`);
const rules = (await ada.inputValue("#text")).replace("400/s", "450/s");
const cookies = await ada.context().cookies();
await ada.context().clearCookies();
await ada.fill("#text", rules);
await ada.getByText("Your session is over. Log in in another tab").waitFor();
await inspect(ada);
await ada.context().addCookies(cookies);
await ada.fill("#text", `${rules}# more`);
await ada.getByText(/shop.api: .* becomes 450.s/).waitFor();
console.log("a session ends while a page is open");

// What is set is first run in shadow: its page is kept up to date by the stream.
await preview(ada, "100");
await ada.getByRole("button", { name: "Run in shadow" }).click();
await ada.waitForURL(`${server}/console/rules/candidate`);
await ada.locator("#connection").getByText("Live.", { exact: true }).waitFor();
await ada.getByText("They run on 1/2 nodes").waitFor();
await inspect(ada);
await rested(walk);
let asked = 0;
ada.on("request", () => { asked += 1; });
const refusals = ada.locator("dl div", { hasText: "allowed, and would be denied" }).locator("dd");
expect(await refusals.textContent() === "0", "refusals before a call");
console.log("a candidate runs");
await ada.waitForFunction((dd) => dd.isConnected && Number(dd.textContent) > 0 || [...document.querySelectorAll("dd.bad")]
  .some((now) => Number(now.textContent) > 0), await refusals.elementHandle());
expect(asked === 0, "a page that is live asks", asked);
await ada.getByText("quell fleet candidate stop").waitFor();
const stop = await ada.locator("[data-copy]", { hasText: "candidate stop" }).textContent();
expect(stop === `quell fleet candidate stop --url ${server}`, stop);
await bob.goto(`${server}/console/rules/candidate`);
await bob.getByRole("button", { name: "Stop it" }).click();
await ada.getByText("No candidate runs any more.").waitFor();
console.log("a candidate is followed without asking again");

// A node over time: what it wants, admitted and may use.
await ada.goto(`${server}/console`);
await ada.locator("#shares canvas").waitFor();
await ada.getByText("Shares of api over time").waitFor();
await rested(walk);
await ada.getByRole("link", { name: "node 1", exact: true }).click();
await ada.locator("#connection").getByText("Live.", { exact: true }).waitFor();
await ada.getByRole("heading", { name: "api over time" }).waitFor();
await ada.locator("#shares canvas").waitFor();
await ada.locator("#below canvas").waitFor();
await ada.locator("#below").getByText("weight, on the right").waitFor();
await ada.getByText(/Its weight was at most 1, its lease renewed within [0-9.]+ s\./).waitFor();
await ada.getByRole("row", { name: /^api [1-9]\S* [1-9]/ }).waitFor();
await inspect(ada);
// Points are some seconds apart, so the last one may be older than what the page shows.
const chart = await ada.evaluate(() => new Promise((done) => {
  const stream = new EventSource("/console/live?limit=api&node=1");
  stream.addEventListener("shares", ({ data }) => {
    const chart = JSON.parse(data);
    const columns = [chart.stacked[0], chart.demand, chart.admitted, ...chart.below];
    if (!columns.every((column) => column.length === chart.times.length && column.some((rate) => rate > 0))) return;
    stream.close();
    done(chart);
  });
}));
expect(chart.names.join() === "node 1" && !("limit" in chart), JSON.stringify(chart));
console.log("a node is seen over time");

// Only node 1 is asked now, and the limit is cut: each node comes to have what the preview said.
await ada.addInitScript(keepCharts);
const now = async () => (await numbers(ada, /^node 2 api/))[0] < 10;
await reload(ada, "/preview?limit=api&rate=100", now);
const [one, two] = [await numbers(ada, /^node 1 api/), await numbers(ada, /^node 2 api/)];
expect(one[0] > 300 && one[1] > 90 && two[1] < 10 && one[1] + two[1] <= 100, one, two);
expect([...one.slice(2), ...two.slice(2)].join() === "200,50,200,50", one, two);
await ada.getByRole("button", { name: "Set rate=100/s" }).click();
await ada.getByText("Version 4 is in the store.").waitFor();
for (const [node, [, share, , fixed]] of [[1, one], [2, two]]) {
  await reload(ada, `/node/${node}`, async () => {
    const [, , mayUse, planned, has] = await numbers(ada, /^api/);
    return Math.abs(planned - share) < 1 && Math.abs(mayUse - share) < 1 && has === fixed;
  });
}
console.log("a limit is cut as it was shown");

// What is drawn: the shares lie one on top of the other, and never above the limit.
await ada.goto(`${server}/console`);
async function drawn(most, [from, to], rest) {
  const seen = await ada.waitForFunction(([most, from, to, rest]) => {
    const chart = globalThis.charts.find(({ series }) => series.some(({ label }) => label === "the limit"));
    const labels = chart?.series.map(({ label }) => label);
    const [all, one, limit] = ["all others", "node 1", "the limit"].map((name) => chart?.data[labels.indexOf(name)]);
    if (limit?.at(-1) !== most || one.at(-1) < from || one.at(-1) > to) return false;
    // A step in which shares moved has their average.
    return (rest === undefined || Math.abs(all.at(-1) - one.at(-1) - rest) < 1) && { labels, data: chart.data, all, limit };
  }, [most, from, to, rest]);
  const { labels, data, all, limit } = await seen.jsonValue();
  expect(labels.slice(1, 5).join() === "all others,node 2,node 1,the limit", labels);
  all.forEach((sum, at) => expect(sum <= limit[at], sum, "at", at, JSON.stringify(data)));
  return { data, all, limit };
}
const { data, all, limit } = await drawn(100, [one[1] - 1, one[1] + 1], two[1]);
const seen = JSON.stringify(data);
expect(all.some((sum, at) => limit[at] === 400 && sum > 390), "at rest", seen);
const [last, atTwo] = data.slice(1, 3).map((column) => column.at(-1));
expect(last === atTwo, seen);
await goOn("a chart is within the limit");

// A node that is gone keeps its part of the limit before, until it is back: as long the line stays.
await preview(bob, "40");
await bob.getByRole("button", { name: "Set rate=40/s" }).click();
await bob.getByText("Version 5 is in the store.").waitFor();
await drawn(100, [0, 40]);
await goOn("a line stays for a node that is gone");
await drawn(40, [0, 40]);
console.log("a line falls when the node is back");

// A call is tried: which rules apply, and what is wrong with it.
await ada.getByRole("link", { name: "Try it" }).click();
await inspect(ada);
await ada.fill("#entries", "user=<b>eve");
await press(ada, "cost");
await ada.getByLabel("Answer").getByText(/user=<b>eve \(cost 1\)[^]*api.*40.s/).waitFor();
await inspect(ada);
await ada.fill("#entries", "user");
await ada.getByRole("button", { name: "Try it" }).click();
await ada.getByRole("alert").getByText("`user` is not an entry").waitFor();
await inspect(ada);
console.log("a call is tried");

// Without scripts: all that is done to nodes is done by forms.
await bob.goto(`${server}/console`);
await bob.getByRole("link", { name: "Add a node" }).click();
await bob.fill("#weight", "2");
await bob.getByRole("button", { name: "Show the command" }).click();
await bob.getByText(/--fleet-member node-3 --fleet-weight 2 /).waitFor();
await bob.goto(`${server}/console/node/2`);
await bob.fill("#weight", "3");
await bob.getByRole("button", { name: "Show every node's share" }).click();
await bob.getByRole("row", { name: /^node 2 api .* 20 30$/ }).waitFor();
await bob.getByRole("button", { name: "Set weight 3" }).click();
await bob.getByText("Node 2 has weight 3.").waitFor();
const isDead = async (name) => {
  await bob.getByRole("button", { name }).click();
  expect(await bob.locator("input:invalid").count() === 1, "without a word that it is dead");
  await bob.getByLabel("Its process is dead").check();
  await bob.getByRole("button", { name }).click();
};
await goOn("node 2 is weighed without scripts");
await isDead(/Fence start/);
await bob.getByText(/Start \S+ of node 2 is fenced/).waitFor();
await goOn("node 2 is fenced without scripts");
const rows = bob.getByRole("row", { name: /^node 2 active / });
await reload(bob, "", async () => await rows.count() === 1);
await bob.getByRole("link", { name: "node 2", exact: true }).click();
await bob.getByRole("button", { name: "Drain" }).click();
await bob.getByText("Node 2 is drained").waitFor();
await reload(bob, "", async () => await bob.getByText("1 to 1 of 1;").count() === 1);
await goOn("node 2 is drained without scripts");
await bob.getByRole("link", { name: "node 1", exact: true }).click();
await isDead("Deregister");
await bob.getByText("Node 1 has no seat any more.").waitFor();
await reload(bob, "", async () => await bob.getByText("There are none yet.").count() === 1);
console.log("node 1 is deregistered without scripts");
await browser.close();
