//! Envoy's rate limit service, asked by gRPC over real sockets.

use std::time::Duration;

use quell_envoy::proto::{
    Code, Descriptor, DescriptorStatus, Entry, Kind, RateLimitOverride, RateLimitRequest,
    RateLimitResponse, RateLimitServiceClient, RateLimitUnit, UInt64Value, Unit,
};
use quell_host::access::{NewToken, Role};
use quell_testkit::redis::Redis;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code as GrpcCode, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::{Answer, Fixture, connect, eventually, exchange, request, store_settings};

pub(crate) const RULES: &str = "
domain: gateway
rules:
  - { name: address, per: [remote_address], algorithm: fixed_window, limit: 10/min }
  - { name: user, per: [user], algorithm: fixed_window, limit: 2/h }
  - { name: pages, match: { path: /page }, algorithm: fixed_window, limit: 1/h, status: 403, body: No more. }
  - { name: watched, match: { path: /watched }, rate: 1/min, shadow: true }
  - { name: bucket, match: { path: /bucket }, rate: 10/s, burst: 50 }
  - { name: permits, match: { path: /permits }, algorithm: concurrency, max: 3 }
";

pub(crate) const ENVOY: &str = "envoy = '127.0.0.1:0'\n";

/// A client of the service of `server`, with a token.
pub(crate) fn client(
    server: &Fixture,
    token: Option<&str>,
) -> impl Fn(RateLimitRequest) -> Result<RateLimitResponse, Status> {
    client_over(server, channel(server), token)
}

/// The same over a channel that is open.
pub(crate) fn client_over(
    server: &Fixture,
    channel: Channel,
    token: Option<&str>,
) -> impl Fn(RateLimitRequest) -> Result<RateLimitResponse, Status> {
    let token = token.map(|token| MetadataValue::try_from(format!("Bearer {token}")).unwrap());
    move |message| {
        let mut client = RateLimitServiceClient::new(channel.clone());
        let mut request = Request::new(message);
        if let Some(token) = &token {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        let answer = server.block_on(client.should_rate_limit(request))?;
        Ok(answer.into_inner())
    }
}

pub(crate) fn channel(server: &Fixture) -> Channel {
    let url = format!("http://{}", server.envoy());
    let endpoint = Channel::from_shared(url).unwrap();
    server.block_on(endpoint.connect()).unwrap()
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entries = entries.iter().map(|(key, value)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    });
    Descriptor {
        entries: entries.collect(),
        ..Descriptor::default()
    }
}

pub(crate) fn message(descriptors: &[Descriptor]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "gateway".to_owned(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    }
}

/// A status in short: the code, the name and numbers of the limit, and what is left.
pub(crate) fn says(status: &DescriptorStatus) -> (Code, Option<(&str, u32, Unit)>, u32) {
    let limit = status.current_limit.as_ref();
    let limit = limit.map(|one| (one.name.as_str(), one.requests_per_unit, one.unit()));
    (status.code(), limit, status.limit_remaining)
}

fn until_reset(status: &DescriptorStatus) -> Duration {
    let reset = status.duration_until_reset.as_ref().unwrap();
    let nanos = u32::try_from(reset.nanos).unwrap();
    Duration::new(reset.seconds.try_into().unwrap(), nanos)
}

fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut headers = answer.response_headers_to_add.iter();
    let header = headers.find(|header| header.key == name)?;
    Some(&header.value)
}

pub(crate) fn metadata<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a Kind> {
    answer
        .dynamic_metadata
        .as_ref()?
        .fields
        .get(name)?
        .kind
        .as_ref()
}

/// Envoy lets calls pass that it gets no answer to, so a visitor's values are none that cannot be answered.
#[test]
fn values_of_any_length_are_limited() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let ask = client(&server, None);
    let long = "v".repeat(60_000);
    let calls = [long.clone(), long.clone() + "x"].map(|user| {
        let user = descriptor(&[("user", &*user)]);
        let page = descriptor(&[("path", &*long)]);
        message(&[&[user], &*vec![page; 9]].concat())
    });
    for call in calls {
        let codes = [(); 3].map(|()| ask(call.clone()).unwrap().overall_code());
        assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit]);
    }
}

