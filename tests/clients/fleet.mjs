// What a person does with the console of a coordinator in a browser. The arguments are a part of it and the port
// of its coordinator: a `small` one with two nodes, where people log in, a `large` one that is open and keeps
// hundreds of seats, one with a node whose coordinator is `restarted`, and one with two nodes for `forms` alone.

import { once } from "node:events";
import { PATIENCE, browser, expect, fail, hears, inspect, keepsFocus, press, servers, tabTo, walk, window } from "./browser.mjs";

const PASSWORD = "four words of theirs";
const [part, port] = process.argv.slice(2);
const [server] = servers(port);

async function logIn(page, name) {
  await page.goto(`${server}/console`);
  await givePassword(page, name);
}

// Says how far it has come, and goes on when it is told to.
async function goOn(words) {
  const told = once(process.stdin.resume(), "data");
  console.log(words);
  await told;
  process.stdin.pause();
}

async function givePassword(page, name) {
  await page.fill("[name=name]", name);
  await page.fill("[name=password]", PASSWORD);
  await page.click("main button");
  await page.waitForURL(`${server}/console`);
}

// Who may only read changes nothing, and needs no scripts.
if (part === "small") {
  const page = await window({ javaScriptEnabled: false });
  await logIn(page, "rea");
  await page.getByText("As of when the page was loaded.").waitFor();
  await page.getByRole("link", { name: "node 1", exact: true }).click();
  await page.getByRole("heading", { name: "Node 1" }).waitFor();
  expect(await page.getByRole("button", { name: "Drain" }).count() === 0, "a reader may drain");
  await page.fill("[name=weight]", "3");
  await page.getByRole("button", { name: "Show every node's share" }).click();
  await page.getByRole("heading", { name: "Weight 3 for node 1" }).waitFor();
  expect(await page.getByRole("button", { name: "Set weight 3" }).count() === 0, "a reader may weigh");
  const forms = [
    ["node/1", { action: "drain" }], ["node/1", { action: "weight", weight: "9" }],
    ["node/1", { action: "fence", incarnation: "1", dead: "on" }], ["node/1", { action: "deregister", dead: "on" }],
    ["rollout", { action: "all" }], ["rules/edit", { store: "0", text: "x", action: "push" }],
    ["rules/check", { store: "0", text: "x" }], ["rules/candidate", {}],
  ];
  for (const [path, form] of forms) {
    const headers = { Origin: server, "Sec-Fetch-Site": "same-origin" };
    const answer = await page.request.post(`${server}/console/${path}`, { form, headers });
    expect(answer.status() === 403, path, JSON.stringify(form), answer.status());
  }
  await page.context().close();
  console.log("a reader sees all and changes nothing");
}

// A node that is to come: the command that starts it, or why it cannot be.
if (part === "small") {
  const page = await window();
  await logIn(page, "ada");
  await page.getByRole("link", { name: "Add a node" }).click();
  await page.getByText("quell serve --rules fleet --fleet http://127.0.0.1:").waitFor();
  expect(await page.inputValue("#node") === "3", "the first number that is free");
  await inspect(page);
  await page.fill("#weight", "2");
  await press(page, "Show the command");
  await page.getByText("Its part is 2 of 4").waitFor();
  await page.getByText(/--fleet-member node-3 --fleet-weight 2 .*--fleet-token node-3.token/).waitFor();
  for (const [node, why] of [["node-1", "node 1 is there already"], ["x", "`x` has no number at its end"]]) {
    await page.fill("#node", node);
    await page.getByRole("button", { name: "Show the command" }).click();
    await page.getByRole("alert").getByText(why).waitFor();
    const typed = [await page.inputValue("#node"), await page.inputValue("#weight")];
    expect(typed.join() === `${node},2`, typed);
  }
  await inspect(page);
  await walk(page);
  await page.context().close();
  console.log("a node that is to come is told how");
}

