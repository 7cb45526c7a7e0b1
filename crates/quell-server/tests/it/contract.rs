//! Compares every HTTP answer that a test receives with `openapi.json`: its status, its type and
//! its body, and the body of an accepted request. An undescribed member is a mistake here, although
//! clients have to accept it: later versions add members.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use serde_json::{Value, json};

static DESCRIPTION: LazyLock<Description> = LazyLock::new(|| {
    let text = include_str!("../../src/http/openapi.json");
    let mut text: Value = serde_json::from_str(text).unwrap();
    Description {
        paths: text["paths"].take(),
        validator: Mutex::new(Validator::start()),
    }
});

struct Description {
    paths: Value,
    validator: Mutex<Validator>,
}

/// A process of `tests/clients/contract.py`, which ends with this one.
struct Validator {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Validator {
    fn start() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let clients = folder.join("../../tests/clients");
        let mut process = Command::new(clients.join(".venv/bin/python"))
            .arg(clients.join("contract.py"))
            .arg(folder.join("src/http/openapi.json"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{error}: run `cargo xtask install`"));
        Self {
            answers: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    /// Mistakes in a body.
    fn errors(&mut self, question: &Value) -> Vec<String> {
        let questions = self.process.stdin.as_mut().unwrap();
        writeln!(questions, "{question}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

impl Description {
    /// Compares a body with a schema of the description; if closed, it has no members but those described.
    fn validate(&self, what: &str, schema: &Value, is_closed: bool, body: &Value) {
        let question = json!([schema, is_closed, body]);
        let errors = self.validator.lock().unwrap().errors(&question);
        assert!(
            errors.is_empty(),
            "{what} is not what openapi.json says\n{}\n{body:#}",
            errors.join("\n")
        );
    }

    /// What is at a path: a path with the same parts, or with the same but for those in braces.
    fn item(&self, path: &str) -> &Value {
        let fits = |template: &str| {
            let (mut parts, mut wanted) = (path.split('/'), template.split('/'));
            wanted.by_ref().all(|wanted| {
                parts
                    .next()
                    .is_some_and(|part| part == wanted || wanted.starts_with('{'))
            }) && parts.next().is_none()
        };
        let exact = self.paths.get(path);
        let mut all = self.paths.as_object().unwrap().iter();
        let item = exact.or_else(|| {
            all.find(|(template, _)| fits(template))
                .map(|(_, item)| item)
        });
        item.unwrap_or(&Value::Null)
    }

    fn check(&self, request: &Message<'_>, answer: &Message<'_>) {
        let mut words = request.first.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap_or_default());
        let status = answer.first.split(' ').nth(1).unwrap();
        let what = format!("{status} to {method} {target}");
        if answer.body.is_empty() && ["400", "431"].contains(&status) {
            // Errors below the routes: not a valid request.
            assert_eq!(answer.field("connection"), Some("close"), "{what}");
            return;
        }
        let path = target.split('?').next().unwrap();
        if path.starts_with("/console") {
            // Pages are for people, and not a part of the API.
            return;
        }
        if ["/json", "/healthcheck", "/rlconfig", "/stats"].contains(&path) {
            // Pages of envoyproxy/ratelimit, with the forms that they have there.
            return;
        }
        let item = self.item(path);
        let operation = &item[method.to_ascii_lowercase()];
        let problem = json!({"$ref": "#/components/schemas/Problem"});
        let problem = json!({"content": {"application/problem+json": {"schema": problem}}});
        let response = if operation.is_null() {
            let expected = if item.is_null() { "404" } else { "405" };
            assert!(
                status == expected || status.starts_with(['4', '5']),
                "{what}: openapi.json has no such operation"
            );
            &problem
        } else {
            let range = format!("{}XX", &status[..1]);
            let responses = &operation["responses"];
            responses.get(status).unwrap_or(&responses[range])
        };
        assert!(
            response.is_object(),
            "{what}: openapi.json has no such status"
        );
        if status.starts_with('2') {
            self.check_accepted(&what, operation, target, request);
        }
        let kind = answer.field("content-type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap();
        let contents = &response["content"];
        let content = contents.get(kind).unwrap_or(&contents["*/*"]);
        if response["content"].is_null() {
            assert_eq!(
                (kind, answer.body),
                ("", ""),
                "{what}: openapi.json has no body"
            );
            return;
        }
        assert!(content.is_object(), "{what}: openapi.json has no {kind:?}");
        if kind.ends_with("json") {
            let body = serde_json::from_str(answer.body)
                .unwrap_or_else(|error| panic!("{what}: {error}: {:?}", answer.body));
            if let Some(schema) = content.get("schema") {
                self.validate(&what, schema, true, &body);
            }
            if kind == "application/problem+json" {
                assert_eq!(body["status"].to_string(), status, "{what}: {body}");
            }
        }
    }

    /// An accepted request must be one that the description lets a client send.
    fn check_accepted(&self, what: &str, operation: &Value, target: &str, request: &Message<'_>) {
        let query = target.split_once('?').map_or("", |(_, query)| query);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split('=').next().unwrap();
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let mut known = parameters.filter(|p| p["in"] == "query");
            assert!(
                known.any(|known| known["name"] == name || known["explode"] == true),
                "{what}: openapi.json has no parameter {name:?}"
            );
        }
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if schema.is_object() && !request.is_chunked() {
            let body = serde_json::from_str(request.body).unwrap();
            self.validate(&format!("the body of {what}"), schema, false, &body);
        }
    }
}

/// A request or an answer, and the bytes after it.
struct Message<'a> {
    first: &'a str,
    head: &'a str,
    body: &'a str,
    rest: &'a str,
}

impl<'a> Message<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (head, rest) = text.split_once("\r\n\r\n")?;
        let mut message = Self {
            first: head.lines().next()?,
            head,
            body: rest,
            rest: "",
        };
        if message.first.contains("HTTP/1.1 100") {
            return Self::read(rest);
        }
        if !message.first.contains("HTTP/1.") {
            return None;
        }
        let length = message.field("content-length").map_or(Ok(0), str::parse);
        if let (Ok(length), false) = (length, message.is_chunked()) {
            (message.body, message.rest) = rest.split_at_checked(length)?;
        }
        Some(message)
    }

    /// The value of a header field, its name in lower case.
    fn field(&self, name: &str) -> Option<&'a str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = fields.find(|(found, _)| found.eq_ignore_ascii_case(name))?;
        Some(value.trim())
    }

    fn is_chunked(&self) -> bool {
        self.field("transfer-encoding").is_some()
    }
}

/// Checks what was sent on a connection, request by request. Anything that is not HTTP, was cut
/// off, or answers a `HEAD` is skipped.
pub(crate) fn check(requests: &[u8], answers: &[u8]) {
    let (Ok(mut requests), Ok(mut answers)) = (str::from_utf8(requests), str::from_utf8(answers))
    else {
        return;
    };
    while let (Some(request), Some(answer)) = (Message::read(requests), Message::read(answers)) {
        DESCRIPTION.check(&request, &answer);
        (requests, answers) = (request.rest, answer.rest);
    }
}

const ASK: &str = "POST /v1/acquire HTTP/1.1\r\nContent-Length: 14\r\n\r\n{\"domain\":\"d\"}";

fn answer(status: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}")
}

const VERDICT: &str = r#"{"allowed":true,"binding":null,"remaining":null,"retry_after_ms":null,
    "reset_after_ms":null,"delay_ms":0,"permanent":false,"banned":false,"degraded":false,
    "unmatched":true,"decisions":[]}"#;

