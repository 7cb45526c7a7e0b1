//! Token budgets through Envoy's service: estimates that are reserved when a call comes, and settled when its stream
//! ends.

use std::time::Duration;

use quell_envoy::proto::{
    Code, Descriptor, Kind, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
    UInt64Value,
};
use quell_testkit::proxy::{Fault, Proxy};
use quell_testkit::redis::Redis;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code as GrpcCode, Status};

use crate::envoy::{ENVOY, channel, client, descriptor, message, metadata};
use crate::harness::{Fixture, eventually, replace, store_settings};

const RULES: &str = "
domain: gateway
defaults: { on_failure: deny }
rules:
  - { name: tokens, per: [tenant], algorithm: fixed_window, limit: 1000/h, reserve: {} }
  - { name: requests, per: [tenant], algorithm: fixed_window, limit: 100/h, cost: 1 }
";

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn tenant(name: &str, more: &[(&str, &str)], hits: u64) -> Descriptor {
    Descriptor {
        hits_addend: Some(UInt64Value { value: hits }),
        ..descriptor(&[&[("tenant", name)], more].concat())
    }
}

fn reserve(name: &str, hits: u64) -> Descriptor {
    tenant(name, &[("phase", "reserve")], hits)
}

fn settle(name: &str, id: &str, hits: u64) -> Descriptor {
    tenant(name, &[("reservation", id), ("phase", "settle")], hits)
}

fn reservation(answer: &RateLimitResponse) -> String {
    match metadata(answer, "reservation") {
        Some(Kind::StringValue(id)) => id.clone(),
        other => panic!("{other:?}"),
    }
}

/// A server's client and what it says.
struct Gateway<'s> {
    server: &'s Fixture,
    ask: Box<dyn Fn(RateLimitRequest) -> Result<RateLimitResponse, Status> + 's>,
}

impl<'s> Gateway<'s> {
    fn new(server: &'s Fixture) -> Self {
        let ask = Box::new(client(server, None));
        Self { server, ask }
    }

    /// Reserves; `None` if that is refused.
    fn reserve(&self, name: &str, hits: u64) -> Option<String> {
        let answer = (self.ask)(message(&[reserve(name, hits)])).unwrap();
        let id = reservation(&answer);
        match answer.overall_code() {
            Code::Ok => Some(id),
            _ => {
                assert_eq!(id, "refused");
                None
            }
        }
    }

    fn settle(&self, name: &str, id: &str, hits: u64) {
        let answer = (self.ask)(message(&[settle(name, id, hits)])).unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(answer.statuses.len(), 1);
    }

