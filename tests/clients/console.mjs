// What a person does with the console in a browser. The arguments are a part of it and the port of its server:
// one where people `log in`, one with rules in a `store`, one with `many` of them, and one that is restarted while
// what is `live` is shown.

import { PATIENCE, browser, expect, hears, inspect, keepCharts, keepsFocus, press, servers, tabTo, window } from "./browser.mjs";

const PASSWORD = "four words of theirs";
const [part, port] = process.argv.slice(2);
const [server] = servers(port);

async function logIn(page, name) {
  await page.goto(`${server}/console`);
  await page.fill("[name=name]", name);
  await page.fill("[name=password]", PASSWORD);
  await page.click("main button");
  await page.waitForURL(`${server}/console`);
}

// Login and logout by keyboard alone.
if (part === "log in") {
  const page = await window();
  await page.goto(`${server}/console`);
  expect(page.url() === `${server}/console/login`, page.url());
  await inspect(page);
  await tabTo(page, "name");
  await page.keyboard.type("ada");
  await tabTo(page, "password");
  await page.keyboard.type("wrong");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").getByText("no user has this name and password").waitFor();
  await inspect(page);
  await tabTo(page, "password");
  await page.keyboard.type(PASSWORD);
  await page.keyboard.press("Enter");
  await page.waitForURL(`${server}/console`);
  await inspect(page);
  await page.reload();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  expect(await page.locator("#main:focus").count() === 1, "the first link does not skip to the content");
  await press(page, "Log out");
  // The live part may have noticed it first, and loads the page again, with its fragment: one of two navigations is
  // aborted then, and where the page is in the end counts.
  const isOut = () => new URL(page.url()).pathname === "/console/login";
  for (const end = Date.now() + PATIENCE; !isOut(); await page.waitForTimeout(50)) expect(Date.now() < end, page.url());
  await page.context().close();
  console.log("logged in and out by keyboard");
}

