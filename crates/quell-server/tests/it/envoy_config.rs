//! Limits in the files of envoyproxy/ratelimit, asked as Envoy asks: the cases of that service's own tests.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;

use quell_envoy::proto::{
    Code, Descriptor, Entry, RateLimitOverride, RateLimitRequest, RateLimitResponse,
    RateLimitServiceClient, UInt64Value, Unit,
};
use quell_testkit::redis::Redis;
use tonic::transport::Channel;
use tonic::{Code as GrpcCode, Status};

use crate::harness::{Fixture, eventually, replace, send, store_settings};

const BASIC: &str = "
domain: basic
descriptors:
  - key: key1
    rate_limit: { unit: second, requests_per_unit: 50 }
  - key: key2
    rate_limit: { unit: minute, requests_per_unit: 20 }
  - key: key3
    rate_limit: { unit: hour, requests_per_unit: 10 }
  - key: key5
    value: value5
    rate_limit: { unit: day, requests_per_unit: 15 }
  - key: shadowed
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: none
    rate_limit: { unit: hour, requests_per_unit: 0 }
  - key: unlimited
    rate_limit: { unlimited: true }
  - key: allowed
    rate_limit: { unit: hour, requests_per_unit: 1 }
    descriptors:
      - key: who
        value: friend
  - key: allowed
    value: always
  - key: path
    value: files/*
    share_threshold: true
    rate_limit: { unit: hour, requests_per_unit: 10 }
  - key: tokens
    rate_limit: { unit: hour, requests_per_unit: 21 }
  - key: generic_key
    value: a
    descriptors:
      - key: generic_key
        value: b
        rate_limit: { unit: hour, requests_per_unit: 1 }
";

/// The example of that service for `replaces` and quotas.
const EXAMPLE: &str = "
domain: rl
descriptors:
  - key: source_cluster
    value: proxy
    descriptors:
      - key: destination_cluster
        value: bkthomps
        rate_limit: { replaces: [{ name: bkthomps }], unit: minute, requests_per_unit: 2 }
      - key: destination_cluster
        value: mock
        rate_limit: { unit: minute, requests_per_unit: 1 }
      - key: destination_cluster
        value: override
        rate_limit: { replaces: [{ name: banned_limit }], unit: minute, requests_per_unit: 2 }
  - key: foo
    rate_limit: { unit: minute, requests_per_unit: 2 }
    descriptors:
      - key: bar
        value: bkthomps
        rate_limit: { name: bkthomps, unit: minute, requests_per_unit: 1 }
      - key: bar
        value: banned
        rate_limit: { name: banned_limit, unit: minute, requests_per_unit: 0 }
  - key: service
    value: service_1
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
    metadata: { service_with_quota: { name: service_1, share: 0.5 } }
  - key: service
    value: service_2
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
    metadata: { service_with_quota: { name: service_2, more: [true, x] } }
";

const SETTINGS: &str = "envoy = '127.0.0.1:0'\nenvoy_config = 'DIR/limits'\n";

/// A server with these files, whose clock stands still.
fn server(files: &[(&str, &str)], settings: &str) -> Fixture {
    let mut fixture = Fixture::prepare("", &format!("{SETTINGS}{settings}"));
    std::fs::create_dir(fixture.path("limits")).unwrap();
    for (name, text) in files {
        std::fs::write(fixture.path("limits").join(name), text).unwrap();
    }
    fixture.stop_clock();
    fixture.start().unwrap();
    fixture
}

fn basic(settings: &str) -> Fixture {
    server(
        &[("basic.yaml", BASIC), ("example.yaml", EXAMPLE)],
        settings,
    )
}

/// A client of the service.
pub(crate) fn client(
    server: &Fixture,
) -> impl Fn(RateLimitRequest) -> Result<RateLimitResponse, Status> {
    let url = format!("http://{}", server.envoy());
    let endpoint = Channel::from_shared(url).unwrap();
    let channel = server.block_on(endpoint.connect()).unwrap();
    move |message| {
        let mut client = RateLimitServiceClient::new(channel.clone());
        let answer = server.block_on(client.should_rate_limit(message))?;
        Ok(answer.into_inner())
    }
}

/// Descriptors such as `key1=a,key2=b`, with `;` between them.
fn descriptors(text: &str) -> Vec<Descriptor> {
    let one = |text: &str| {
        let entries = text.split(',').map(|entry| {
            let (key, value) = entry.split_once('=').unwrap();
            Entry {
                key: key.to_owned(),
                value: value.to_owned(),
            }
        });
        Descriptor {
            entries: entries.collect(),
            ..Descriptor::default()
        }
    };
    text.split(';').map(one).collect()
}

pub(crate) fn call(domain: &str, text: &str) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors(text),
        hits_addend: 0,
    }
}

/// A call with these hits.
fn hits(domain: &str, text: &str, hits: u64) -> RateLimitRequest {
    let mut call = call(domain, text);
    for descriptor in &mut call.descriptors {
        descriptor.hits_addend = Some(UInt64Value { value: hits });
    }
    call
}

/// A status in short: its code, the requests and unit of its limit, and what is left.
type Said = (bool, Option<(u32, Unit)>, u32);

/// The overall code, and each status.
fn says(answer: &RateLimitResponse) -> (bool, Vec<Said>) {
    let statuses = answer.statuses.iter().map(|status| {
        let limit = status.current_limit.as_ref();
        let limit = limit.map(|limit| (limit.requests_per_unit, limit.unit()));
        let is_ok = status.code() == Code::Ok;
        (is_ok, limit, status.limit_remaining)
    });
    (answer.overall_code() == Code::Ok, statuses.collect())
}

fn stat(server: &Fixture, labels: &str, name: &str) -> Option<String> {
    server.metric(&format!("ratelimit_service_rate_limit_{name}{{{labels}}}"))
}

/// Cases 1 to 3.
#[test]
fn unknown_domains_pass_and_mistakes_are_told() {
    let server = basic("");
    let ask = client(&server);
    let answer = ask(call("nowhere", "key1=a")).unwrap();
    assert_eq!(says(&answer), (true, vec![(true, None, 0)]));
    let unknown = stat(&server, "domain=\"nowhere\"", "domain_not_found");
    assert_eq!(unknown.as_deref(), Some("1"));
    for (call, expected) in [
        (call("", "key1=a"), "rate limit domain must not be empty"),
        (
            RateLimitRequest {
                descriptors: Vec::new(),
                ..call("basic", "key1=a")
            },
            "rate limit descriptor list must not be empty",
        ),
    ] {
        let status = ask(call).unwrap_err();
        assert_eq!(status.code(), GrpcCode::InvalidArgument);
        assert!(status.message().starts_with(expected), "{status}");
    }
}

/// Cases 5, 6, 8, 9 and 29.
#[test]
fn a_limit_counts_down_and_refuses() {
    let server = basic("");
    let ask = client(&server);
    let answer = ask(call("basic", "key1=a")).unwrap();
    assert_eq!(
        says(&answer),
        (true, vec![(true, Some((50, Unit::Second)), 49)])
    );
    // The clock stands at 1,700,000,000 s.
    let reset = |answer: &RateLimitResponse| answer.statuses[0].duration_until_reset.unwrap();
    assert_eq!((reset(&answer).seconds, reset(&answer).nanos), (1, 0));
    for call_number in 0..25 {
        let answer = ask(call("basic", "key2=a")).unwrap();
        let is_ok = call_number < 20;
        let left = 19_u32.saturating_sub(call_number);
        let expected = (is_ok, vec![(is_ok, Some((20, Unit::Minute)), left)]);
        assert_eq!(says(&answer), expected);
        assert_eq!(reset(&answer).seconds, 60 - 1_700_000_000 % 60);
    }
    let labels = "domain=\"basic\",key1=\"key2\"";
    for (name, expected) in [
        ("total_hits", "25"),
        ("over_limit", "5"),
        ("near_limit", "4"),
        ("within_limit", "20"),
        ("shadow_mode", "0"),
    ] {
        assert_eq!(
            stat(&server, labels, name).as_deref(),
            Some(expected),
            "{name}"
        );
    }
    // The depth has to match.
    for (text, limit) in [
        ("key5=value5", Some((15, Unit::Day))),
        ("key5=value5,subkey5=subvalue5", None),
        ("key5=other", None),
        ("subkey5=subvalue5,key5=value5", None),
    ] {
        let (_, statuses) = says(&ask(call("basic", text)).unwrap());
        assert_eq!(statuses[0].1, limit, "{text}");
    }
    // Another value has a count of its own, whatever is joined by `_`.
    let (_, statuses) = says(&ask(call("basic", "key2=a_b")).unwrap());
    assert_eq!(statuses[0].2, 19);
}

/// Case 7: the call that crosses a limit is charged whole; those that begin above it cost the others nothing.
#[test]
fn calls_above_one_limit_cost_the_others_nothing() {
    for store in [None, Some(Redis::start(&[]))] {
        let settings = store.as_ref().map(store_settings).unwrap_or_default();
        let server = basic(&settings);
        let ask = client(&server);
        for call_number in 1..=15_u32 {
            let answer = ask(call("basic", "key2=x;key3=x")).unwrap();
            let is_ok = call_number <= 10;
            let statuses = vec![
                (true, Some((20, Unit::Minute)), 20 - call_number.min(11)),
                (
                    is_ok,
                    Some((10, Unit::Hour)),
                    10_u32.saturating_sub(call_number),
                ),
            ];
            assert_eq!(says(&answer), (is_ok, statuses), "call {call_number}");
        }
    }
}

/// Cases 10, 13, 14, 15 and 18.
#[test]
fn leaves_are_of_many_kinds() {
    let server = basic("");
    let ask = client(&server);
    let answer = ask(call(
        "basic",
        "unlimited=x;none=x;allowed=always;allowed=x,who=friend",
    ))
    .unwrap();
    let expected = vec![
        (true, None, u32::MAX),
        (false, Some((0, Unit::Hour)), 0),
        (true, None, 0),
        (true, None, 0),
    ];
    assert_eq!(says(&answer), (false, expected));
    for call_number in 0..11 {
        let file = if call_number < 10 {
            "path=files/a.pdf"
        } else {
            "path=files/b.csv"
        };
        let answer = ask(call("basic", file)).unwrap();
        assert_eq!(says(&answer).0, call_number < 10, "{file}");
    }
    for call_number in 0..4_u32 {
        let answer = ask(call("basic", "shadowed=x")).unwrap();
        let left = 1_u32.saturating_sub(call_number);
        let expected = vec![(true, Some((2, Unit::Hour)), left)];
        assert_eq!(says(&answer), (true, expected));
    }
    let shadow = stat(&server, "domain=\"basic\",key1=\"shadowed\"", "shadow_mode");
    assert_eq!(shadow.as_deref(), Some("2"));
    // Two entries of one name, as two actions `generic_key` make them.
    for is_ok in [true, false] {
        let answer = ask(call("basic", "generic_key=a,generic_key=b")).unwrap();
        assert_eq!(says(&answer).0, is_ok);
    }
}

/// Cases 16 and 17, and the rule on which token limits are built: a check when the request comes, the true tokens at
/// its end.
#[test]
fn tokens_are_checked_first_and_charged_at_the_end() {
    for store in [None, Some(Redis::start(&[]))] {
        let settings = store.as_ref().map(store_settings).unwrap_or_default();
        let server = basic(&settings);
        let ask = client(&server);
        let mut passed = 0;
        for _ in 0..5 {
            if says(&ask(hits("basic", "tokens=acme", 0)).unwrap()).0 {
                passed += 1;
                ask(hits("basic", "tokens=acme", 10)).unwrap();
            }
        }
        assert_eq!(passed, 3, "10, 20 and 30 of 21 were used");
        // Exactly at the limit a check passes.
        ask(hits("basic", "tokens=globex", 21)).unwrap();
        assert!(says(&ask(hits("basic", "tokens=globex", 0)).unwrap()).0);
        ask(hits("basic", "tokens=globex", 1)).unwrap();
        assert!(!says(&ask(hits("basic", "tokens=globex", 0)).unwrap()).0);
    }
}

/// Case 31, with 50 clients of whom each reserves, is refused or not, and gives back.
#[test]
fn refunds_undo_refusals_first() {
    for store in [None, Some(Redis::start(&[]))] {
        let settings = store.as_ref().map(store_settings).unwrap_or_default();
        let server = basic(&settings);
        let ask = client(&server);
        let refund = |units| {
            let mut call = hits("basic", "tokens=acme", units);
            call.descriptors[0].is_negative_hits = true;
            says(&ask(call).unwrap())
        };
        assert!(says(&ask(hits("basic", "tokens=acme", 15)).unwrap()).0);
        // 15 + 10 crosses 21, 25 is above it.
        for _ in 0..50 {
            assert!(!says(&ask(hits("basic", "tokens=acme", 10)).unwrap()).0);
        }
        for _ in 0..49 {
            let (is_ok, statuses) = refund(10);
            assert_eq!(
                (is_ok, statuses[0].2),
                (true, 0),
                "refusals are undone first"
            );
        }
        assert_eq!(refund(10).1[0].2, 6, "15 of 21 are used");
        assert_eq!(refund(100).1[0].2, 21, "never below 0");
        // Of nothing, and of a limit that came with the call: that was charged elsewhere.
        ask(hits("basic", "tokens=acme", 1)).unwrap();
        let mut other = hits("basic", "tokens=acme", 1);
        other.descriptors[0].is_negative_hits = true;
        other.descriptors[0].limit = Some(RateLimitOverride {
            requests_per_unit: 5,
            unit: Unit::Hour.into(),
        });
        assert_eq!(says(&ask(other).unwrap()), (true, vec![(true, None, 0)]));
        assert!(refund(0).0);
        assert_eq!(
            says(&ask(hits("basic", "tokens=acme", 0)).unwrap()).1[0].2,
            20
        );
        let labels = "domain=\"basic\",key1=\"tokens\"";
        let back = stat(&server, labels, "total_negative_hits");
        assert_eq!(back.as_deref(), Some("600"));
    }
}

/// Envoy lets calls pass that it gets no answer to, so a visitor's values are none that cannot be answered.
#[test]
fn values_of_any_length_are_limited() {
    let server = basic("");
    let ask = client(&server);
    let long = "v".repeat(60_000);
    let call = || call("basic", &format!("key2={long}"));
    for _ in 0..20 {
        let mut call = call();
        // No other limit; together they are longer than `max_body_bytes`.
        let other = descriptors(&format!("other={long}"));
        call.descriptors.extend(vec![other[0].clone(); 9]);
        assert!(says(&ask(call).unwrap()).0);
    }
    assert!(!says(&ask(call()).unwrap()).0);
}

/// With `envoy_quota` all descriptors are quotas but those whose limit is unlimited.
#[test]
fn all_can_be_quotas() {
    let server = basic("envoy_quota = true");
    let ask = client(&server);
    let limited = |text: &str| {
        let mut call = call("basic", text);
        call.descriptors[0].limit = Some(RateLimitOverride {
            requests_per_unit: 0,
            unit: Unit::Hour.into(),
        });
        call
    };
    for (call, is_ok) in [
        (call("basic", "none=a"), false),
        (call("basic", "none=a;unlimited=a"), false),
        (call("basic", "none=a;unmatched=a"), true),
        (call("basic", "unlimited=a"), true),
        (limited("any=a"), false),
        (limited("any=a;none=a"), false),
        (limited("any=a;key2=a"), true),
    ] {
        assert_eq!(says(&ask(call.clone()).unwrap()).0, is_ok, "{call:?}");
    }
}

/// Case 19: quotas refuse only together, and all that match are charged.
#[test]
fn quotas_refuse_together() {
    let server = basic("envoy_metadata = true");
    let ask = client(&server);
    let both = "service=service_1;service=service_2";
    for (is_ok, each) in [
        (true, [true, true]),
        (true, [false, true]),
        (false, [false, false]),
    ] {
        let answer = ask(call("rl", both)).unwrap();
        let (overall, statuses) = says(&answer);
        let codes: Vec<_> = statuses.iter().map(|one| one.0).collect();
        assert_eq!((overall, codes), (is_ok, each.to_vec()));
        let metadata = format!("{:?}", answer.dynamic_metadata.unwrap());
        assert!(metadata.contains("service=service_1"), "{metadata}");
        assert_eq!(metadata.contains("service_with_quota"), is_ok, "{metadata}");
    }
}

/// Case 21, as `replaces.sh` of that service asks.
#[test]
fn a_limit_replaces_others() {
    let server = basic("");
    let ask = client(&server);
    for (text, is_ok) in [
        ("foo=x,bar=banned", false),
        (
            "foo=x,bar=banned;source_cluster=proxy,destination_cluster=mock",
            false,
        ),
        (
            "foo=x,bar=banned;source_cluster=proxy,destination_cluster=override",
            true,
        ),
        (
            "foo=x,bar=banned;source_cluster=proxy,destination_cluster=override",
            true,
        ),
        (
            "foo=x,bar=banned;source_cluster=proxy,destination_cluster=override",
            false,
        ),
        (
            "foo=y,bar=bkthomps;source_cluster=proxy,destination_cluster=bkthomps",
            true,
        ),
        (
            "foo=y,bar=bkthomps;source_cluster=proxy,destination_cluster=bkthomps",
            true,
        ),
        (
            "foo=y,bar=bkthomps;source_cluster=proxy,destination_cluster=bkthomps",
            false,
        ),
        ("foo=y,bar=bkthomps", true),
        ("foo=y,bar=bkthomps", false),
    ] {
        let answer = ask(call("rl", text)).unwrap();
        assert_eq!(says(&answer).0, is_ok, "{text}");
    }
}

/// Cases 16 and 18: limits that come with a call, and a server in shadow.
#[test]
fn a_server_in_shadow_passes_all_and_says_what_is_over() {
    let server = basic("shadow = true");
    let ask = client(&server);
    for is_ok in [true, false] {
        let mut call = call("basic", "key2=a");
        call.descriptors[0].limit = Some(RateLimitOverride {
            requests_per_unit: 1,
            unit: 2,
        });
        let answer = ask(call).unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(answer.statuses[0].code() == Code::Ok, is_ok);
    }
    let shadow = server.metric("ratelimit_service_global_shadow_mode");
    assert_eq!(shadow.as_deref(), Some("1"));
}

/// Case 22.
#[test]
fn header_fields_have_the_names_that_are_asked_for() {
    let server = basic("envoy_headers = 'X-Limit,X-Left,X-Reset'");
    let ask = client(&server);
    let answer = ask(call("basic", "key2=a;key3=a")).unwrap();
    let headers = answer.response_headers_to_add.iter();
    let headers: Vec<_> = headers.map(|one| (&*one.key, &*one.value)).collect();
    let reset = (3_600 - 1_700_000_000 % 3_600).to_string();
    let expected = [("X-Limit", "10"), ("X-Left", "9"), ("X-Reset", &*reset)];
    assert_eq!(headers, expected);
}

/// Case 25, and the file that is broken: the limits in force stay.
#[test]
fn files_are_read_again_and_a_broken_one_changes_nothing() {
    let server = basic("");
    let ask = client(&server);
    let file = server.path("limits/basic.yaml");
    assert_eq!(says(&ask(call("basic", "key2=a")).unwrap()).1[0].2, 19);
    replace(
        &file,
        &BASIC.replace("requests_per_unit: 20", "requests_per_unit: 30"),
    );
    assert!(server.reload());
    assert_eq!(says(&ask(call("basic", "key2=a")).unwrap()).1[0].2, 28);
    let before = server.metric("ratelimit_service_config_load_error");
    replace(
        &file,
        "domain: basic\ndescriptors: [{ key: a, rate_limit: { unit: foo } }]",
    );
    assert!(!server.reload());
    assert_eq!(says(&ask(call("basic", "key2=a")).unwrap()).1[0].2, 27);
    let after = server.metric("ratelimit_service_config_load_error");
    assert_ne!(before, after);
}

/// Cases 27 and 28.
#[test]
fn the_pages_of_the_other_service_are_there() {
    let server = basic("");
    let json = |body: &str| {
        let head = format!(
            "POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n",
            body.len()
        );
        String::from_utf8(send(server.http(), format!("{head}\r\n{body}").as_bytes())).unwrap()
    };
    let question = r#"{"domain": "basic", "descriptors": [{"entries": [{"key": "generic_key", "value": "a"}, {"key": "generic_key", "value": "b"}]}]}"#;
    for (body, status, text) in [
        (question, "200", r#""overallCode":"OK""#),
        (question, "429", r#""overallCode":"OVER_LIMIT""#),
        (r#"{"domain": ""}"#, "400", "domain must not be empty"),
        ("{", "400", "EOF"),
    ] {
        let answer = json(body);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        assert!(answer.contains(text), "{answer}");
    }
    assert_eq!(server.get("/healthcheck").body, "OK");
    let limits = server.get("/rlconfig").body;
    let line =
        "basic.key2: unit=MINUTE requests_per_unit=20, shadow_mode: false, quota_mode: false\n";
    assert!(limits.contains(line), "{limits}");
    let stats = server.get("/stats").body;
    let line = "ratelimit.service.rate_limit.basic.generic_key_a.generic_key_b.over_limit: 1\n";
    assert!(stats.contains(line), "{stats}");
}

/// Case 30: a connection that is told to end loses no call.
#[test]
fn old_connections_are_told_to_end() {
    let server = basic("envoy_max_connection_age = '1s'");
    let ask = client(&server);
    eventually("there is another connection", || {
        assert!(ask(call("basic", "unlimited=x")).is_ok());
        let connections = server.metric("quell_connections_total{listener=\"envoy\"}");
        connections.is_some_and(|count| count.parse::<u64>().unwrap() > 1)
    });
}

/// Case 29 for statsd: what was counted comes once, and what could not be sent later.
#[test]
fn a_statsd_gets_what_was_counted() {
    let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = statsd.local_addr().unwrap();
    let server = basic(&format!(
        "envoy_statsd = '{address}'\nenvoy_statsd_interval = '100ms'"
    ));
    let ask = client(&server);
    for _ in 0..3 {
        ask(call("basic", "key5=value5")).unwrap();
    }
    let (stream, _) = statsd.accept().unwrap();
    let name = "ratelimit.service.rate_limit.basic.key5_value5.total_hits:";
    let mut counted = 0;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(count) = line.strip_prefix(name) {
            counted += count.strip_suffix("|c").unwrap().parse::<u64>().unwrap();
        }
        if counted >= 3 {
            break;
        }
    }
    assert_eq!(counted, 3);
}