    /// Units that are left of each of these rules.
    fn left(&self, name: &str) -> (u64, u64) {
        let entries = format!(r#"{{"domain":"gateway","entries":{{"tenant":"{name}"}}}}"#);
        let verdict = self.server.request("POST", "/v1/peek", &entries).json();
        let of = |rule: &str| {
            let mut rules = verdict["decisions"].as_array().unwrap().iter();
            let decision = rules.find(|one| one["rule"] == rule).unwrap();
            decision["remaining"].as_u64().unwrap()
        };
        (of("tokens"), of("requests"))
    }

    fn events(&self, event: &str) -> u64 {
        let series = format!("quell_envoy_reservations_total{{event=\"{event}\"}}");
        self.server.metric(&series).unwrap().parse().unwrap()
    }
}

/// A server in memory whose clock stands still, or on a store.
fn start(rules: &str, redis: Option<&Redis>) -> Fixture {
    match redis {
        None => Fixture::with_clock(rules, ENVOY),
        Some(redis) => start_on(rules, &store_settings(redis)),
    }
}

/// The same on the store of these settings.
fn start_on(rules: &str, store: &str) -> Fixture {
    let settings = format!("{ENVOY}{store}envoy_secret = 'DIR/secret'");
    let mut server = Fixture::prepare(rules, &settings);
    std::fs::write(server.path("secret"), SECRET).unwrap();
    server.stop_clock();
    server.start().unwrap();
    server
}

/// Checks in memory and on a store.
fn on_each(check: impl Fn(&str, Option<&Redis>)) {
    check("in memory", None);
    check("on Redis", Some(&Redis::start(&[])));
}

#[test]
fn each_row_of_the_table() {
    on_each(|place, redis| {
        let server = start(RULES, redis);
        let gateway = Gateway::new(&server);
        let mut requests = 100;
        let mut left = |tokens: u64, reserved: u64| {
            requests -= reserved;
            assert_eq!(gateway.left("acme"), (tokens, requests), "{place}");
        };
        // Less than estimated, and more.
        let id = gateway.reserve("acme", 300).unwrap();
        assert!(id.len() <= 80, "{id}");
        left(700, 1);
        gateway.settle("acme", &id, 100);
        left(900, 0);
        let id = gateway.reserve("acme", 300).unwrap();
        gateway.settle("acme", &id, 450);
        left(450, 1);
        // As estimated, and nothing at all.
        let id = gateway.reserve("acme", 100).unwrap();
        gateway.settle("acme", &id, 100);
        left(350, 1);
        let id = gateway.reserve("acme", 350).unwrap();
        left(0, 1);
        // Refused: Envoy sends the last call of its stream all the same.
        assert_eq!(gateway.reserve("acme", 1), None);
        gateway.settle("acme", "refused", 70);
        left(0, 0);
        gateway.settle("acme", &id, 0);
        left(350, 0);
        // Envoy did not hear the service, and let the call pass.
        gateway.settle("acme", "unreserved", 50);
        left(300, 0);
        // Without the entry.
        (gateway.ask)(message(&[tenant("acme", &[("phase", "settle")], 50)])).unwrap();
        left(250, 0);
        // Whether it fits or not.
        gateway.settle("acme", "unreserved", 400);
        left(0, 0);
        assert_eq!(gateway.reserve("acme", 1), None);
        let events = ["issued", "refused", "settled", "unreserved", "unverified"];
        let counts = events.map(|event| gateway.events(event));
        assert_eq!(counts, [4, 2, 4, 3, 0], "{place}");
    });
}

#[test]
fn a_reservation_of_nothing_is_a_check() {
    on_each(|place, redis| {
        let server = start(RULES, redis);
        let gateway = Gateway::new(&server);
        let id = gateway.reserve("acme", 0).unwrap();
        assert_eq!(gateway.left("acme").0, 1_000, "{place}");
        for _ in 0..2 {
            gateway.settle("acme", &id, 1_200);
            assert_eq!(gateway.left("acme").0, 0, "{place}");
        }
        assert_eq!(gateway.reserve("acme", 0), None, "{place}");
    });
}

#[test]
fn a_second_settlement_changes_nothing() {
    on_each(|place, redis| {
        let server = start(RULES, redis);
        let gateway = Gateway::new(&server);
        let other = gateway.reserve("acme", 200).unwrap();
        let id = gateway.reserve("acme", 300).unwrap();
        for hits in [100, 100, 0, 900] {
            gateway.settle("acme", &id, hits);
            assert_eq!(gateway.left("acme").0, 700, "{place}");
        }
        gateway.settle("acme", &other, 0);
        assert_eq!(gateway.left("acme").0, 900, "{place}");
    });
}

/// Whatever a client could send in place of what was issued.
#[test]
fn an_id_that_cannot_be_verified_is_charged_whole_and_counted() {
    on_each(|place, redis| {
        let server = start(RULES, redis);
        let gateway = Gateway::new(&server);
        let id = gateway.reserve("acme", 300).unwrap();
        let mut altered = id.clone().into_bytes();
        altered[4] ^= 1;
        let altered = String::from_utf8(altered).unwrap();
        let ids = ["", "00000000-0000-0000-0000-000000000000", &altered];
        for (place_of, wrong) in ids.iter().enumerate() {
            gateway.settle("acme", wrong, 10);
            let used = 300 + 10 * (place_of as u64 + 1);
            assert_eq!(gateway.left("acme").0, 1_000 - used, "{place} {wrong}");
        }
        // Of another tenant, and with an entry more.
        gateway.settle("other", &id, 10);
        assert_eq!(
            (gateway.left("other").0, gateway.left("acme").0),
            (990, 670)
        );
        let more = [("user", "x"), ("reservation", &*id), ("phase", "settle")];
        (gateway.ask)(message(&[tenant("acme", &more, 10)])).unwrap();
        assert_eq!(gateway.left("acme").0, 660, "{place}");
        assert_eq!(gateway.events("unverified"), 5, "{place}");
        gateway.settle("acme", &id, 0);
        assert_eq!(gateway.left("acme").0, 960, "{place}");
    });
}

#[test]
fn a_late_settlement_charges_what_is_above_the_estimate() {
    let server = start(RULES, None);
    let (gateway, clock) = (Gateway::new(&server), server.clock.as_ref().unwrap());
    let ids = [0, 1, 2].map(|_| gateway.reserve("acme", 200).unwrap());
    clock.advance(Duration::from_secs(120));
    gateway.settle("acme", &ids[0], 100);
    assert_eq!(gateway.left("acme").0, 500, "just in time");
    clock.advance(Duration::from_nanos(1));
    gateway.settle("acme", &ids[1], 100);
    assert_eq!(gateway.left("acme").0, 500);
    for _ in 0..2 {
        gateway.settle("acme", &ids[2], 300);
        assert_eq!(gateway.left("acme").0, 400);
    }
    // On a store, by its clock.
    let redis = Redis::start(&[]);
    let server = start(
        &RULES.replace("reserve: {}", "reserve: { ttl: 1us }"),
        Some(&redis),
    );
    let gateway = Gateway::new(&server);
    let ids = [0, 1].map(|_| gateway.reserve("acme", 200).unwrap());
    gateway.settle("acme", &ids[0], 100);
    gateway.settle("acme", &ids[1], 300);
    assert_eq!(gateway.left("acme").0, 500);
}

/// The estimate of a stream that nobody settles stays until its window ends.
#[test]
fn a_lost_settlement_leaves_the_estimate_charged() {
    let server = start(RULES, None);
    let (gateway, clock) = (Gateway::new(&server), server.clock.as_ref().unwrap());
    gateway.reserve("acme", 200).unwrap();
    clock.advance(Duration::from_secs(3_599));
    assert_eq!(gateway.left("acme").0, 800);
    clock.advance(Duration::from_secs(1));
    assert_eq!(gateway.left("acme").0, 1_000);
}

#[test]
fn a_reservation_belongs_to_the_window_in_which_it_began() {
    for window in ["limit: 1000/h", "limit: 1000/h, align: calendar"] {
        let server = start(&RULES.replace("limit: 1000/h", window), None);
        let (gateway, clock) = (Gateway::new(&server), server.clock.as_ref().unwrap());
        // To the end of the window, whenever that began.
        gateway.reserve("acme", 1).unwrap();
        let nanos = quell::clock::Clock::now(&**clock).wall.as_nanos();
        let hour = 3_600_000_000_000;
        let left = match window.contains("calendar") {
            true => hour - nanos % hour,
            false => hour,
        };
        clock.advance(Duration::from_nanos(left) - Duration::from_secs(60));
        let ids = [0, 1, 2].map(|_| gateway.reserve("acme", 200).unwrap());
        assert_eq!(gateway.left("acme").0, 399, "{window}");
        clock.advance(Duration::from_secs(60));
        gateway.settle("acme", &ids[0], 100);
        gateway.settle("acme", &ids[1], 900);
        assert_eq!(gateway.left("acme").0, 1_000, "{window}");
        gateway.reserve("acme", 500).unwrap();
        gateway.settle("acme", &ids[2], 0);
        assert_eq!(gateway.left("acme").0, 500, "{window}");
    }
}

#[test]
fn servers_of_one_store_settle_each_others_reservations() {
    let redis = Redis::start(&[]);
    let servers = [0, 1].map(|_| start(RULES, Some(&redis)));
    let [one, two] = servers.each_ref().map(Gateway::new);
    let ids = [300, 600].map(|hits| one.reserve("acme", hits).unwrap());
    assert_eq!(two.reserve("acme", 101), None);
    two.settle("acme", &ids[0], 100);
    // What the second had been refused passes again.
    assert_eq!(one.left("acme").0, 300);
    for gateway in [&one, &two] {
        gateway.settle("acme", &ids[0], 0);
        gateway.settle("acme", &ids[1], 500);
    }
    assert_eq!(two.left("acme").0, 400);
    assert_eq!((one.events("unverified"), two.events("unverified")), (0, 0));
}

/// Several rules that reserve: one for all users of a tenant, one for each of them; and one that comes meanwhile.
#[test]
fn a_settlement_adjusts_the_keys_of_all_rules_that_reserve() {
    let user = "
  - { name: users, per: [tenant, user], algorithm: fixed_window, limit: 500/h, reserve: {} }
  - { name: watched, per: [tenant], algorithm: fixed_window, limit: 50/h, reserve: {}, shadow: true }
";
    on_each(|place, redis| {
        let server = start(&format!("{RULES}{user}"), redis);
        let gateway = Gateway::new(&server);
        let left = |rule: &str| {
            let entries = r#"{"domain":"gateway","entries":{"tenant":"acme","user":"ann"}}"#;
            let verdict = server.request("POST", "/v1/peek", entries).json();
            let mut rules = verdict["decisions"].as_array().unwrap().iter();
            let decision = rules.find(|one| one["rule"] == rule).unwrap();
            decision["remaining"].as_u64().unwrap()
        };
        let ann = |phase: &str, id: &str, hits| {
            let entries = [("user", "ann"), ("reservation", id), ("phase", phase)];
            (gateway.ask)(message(&[tenant("acme", &entries, hits)])).unwrap()
        };
        let id = reservation(&ann("reserve", "", 400));
        assert_eq!(
            (left("tokens"), left("users"), left("watched")),
            (600, 100, 50)
        );
        // A rule in shadow that had no room for the estimate counts the true cost.
        ann("settle", &id, 40);
        assert_eq!(
            (left("tokens"), left("users"), left("watched")),
            (960, 460, 10)
        );
        let id = reservation(&ann("reserve", "", 100));
        let more =
            "  - { name: new, per: [user], algorithm: fixed_window, limit: 900/h, reserve: {} }\n";
        replace(&server.path("rules.yaml"), &format!("{RULES}{user}{more}"));
        assert!(server.reload(), "{place}");
        ann("settle", &id, 60);
        assert_eq!(
            (left("tokens"), left("users"), left("new")),
            (900, 400, 840),
            "{place}"
        );
    });
}

/// Descriptors of one call have one reservation each, and each settles its own.
#[test]
fn descriptors_of_one_call_are_reserved_together() {
    let server = start(RULES, None);
    let gateway = Gateway::new(&server);
    let both = |hits| [reserve("acme", hits), reserve("other", 2 * hits)];
    let answer = (gateway.ask)(message(&both(100))).unwrap();
    let ids = reservation(&answer);
    assert_eq!(ids.matches('.').count(), 1, "{ids}");
    let settled = [settle("acme", &ids, 10), settle("other", &ids, 20)];
    (gateway.ask)(message(&settled)).unwrap();
    assert_eq!(
        (gateway.left("acme").0, gateway.left("other").0),
        (990, 980)
    );
    let answer = (gateway.ask)(message(&both(600))).unwrap();
    assert_eq!(
        (answer.overall_code(), &*reservation(&answer)),
        (Code::OverLimit, "refused")
    );
    assert_eq!(
        (gateway.left("acme").0, gateway.left("other").0),
        (990, 980)
    );
    assert_eq!(gateway.events("unverified"), 0);
}

#[test]
fn a_descriptor_without_a_phase_is_charged_as_any_other() {
    let server = start(RULES, None);
    let gateway = Gateway::new(&server);
    let answer = (gateway.ask)(message(&[tenant("acme", &[], 5)])).unwrap();
    assert_eq!(
        (answer.overall_code(), answer.dynamic_metadata),
        (Code::Ok, None)
    );
    assert_eq!(gateway.left("acme"), (995, 99));
    let wrong = tenant("acme", &[("phase", "settel")], 5);
    let error = (gateway.ask)(message(&[wrong])).unwrap_err();
    assert_eq!(error.code(), GrpcCode::InvalidArgument);
    assert!(
        error.message().contains("write reserve, or settle"),
        "{error}"
    );
}

#[test]
fn servers_of_one_store_need_a_secret() {
    let redis = Redis::start(&[]);
    let settings = format!("{ENVOY}{}", store_settings(&redis));
    let error = Fixture::try_new(RULES, &settings)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("rule tokens has `reserve`"), "{error}");
    assert!(error.contains("write envoy_secret, the same"), "{error}");
    let plain = RULES.replace(", reserve: {}", "");
    let server = Fixture::try_new(&plain, &settings).unwrap();
    replace(&server.path("rules.yaml"), RULES);
    assert!(!server.reload());
    let with_secret = format!("{settings}envoy_secret = 'DIR/secret'");
    let mut server = Fixture::prepare(RULES, &with_secret);
    let error = server.start().unwrap_err().to_string();
    assert!(
        error.contains("cannot use envoy_secret: cannot read"),
        "{error}"
    );
    std::fs::write(server.path("secret"), "short\n").unwrap();
    let error = server.start().unwrap_err().to_string();
    assert!(error.contains("has 5 bytes: write at least 32"), "{error}");
}

