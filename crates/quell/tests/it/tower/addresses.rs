//! Addresses: the caller's address, with proxies in between and callers that lie.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::HeaderValue;
use proptest::prelude::{
    ProptestConfig, Strategy, any, prop, prop_assert_eq, prop_oneof, proptest,
};
use quell::Limiter;
use quell::store::memory::MemoryStore;
use quell::tower::{
    Entries, ForwardedField, LimitLayer, NetworkError, RemoteAddress, TrustedProxies,
};

use super::support::{Recorder, app, ask, connected, get, get_from, shop};

/// The entry of each request, given a connection's address and header fields.
async fn found(address: RemoteAddress, requests: &[(&str, &[(&str, &str)])]) -> Vec<String> {
    let recorder = Arc::new(Recorder::default());
    let app = recording(address, &recorder);
    for (connection, fields) in requests {
        ask(&app, get_from(connection, "/", fields)).await;
    }
    let found = recorder.take().into_iter();
    found
        .map(|entry| entry.replace("remote_address=", ""))
        .collect()
}

fn recording(address: RemoteAddress, recorder: &Arc<Recorder>) -> Router {
    let limiter = Limiter::builder(MemoryStore::new()).observer(Arc::clone(recorder) as _);
    let limiter = limiter.build();
    limiter.set_rules(vec![shop(Vec::new())]).unwrap();
    let entries = Entries::new().remote_address(address);
    app(LimitLayer::new(limiter, "shop", entries))
}

fn proxies(field: ForwardedField) -> TrustedProxies {
    let networks = ["10.0.0.0/8", "::ffff:192.0.2.1", "2001:db8:ffff::/48"];
    TrustedProxies::new(field, networks).unwrap()
}

#[tokio::test]
async fn without_proxies_no_field_is_read() {
    let lies: &[(&str, &str)] = &[("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=1.1.1.1")];
    let requests = [("203.0.113.7:5", lies), ("10.0.0.1:5", lies)];
    let expected = ["203.0.113.7", "10.0.0.1"];
    assert_eq!(found(connected(), &requests).await, expected);
}