#[test]
fn each_descriptor_has_a_status_in_order() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let ask = client(&server, None);
    let descriptors = [
        descriptor(&[("user", "ann")]),
        descriptor(&[("nothing", "limits this")]),
        descriptor(&[("remote_address", "192.0.2.1")]),
        descriptor(&[("path", "/bucket")]),
    ];
    let of = |left: [u32; 3], is_over: bool| {
        let code = match is_over {
            true => Code::OverLimit,
            false => Code::Ok,
        };
        [
            (code, Some(("user", 2, Unit::Hour)), left[0]),
            (Code::Ok, None, 0),
            (Code::Ok, Some(("address", 10, Unit::Minute)), left[1]),
            // A bucket that is full again in 5 s has no unit.
            (Code::Ok, Some(("bucket", 50, Unit::Unknown)), left[2]),
        ]
    };
    for (left, is_over) in [([1, 9, 49], false), ([0, 8, 48], false), ([0, 8, 48], true)] {
        let answer = ask(message(&descriptors)).unwrap();
        let statuses: Vec<_> = answer.statuses.iter().map(says).collect();
        assert_eq!(
            statuses,
            of(left, is_over),
            "a refusal charges no other limit"
        );
        let overall = if is_over { Code::OverLimit } else { Code::Ok };
        assert_eq!(answer.overall_code(), overall);
    }
    server
        .clock
        .as_ref()
        .unwrap()
        .advance(Duration::from_millis(1_500));
    let answer = ask(message(&descriptors)).unwrap();
    assert_eq!(
        until_reset(&answer.statuses[0]),
        Duration::from_millis(3_598_500)
    );
    assert_eq!(header(&answer, "retry-after"), Some("3599"), "rounded up");
    let policy = "\"user\";q=2;w=3600, \"address\";q=10;w=60, \"bucket\";q=50;w=5";
    let policy = policy.split(", ").collect::<Vec<_>>();
    let shown = header(&answer, "ratelimit-policy").unwrap();
    assert!(policy.iter().all(|one| shown.contains(one)), "{shown}");
    assert!(
        header(&answer, "ratelimit")
            .unwrap()
            .contains("\"user\";r=0;t=3599")
    );
    let rule = Kind::StringValue("user".to_owned());
    assert_eq!(metadata(&answer, "rule"), Some(&rule));
    assert_eq!(
        server
            .metric("quell_connections{listener=\"envoy\"}")
            .as_deref(),
        Some("1")
    );
}

/// Unset means the request's hits, of which 0 is 1; 0 of a descriptor only checks it.
#[test]
fn hits_are_charged_and_zero_hits_only_checked() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let ask = client(&server, None);
    let address = |hits: Option<u64>| Descriptor {
        hits_addend: hits.map(|value| UInt64Value { value }),
        ..descriptor(&[("remote_address", "192.0.2.1")])
    };
    let user = descriptor(&[("user", "ann")]);
    let left = |answer: RateLimitResponse| answer.statuses[0].limit_remaining;
    let mut three = message(&[address(None)]);
    three.hits_addend = 3;
    assert_eq!(left(ask(three).unwrap()), 7);
    assert_eq!(left(ask(message(&[address(Some(4))])).unwrap()), 3);
    for _ in 0..2 {
        let answer = ask(message(&[address(Some(0)), user.clone()])).unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(left(answer), 3);
    }
    assert_eq!(left(ask(message(&[address(Some(3))])).unwrap()), 0);
    let bob = descriptor(&[("user", "bob")]);
    let answer = ask(message(&[address(Some(0)), bob])).unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let bob = (Code::Ok, Some(("user", 2, Unit::Hour)), 2);
    assert_eq!(says(&answer.statuses[1]), bob, "nothing is charged");
}

