//! A rolling restart under load: nginx spreads calls of `ab` over two servers, over connections that
//! stay open, and does not ask again what it has sent.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clients::ab;
use crate::files::{Folder, window_rules};
use crate::gateways::Gateway;
use crate::process::run;
use crate::server::{Server, lasting_port};

/// Calls of one run of `ab`, of which there are as many as the restarts take.
const CALLS: &str = "3000";

#[test]
fn a_rolling_restart_loses_no_call() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "1000000000/day"));
    let body = folder.write("body.json", r#"{"domain":"shop","entries":{"user":"ann"}}"#);
    let ports = [lasting_port(), lasting_port()];
    let start = |port| Server::start_on(port, 0, &["--rules", &rules]);
    let mut servers = ports.map(start);
    let [one, other] = ports;
    let site = format!(
        "upstream quell {{
            server 127.0.0.1:{one} max_fails=0;
            server 127.0.0.1:{other} max_fails=0;
            keepalive 8;
        }}
        server {{
            listen 80;
            location / {{
                proxy_pass http://quell;
                proxy_http_version 1.1;
                proxy_set_header Connection \"\";
                proxy_set_header Host localhost;
            }}
        }}"
    );
    let gateway = Gateway::nginx(&site, &[]);
    let url = format!("http://127.0.0.1:{}/v1/acquire", gateway.port);
    let words = [
        "-k",
        "-q",
        "-c",
        "8",
        "-n",
        CALLS,
        "-T",
        "application/json",
        "-p",
        &body,
        &url,
    ];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut reports = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                reports.push(run(ab().args(words)).expect_success());
            }
            reports
        });
        for (server, port) in servers.iter_mut().zip(ports) {
            server.signal("TERM");
            let status = server.wait();
            assert!(status.success(), "{status:?}\n{}", server.log());
            *server = start(port);
        }
        is_over.store(true, Ordering::Relaxed);
        let reports = load.join().unwrap();
        assert!(!reports.is_empty());
        for report in reports {
            let complete = format!("Complete requests:      {CALLS}\n");
            assert!(report.contains(&complete), "{report}");
            assert!(report.contains("Failed requests:        0\n"), "{report}");
            assert!(!report.contains("Non-2xx"), "{report}");
        }
    });
    // The servers were under load again.
    for server in servers {
        assert!(server.metric("quell_queries_total{domain=\"shop\",outcome=\"allow\"}") > Some(0));
        server.stop();
    }
}