#[test]
fn what_is_described_passes() {
    let once = answer("200", "application/json", VERDICT);
    check(ASK.as_bytes(), once.as_bytes());
    check(ASK.repeat(2).as_bytes(), once.repeat(2).as_bytes());
    let problem = r#"{"type":"about:blank","title":"x","status":404}"#;
    let problem = answer("404", "application/problem+json", problem);
    check(b"GET /nosuch HTTP/1.1\r\n\r\n", problem.as_bytes());
}

#[test]
#[should_panic(expected = "openapi.json has no such status")]
fn a_status_that_is_not_described_is_found() {
    check(
        ASK.as_bytes(),
        answer("418", "application/json", VERDICT).as_bytes(),
    );
}

#[test]
#[should_panic(expected = "Additional properties are not allowed")]
fn a_member_that_is_not_described_is_found_in_the_second_answer() {
    let right = answer("200", "application/json", VERDICT);
    let wrong = VERDICT.replace("\"allowed\"", "\"new\":1,\"allowed\"");
    let wrong = answer("200", "application/json", &wrong);
    check(ASK.repeat(2).as_bytes(), (right + &wrong).as_bytes());
}

#[test]
#[should_panic(expected = "the body of 200 to POST /v1/acquire")]
fn an_accepted_body_that_is_not_described_is_found() {
    let asked = ASK.replace("domain", "demain");
    let answer = answer("200", "application/json", VERDICT);
    check(asked.as_bytes(), answer.as_bytes());
}

#[test]
#[should_panic(expected = "openapi.json has no \"text/plain\"")]
fn a_type_that_is_not_described_is_found() {
    check(
        ASK.as_bytes(),
        answer("200", "text/plain", "yes").as_bytes(),
    );
}