// A key is looked up and banned, by whoever may.
if (part === "log in") {
  const page = await window();
  await logIn(page, "ada");
  await page.getByRole("link", { name: "Keys" }).click();
  await inspect(page);
  await page.fill("[name=entries]", "path=/login\nuser=mallory");
  await page.getByRole("button", { name: "Look up" }).click();
  await page.getByText("allowed; 2 remain by login").waitFor();
  await inspect(page);
  await page.selectOption("#rule", "login");
  // Enter in a field does nothing of what the buttons do, and what was used is not forgotten by one slip.
  const heading = page.getByRole("heading", { name: "Change" });
  await page.locator("#reason").press("Enter");
  page.removeAllListeners("dialog");
  page.once("dialog", (dialog) => dialog.dismiss());
  await page.getByRole("button", { name: "Forgive its use" }).click();
  expect(await heading.isVisible() && await page.getByRole("status").count() === 0, "a key is changed by a slip");
  page.on("dialog", (dialog) => dialog.accept());
  const change = async (button, done, command) => {
    await tabTo(page, "reason");
    await page.keyboard.type("tries passwords");
    await press(page, button);
    await page.getByText(done).waitFor();
    await page.getByText(command).waitFor();
    await inspect(page);
    await press(page, "Copy");
    await page.getByRole("button", { name: "Copied" }).waitFor();
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    expect(copied === await page.locator("[data-copy]").first().textContent(), copied);
  };
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  const key = "--domain shop --rule login -e path=/login -e user=mallory";
  const why = "--reason 'tries passwords'";
  await change("Forgive its use", "Forgiven: 0 keys.", `quell bans forgive ${key} ${why}`);
  await change("Ban", "Banned: 1 key.", `quell bans set ${key} --for 10m ${why}`);
  await change("Lift the ban", "Bans lifted: 1 key.", `quell bans lift ${key} ${why}`);
  await change("Ban", "Banned: 1 key.", `quell bans set ${key} --for 10m ${why}`);
  await page.goto(`${server}/console/rules/edit?store=9`);
  await page.getByText("there is no such store of rules").waitFor();
  await inspect(page);
  await page.getByRole("link", { name: "To the overview" }).click();
  await page.getByRole("row", { name: /^shop login user=mallory \S+ tries passwords$/ }).getByRole("link").click();
  await page.getByRole("heading", { name: "Change" }).waitFor();
  expect(await page.inputValue("#rule") === "login", "the link of a ban leads to", page.url());
  await page.getByText("a key of login, and no whole call: no entry `path`").waitFor();
  await page.getByRole("row", { name: /^login sliding_log 2.min.* user=mallory denies for \S+, banned: tries passwords none on record/ }).waitFor();
  await inspect(page);
  // What is refused loses nothing that was typed.
  await page.fill("#for", "soon");
  await page.fill("#reason", "tries <passwords>");
  await page.getByRole("button", { name: "Ban", exact: true }).click();
  await page.getByRole("alert").getByText("soon").waitFor();
  const typed = await Promise.all(["#entries", "#rule", "#for", "#reason"].map((field) => page.inputValue(field)));
  expect(typed.join() === "user=mallory,login,soon,tries <passwords>", typed);
  await page.getByRole("button", { name: "Lift the ban" }).click();
  await page.getByText("Bans lifted: 1 key.").waitFor();
  await page.getByRole("row", { name: /^login .* user=mallory 2 of 2 remain none on record/ }).waitFor();
  expect(await page.inputValue("#reason") === "", "a reason stays");
  await page.fill("#for", "10m");
  await page.getByRole("button", { name: "Ban", exact: true }).click();
  await page.getByText("Banned: 1 key.").waitFor();
  // Whose session is over loses nothing that was typed.
  await page.fill("#for", "20m");
  await page.fill("#reason", "goes on");
  await page.context().clearCookies();
  await page.getByRole("button", { name: "Ban", exact: true }).click();
  await page.getByRole("alert").getByText("your session is over").waitFor();
  await inspect(page);
  await page.fill("[name=name]", "ada");
  await page.fill("[name=password]", "wrong");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").getByText("no user has this name and password").waitFor();
  await page.fill("[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
  await page.getByText("nothing was done yet").waitFor();
  await inspect(page);
  await press(page, "Send it again");
  await page.getByText("Banned: 1 key.").waitFor();
  await page.getByText("quell bans set --domain shop --rule login -e user=mallory --for 20m --reason 'goes on'").waitFor();
  // A chart whose session is over stays as it is.
  await page.getByRole("link", { name: "Overview" }).click();
  await page.locator("#connection").getByText("Live.", { exact: true }).waitFor();
  await page.context().clearCookies();
  const refused = page.waitForEvent("requestfailed", (request) => request.url().includes("/console/history.json"));
  await page.selectOption("#span", "hour");
  await refused;
  await page.context().close();
  console.log("a key is looked up and banned");
}

// Without scripts a page says what was true when it was loaded.
if (part === "log in") {
  const page = await window({ javaScriptEnabled: false });
  await logIn(page, "rea");
  await page.getByText("As of when the page was loaded.").waitFor();
  await page.getByRole("row", { name: "shop login user=mallory" }).waitFor();
  await page.context().close();
  const ada = await window({ javaScriptEnabled: false });
  await logIn(ada, "ada");
  await ada.getByRole("row", { name: "shop login user=mallory" }).getByRole("link").click();
  await ada.getByRole("button", { name: "Lift the ban" }).click();
  await ada.getByText("Bans lifted: 1 key.").waitFor();
  await ada.getByRole("button", { name: "Log out" }).click();
  await ada.waitForURL(`${server}/console/login`);
  await ada.context().close();
}

// Rules in a store: two people edit at once.
if (part === "store") {
  const [ann, bob] = [await window(), await window()];
  await ann.goto(`${server}/console/rules`);
  await inspect(ann);
  await ann.getByText("# a lot").first().waitFor();
  await ann.getByRole("link", { name: "Edit these rules" }).click();
  await bob.goto(ann.url());
  const text = await ann.inputValue("#text");
  await ann.fill("#text", text.replace("5/min", "five/min"));
  await ann.getByRole("heading", { name: "Mistakes" }).waitFor();
  await inspect(ann);
  await ann.fill("#text", text.replace("5/min", "9/min"));
  await ann.getByText(/shop.login: fixed_window 5.min .*becomes 9.min/).waitFor();
  await inspect(ann);
  await press(ann, "Tests of these rules");
  await ann.getByText("They are kept with the rules").waitFor();
  await inspect(ann);
  const tested = (allowed) => `${text.replace("5/min", "9/min")}---
tests:
  - name: nine a minute
    steps:
      - { at: 0s, entries: { user: ann }, repeat: 10, expect: { allowed: ${allowed} } }
`;
  await ann.fill("#text", tested(8));
  await ann.getByText("Some are not as expected").waitFor();
  await ann.fill("#text", tested(9));
  await ann.getByText("All are as expected").waitFor();
  await press(ann, "Check");
  await ann.getByText("All are as expected").waitFor();
  await inspect(ann);
  console.log("rules are tested");
  await ann.fill("#note", "more people");
  await press(ann, "Push");
  await ann.getByText("Version 2 is in the store.").waitFor();
  await inspect(ann);
  await ann.getByRole("link", { name: "To the rules" }).click();
  await ann.getByRole("row", { name: /^2 .* the console 1 changed .*shop.login.* more people version 2$/ }).waitFor();
  await bob.fill("#text", text.replace("100/s", "200/s"));
  await bob.getByText(/shop.login: fixed_window 9.min .*becomes 5.min/).waitFor();
  await bob.getByRole("button", { name: "Push" }).click();
  await bob.getByText("Somebody came first: version 2 by the console (1 changed (shop/login))").waitFor();
  await bob.goto(`${server}/console/rules/edit?store=0`);
  expect((await bob.inputValue("#text")) === tested(9), "tests are kept with the rules");
  await bob.goto(`${server}/console/rules`);
  await bob.getByRole("link", { name: "version 1" }).click();
  await bob.getByText(/quell rules rollback --store redis:.* 1$/).waitFor();
  await inspect(bob);
  await bob.getByText(/shop.login: fixed_window 9.min .*becomes 5.min/).waitFor();
  await bob.getByRole("button", { name: "Push" }).click();
  await bob.getByText("Version 3 is in the store.").waitFor();
  expect((await bob.inputValue("#text")) === text, "comments are kept");
  await ann.context().close();
  await bob.context().close();
  console.log("rules are edited by two people and brought back");
}

// A candidate runs in shadow beside the rules, is put into force, and another is stopped.
if (part === "store") {
  const page = await window();
  const ask = () => fetch(`${server}/v1/acquire`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ domain: "shop", entries: { user: "mallory" } }),
  });
  await page.goto(`${server}/console/rules/edit?store=0`);
  const text = await page.inputValue("#text");
  await page.fill("#text", text.replace("5/min", "1/min"));
  await page.getByRole("button", { name: "Run in shadow" }).click();
  await page.waitForURL(`${server}/console/rules/candidate`);
  await page.getByText("1 changed (shop/login)").waitFor();
  await inspect(page);
  for (let call = 0; call < 4; call += 1) expect((await (await ask()).json()).allowed, "a candidate refused");
  await page.getByRole("row", { name: "shop login user=mallory 3" }).waitFor();
  await inspect(page);
  console.log("a candidate runs in shadow");
  await page.getByRole("link", { name: "user=mallory" }).click();
  await page.getByText("allowed; 1 remain by login").waitFor();
  await page.getByRole("link", { name: "Rules" }).click();
  await page.getByRole("link", { name: "run in shadow beside these" }).click();
  await press(page, "Put it into force");
  await page.getByText("Version 4 is in the store.").waitFor();
  await page.goto(`${server}/console/rules/candidate`);
  await page.getByText("No candidate runs.").waitFor();
  await page.getByRole("link", { name: "rules", exact: true }).click();
  await page.getByRole("link", { name: "Edit these rules" }).click();
  const edited = text.replace("5/min", "2/min");
  await page.fill("#text", edited);
  await page.fill("#note", "fewer");
  await page.getByRole("button", { name: "Run in shadow" }).click();
  await page.getByText("quell candidate stop").waitFor();
  await press(page, "Edit it");
  await page.getByText(/shop.login: fixed_window 1.min .*becomes 2.min/).waitFor();
  const [kept, note] = [await page.inputValue("#text"), await page.inputValue("#note")];
  expect(kept === edited && note === "fewer", kept, note);
  await page.fill("#note", "fewer people");
  await page.getByRole("button", { name: "Run in shadow" }).click();
  await page.getByText(": fewer people. They refuse nobody.").waitFor();
  await page.getByRole("link", { name: "To the rules" }).click();
  await page.getByRole("link", { name: "run in shadow beside these" }).click();
  await page.getByRole("button", { name: "Stop it" }).click();
  await page.getByText("No candidate runs.").waitFor();
  await inspect(page);
  await page.goto(`${server}/console`);
  await page.getByText("a candidate was started: 1 changed (shop/login)").first().waitFor();
  await page.context().close();
  console.log("a candidate is put into force, and one is stopped");
}