/// While a store is gone, a rule that allows everything charges nothing: its calls are charged when they end.
#[test]
fn what_was_allowed_without_the_store_is_charged_whole() {
    let mut redis = Redis::start(&[]);
    let server = start(
        &RULES.replace("on_failure: deny", "on_failure: allow"),
        Some(&redis),
    );
    let gateway = Gateway::new(&server);
    let known = gateway.reserve("acme", 300).unwrap();
    redis.kill();
    let id = gateway.reserve("acme", 200).unwrap();
    assert_ne!(id, known);
    let settle = || (gateway.ask)(message(&[settle("acme", &id, 40)]));
    let gone = settle().unwrap_err();
    assert_eq!(gone.code(), GrpcCode::Unavailable, "{gone}");
    redis.restart();
    eventually("the store is back", || settle().is_ok());
    // It has lost what it knew.
    assert_eq!(gateway.left("acme").0, 960);
    settle().unwrap();
    assert_eq!(gateway.left("acme").0, 960);
}

/// Limit of the tenant that all streams are of.
const LIMIT: u64 = 10_000;

/// Streams of one tenant that begin at once, each with an estimate and a true cost. Returns what was used and what the
/// calls cost above their estimates.
async fn wave(channel: &Channel, estimate: impl Fn(u64) -> u64) -> (u64, u64) {
    let mut streams = JoinSet::new();
    for stream in 0..1_000 {
        let actual = 20 + stream * 37 % 81;
        let (channel, estimate) = (channel.clone(), estimate(actual));
        streams.spawn(async move {
            let mut client = RateLimitServiceClient::new(channel);
            let begin = message(&[reserve("acme", estimate)]);
            let answer = client.should_rate_limit(begin).await.unwrap().into_inner();
            let id = reservation(&answer);
            let end = message(&[settle("acme", &id, actual)]);
            client.should_rate_limit(end).await.unwrap();
            match answer.overall_code() {
                Code::Ok => (actual, actual.saturating_sub(estimate)),
                _ => (0, 0),
            }
        });
    }
    let streams = streams.join_all().await.into_iter();
    streams.fold((0, 0), |(used, over), (more, excess)| {
        (used + more, over + excess)
    })
}

