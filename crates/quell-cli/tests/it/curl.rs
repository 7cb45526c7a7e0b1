//! `curl`: a gateway's questions over HTTP/1.1 and HTTP/2. Every kind of answer is tested in
//! `crates/quell-server/tests/it`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::clients::curl;
use crate::files::{Folder, window_rules};
use crate::process::{run, run_with_input};
use crate::server::Server;

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in lower case.
    fields: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Reply {
    /// A field's value, empty if it is not there.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that this is a problem document of this kind that contains these words.
    fn problem(&self, status: u16, kind: &str, words: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.field("content-type"),
            "application/problem+json",
            "{self:?}"
        );
        let problem = self.json();
        assert_eq!(problem["status"], status, "{self:?}");
        assert!(
            problem["type"]
                .as_str()
                .is_some_and(|uri| uri.ends_with(kind)),
            "{self:?}"
        );
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(words), "no {words:?} in {self:?}");
    }
}

/// Asks with these arguments of curl; the last is the path.
fn ask(server: &Server, arguments: &[&str]) -> Reply {
    let (path, arguments) = arguments.split_last().unwrap();
    reply_of(&[arguments, &[&server.url(path)]].concat(), b"")
}

/// The answer that curl gets with these arguments; the last is the address.
pub(crate) fn reply_of(arguments: &[&str], input: &[u8]) -> Reply {
    let mut command = curl();
    command
        .args(["--silent", "--show-error", "--include"])
        .args(arguments);
    let text = run_with_input(&mut command, input).expect_success();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    Reply {
        status: status.and_then(|status| status.parse().ok()).unwrap(),
        fields: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

fn shop(limit: &str) -> (Folder, Server) {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", limit));
    let server = Server::start(&["--rules", &rules]);
    (folder, server)
}

#[test]
fn authorize_answers_gateways() {
    let (_folder, server) = shop("1/h");
    let alice = [
        "--header",
        "X-Quell-Entry-User: alice",
        "/v1/authorize?domain=shop",
    ];
    let reply = ask(&server, &alice);
    assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    assert_eq!(reply.field("ratelimit-policy"), "\"per-user\";q=1;w=3600");
    assert!(
        reply.field("ratelimit").starts_with("\"per-user\";r=0;t="),
        "{reply:?}"
    );
    assert_eq!(reply.field("retry-after"), "");

    let reply = ask(&server, &alice);
    reply.problem(429, "quota-exceeded", "");
    assert_eq!(
        reply.json()["violated-policies"],
        serde_json::json!(["per-user"])
    );
    let wait: u64 = reply.field("retry-after").parse().unwrap();
    assert!((1..=3_600).contains(&wait), "{wait}");
    assert_eq!(
        reply.field("ratelimit"),
        format!("\"per-user\";r=0;t={wait}")
    );
    server.stop();
}

#[test]
fn http_2_is_spoken_as_well() {
    let (_folder, server) = shop("1/h");
    let version = [
        "--http2-prior-knowledge",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_version} %{http_code}",
    ];
    let mut command = curl();
    command
        .arg("--silent")
        .args(version)
        .arg(server.url("/v1/authorize?domain=shop"));
    assert_eq!(run(&mut command).expect_success(), "2 204");
    server.stop();
}