// Ten thousand rules are read, edited and pushed.
if (part === "many") {
  const page = await window();
  await page.goto(`${server}/console/rules`);
  await page.getByText("name: rule-9999").first().waitFor();
  await inspect(page);
  await page.getByRole("link", { name: "Edit these rules" }).click();
  await page.locator("#text").evaluate((text) => {
    const before = "path: /7777 }, rate: ";
    const at = text.value.indexOf(before) + before.length;
    text.focus();
    text.setSelectionRange(at, at + 1);
  });
  await page.keyboard.type("9");
  await page.getByText("shop/rule-7777: token_bucket 5/s, burst 5 becomes 9/s, burst 9").waitFor();
  await inspect(page);
  await page.getByRole("button", { name: "Push" }).click();
  await page.getByText("Version 2 is in the store.").waitFor();
  await page.goto(`${server}/console/keys?domain=shop&entries=user%3Dann`);
  await page.getByText("Rules that do not match, and why").click();
  await page.getByText("rule-7: ").waitFor();
  await inspect(page);
  await page.context().close();
  console.log("ten thousand rules are edited");
}

// Waits until the chart of decisions has steps of so many seconds, and shows refusals or none.
const shows = (page, step, hasRefusals) => page.waitForFunction(([step, hasRefusals]) => {
  const [[times, , denied], [, half]] = globalThis.charts.map(({ data }) => data);
  const isOf = (seconds) => times.every((at) => at % seconds === 0);
  const isStep = isOf(step) && (step > 1 || !isOf(10));
  return isStep && times.length > 0 && half.length === times.length && denied.some((rate) => rate > 0) === hasRefusals;
}, [step, hasRefusals]);

