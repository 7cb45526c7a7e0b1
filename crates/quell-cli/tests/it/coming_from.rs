//! The middlewares of `docs/coming-from.md`, run by Node against a server with that page's rules.
//! Koa and Express are not needed: a middleware is a function of what they pass to it.

use crate::clients::node;
use crate::files::{Folder, of_repository};
use crate::process::run;
use crate::server::Server;

/// Calls a path ten times in a row; prints the statuses, the longest wait in an answer, and how long
/// it took.
const DRIVER: &str = r#"
const [url, path] = process.argv.slice(2);
const middleware = quell("koa", url);
const begun = performance.now();
const statuses = [];
let longest = 0;
for (let call = 0; call < 10; call += 1) {
  const ctx = {
    method: "GET", path, ip: "10.0.0.1", status: 404,
    set: (name, value) => { longest = Math.max(longest, Number(value)); },
  };
  await middleware(ctx, async () => { ctx.status = 200; });
  statuses.push(ctx.status);
}
console.log(statuses.join(" "));
console.log(longest);
console.log(Math.ceil(performance.now() - begun));
"#;

/// Asks for a page 102 times; prints how many passed, what the last answer was, and whether the application is told
/// when nobody answers.
const EXPRESS_DRIVER: &str = r#"
const middleware = quell("express", process.argv[2]);
let passed = 0, last = {};
for (let call = 0; call < 102; call += 1) {
  last = {};
  const res = {
    set: (name, value) => { last[name] = Number(value); },
    status: (status) => { last.status = status; return res; },
    send: () => {},
  };
  await middleware({ method: "GET", path: "/", ip: "10.0.0.1" }, res, () => { passed += 1; });
}
let told;
const alone = quell("express", "http://127.0.0.1:1");
await alone({ method: "GET", path: "/", ip: "10.0.0.1" }, {}, (error) => { told = error instanceof Error; });
console.log(passed, last.status, last["Retry-After"] > 800 && last["Retry-After"] <= 900, told);
"#;

/// The JavaScript below a heading of the page.
fn middleware(heading: &str) -> String {
    let page = std::fs::read_to_string(of_repository("docs/coming-from.md")).unwrap();
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, block) = section.split_once("```js\n").unwrap();
    block.split("```").next().unwrap().to_owned()
}

#[test]
fn the_express_middleware_refuses() {
    let folder = Folder::new();
    let script = folder.write(
        "express.mjs",
        &(middleware("express-rate-limit") + EXPRESS_DRIVER),
    );
    let server = Server::start(&["--rules", &of_repository("examples/coming-from.yaml")]);
    let printed = run(node().args([&script, &server.url("")])).expect_success();
    assert_eq!(printed, "100 429 true true\n");
    server.stop();
}

#[test]
fn the_koa_middleware_refuses_and_delays() {
    let folder = Folder::new();
    let script = folder.write("koa.mjs", &(middleware("Koa middlewares") + DRIVER));
    let server = Server::start(&["--rules", &of_repository("examples/coming-from.yaml")]);
    let ten_calls = |path: &str| {
        let text = run(node().args([&script, &server.url(""), path])).expect_success();
        let mut lines = text.lines().map(str::to_owned);
        let statuses = lines.next().unwrap();
        let numbers: Vec<u64> = lines.map(|line| line.parse().unwrap()).collect();
        (statuses, numbers[0], numbers[1])
    };
    let (statuses, wait, _) = ten_calls("/fixed");
    assert_eq!(statuses, "200 200 200 200 200 429 429 429 429 429");
    assert!((1..=60).contains(&wait), "{wait}");
    let (statuses, _, took) = ten_calls("/leaky");
    assert_eq!(statuses, ["200"; 10].join(" "));
    // Node's timers may fire a millisecond early.
    assert!(took >= 9 * 49, "ten calls, 50 ms apart, in {took} ms");
    server.stop();
}
