// What a person does with the limits of a fleet in the console of its coordinator: a limit is looked at and set, its
// nodes are watched over time, and a call is tried. The arguments are a part that is not used and the coordinator's
// port.

import { browser, expect, inspect, press, servers, tabTo, walk, window } from "./browser.mjs";

const [, port] = process.argv.slice(2);
const [server] = servers(port);

async function logIn(name, options) {
  const page = await window(options);
  await page.goto(`${server}/console`);
  await page.fill("[name=name]", name);
  await page.fill("[name=password]", "four words of theirs");
  await page.click("main button");
  await page.waitForURL(`${server}/console`);
  return page;
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
await ada.getByRole("alert").getByText("`many` is no number of units").waitFor();
const typed = await Promise.all(["#limit", "#rate", "#burst"].map((field) => ada.inputValue(field)));
expect(typed.join() === "api,many,70", typed);
await inspect(ada);
console.log("a limit is looked at and set");

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
await ada.locator("#lease canvas").waitFor();
await ada.locator("#lease").getByText("weight, on the right").waitFor();
await ada.getByText(/Its weight was at most 1, its lease renewed within [0-9.]+ s\./).waitFor();
await ada.getByRole("row", { name: /^api [1-9]\S* [1-9]/ }).waitFor();
await inspect(ada);
const chart = await ada.evaluate(() => new Promise((done) => {
  const stream = new EventSource("/console/live?limit=api&node=1");
  stream.addEventListener("shares", ({ data }) => {
    stream.close();
    done(JSON.parse(data));
  });
}));
expect(chart.names.join() === "node 1" && !("limit" in chart), JSON.stringify(chart));
for (const column of [chart.shares[0], chart.demand, chart.admitted, ...chart.node]) {
  expect(column.length === chart.times.length && column.some((rate) => rate > 0), JSON.stringify(chart));
}
console.log("a node is seen over time");

// A call is tried: which rules apply, and what is wrong with it.
await ada.getByRole("link", { name: "Try it" }).click();
await inspect(ada);
await ada.fill("#entries", "user=<b>eve");
await press(ada, "cost");
await ada.getByLabel("Answer").getByText(/user=<b>eve \(cost 1\)[^]*api.*400.s/).waitFor();
await inspect(ada);
await ada.fill("#entries", "user");
await ada.getByRole("button", { name: "Try it" }).click();
await ada.getByRole("alert").getByText("`user` is not an entry").waitFor();
await inspect(ada);
console.log("a call is tried");
await browser.close();
