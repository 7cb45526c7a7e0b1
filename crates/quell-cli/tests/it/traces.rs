//! Traces: the variables of OpenTelemetry, and TLS to the collector. What a span says is tested in
//! `crates/quell-server/tests/it/traces.rs`.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use quell_testkit::port::free_port;

use crate::clients::redis_cli;
use crate::files::Folder;
use crate::process::{quell, run, until};
use crate::server::Server;
use crate::tls::certificate;

/// A server with these variables and arguments, which has refused a call.
fn refusing(variables: &[(&str, &str)], arguments: &[&str]) -> Server {
    let mut command = quell(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    let server = Server::spawn(command.args(arguments).envs(variables.iter().copied()));
    for _ in 0..2 {
        run(redis_cli(server.resp).args(["CL.THROTTLE", "k", "0", "1", "60"])).expect_success();
    }
    server
}

/// Reads all that comes.
fn follow(mut from: impl Read + Send + 'static) -> Arc<Mutex<Vec<u8>>> {
    let read = Arc::<Mutex<Vec<u8>>>::default();
    let all = Arc::clone(&read);
    thread::spawn(move || {
        let mut piece = [0; 4_096];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            all.lock().unwrap().extend_from_slice(&piece[..count]);
        }
    });
    read
}

/// Waits until the collector has read this text.
fn until_read(read: &Mutex<Vec<u8>>, text: &str) {
    until(text, || {
        let all = read.lock().unwrap();
        let mut windows = all.windows(text.len());
        windows
            .any(|window| window == text.as_bytes())
            .then_some(())
    });
}

/// A collector behind TLS, which shows what it reads and answers nothing.
struct TlsCollector {
    child: Child,
    read: Arc<Mutex<Vec<u8>>>,
    url: String,
    certificate: String,
}

impl TlsCollector {
    fn start(folder: &Folder) -> Self {
        let (key, certificate) = certificate(folder);
        let port = free_port().to_string();
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-alpn", "h2", "-accept", &port]);
        command.args(["-key", &key, "-cert", &certificate]);
        // Its input stays open: it would end with it.
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.stderr(Stdio::null()).spawn().unwrap();
        Self {
            read: follow(child.stdout.take().unwrap()),
            child,
            url: format!("https://localhost:{port}"),
            certificate,
        }
    }
}

impl Drop for TlsCollector {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn spans_go_over_tls_to_a_collector_that_the_system_trusts() {
    let (folder, other) = (Folder::new(), Folder::new());
    let collector = TlsCollector::start(&folder);
    let endpoint = ["--otlp-endpoint", &collector.url];
    let (_, stranger) = certificate(&other);
    let server = refusing(&[("SSL_CERT_FILE", &stranger)], &endpoint);
    until("nothing is sent to a stranger", || {
        server
            .metric("quell_spans_dropped_total")
            .filter(|dropped| *dropped == 1)
    });
    assert!(collector.read.lock().unwrap().is_empty());
    server.stop();

    let variables = [
        ("SSL_CERT_FILE", &*collector.certificate),
        ("OTEL_SERVICE_NAME", "checkout-limiter"),
    ];
    let server = refusing(&variables, &endpoint);
    until_read(&collector.read, "cl.throttle");
    until_read(&collector.read, "checkout-limiter");
    server.stop();
}