#[test]
fn a_thousand_streams_at_once_use_no_more_than_there_is() {
    let rules = RULES
        .replace("1000/h", "10000/h")
        .replace("100/h, cost: 1", "10000/h, cost: 1");
    on_each(|place, redis| {
        for holds in [true, false] {
            let server = start(&rules, redis);
            let gateway = Gateway::new(&server);
            let channel = channel(&server);
            let (mut used, mut over) = (0, 0);
            for _ in 0..3 {
                let estimate = |actual| if holds { 100 } else { actual / 2 };
                let (more, excess) = server.block_on(wave(&channel, estimate));
                (used, over) = (used + more, over + excess);
                assert!(
                    used <= LIMIT + over,
                    "{place}: {used} of {LIMIT} and {over}"
                );
                assert_eq!(
                    gateway.left("acme").0,
                    LIMIT.saturating_sub(used),
                    "{place}"
                );
            }
            assert!(over == 0 || !holds, "{place}");
            assert!(used > LIMIT * 9 / 10, "{place}: {used}");
            if let Some(redis) = redis {
                redis.command(&["FLUSHALL"]);
            }
        }
    });
}

/// Servers of a store get the new secret one after the other: first to verify with, then to sign with. A stream that
/// began before is settled by each of them, until the old secret is gone.
#[test]
fn a_secret_is_replaced_while_streams_are_open() {
    let redis = Redis::start(&[]);
    let servers = [0, 1].map(|_| start(RULES, Some(&redis)));
    let [one, two] = servers.each_ref().map(Gateway::new);
    let new = "fedcba9876543210fedcba9876543210";
    let ids = [0, 1, 2].map(|_| one.reserve("acme", 100).unwrap());
    let set = |server: &Fixture, text: &str| {
        replace(&server.path("secret"), text);
        assert!(server.reload(), "{text}");
    };
    let both = [format!("{SECRET}\n{new}\n"), format!("{new}\n\n{SECRET}\n")];
    for server in &servers {
        set(server, &both[0]);
    }
    let between = one.reserve("acme", 100).unwrap();
    set(&servers[1], &both[1]);
    let signed = two.reserve("acme", 100).unwrap();
    for (gateway, id, left) in [
        (&one, &signed, 600),
        (&two, &ids[0], 700),
        (&two, &between, 800),
    ] {
        gateway.settle("acme", id, 0);
        assert_eq!(gateway.left("acme").0, left);
    }
    set(&servers[0], &both[1]);
    one.settle("acme", &ids[1], 0);
    assert_eq!((two.left("acme").0, one.events("unverified")), (900, 0));
    // Without the old secret nothing is given back.
    set(&servers[0], new);
    one.settle("acme", &ids[2], 30);
    assert_eq!((one.left("acme").0, one.events("unverified")), (870, 1));
    two.settle("acme", &ids[2], 30);
    assert_eq!((one.left("acme").0, two.events("unverified")), (940, 0));
}

