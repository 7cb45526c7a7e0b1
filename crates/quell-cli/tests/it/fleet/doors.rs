//! Rights to be a node, and to change a fleet, over TLS.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use quell_testkit::certificates::Certificates;
use quell_testkit::port::free_port;

use super::{Coordinator, Node, RULES, SHORT};
use crate::files::Folder;
use crate::process::{Run, quell, run, until};
use crate::server::{Server, tls_flags};

/// The subject of the certificate of member 2.
const MEMBER: &str = "spiffe://example.org/quell/shop/member/2";

/// The file of a new token.
pub(super) fn token(folder: &Folder, name: &str, roles: &str) -> String {
    let credentials = folder.path("credentials.toml");
    let new = quell(&[
        "token",
        "new",
        name,
        "--role",
        roles,
        "--append",
        &credentials,
    ]);
    let token = run(&mut { new }).expect_success();
    folder.write(&format!("{name}.token"), &token)
}

/// A coordinator with TLS and credentials.
pub(super) struct Guarded {
    folder: Folder,
    pub(super) certificates: Certificates,
    rules: String,
    pub(super) url: String,
    pub(super) admin_url: String,
    /// Token files.
    pub(super) nodes: String,
    pub(super) operators: String,
    pub(super) server: Server,
}

impl Guarded {
    pub(super) fn start() -> Self {
        Self::with(true)
    }

    /// With or without `--credentials`.
    fn with(credentials: bool) -> Self {
        let (folder, certificates) = (Folder::new(), Certificates::new());
        certificates.add_client("member", MEMBER);
        let rules = folder.write("shop.yaml", RULES);
        let nodes = token(&folder, "nodes", "node");
        let operators = token(&folder, "operators", "read,admin,metrics");
        let (listen, admin) = (free_port(), free_port());
        let url = format!("https://localhost:{listen}");
        let admin_url = format!("https://localhost:{admin}");
        let mut command = quell(&["fleet", "coordinator", "--fleet-name", "shop"]);
        command
            .args(["--embedded", &folder.path("fleet.db"), "--rules", &rules])
            .args(["--listen", &format!("127.0.0.1:{listen}"), "--url", &url])
            .args(["--admin", &format!("127.0.0.1:{admin}")])
            .args(["--admin-url", &admin_url])
            .args(tls_flags(&certificates))
            .args(["--tls-client-ca", &certificates.path("ca.pem")])
            .args(SHORT);
        if credentials {
            command.args(["--credentials", &folder.path("credentials.toml")]);
        }
        let server = Server::spawn(&mut command);
        Self {
            folder,
            certificates,
            rules,
            url,
            admin_url,
            nodes,
            operators,
            server,
        }
    }

    /// A node that shows what these flags say.
    pub(super) fn node(&self, member: u32, shown: &[&str]) -> Node {
        let authority = self.certificates.path("ca.pem");
        let shown = [&["--fleet-ca", &authority][..], shown].concat();
        Node::with(&self.folder, &self.rules, member, &self.url, &shown)
    }

    /// An operator, perhaps with a token.
    fn fleet(&self, words: &[&str], token: Option<&str>) -> Run {
        let authority = self.certificates.path("ca.pem");
        let place = ["--url", &*self.admin_url, "--ca", &authority];
        let token = token.map(|token| ["--token-file", token]);
        let mut command = quell(&["fleet"]);
        run(command.args(words).args(place).args(token.iter().flatten()))
    }
}

#[test]
fn nodes_show_tokens_or_certificates() {
    let mut guarded = Guarded::start();
    let member = ["member.pem", "member.key"].map(|name| guarded.certificates.path(name));
    let certificate = ["--fleet-cert", &member[0], "--fleet-key", &member[1]];
    let one = guarded.node(1, &["--fleet-token", &guarded.nodes]);
    let two = guarded.node(2, &certificate);
    one.until_it_is("granted");
    two.until_it_is("granted");
    for (node, why) in [
        (
            guarded.node(3, &certificate),
            "this credential is of member 2, and the request of member 3",
        ),
        (
            guarded.node(4, &["--fleet-token", &guarded.operators]),
            "does not have the role `node`",
        ),
        (guarded.node(5, &[]), "no valid token came with this"),
    ] {
        let log = || node.server.as_ref().unwrap().log();
        until(why, || log().contains(why).then_some(()));
        assert_eq!(node.state(), "joining");
    }
    // A token that is withdrawn ends the stream that showed it.
    guarded.folder.write("credentials.toml", "");
    guarded.server.signal("HUP");
    one.until_it_is("static");
    two.until_it_is("granted");
    guarded.server.signal("TERM");
    assert!(guarded.server.wait().success());
}