// A weight: before and after, then applied, by keyboard.
if (part === "small") {
  const page = await window();
  await logIn(page, "ada");
  await page.locator("#connection").getByText("Live.", { exact: true }).waitFor();
  await page.getByText("applied by 2/2 nodes").waitFor();
  await page.locator("#shares canvas").waitFor();
  await inspect(page);
  // Who reads is not interrupted.
  const paused = await page.context().newPage();
  await paused.goto(`${server}/console`);
  await press(paused, "Pause");
  await paused.locator("#connection").getByText("Paused.").waitFor();
  await tabTo(page, "node 1");
  await keepsFocus(page);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Node 1" }).waitFor();
  await inspect(page);
  await page.fill("#weight", "x3");
  await page.getByRole("button", { name: "Show every node's share" }).click();
  await page.getByRole("alert").getByText("`x3` is not a weight").waitFor();
  expect(await page.inputValue("#weight") === "x3", "a weight that was typed is lost");
  await inspect(page);
  await page.fill("#weight", "3");
  await press(page, "Show every node's share");
  await page.getByRole("row", { name: /node 1 api .* 100 150/ }).waitFor();
  await page.getByRole("row", { name: /node 2 api .* 100 50/ }).waitFor();
  await page.getByText("quell fleet preview --node 1 --weight 3").waitFor();
  await inspect(page);
  await walk(page);
  await press(page, "Set weight 3");
  await page.getByText("Node 1 has weight 3.").waitFor();
  await page.getByText("quell fleet weight 1 3").waitFor();
  await inspect(page);
  await page.getByRole("link", { name: "All nodes" }).click();
  await page.getByRole("row", { name: /^node 1 active 3 .* 150 / }).waitFor();
  await hears(paused, 3);
  expect(await paused.getByRole("row", { name: /^node 1 active 1 / }).count() === 1, "a page changes while it is paused");
  await paused.keyboard.press("Enter");
  await paused.locator("#connection").getByText("Live.", { exact: true }).waitFor();
  await paused.getByRole("row", { name: /^node 1 active 3 / }).waitFor();
  await paused.close();
  console.log("a weight is looked at and set");

  // A limit: before and after, and what puts it into force.
  await page.getByRole("row", { name: /^api / }).getByRole("link").click();
  await page.waitForURL(`${server}/console?limit=api`);
  await page.fill("#rate", "400");
  await page.fill("#burst", "60");
  await page.getByRole("button", { name: "Show every node's share" }).click();
  await page.getByText("quell rules set api rate=400/s burst=60").waitFor();
  await page.getByText("quell fleet preview --limit api --rate 400 --burst 60").waitFor();
  await page.getByRole("row", { name: /node 1 api .* 150 300/ }).waitFor();
  await inspect(page);
  await page.getByRole("row", { name: "node 1 api" }).getByRole("link").click();
  await page.getByRole("link", { name: "api", exact: true }).click();
  await page.waitForURL(/limit=api$/);

  // Changed rules are put into force step by step, and taken back.
  await page.getByRole("link", { name: "Rollout" }).click();
  await page.getByText("Nothing waits").waitFor();
  await inspect(page);
  await page.getByRole("link", { name: "Rules" }).click();
  await inspect(page);
  await page.getByRole("link", { name: "Edit these rules" }).click();
  const bob = await window();
  await logIn(bob, "bob");
  await bob.goto(page.url());
  const text = await page.inputValue("#text");
  await page.fill("#text", text.replace("rung: shares", "rung: strict"));
  await page.getByText("no rule says `rung: shares`").waitFor();
  await page.fill("#text", text.replace("200/s", "300/s"));
  await page.getByText(/shop.api: .* becomes 300.s/).waitFor();
  await press(page, "Run in shadow");
  await page.getByText("1 changed (shop/api)").waitFor();
  await page.getByText("They run on 1/2 nodes").waitFor();
  await page.getByText("quell fleet candidate stop").waitFor();
  await inspect(page);
  console.log("a candidate runs on the nodes that follow the rules");
  await press(page, "Stop it");
  await page.getByText("No candidate runs.").waitFor();
  await inspect(page);
  console.log("a candidate is stopped");
  await page.getByRole("link", { name: "rules", exact: true }).click();
  await page.getByRole("link", { name: "Edit these rules" }).click();
  await page.fill("#text", text.replace("200/s", "300/s"));
  await page.fill("#note", "more");
  await page.getByRole("button", { name: "Run in shadow" }).click();
  await page.getByText("They run on 1/2 nodes").waitFor();
  await press(page, "Edit it");
  const keeps = async (page, more, why) => {
    await page.getByText(/shop.api: .* becomes 300.s/).waitFor();
    const [text, note] = [await page.inputValue("#text"), await page.inputValue("#note")];
    expect(text.includes(more) && note === why, text, note);
    await inspect(page);
  };
  await keeps(page, "300/s, burst: 40", "more");

  // Another person was first: who comes second is told, and loses nothing.
  const commented = `# by bob\n${text}`;
  await bob.fill("#text", commented);
  await bob.getByText("No rule would change.").waitFor();
  await bob.getByRole("button", { name: "Push" }).click();
  await bob.getByText("Version 2 is in the store.").waitFor();
  await page.getByRole("link", { name: "Rules" }).click();
  await page.getByRole("link", { name: "run in shadow beside these" }).click();
  await press(page, "Put it into force");
  await page.getByRole("alert").getByText("Somebody came first: version 2 by bob (no rule).").waitFor();
  await keeps(page, "300/s, burst: 40", "more");
  await bob.goto(`${server}/console/rules/edit?store=0`);
  expect(await bob.inputValue("#text") === commented, await bob.inputValue("#text"));
  await page.getByRole("button", { name: "Push" }).click();
  await page.getByText("Version 3 is in the store.").waitFor();
  await inspect(page);
  await bob.getByRole("button", { name: "Push" }).click();
  await bob.getByRole("alert").getByText("Somebody came first: version 3 by ada (1 changed (shop/api)).").waitFor();
  expect(await bob.inputValue("#text") === commented, await bob.inputValue("#text"));
  await bob.context().close();
  console.log("limits are edited by two people at once");
  await page.goto(`${server}/console`);
  await page.getByText("changed rules wait for").waitFor();
  await page.getByRole("link", { name: "Put the changed rules into force" }).click();
  await page.getByRole("row", { name: /node 1 api .* 150 225/ }).waitFor();
  await inspect(page);
  await walk(page);
  await page.locator("#percent").press("Enter");
  expect(await page.getByText("quell fleet rollout").count() === 0, "Enter in a field puts limits into force");
  await page.locator("#node").focus();
  await press(page, "Put into force there");
  await page.getByText("quell fleet rollout --node 1").waitFor();
  await page.getByText("1 node is to follow plan").waitFor();
  await inspect(page);
  await press(page, "Take back");
  await page.getByText("quell fleet rollout --back").waitFor();
  await page.fill("#node", "node-2");
  await page.fill("#percent", "50");
  await page.fill("#max_refused", "many");
  await page.fill("#max_degraded", "70");
  await page.fill("#window", "1m");
  await page.getByRole("button", { name: "Put into force on these" }).click();
  await page.getByRole("alert").getByText("many").waitFor();
  const fields = ["#node", "#percent", "#max_refused", "#max_degraded", "#window"];
  const typed = await Promise.all(fields.map((field) => page.inputValue(field)));
  expect(typed.join() === "node-2,50,many,70,1m", typed);
  await inspect(page);
  await page.fill("#max_refused", "60");
  await page.fill("#max_degraded", "70");
  await page.fill("#window", "1m");
  await tabTo(page, "Put into force on all");
  await page.locator("#percent").focus();
  await press(page, "Put into force on these");
  await page.getByText("quell fleet rollout --percent 50 --max-refused 60% --max-degraded 70% --window 60s").waitFor();
  await page.getByText("it is taken back by itself above 60 % refused or 70 % answered degraded over 60 s").waitFor();
  await inspect(page);
  await press(page, "Put into force on all, judged");
  await page.getByText("quell fleet rollout --percent 100").waitFor();
  await page.getByText("it is taken back by itself above 60 % refused or 70 % answered degraded over 60 s").waitFor();
  await press(page, "Put into force on all, and end the rollout");
  await page.getByText("All nodes follow the changed rules.").waitFor();
  await page.goto(`${server}/console`);
  await page.getByRole("row", { name: /^api 300 / }).waitFor();
  console.log("a change is rolled out");
  const chart = await page.evaluate(() => new Promise((done) => {
    const stream = new EventSource("/console/live?limit=api");
    stream.addEventListener("shares", ({ data }) => {
      stream.close();
      done(JSON.parse(data));
    });
  }));
  expect(chart.names.join() === "node 1,node 2,all others", chart.names);
  const sums = chart.stacked.at(-1);
  sums.forEach((sum, at) => expect(sum <= chart.limit[at], chart.times[at], "has", sum, "of", chart.limit[at]));
  expect(sums.at(-1) > 0, "the nodes have", sums);
  expect(chart.below.every((column) => column.length === chart.times.length), chart.below);

  // Calls of a node are seen while the page is open, and so is its end.
  await page.goto(`${server}/console?limit=api`);
  console.log("nodes are asked");
  await page.getByRole("row", { name: /^node 2 active 1 [1-9]\S* [1-9]/ }).waitFor();
  await page.getByRole("row", { name: /^api 300 \S+ [1-9]\S* [1-9]\S* (< )?[0-9.]+ % (< )?[0-9.]+ % / }).waitFor();
  await page.locator("#below").getByText("% refused").waitFor();
  await page.getByText(/Of what calls asked for \S+( %)? was refused/).waitFor();
  const refused = page.getByRole("region", { name: "Most refused keys" });
  await refused.getByRole("row", { name: /^shop api the key of all [0-9]/ }).waitFor();
  await page.getByText("at 2/2 nodes").waitFor();
  for (const [name, query] of [["1 day", /limit=api&span=day#over-time$/], ["1 hour", /limit=api#over-time$/]]) {
    await press(page, name);
    await page.waitForURL(query);
    expect(await page.getByRole("link", { name }).getAttribute("aria-current") === "true", name);
    for (const chart of ["#shares canvas", "#below canvas"]) await page.locator(chart).waitFor();
  }
  await inspect(page);
  console.log("what they admit is seen");
  await page.getByRole("row", { name: /^node 2 silent/ }).waitFor();
  console.log("a node that is gone is seen");
  await page.fill("#find", "silent");
  await page.getByRole("button", { name: "Find" }).click();
  await page.getByText("1 to 1 of 1 that are like that, of 2;").waitFor();
  await page.getByRole("link", { name: "node 2", exact: true }).click();
  await press(page, "Drain");
  await page.getByText("Node 2 is drained").waitFor();
  await page.getByText("It was drained, and was not heard since").waitFor();
  await inspect(page);
  await page.getByRole("button", { name: "Pause" }).click();
  await walk(page);
  await press(page, "Do not drain it");
  await page.getByText("Node 2 gets its part again.").waitFor();
  await page.getByText(/^quell fleet drain 2 --undo/).waitFor();
  await page.getByRole("button", { name: "Drain" }).waitFor();
  let posts = 0;
  page.on("request", (request) => { posts += request.method() === "POST"; });
  const fence = await page.getByRole("button", { name: /Fence start/ }).textContent();
  await press(page, fence);
  expect(await page.locator(":invalid:focus").count() === 1 && posts === 0, "without a word that it is dead", posts);
  await page.keyboard.press("Space");
  await press(page, fence);
  await page.getByText(/Start \S+ of node 2 is fenced/).waitFor();
  await page.getByText(/^quell fleet fence 2 --incarnation /).first().waitFor();
  await inspect(page);
  await goOn("a node is fenced");
  await page.getByRole("link", { name: "All nodes" }).click();
  await page.getByRole("row", { name: /^node 2 active/ }).waitFor();
  await goOn("a node is back");
  await page.getByRole("link", { name: "node 2", exact: true }).click();
  posts = 0;
  await press(page, "Deregister");
  expect(await page.locator(":invalid:focus").count() === 1 && posts === 0, "without a word that it is dead", posts);
  await page.getByLabel("Its process is dead").check();
  await press(page, "Deregister");
  await page.getByText("Node 2 has no seat any more.").waitFor();
  await page.getByText(/^quell fleet deregister 2/).waitFor();
  await page.getByText("This coordinator knows no such node").waitFor();
  await inspect(page);
  await page.getByRole("link", { name: "All nodes" }).click();
  await page.getByText("1 to 1 of 1;").waitFor();
  expect(await page.getByRole("link", { name: "node 2", exact: true }).count() === 0, "node 2 has a seat");
  await page.locator("#connection").getByText("Live.", { exact: true }).waitFor();
  console.log("nodes are fenced and deregistered");

  // After a restart people log in again, and nothing else is lost.
  await page.locator("#connection").getByText("The connection to the server is lost; trying again.").waitFor();
  console.log("the page says that the connection is lost");
  await page.waitForURL(`${server}/console/login`);
  await givePassword(page, "ada");
  await page.getByRole("row", { name: /^node 1 active 3 / }).waitFor();
  console.log("people log in again");
  await page.getByRole("link", { name: "node 1", exact: true }).click();
  await inspect(page);
  await press(page, "Drain");
  await page.getByText("Node 1 is drained").waitFor();
  expect(await page.getByRole("button", { name: "Do not drain it" }).count() === 0, "a node that gives its seat back may have it");
  await page.getByText(`quell fleet drain 1 --url ${server}`, { exact: true }).first().waitFor();
  await inspect(page);
  await page.getByRole("link", { name: "Changes" }).click();
  for (const change of [
    /ada 127.0.0.1 quell fleet drain 1$/,
    /ada 127.0.0.1 quell fleet deregister 2$/,
    /ada 127.0.0.1 quell fleet fence 2 --incarnation /,
    /ada 127.0.0.1 quell fleet drain 2 --undo$/,
    /ada 127.0.0.1 quell fleet rollout --percent 50 --max-refused 60% --max-degraded 70% --window 60s/,
    /ada\S* 127.0.0.1 version 3 of the rules in redis:.* more$/,
    /bob\S* 127.0.0.1 version 2 of the rules in redis:/,
    /the candidate was stopped: 1 changed \(shop.api\)/,
    /a candidate was started: 1 changed \(shop.api\)/,
  ]) await page.getByRole("row", { name: change }).first().waitFor();
  await inspect(page);
  await walk(page);
  await press(page, "Log out");
  await page.waitForURL(`${server}/console/login`);
  await page.goto(`${server}/console/changes`);
  expect(page.url() === `${server}/console/login`, "who has logged out sees", page.url());
  await page.context().close();
  console.log("nodes are drained");
}

// Without scripts: a change is pushed and rolled out step by step, and a drain is undone.
if (part === "forms") {
  const page = await window({ javaScriptEnabled: false });
  const reload = async (path, isRight) => {
    for (const end = Date.now() + PATIENCE; ;) {
      await page.goto(`${server}/console${path}`);
      if (await isRight()) return;
      expect(Date.now() < end, path, await page.locator("main").textContent());
      await page.waitForTimeout(200);
    }
  };
  const says = (text) => async () => await page.getByText(text).count() > 0;
  const press = (name) => page.getByRole("button", { name, exact: true }).click();
  await page.goto(`${server}/console`);
  await page.getByRole("row", { name: /^api / }).getByRole("link").click();
  await page.fill("#rate", "400");
  await press("Show every node's share");
  await page.getByText("api then waits on the page Rollout; nothing else in the rules changes.").waitFor();
  await page.getByRole("link", { name: "Rules", exact: true }).click();
  await page.getByRole("link", { name: "Edit these rules" }).click();
  const text = await page.inputValue("#text");
  await page.fill("#text", text.replace("200/s", "300/s").replace("7/s", "8/s"));
  await press("Check");
  const changes = [/^shop.api: .* 200.s, burst 40 becomes 300.s, burst 40$/, /^shop.mail: .* 7.s, burst 7 becomes 8.s, burst 8$/];
  for (const change of changes) await page.locator("#check li").getByText(change).waitFor();
  await press("Push");
  await page.getByText("Version 2 is in the store.").waitFor();
  await reload("", says("changed rules wait for quell fleet rollout, version 2; quell fleet preview shows them"));
  expect(await page.locator("main p.warn code").allTextContents().then((all) => all.slice(0, 2).join()) === "quell fleet rollout,quell fleet preview", "commands are code");
  await page.getByRole("link", { name: "Put the changed rules into force" }).click();
  await page.getByText("Changed rules wait to be put into force:").waitFor();
  for (const change of changes) await page.locator(".warn li").getByText(change).waitFor();
  await page.getByRole("row", { name: /^node 1 api .* 100 150$/ }).waitFor();
  await page.fill("#node", "node-2");
  await press("Put into force there");
  await page.getByText("Node 2 follows the changed rules.").waitFor();
  await page.getByText("1 node is to follow plan").waitFor();
  await page.fill("#percent", "50");
  await page.fill("#max_refused", "90");
  await page.fill("#window", "1m");
  await press("Put into force on these");
  await page.getByText("50 % of the nodes follow the changed rules.").waitFor();
  await page.getByText("it is taken back by itself above 90 % refused over 60 s").waitFor();
  await press("Take back");
  await page.getByText("No node follows the changed rules any more.").waitFor();
  await reload("", async () => await page.getByRole("row", { name: /^api 200 / }).count() === 1);
  await page.getByRole("link", { name: "Rollout" }).click();
  await press("Put into force on all");
  await page.getByText("All nodes follow the changed rules.").waitFor();
  await reload("", async () => await page.getByRole("row", { name: /^api 300 / }).count() === 1);
  await goOn("a change is rolled out without scripts");
  await reload("", async () => await page.getByRole("row", { name: /^node 2 silent/ }).count() === 1);
  await page.getByRole("link", { name: "node 2", exact: true }).click();
  await press("Drain");
  await page.getByText("It was drained, and was not heard since").waitFor();
  await press("Do not drain it");
  await page.getByText("Node 2 gets its part again.").waitFor();
  expect(await page.getByRole("button", { name: "Drain", exact: true }).count() === 1, "it can be drained again");
  await page.context().close();
  console.log("a drain is undone without scripts");
}

// Hundreds of nodes: a page has a hundred, and one is found.
if (part === "large") {
  const page = await window();
  await page.goto(`${server}/console`);
  await page.getByText("1 to 100 of 250;").waitFor();
  await page.locator("#connection").getByText("Live.", { exact: true }).waitFor();
  await inspect(page);
  console.log("hundreds of nodes are listed");
  await page.getByRole("link", { name: "After" }).click();
  await page.getByText("101 to 200 of 250;").waitFor();
  await page.locator("#connection").getByText("Live.", { exact: true }).waitFor();
  await hears(page, 2);
  await page.getByText("101 to 200 of 250;").waitFor();
  await page.getByRole("link", { name: "Before" }).click();
  await page.getByText("1 to 100 of 250;").waitFor();
  await page.fill("#find", "node-177");
  await page.keyboard.press("Enter");
  await page.getByText("1 to 1 of 1 that are like that, of 250;").waitFor();
  await page.getByRole("link", { name: "node 177", exact: true }).click();
  await page.getByRole("heading", { name: "Node 177" }).waitFor();
  await inspect(page);
  await page.fill("#weight", "3");
  await page.getByRole("button", { name: "Show every node's share" }).click();
  await page.getByText("250 of 250 shares").waitFor();
  const first = page.getByRole("row").nth(1);
  expect((await first.textContent()).includes("node 177"), await first.textContent());
  await page.context().close();
  console.log("a change is shown for all of them");
}

// A page that is open while its coordinator comes back says so, and goes on with what happens then.
if (part === "restarted") {
  const page = await window();
  await page.goto(`${server}/console`);
  const status = page.locator("#connection");
  await status.getByText("Live.", { exact: true }).waitFor();
  for (const weight of [4, 5]) {
    console.log("a page is open");
    await status.getByText("The connection to the server is lost; trying again.").waitFor();
    console.log("the page says that the connection is lost");
    await status.getByText("Connected again.").waitFor();
    console.log("and that it is back");
    await page.getByRole("row", { name: new RegExp(`^node 1 active ${weight} `) }).waitFor();
  }
  await page.context().close();
}
if (!browser.isConnected()) fail("the browser is gone");
await browser.close();
