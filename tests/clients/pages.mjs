// Pages that people seldom see, many windows, and the keyboard alone. The arguments are a part of it and the port of
// the server: `plain` has rules in a file, and nobody logs in; `closed` wants a login that nobody has a password for;
// one whose store of rules was `damaged`, `emptied` or is `gone`; a coordinator that is a `follower`, and then the port
// of its leader; and one with a store for the `keyboard`.

import { browser, expect, hears, inspect, press, servers, tabTo, walk, window } from "./browser.mjs";

const [part, ...ports] = process.argv.slice(2);
const [server, leader] = servers(...ports);

const LONG = "x".repeat(400);

// Rules in files, keys, and addresses without a page.
if (part === "plain") {
  const page = await window();
  for (const path of ["/rules", "/keys", "/keys?domain=shop&entries=path%3D%2Flogin%0Auser%3Dann", "/nothing", "/rules/candidate", "/overrides", "/overrides/key?domain=shop&rule=login&entries=user%3Dann"]) {
    await page.goto(`${server}/console${path}`);
    await inspect(page);
    await walk(page);
  }
  await page.goto(`${server}/console/keys?domain=shop&entries=${LONG}`);
  await page.getByRole("alert").getByText("is not an entry").waitFor();
  await inspect(page);
  await page.goto(`${server}/console/keys?domain=shop&entries=user%3D${LONG}`);
  await page.getByText(/^quell check --peek --domain shop -e user=x/).waitFor();
  await inspect(page);
  await page.getByRole("link", { name: "Overview" }).click();
  await page.getByRole("button", { name: "Pause" }).click();
  await walk(page);
  await page.context().close();
  console.log("pages are walked");
}

// Windows that nobody sees leave their connection to others, and come back by themselves.
if (part === "plain") {
  const windows = [await window()];
  while (windows.length < 8) windows.push(await windows[0].context().newPage());
  const show = (page, isHidden) => page.evaluate((isHidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
    document.dispatchEvent(new Event("visibilitychange"));
  }, isHidden);
  for (const page of windows) {
    await page.goto(`${server}/console`);
    await page.locator("#connection").getByText("Live.", { exact: true }).waitFor();
    await show(page, true);
  }
  await fetch(`${server}/v1/acquire`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ domain: "shop", entries: { path: "/login", user: "ann" }, cost: 9 }),
  });
  const row = windows[0].getByRole("row", { name: "shop login user=ann" });
  expect(await row.count() === 0, "a page that nobody sees changes");
  await show(windows[0], false);
  await row.waitFor();
  await hears(windows[0], 2);
  await windows[0].context().close();
  console.log("windows that nobody sees are quiet");

  // Too many of them are told so.
  const streams = [];
  const reader = async () => {
    for (;;) {
      const answer = await fetch(`${server}/console/live`);
      if (answer.ok) return answer.body.getReader();
      // The windows before are only being closed.
      await answer.body.cancel();
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  };
  while (streams.length < 16) streams.push(await reader());
  const page = await window();
  await page.goto(`${server}/console`);
  await page.getByText("Too many pages are kept up to date: close some.").waitFor();
  await inspect(page);
  for (const stream of streams) await stream.cancel();
  await page.getByText("Connected again.").waitFor();
  await page.context().close();
  console.log("too many windows are told so");

  // Without scripts nothing is shown that needs them, and charts are in numbers.
  const plain = await window({ javaScriptEnabled: false });
  await plain.goto(`${server}/console`);
  for (const dead of ["#span", "#pause"]) expect(!await plain.locator(dead).isVisible(), dead, "is of no use");
  await plain.getByRole("row", { name: /^5 minutes / }).waitFor();
  await plain.context().close();
  console.log("pages are read without scripts");
}

// A login that nobody can do yet.
if (part === "closed") {
  const page = await window();
  await page.goto(`${server}/console`);
  await page.getByText("Nobody has a password on this server yet.").waitFor();
  await inspect(page);
  await walk(page);
  await page.context().close();
  console.log("a login without passwords is seen");
}

// A store whose newest version somebody changed by hand, one that somebody emptied, and one that is gone.
if (["damaged", "emptied", "gone"].includes(part)) {
  const page = await window();
  await page.goto(`${server}/console/rules`);
  await page.getByRole("alert").waitFor();
  await inspect(page);
  await walk(page);
  await page.goto(`${server}/console/rules/edit?store=0`);
  await page.getByRole("alert").waitFor();
  await inspect(page);
  await walk(page);
  await page.context().close();
  console.log("a store is seen");
}

// A coordinator that does not lead.
if (part === "follower") {
  const page = await window();
  for (const path of ["", "/rules", "/rollout", "/changes", "/try", "/register", "/node/1"]) {
    await page.goto(`${server}/console${path}`);
    const pause = page.getByRole("button", { name: "Pause" });
    if (await pause.count() > 0) await pause.click();
    await inspect(page);
    await walk(page);
  }
  // A slow disk may have made it the leader meanwhile, and the other one the follower.
  const seen = [];
  for (const one of [server, leader, server, leader]) {
    await page.goto(`${one}/console`);
    seen.push(await page.getByText("Only the leader knows the nodes").isVisible());
  }
  expect(seen.includes(true), "none follows");
  await page.context().close();
  console.log("a follower is seen");
}

// Rules are pushed, and a key is banned and forgiven the ban, by keyboard alone.
if (part === "keyboard") {
  const page = await window();
  const use = async (name) => {
    await press(page, name);
  };
  await page.goto(`${server}/console`);
  await use("Rules");
  await page.getByText("is in force.").waitFor();
  await walk(page);
  await page.goto(page.url());
  await use("Edit these rules");
  await page.locator("#text").waitFor();
  await walk(page);
  await page.goto(page.url());
  await tabTo(page, "text");
  await page.keyboard.press("Control+Home");
  await page.keyboard.type("# by keyboard\n");
  await page.getByText("No rule would change.").waitFor();
  await tabTo(page, "note");
  await page.keyboard.type("a remark");
  await use("Push");
  await page.getByText("Version 2 is in the store.").waitFor();
  await walk(page);
  await page.goto(`${server}/console`);
  await use("Keys");
  await page.locator("#entries").waitFor();
  await tabTo(page, "entries");
  await page.keyboard.type("user=mallory");
  await use("Look up");
  await page.getByText("allowed; ").first().waitFor();
  await walk(page);
  for (const [button, done] of [["Ban", "Banned: 1 key."], ["Lift the ban", "Bans lifted: 1 key."]]) {
    await page.goto(`${server}/console/keys?domain=shop&entries=user%3Dmallory`);
    await tabTo(page, "rule");
    await page.keyboard.type("login");
    await tabTo(page, "reason");
    await page.keyboard.type("tries passwords");
    await use(button);
    await page.getByText(done).waitFor();
  }
  await page.context().close();
  console.log("rules and bans are made by keyboard");
}

await browser.close();