/// A coordinator that knows nodes by their certificates alone.
#[test]
fn no_token_stands_for_a_certificate() {
    let guarded = Guarded::with(false);
    let member = ["member.pem", "member.key"].map(|name| guarded.certificates.path(name));
    let certificate = ["--fleet-cert", &member[0], "--fleet-key", &member[1]];
    let both = [&certificate[..], &["--fleet-token", &guarded.nodes]].concat();
    guarded.node(2, &both).until_it_is("granted");
    for shown in [&["--fleet-token", &*guarded.nodes][..], &[]] {
        let node = guarded.node(3, shown);
        let log = || node.server.as_ref().unwrap().log();
        let why = "no certificate of a node came with this";
        until(why, || log().contains(why).then_some(()));
        assert_eq!(node.state(), "joining");
    }
}

#[test]
fn operators_show_tokens() {
    let guarded = Guarded::start();
    let read = || guarded.fleet(&["status", "--json"], Some(&guarded.operators));
    until("it leads", || (read().code() == Some(0)).then_some(()));
    let other = guarded.fleet(&["weight", "1", "3"], Some(&guarded.operators));
    assert!(other.stderr.contains("has a seat"), "{other:?}");
    for (token, expected) in [
        (None, "the server wants a token"),
        (Some(&*guarded.nodes), "does not have the role `read`"),
    ] {
        let refused = guarded.fleet(&["weight", "1", "4"], token);
        assert_eq!(refused.code(), Some(3), "{refused:?}");
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
}

/// Whoever answers as a coordinator names a leader; that is no reason to show it the operator's token.
#[test]
fn a_token_is_not_shown_to_a_leader_that_was_not_named() {
    let folder = Folder::new();
    let token = folder.write("ops.token", "quell_secret");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stranger = "http://198.51.100.1:7601";
    let status = format!(
        r#"{{"leads": false, "leader": {{"url": "http://198.51.100.1:7600", "admin": "{stranger}"}},
        "awaits_nodes": false, "grants": false, "waits": false, "applied": 0, "limits": [],
        "answered_window_s": 30, "nodes": [], "rejected_joins": []}}"#
    );
    let answering = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4_096];
            assert!(stream.read(&mut head).unwrap() > 0);
            let length = status.len();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let answer = format!("{head}content-length: {length}\r\n\r\n{status}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let fleet = |words: &[&str]| {
        let mut command = quell(&["fleet"]);
        run(command
            .args(words)
            .args(["--url", &url, "--token-file", &token]))
    };
    let told = format!("the leader is {stranger}, and your token is shown in the clear only to");
    let shown = fleet(&["status"]);
    assert_eq!(shown.code(), Some(1), "{shown:?}");
    assert!(shown.stdout.contains(&told), "{shown:?}");
    let refused = fleet(&["weight", "1", "2"]);
    assert_eq!(refused.code(), Some(3), "{refused:?}");
    assert!(refused.stderr.contains(&told), "{refused:?}");
    answering.join().unwrap();
}

/// A node tries one after the other, for as long as none answers.
#[test]
fn a_dead_coordinator_is_not_warned_of_at_each_try() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let dead = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
    let node = Node::with(&folder, &rules, 1, &dead.each_ref().map(url).join(","), &[]);
    for _ in 0..4 {
        for listener in &dead {
            drop(listener.accept().unwrap());
        }
    }
    let log = node.server.as_ref().unwrap().log();
    let warnings = log.lines().filter_map(|line| line.split_once("WARN"));
    let mut warnings: Vec<&str> = warnings.map(|(_, said)| said).collect();
    warnings.sort_unstable();
    for listener in &dead {
        let address = listener.local_addr().unwrap().to_string();
        assert!(warnings.iter().any(|said| said.contains(&address)), "{log}");
    }
    let said = warnings.len();
    warnings.dedup();
    assert_eq!(warnings.len(), said, "{log}");
}

/// A page of a stranger, in the browser of an operator, asks by a name of its own.
#[test]
fn a_host_name_that_a_stranger_may_own_is_refused() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &[]);
    let curl = |host: &str| {
        let mut curl = crate::clients::curl();
        let host = format!("Host: {host}");
        curl.args(["--silent", "--header", &host]);
        run(curl.arg(format!("{}/v1/fleet", coordinator.admin_url()))).expect_success()
    };
    assert!(curl("rebound.example.org").contains("start it with --allow-host"));
    assert!(curl("localhost:1").contains("\"leads\":"));
}