#[test]
fn a_limit_that_comes_with_a_descriptor_counts_in_place_of_the_rules() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let ask = client(&server, None);
    let limited = |user: &str, requests_per_unit: u32| Descriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit: RateLimitUnit::Minute.into(),
        }),
        ..descriptor(&[("user", user)])
    };
    for (left, code) in [
        (2, Code::Ok),
        (1, Code::Ok),
        (0, Code::Ok),
        (0, Code::OverLimit),
    ] {
        let answer = ask(message(&[limited("ann", 3)])).unwrap();
        assert_eq!(answer.overall_code(), code);
        let expected = (code, Some(("", 3, Unit::Minute)), left);
        assert_eq!(says(&answer.statuses[0]), expected);
    }
    // One that refuses keeps what the rules limit from being charged.
    let both = [descriptor(&[("user", "bob")]), limited("ann", 3)];
    let answer = ask(message(&both)).unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(answer.statuses[0].limit_remaining, 2);
    let nothing = ask(message(&[limited("eve", 0)])).unwrap();
    assert_eq!(nothing.overall_code(), Code::OverLimit);
    assert_eq!(header(&nothing, "retry-after"), None, "no wait helps");
}

#[test]
fn the_page_of_a_rule_and_a_rule_in_shadow_show() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let ask = client(&server, None);
    let page = message(&[descriptor(&[("path", "/page")])]);
    assert!(ask(page.clone()).unwrap().raw_body.is_empty());
    let refused = ask(page).unwrap();
    assert_eq!(refused.raw_body, b"No more.");
    assert_eq!(
        header(&refused, "content-type"),
        Some("text/plain; charset=utf-8")
    );
    let watched = message(&[descriptor(&[("path", "/watched")])]);
    ask(watched.clone()).unwrap();
    let answer = ask(watched).unwrap();
    assert_eq!(says(&answer.statuses[0]), (Code::Ok, None, 0));
    let rule = Kind::StringValue("watched".to_owned());
    assert_eq!(metadata(&answer, "would_refuse"), Some(&rule));
}

#[test]
fn header_fields_are_those_of_the_setting() {
    for (setting, expected) in [
        (
            "ratelimit",
            "ratelimit-limit ratelimit-remaining ratelimit-reset",
        ),
        (
            "x-ratelimit",
            "x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset",
        ),
        ("draft", "ratelimit-policy ratelimit"),
        ("off", ""),
    ] {
        let settings = format!("{ENVOY}envoy_headers = '{setting}'");
        let server = Fixture::with_clock(RULES, &settings);
        let ask = client(&server, None);
        let answer = ask(message(&[descriptor(&[("user", "ann")])])).unwrap();
        let names = answer.response_headers_to_add.iter();
        let names: Vec<&str> = names.map(|header| header.key.as_str()).collect();
        assert_eq!(names.join(" "), expected);
    }
}

#[test]
fn mistakes_are_told_by_the_code_and_in_words() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let ask = client(&server, None);
    let user = || vec![descriptor(&[("user", "ann")])];
    let with = |domain: &str, descriptors: Vec<Descriptor>| RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    };
    let negative = Descriptor {
        is_negative_hits: true,
        ..descriptor(&[("user", "ann")])
    };
    let permits = descriptor(&[("path", "/permits")]);
    use GrpcCode::{FailedPrecondition, InvalidArgument, NotFound};
    for (message, code, text) in [
        (
            with("", user()),
            InvalidArgument,
            "rate limit domain must not be empty",
        ),
        (
            with("gateway", vec![]),
            InvalidArgument,
            "rate limit descriptor list must not be empty",
        ),
        (
            with("elsewhere", user()),
            NotFound,
            "no rules for domain \"elsewhere\": write one of gateway",
        ),
        (
            with("gateway", vec![negative]),
            InvalidArgument,
            "is_negative_hits",
        ),
        (
            with("gateway", vec![permits]),
            FailedPrecondition,
            "rule `permits` hands out permits",
        ),
    ] {
        let error = ask(message).unwrap_err();
        assert_eq!(error.code(), code, "{error:?}");
        assert!(error.message().contains(text), "{error:?}");
    }
}

