//! The Koa middleware of `docs/coming-from.md`, run by Node against a server with that page's rules.
//! Koa itself is not needed: a middleware is a function of a context and of the next middleware.

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

#[test]
fn the_koa_middleware_refuses_and_delays() {
    let page = std::fs::read_to_string(of_repository("docs/coming-from.md")).unwrap();
    let (_, block) = page.split_once("```js\n").unwrap();
    let middleware = block.split("```").next().unwrap();
    let folder = Folder::new();
    let script = folder.write("koa.mjs", &format!("{middleware}{DRIVER}"));
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