#[tokio::test]
async fn x_forwarded_for_is_read_from_the_right() {
    let table: [(&str, &[&str], &str); 16] = [
        ("203.0.113.7:5", &["1.1.1.1"], "203.0.113.7"),
        ("10.0.0.1:5", &[], "10.0.0.1"),
        ("10.0.0.1:5", &["203.0.113.7"], "203.0.113.7"),
        ("[::ffff:10.0.0.1]:5", &["203.0.113.7"], "203.0.113.7"),
        ("192.0.2.1:5", &["203.0.113.7"], "203.0.113.7"),
        ("192.0.2.2:5", &["203.0.113.7"], "192.0.2.2"),
        ("[2001:db8:ffff::9]:5", &["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1:5", &["1.1.1.1, 203.0.113.7"], "203.0.113.7"),
        (
            "10.0.0.1:5",
            &["1.1.1.1", "203.0.113.7, 10.0.0.2"],
            "203.0.113.7",
        ),
        ("10.0.0.1:5", &["10.9.9.9, 10.0.0.2"], "10.9.9.9"),
        ("10.0.0.1:5", &["1.1.1.1, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1:5", &["1.1.1.1, \\"], "10.0.0.1"),
        ("10.0.0.1:5", &["1.1.1.1, , 203.0.113.7 , "], "203.0.113.7"),
        ("10.0.0.1:5", &["203.0.113.7:4711"], "203.0.113.7"),
        ("10.0.0.1:5", &["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1:5", &["\"1.1.1.1, 203.0.113.7"], "203.0.113.7"),
    ];
    for (connection, lines, expected) in table {
        let lines: Vec<(&str, &str)> = lines
            .iter()
            .map(|line| ("x-forwarded-for", *line))
            .collect();
        let mut fields = vec![("forwarded", "for=9.9.9.9")];
        fields.extend(lines);
        let address = connected().behind(proxies(ForwardedField::XForwardedFor));
        let found = found(address, &[(connection, &fields)]).await;
        assert_eq!(found, [expected], "{connection} {fields:?}");
    }
}

#[tokio::test]
async fn forwarded_is_read_from_the_right_whatever_quotes_a_caller_opens() {
    for (lines, expected) in [
        (&["for=203.0.113.7"][..], "203.0.113.7"),
        (&["For=\"203.0.113.7:80\"; proto=https"], "203.0.113.7"),
        (
            &["proto=http;for=\"[2001:db8::1]:4711\";by=_x"],
            "2001:db8::1",
        ),
        (
            &["for=1.1.1.1, for=203.0.113.7, for=10.0.0.2"],
            "203.0.113.7",
        ),
        (
            &["for=1.1.1.1", "for=203.0.113.7, for=10.0.0.2;by=10.0.0.1"],
            "203.0.113.7",
        ),
        (&["for=\"", "for=203.0.113.7"], "203.0.113.7"),
        (&["for=\", for=203.0.113.7"], "203.0.113.7"),
        (&["for=\"1.1.1.1, for=203.0.113.7"], "203.0.113.7"),
        (
            &["for=1.1.1.1, for=10.0.0.2;host=\"a,b;for=2.2.2.2\""],
            "1.1.1.1",
        ),
        (&["for=1.1.1.1, for=_hidden"], "10.0.0.1"),
        (&["for=1.1.1.1, for=unknown, for=10.0.0.2"], "10.0.0.2"),
        (&["for=1.1.1.1, by=10.0.0.2"], "10.0.0.1"),
        (&["for=1.1.1.1, for=2.2.2.2;for=3.3.3.3"], "10.0.0.1"),
        (&["for=1.1.1.1, for=2.2.2.2;host=\"\\\"\""], "10.0.0.1"),
        (&["for=\"203.0.113.7:_port\""], "203.0.113.7"),
        (&["for=\"[203.0.113.7]\""], "10.0.0.1"),
        (&["for"], "10.0.0.1"),
        (&[""], "10.0.0.1"),
    ] {
        let mut fields = vec![("x-forwarded-for", "9.9.9.9")];
        fields.extend(lines.iter().map(|line| ("forwarded", *line)));
        let address = connected().behind(proxies(ForwardedField::Forwarded));
        let found = found(address, &[("10.0.0.1:5", &fields)]).await;
        assert_eq!(found, [expected], "{lines:?}");
    }
}

#[tokio::test]
async fn so_many_proxies_are_followed_whatever_their_addresses() {
    let fields = [("x-forwarded-for", "1.1.1.1, 203.0.113.7, 198.51.100.1")];
    for (hops, expected) in [(0, "198.51.100.9"), (1, "198.51.100.1"), (2, "203.0.113.7")] {
        let proxies = TrustedProxies::nearest(ForwardedField::XForwardedFor, hops);
        let address = connected().behind(proxies);
        let found = found(address, &[("198.51.100.9:5", &fields)]).await;
        assert_eq!(found, [expected], "{hops}");
    }
}

#[tokio::test]
async fn zones_and_addresses_of_nat64_are_read() {
    for (element, expected) in [
        ("fe80::1%eth0", "fe80::1"),
        ("64:ff9b::203.0.113.7", "203.0.113.7"),
        ("203.0.113.7, 64:ff9b::10.0.0.2", "203.0.113.7"),
    ] {
        let address = connected().behind(proxies(ForwardedField::XForwardedFor));
        let fields = [("x-forwarded-for", element)];
        let found = found(address, &[("10.0.0.1:5", &fields)]).await;
        assert_eq!(found, [expected], "{element}");
    }
}

#[tokio::test]
async fn a_chain_is_walked_32_proxies_far() {
    let list = |proxies: usize| {
        let mut list = vec!["203.0.113.7".to_owned()];
        list.extend((0..proxies).map(|hop| format!("10.0.1.{hop}")));
        list.join(",")
    };
    for (hops, expected) in [(30, "203.0.113.7"), (40, "10.0.1.8")] {
        let list = list(hops);
        let address = connected().behind(proxies(ForwardedField::XForwardedFor));
        let fields = [("x-forwarded-for", list.as_str())];
        assert_eq!(found(address, &[("10.0.0.1:5", &fields)]).await, [expected]);
    }
}

/// Any field values that a server accepts, in any number of lines.
fn lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let byte = prop_oneof![
        3 => prop::sample::select(&b"\",;=\\[]:. 19for\t"[..]),
        1 => 0x20..=0x7e_u8,
        1 => 0x80..=0xff_u8,
    ];
    prop::collection::vec(prop::collection::vec(byte, 0..60), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_a_caller_writes_the_proxies_word_counts(
        lines in lines(),
        is_joined in any::<bool>(),
        field in prop::sample::select(&[ForwardedField::XForwardedFor, ForwardedField::Forwarded][..]),
    ) {
        let (name, word) = match field {
            ForwardedField::XForwardedFor => ("x-forwarded-for", "203.0.113.7, 10.0.0.2"),
            ForwardedField::Forwarded => ("forwarded", "for=203.0.113.7, for=\"10.0.0.2:99\";by=x"),
        };
        let mut lines = lines;
        // A proxy appends to the last line, or adds one of its own.
        match lines.last_mut().filter(|_| is_joined) {
            Some(last) => last.extend([b", ", word.as_bytes()].concat()),
            None => lines.push(word.into()),
        }
        let mut request = get_from("10.0.0.1:5", "/", &[]);
        for line in &lines {
            let value = HeaderValue::from_bytes(line).unwrap();
            request.headers_mut().append(name, value);
        }
        let recorder = Arc::new(Recorder::default());
        let app = recording(connected().behind(proxies(field)), &recorder);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(ask(&app, request));
        prop_assert_eq!(recorder.take(), ["remote_address=203.0.113.7"], "{:?}", lines);
    }
}

#[tokio::test]
async fn a_connection_without_an_address_makes_no_entry() {
    let nowhere = RemoteAddress::new(|_: &axum::extract::ConnectInfo<SocketAddr>| None);
    assert_eq!(found(nowhere, &[("10.0.0.1:5", &[])]).await, [""]);
}

#[tokio::test]
async fn a_server_that_does_not_say_who_is_connected_is_a_loud_mistake() {
    let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
    let listener = Arc::clone(&heard);
    let entries = Entries::new().remote_address(connected());
    let layer = LimitLayer::each("x", quell::Limit::per_second(1), entries).unwrap();
    let layer = layer.on_each_failure(move |failure| {
        listener.lock().unwrap().push(failure.to_string());
    });
    let answer = ask(&app(layer), get("/", &[])).await;
    assert_eq!(answer.status, 500);
    assert!(answer.body.contains("not set up"), "{answer:?}");
    let heard = heard.lock().unwrap();
    assert!(
        heard[0].contains("into_make_service_with_connect_info"),
        "{heard:?}"
    );
}

#[test]
fn what_is_no_network_is_refused() {
    for text in ["10.0.0.0/33", "localhost", "", "10.0.0"] {
        let proxies = TrustedProxies::new(ForwardedField::Forwarded, [text]);
        let error: NetworkError = proxies.unwrap_err();
        assert!(error.to_string().contains("write an address"), "{error}");
    }
}