#[test]
fn callers_show_credentials_and_ask_for_their_domains() {
    let mut server = Fixture::prepare(
        RULES,
        &format!("{ENVOY}credentials = 'DIR/tokens'\nfailed_logins_per_minute = 3"),
    );
    let token = |name: &str, role: Role, domain: Option<&str>| {
        let token = NewToken::generate().unwrap();
        let domains = domain.map(|domain| vec![domain.to_owned()]);
        let entry = token.entry(name.parse().unwrap(), vec![role], domains);
        (token, entry.unwrap())
    };
    let (asks, first) = token("asks", Role::Ask, Some("gateway"));
    let (other, second) = token("other", Role::Ask, Some("elsewhere"));
    let (reads, third) = token("reads", Role::Read, Some("gateway"));
    let (counts, fourth) = token("counts", Role::Metrics, None);
    std::fs::write(
        server.path("tokens"),
        [first, second, third, fourth].join("\n"),
    )
    .unwrap();
    server.start().unwrap();
    let of = |token: &NewToken| {
        let ask = client(&server, Some(token.text()));
        ask(message(&[descriptor(&[("user", "ann")])]))
    };
    assert_eq!(of(&asks).unwrap().overall_code(), Code::Ok);
    let limited = Descriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 5,
            unit: RateLimitUnit::Second.into(),
        }),
        ..descriptor(&[("user", "ann")])
    };
    let error = client(&server, Some(asks.text()))(message(&[limited])).unwrap_err();
    assert_eq!(error.code(), GrpcCode::PermissionDenied, "{error:?}");
    for token in [&other, &reads] {
        let error = of(token).unwrap_err();
        assert_eq!(error.code(), GrpcCode::PermissionDenied, "{error:?}");
    }
    let nobody = client(&server, None);
    let error = nobody(message(&[descriptor(&[])])).unwrap_err();
    assert_eq!(error.code(), GrpcCode::Unauthenticated, "{error:?}");
    // A caller that tries one token after the other loses the connection with each.
    let stranger = NewToken::generate().unwrap();
    let guess = client(&server, Some(stranger.text()));
    let ends = [(); 6].map(|()| guess(message(&[descriptor(&[])])).unwrap_err().code());
    assert_eq!(ends[0], GrpcCode::Unauthenticated);
    let token = format!("X-Quell-Token: {}\r\n", counts.text());
    eventually("failed logins are counted", || {
        let metrics = request(server.http(), ("GET", "/metrics", ""), &token).body;
        let counted = metrics.split_once("quell_failed_logins_total{listener=\"envoy\"} ");
        let counted = counted.and_then(|(_, rest)| rest.lines().next()?.parse::<u64>().ok());
        // A request on a connection that is being closed is not heard.
        counted.is_some_and(|counted| counted > 3)
    });
}

/// `grpc.health.v1`, as Kubernetes and Envoy ask it; and over HTTP/1.1 what a balancer asks.
#[test]
fn health_is_told_until_the_server_stops() {
    let mut server = Fixture::new(RULES, &format!("{ENVOY}drain_timeout = '60s'"));
    let mut health = HealthClient::new(channel(&server));
    let request_of = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    for name in [
        "",
        "ratelimit",
        "envoy.service.ratelimit.v3.RateLimitService",
    ] {
        let answer = server.block_on(health.check(request_of(name))).unwrap();
        assert_eq!(answer.get_ref().status, 1, "{name}: SERVING");
    }
    let unknown = server
        .block_on(health.check(request_of("redis")))
        .unwrap_err();
    assert_eq!(unknown.code(), GrpcCode::NotFound);
    let address = server.envoy();
    assert_eq!(request(address, ("GET", "/readyz", ""), "").status, 200);
    let other = request(address, ("POST", "/v1/acquire", "{}"), "");
    assert_eq!(other.status, 404);
    assert!(
        other
            .body
            .contains("this listener is for Envoy's rate limit service"),
        "{}",
        other.body
    );
    let mut watch = server
        .block_on(health.watch(request_of("")))
        .unwrap()
        .into_inner();
    let runtime = server.handle();
    let next = |watch: &mut tonic::Streaming<_>| -> i32 {
        let answer: tonic_health::pb::HealthCheckResponse =
            runtime.block_on(watch.message()).unwrap().unwrap();
        answer.status
    };
    assert_eq!(next(&mut watch), 1);
    let (stopped, drained) = server.drain_aside();
    drained.recv().unwrap();
    assert_eq!(next(&mut watch), 2, "NOT_SERVING");
    drop(watch);
    drop(health);
    server.wait_for(stopped).unwrap();
}

