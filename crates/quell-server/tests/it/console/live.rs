//! The stream of what is live, and the charts that it feeds.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};

use quell_testkit::redis::Redis;

use super::{Guarded, declared, lines_until};
use crate::harness::{Fixture, SHOP, connect};

/// Opens the stream of what is live.
fn listen(at: SocketAddr) -> BufReader<TcpStream> {
    let mut stream = connect(at);
    stream
        .write_all(b"GET /console/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    BufReader::new(stream)
}

/// Reads up to the chunk that ends an answer.
fn read_to_end_of_answer(stream: &mut impl BufRead) {
    let mut line = String::new();
    while line != "0\r\n" {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0);
    }
}

#[test]
fn a_stream_has_the_numbers_of_each_second_and_ends_with_the_server() {
    let mut server = Fixture::new(SHOP, "drain_timeout = '30s'");
    let mut stream = listen(server.http());
    let head = lines_until(&mut stream, "event: bans");
    assert!(head.contains("text/event-stream"), "{head}");
    assert!(head.contains("event: now"), "{head}");
    server.acquire("/login", "a");
    let counted = r#"<th scope="row">shop</th><td class="number">1</td>"#;
    lines_until(&mut stream, counted);
    lines_until(&mut stream, "event: point");
    let history = server.get("/console/history.json").json();
    assert_eq!(history[1].as_array().unwrap().len(), 6, "{history}");
    let stopped = server.stop_aside();
    read_to_end_of_answer(&mut stream);
    drop(stream);
    server.wait_for(stopped).unwrap();
}

#[test]
fn a_stream_ends_with_its_session() {
    let guarded = Guarded::new("");
    let rea = guarded.log_in("rea");
    let mut stream = guarded.listen(&rea);
    guarded.ask(("POST", "/console/logout", ""), &rea);
    read_to_end_of_answer(&mut stream);
}

#[test]
fn a_stream_ends_when_the_credentials_change() {
    let guarded = Guarded::new("");
    let rea = guarded.log_in("rea");
    let mut stream = guarded.listen(&rea);
    std::fs::write(guarded.server.path("credentials.toml"), "").unwrap();
    assert!(guarded.server.reload());
    read_to_end_of_answer(&mut stream);
    assert_eq!(guarded.ask(("GET", "/console", ""), &rea).status, 303);
}

/// Every chart is in numbers too, for people who see no chart.
#[test]
fn charts_are_in_numbers_too() {
    let server = Fixture::new(SHOP, "");
    drop(lines_until(&mut listen(server.http()), "event: point"));
    let page = server.get("/console").body;
    for row in ["5 minutes", "hour", "day"] {
        let row = format!(r#"<tr><th scope="row">{row}</th><td class="number">0/s</td>"#);
        assert!(page.contains(&row), "{row}: {page}");
    }
}

/// A page that is open shows that callers are answered without the store, and what they get.
#[test]
fn a_page_says_by_itself_that_the_store_is_gone() {
    let redis = Redis::start(&[]);
    let store = format!("store = '{}'", redis.url());
    let server = Fixture::new(&declared(), &store);
    let mut stream = listen(server.http());
    lines_until(&mut stream, "class=\"good\">ok");
    drop(redis);
    lines_until(&mut stream, "class=\"bad\">degraded");
    let said = "3 rules refuse everything";
    lines_until(&mut stream, said);
}