// What is live.
if (part === "live") {
  const page = await window();
  await page.addInitScript(keepCharts);
  await page.goto(`${server}/console`);
  const status = page.locator("#connection");
  await status.getByText("Live.", { exact: true }).waitFor();
  const post = (path, more) => fetch(`${server}${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ domain: "shop", ...more }),
  });
  const ask = () => post("/v1/acquire", { entries: { path: "/login", user: "<b>eve" } });
  for (let call = 0; call < 4; call += 1) await ask();
  const row = page.getByRole("row", { name: "shop login user=<b>eve 2" });
  await row.waitFor();
  await page.getByRole("term").filter({ hasText: "answered degraded" }).waitFor();
  await page.locator("#rates canvas").waitFor();
  await page.locator("#rates td.u-value, #rates .u-legend").first().waitFor();
  await inspect(page);
  await tabTo(page, "user=<b>eve");
  await keepsFocus(page);
  const key = await page.context().newPage();
  await key.goto(`${server}/console/keys?domain=shop&entries=${encodeURIComponent("path=/login\nuser=<b>eve")}`);
  await key.getByText(/ago, at cost 1: its limit was used up/).waitFor();
  await inspect(key);
  await post("/v1/reserve", { entries: { path: "/login", user: "ann" }, id: "<b>job-3", hold_ms: 3600000 });
  await key.goto(`${server}/console/keys?domain=shop&entries=${encodeURIComponent("path=/login\nuser=ann")}`);
  await key.getByRole("row", { name: "<b>job-3 1 held" }).waitFor();
  await key.getByText("quell holds --domain shop -e path=/login -e user=ann").waitFor();
  await inspect(key);
  await key.close();
  await page.getByRole("button", { name: "Pause" }).click();
  await status.getByText("Paused.").waitFor();
  await ask();
  await hears(page, 3);
  expect(await row.count() === 1, "a page changes while it is paused");
  await page.getByRole("button", { name: "Pause" }).click();
  await status.getByText("Live.", { exact: true }).waitFor();
  // There is a third one, unless the first are so long ago by now that they are not counted any more.
  await page.getByRole("row", { name: /shop login user=<b>eve (?!2\b)\d/ }).waitFor();
  for (const [span, step] of [["hour", 10], ["day", 300], ["minutes", 1]]) {
    await page.selectOption("#span", span);
    await shows(page, step, true);
  }
  const times = await page.evaluate(() => {
    const [{ axes, scales: { x } }] = globalThis.charts;
    return [x.max - x.min, ...axes[0]._values];
  });
  expect(times[0] >= 60 && times.slice(1).every((time) => /^[0-9]{2}:[0-9]{2}:[0-9]{2}Z$/.test(time)), times);
  console.log("refusals are shown as they happen");
  await status.getByText("The connection to the server is lost; trying again.").waitFor();
  console.log("the page says that the connection is lost");
  await status.getByText("Connected again.").waitFor();
  await page.getByText("No refusals in the last").waitFor();
  await shows(page, 1, false);
  for (const [span, step] of [["hour", 10], ["day", 300]]) {
    await page.selectOption("#span", span);
    await shows(page, step, true);
  }
  console.log("and that it is back");
}
await browser.close();