/// A browser's page cannot speak HTTP/2 to a name that is not in the certificate; over HTTP/1.1 nothing is asked.
#[test]
fn grpc_is_answered_over_http2_alone() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let method = "POST /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit HTTP/1.1";
    let head = format!(
        "{method}\r\nHost: localhost\r\nContent-Type: application/grpc\r\nContent-Length: 5\r\nConnection: close\r\n\r\n\0\0\0\0\0"
    );
    let answer = Answer::read(&exchange(connect(server.envoy()), head.as_bytes()).unwrap());
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("HTTP/2 alone"), "{}", answer.body);
    let elsewhere = head.replace("localhost", "evil.example");
    let answer = Answer::read(&exchange(connect(server.envoy()), elsewhere.as_bytes()).unwrap());
    assert_eq!(answer.status, 403);
}

#[test]
fn descriptors_are_answered_from_leases() {
    let rules = "
domain: gateway
defaults: { on_failure: deny, nodes: 2, max_over_admission: 1% }
rules:
  - { name: leased, match: { path: /leased }, rate: 1000/s }
  - { name: exact, per: [user], algorithm: fixed_window, limit: 2/h }
";
    let redis = Redis::start(&[]);
    let server = Fixture::with_clock(rules, &format!("{ENVOY}{}", store_settings(&redis)));
    let ask = client(&server, None);
    let both = message(&[
        descriptor(&[("path", "/leased")]),
        descriptor(&[("user", "ann")]),
    ]);
    for left in [1, 0] {
        let answer = ask(both.clone()).unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(
            says(&answer.statuses[0]).1,
            Some(("leased", 1_000, Unit::Second))
        );
        assert_eq!(answer.statuses[1].limit_remaining, left);
        assert!(
            header(&answer, "ratelimit-policy")
                .unwrap()
                .contains("quell-bound=20")
        );
    }
    let answer = ask(both).unwrap();
    assert_eq!(says(&answer.statuses[1]).0, Code::OverLimit);
}

/// The declared answer of a rule is an answer, so Envoy's `failure_mode_deny` does not come into it.
#[test]
fn an_outage_of_the_store_is_answered_as_rules_declare() {
    let rules = "
domain: gateway
rules:
  - { name: closed, match: { path: /closed }, rate: 10/s, on_failure: deny }
  - { name: open, match: { path: /open }, rate: 10/s, on_failure: allow }
";
    let redis = Redis::start(&[]);
    let server = Fixture::with_clock(rules, &format!("{ENVOY}{}", store_settings(&redis)));
    let ask = client(&server, None);
    let at = |path: &str| ask(message(&[descriptor(&[("path", path)])])).unwrap();
    assert_eq!(at("/closed").overall_code(), Code::Ok);
    drop(redis);
    let refused = at("/closed");
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(metadata(&refused, "degraded"), Some(&Kind::BoolValue(true)));
    let passed = at("/open");
    assert_eq!(passed.overall_code(), Code::Ok);
    assert_eq!(metadata(&passed, "degraded"), Some(&Kind::BoolValue(true)));
}

#[test]
fn a_listener_beyond_loopback_needs_a_word() {
    let raw = quell_server::config::RawConfig::from_toml("t", "envoy = '0.0.0.0:8081'").unwrap();
    let error = raw.resolve().unwrap_err().to_string();
    assert!(
        error.contains("envoy: `0.0.0.0:8081` can be reached"),
        "{error}"
    );
    let only = "http = 'off'\nresp = 'off'\nenvoy = '127.0.0.1:0'";
    let raw = quell_server::config::RawConfig::from_toml("t", only).unwrap();
    assert!(raw.resolve().is_ok(), "Envoy may be the only caller");
    let wrong = quell_server::config::RawConfig::from_toml("t", "envoy_headers = 'ietf'").unwrap();
    let error = wrong.resolve().unwrap_err().to_string();
    assert!(
        error.contains("write one of draft, ratelimit, x-ratelimit, off"),
        "{error}"
    );
}