/// The secrets before stay, and the server says so, until the file is mended.
#[test]
fn a_secret_with_a_mistake_leaves_those_before() {
    let settings = format!("{ENVOY}envoy_secret = 'DIR/secret'");
    let mut server = Fixture::prepare(RULES, &settings);
    std::fs::write(server.path("secret"), SECRET).unwrap();
    server.start().unwrap();
    let gateway = Gateway::new(&server);
    let id = gateway.reserve("acme", 300).unwrap();
    let five = [SECRET; 5].join("\n");
    for (text, mistake) in [
        (
            &*format!("{SECRET}\nshort\n"),
            "line 2 of DIR/secret has 5 bytes",
        ),
        ("\n", "DIR/secret has no secret"),
        (&five, "DIR/secret has 5 secrets: write at most 4"),
    ] {
        replace(&server.path("secret"), text);
        assert!(!server.reload(), "{text}");
        let health = server.get("/healthz").json();
        assert_eq!(health["status"], "degraded");
        let reason = health["envoy_secret_failure"]["reasons"][0]
            .as_str()
            .unwrap();
        let mistake = mistake.replace("DIR/secret", &server.path("secret").display().to_string());
        assert!(reason.contains(&mistake), "{reason}");
        assert_eq!(server.metric("quell_reload_failed").as_deref(), Some("1"));
    }
    gateway.settle("acme", &id, 100);
    assert_eq!(gateway.left("acme").0, 900);
    // The server follows its file.
    replace(&server.path("secret"), SECRET);
    eventually("the secret is read", || {
        server.get("/healthz").json()["status"] == "ok"
    });
    assert_eq!(gateway.events("unverified"), 0);
}

