//! `/v1/candidate`: rules that run in shadow beside those in files, as `quell candidate` starts them.

use serde_json::{Value, json};

use crate::harness::{Answer, Fixture, SHOP, eventually};

fn start(server: &Fixture, text: &str) -> Answer {
    let body = json!({"text": text, "note": "fewer"}).to_string();
    server.request("POST", "/v1/candidate", &body)
}

fn candidate(server: &Fixture) -> Value {
    server.get("/v1/candidate").json()["candidate"].take()
}

#[test]
fn rules_in_files_have_a_candidate_too() {
    let server = Fixture::with_clock(SHOP, "");
    assert_eq!(candidate(&server), Value::Null);
    let none = server.request("DELETE", "/v1/candidate", "");
    assert_eq!(none.json(), json!({"stopped": false}));

    let stricter = SHOP.replace("100/min", "1/min");
    let started = start(&server, &stricter);
    assert_eq!(started.json(), json!({"change": "1 changed (shop/login)"}));
    for _ in 0..3 {
        assert_eq!(server.acquire("/login", "eve").json()["allowed"], true);
    }
    // It looks at a call after the call was answered.
    eventually("it has seen all calls", || candidate(&server)["calls"] == 3);
    let shown = candidate(&server);
    assert_eq!(
        (&shown["would_refuse"], &shown["note"]),
        (&json!(2), &json!("fewer"))
    );
    assert_eq!(shown["keys"][0]["entries"], json!({"user": "eve"}));
    assert_eq!(shown["keys"][0]["refusals"], 2);
    let page = server.get("/console/rules/candidate").body;
    assert!(page.contains("quell candidate stop"), "{page}");
    assert!(
        !page.contains("Put it into force"),
        "there is no store: {page}"
    );

    let stopped = server.request("DELETE", "/v1/candidate", "");
    assert_eq!(stopped.json(), json!({"stopped": true}));
    assert_eq!(candidate(&server), Value::Null);
}

#[test]
fn mistakes_say_what_to_write() {
    let server = Fixture::new(SHOP, "");
    start(&server, "domain: shop\nrules: [{ nam: x }]").assert_problem(400, "nam");
    let post = |body: &str| server.request("POST", "/v1/candidate", body);
    post("{}").assert_problem(400, r#"write {"text":"#);
    post(r#"{"text": "", "who": "me"}"#).assert_problem(400, "who");
    let long = json!({"text": SHOP, "note": "x".repeat(256)}).to_string();
    post(&long).assert_problem(400, "at most 255 characters");
    assert_eq!(candidate(&server), Value::Null);
    let answer = server.request("PUT", "/v1/candidate", "{}");
    answer.assert_problem(405, "write GET, POST or DELETE");
}
