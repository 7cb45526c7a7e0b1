//! `ab`: the check at the end of many recipes, a hundred calls a minute and ten too many.

use crate::clients::ab;
use crate::files::{Folder, window_rules};
use crate::process::run;
use crate::server::Server;

#[test]
fn of_110_calls_at_100_a_minute_ten_are_refused() {
    let folder = Folder::new();
    let rules = folder.write("ab.yaml", &window_rules("ab", "100/min"));
    let server = Server::start(&["--rules", &rules]);
    let url = server.url("/v1/authorize?domain=ab");
    let report = run(ab().args(["-n", "110", "-c", "10", &url])).expect_success();
    assert!(report.contains("Complete requests:      110"), "{report}");
    assert!(report.contains("Non-2xx responses:      10\n"), "{report}");
    let decisions = |outcome: &str| {
        let labels = format!("domain=\"ab\",rule=\"per-user\",outcome=\"{outcome}\"");
        server.metric(&format!("quell_decisions_total{{{labels}}}"))
    };
    assert_eq!(decisions("allow"), Some(100));
    assert_eq!(decisions("deny"), Some(10));
    server.stop();
}
