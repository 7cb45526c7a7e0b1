//! A rolling restart under load: no call is lost. In one test nginx spreads calls of `ab` over two
//! servers, over connections that stay open, and does not repeat a call that it has sent. In the other,
//! each call comes over a connection of its own, to a server that was ready when a balancer last looked.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use quell_testkit::port::free_port;

use crate::clients::ab;
use crate::files::{Folder, window_rules};
use crate::gateways::Gateway;
use crate::process::{PATIENCE, pace, run, until};
use crate::server::Server;

/// Calls of one run of `ab`; it runs again and again until both servers were restarted.
const CALLS: &str = "3000";

#[test]
fn a_rolling_restart_loses_no_call() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "1000000000/day"));
    let body = folder.write("body.json", r#"{"domain":"shop","entries":{"user":"ann"}}"#);
    let ports = [free_port(), free_port()];
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
    thread::scope(|scope| {
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
            assert_whole(&report, &gateway);
        }
    });
    // The servers were under load again.
    for server in servers {
        assert!(server.metric("quell_queries_total{domain=\"shop\",outcome=\"allow\"}") > Some(0));
        server.stop();
    }
}

fn assert_whole(report: &str, gateway: &Gateway) {
    let complete = format!("Complete requests:      {CALLS}\n");
    let is_whole = report.contains(&complete) && report.contains("Failed requests:        0\n");
    let is_whole = is_whole && !report.contains("Non-2xx");
    assert!(is_whole, "{report}\n{}", gateway.log());
}

/// Sends a request on a connection of its own, and reads the status of the answer.
fn status(port: u16, request: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.ok_or_else(|| io::Error::other(format!("no answer: {answer:?}")))
}

fn is_ready(port: u16) -> bool {
    let look = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    status(port, look).is_ok_and(|status| status == 200)
}

#[test]
fn a_rolling_restart_loses_no_call_with_a_connection_of_its_own() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "1000000000/day"));
    let ports = [free_port(), free_port()];
    let start = |port| Server::start_on(port, 0, &["--rules", &rules]);
    let mut servers = ports.map(start);
    let ready = ports.map(|_| AtomicBool::new(true));
    let is_over = AtomicBool::new(false);
    let body = r#"{"domain":"shop","entries":{"user":"ann"}}"#;
    let call = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for (port, ready) in ports.iter().zip(&ready) {
                    ready.store(is_ready(*port), Ordering::Relaxed);
                }
                pace();
            }
        });
        let load = scope.spawn(|| {
            let (mut asked, mut lost) = (0, Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                for (port, ready) in ports.iter().zip(&ready) {
                    if !ready.load(Ordering::Relaxed) {
                        continue;
                    }
                    asked += 1;
                    match status(*port, &call) {
                        Ok(200) => {}
                        other => lost.push(other),
                    }
                    // So that there are moments in which no connection is open.
                    pace();
                }
            }
            (asked, lost)
        });
        for ((server, port), ready) in servers.iter_mut().zip(ports).zip(&ready) {
            server.signal("TERM");
            let status = server.wait();
            assert!(status.success(), "{status:?}\n{}", server.log());
            *server = start(port);
            until("the balancer sees it", || {
                ready.load(Ordering::Relaxed).then_some(())
            });
        }
        is_over.store(true, Ordering::Relaxed);
        let (asked, lost) = load.join().unwrap();
        assert!(
            asked > 0 && lost.is_empty(),
            "{} of {asked}: {lost:?}",
            lost.len()
        );
    });
}