/// A settlement that the store does not answer is sent again, and counts once: whether the store saw it, as the first
/// of these, or not. What has no reservation could count twice, and is not sent again.
#[test]
fn settlements_are_kept_for_a_store_that_does_not_answer() {
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port());
    let url = proxy.redis_url();
    let server = start_on(RULES, &format!("store = '{url}'\nstore_timeout = '60s'\n"));
    let gateway = Gateway::new(&server);
    let ids = [0, 1, 2].map(|_| gateway.reserve("acme", 200).unwrap());
    let settle = |id: &str, hits| (gateway.ask)(message(&[settle("acme", id, hits)]));
    let unavailable = |error: Status| {
        assert_eq!(error.code(), GrpcCode::Unavailable, "{error}");
    };
    // The half that arrives may have the whole answer, where that of another call came with it.
    proxy.set(Fault::Cut);
    let is_cut = settle(&ids[0], 300).map_err(unavailable).is_err();
    proxy.set(Fault::Refuse);
    for (id, hits) in [(&*ids[1], 50), ("unreserved", 10)] {
        unavailable(settle(id, hits).unwrap_err());
    }
    let kept = 1 + u64::from(is_cut);
    assert_eq!((gateway.events("kept"), gateway.events("lost")), (kept, 1));
    proxy.set(Fault::None);
    eventually("both are settled", || gateway.left("acme").0 == 450);
    for id in &ids[..2] {
        settle(id, 0).unwrap();
    }
    assert_eq!((gateway.left("acme").0, gateway.events("lost")), (450, 1));
}
