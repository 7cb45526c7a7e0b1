//! Messages as protobuf and back: nothing is lost, nothing outside its bounds comes in, no bytes panic.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::{array, option};
use prost::Message;
use quell_fleet::proto;
use quell_fleet::wire::{
    MAX_MESSAGE, WireError, decode_request, decode_response, encode_request, encode_response,
};
use quell_shares::message::{
    CoordinatorId, GivenUp, Grant, Granted, Held, Hold, Join, Joined, Kept, Leave, LimitName, Load,
    NoSeat, Push, Pushed, Report, Request, Response, Totals,
};
use quell_shares::plan::{LimitId, MAX_LIMITS, MAX_NAME, MemberId, Name};
use quell_shares::schedule::{LEASE_STEPS, Right};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn number() -> BoxedStrategy<u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0_u64..1_000, any::<u64>()].boxed()
}

fn duration() -> BoxedStrategy<Duration> {
    number().prop_map(Duration::from_nanos).boxed()
}

fn retry() -> impl Strategy<Value = Duration> {
    (0_u64..=3_600_000).prop_map(Duration::from_millis)
}

fn right() -> BoxedStrategy<Right> {
    (number(), number())
        .prop_map(|(rate, burst)| Right { rate, burst })
        .boxed()
}

fn leases() -> BoxedStrategy<[(Right, Duration); LEASE_STEPS]> {
    array::uniform3((right(), duration())).boxed()
}

fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9äß/_-]{1,20}".prop_map(Name::from)
}

/// One entry per limit, in the order of their numbers.
fn per_limit<T: std::fmt::Debug + 'static>(
    entry: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Vec<(LimitId, T)>> {
    btree_map(1_u64.., entry, 0..4)
        .prop_map(|entries: BTreeMap<u64, T>| {
            entries
                .into_iter()
                .map(|(id, entry)| (LimitId(id), entry))
                .collect()
        })
        .boxed()
}

fn names() -> BoxedStrategy<Vec<LimitName>> {
    per_limit(name())
        .prop_map(|names| {
            names
                .into_iter()
                .map(|(limit, name)| LimitName { limit, name })
                .collect()
        })
        .boxed()
}

fn kept() -> BoxedStrategy<Vec<Kept>> {
    per_limit((right(), right()))
        .prop_map(|kept| {
            let one = |(limit, (right, whole))| Kept {
                limit,
                right,
                whole,
            };
            kept.into_iter().map(one).collect()
        })
        .boxed()
}

fn join() -> BoxedStrategy<Request> {
    let gave_up = (number(), kept()).prop_map(|(epoch, bases)| GivenUp { epoch, bases });
    let who = (
        any::<u32>(),
        number(),
        1_u32..,
        vec(name(), 0..4),
        any::<bool>(),
    );
    let knows = (number(), kept(), option::of(gave_up), number(), number());
    (who, knows)
        .prop_map(|((member, nonce, weight, groups, exclusive), knows)| {
            let (replaces, floors, gave_up, epoch, record) = knows;
            Request::Join(Join {
                member: MemberId(member),
                nonce,
                weight,
                groups,
                exclusive,
                replaces,
                floors,
                gave_up,
                epoch,
                record,
            })
        })
        .boxed()
}

fn held() -> BoxedStrategy<Vec<Held>> {
    let rights = (leases(), array::uniform4(right()));
    let times = (duration(), duration(), option::of(duration()));
    per_limit((rights, times))
        .prop_map(|held| {
            held.into_iter()
                .map(
                    |(limit, ((leases, [gap, base, floor, whole]), times))| Held {
                        limit,
                        leases,
                        gap,
                        base_in: times.0,
                        base,
                        base_for: times.1,
                        floor,
                        floor_for: times.2,
                        whole,
                    },
                )
                .collect()
        })
        .boxed()
}

fn report() -> BoxedStrategy<Request> {
    let loads = per_limit((array::uniform4(number()), array::uniform3(number())));
    let numbers = array::uniform6(number());
    (any::<u32>(), numbers, loads, option::of(held()))
        .prop_map(|(member, numbers, loads, held)| {
            let load = |(limit, (load, totals)): (LimitId, ([u64; 4], [u64; 3]))| {
                let [demand, margin, admitted, denied] = load;
                let [asked, refused, degraded] = totals;
                Load {
                    limit,
                    demand,
                    margin,
                    admitted,
                    denied,
                    totals: Totals {
                        asked,
                        refused,
                        degraded,
                    },
                }
            };
            let [incarnation, seq, epoch, applied, revision, record] = numbers;
            Request::Report(Report {
                member: MemberId(member),
                incarnation,
                seq,
                epoch,
                applied,
                revision,
                record,
                loads: loads.into_iter().map(load).collect(),
                held,
            })
        })
        .boxed()
}

fn requests() -> BoxedStrategy<Request> {
    let leave = (any::<u32>(), number()).prop_map(|(member, incarnation)| {
        Request::Leave(Leave {
            member: MemberId(member),
            incarnation,
        })
    });
    prop_oneof![join(), report(), leave.boxed()].boxed()
}

fn grant() -> BoxedStrategy<Response> {
    let rights = per_limit((leases(), array::uniform4(right())));
    let times = (
        100_u64..=1_000,
        duration(),
        duration(),
        option::of(duration()),
    );
    let numbers = array::uniform6(number());
    (numbers, times, any::<bool>(), rights, names())
        .prop_map(
            |(numbers, (report, promise, hold, ends), draining, rights, names)| {
                let [incarnation, epoch, version, seq, revision, record] = numbers;
                type Rights = ([(Right, Duration); LEASE_STEPS], [Right; 4]);
                let granted =
                    |(limit, (leases, [gap, base, floor, whole])): (LimitId, Rights)| Granted {
                        limit,
                        leases,
                        gap,
                        base,
                        floor,
                        whole,
                    };
                Response::Grant(Grant {
                    incarnation,
                    epoch,
                    version,
                    seq,
                    revision,
                    record,
                    report: Duration::from_millis(report),
                    promise,
                    hold,
                    ends,
                    draining,
                    rights: rights.into_iter().map(granted).collect(),
                    names,
                })
            },
        )
        .boxed()
}

fn push() -> BoxedStrategy<Response> {
    (array::uniform4(number()), per_limit(right()))
        .prop_map(|(numbers, rights)| {
            let [incarnation, epoch, version, revision] = numbers;
            let pushed = |(limit, right)| Pushed { limit, right };
            Response::Push(Push {
                incarnation,
                epoch,
                version,
                revision,
                rights: rights.into_iter().map(pushed).collect(),
            })
        })
        .boxed()
}

fn responses() -> BoxedStrategy<Response> {
    let joined = (array::uniform4(number()), names()).prop_map(|(numbers, names)| {
        let [epoch, nonce, incarnation, record] = numbers;
        Response::Joined(Joined {
            epoch,
            nonce,
            incarnation,
            record,
            names,
        })
    });
    let hold =
        (array::uniform4(number()), option::of(duration())).prop_map(|(numbers, promise)| {
            let [incarnation, epoch, seq, record] = numbers;
            Response::Hold(Hold {
                incarnation,
                epoch,
                seq,
                record,
                promise,
            })
        });
    let short = (
        array::uniform3(number()),
        retry(),
        option::of(any::<u32>()),
        0..4,
    );
    let short = short.prop_map(
        |([nonce, incarnation, epoch], retry, leader, kind)| match kind {
            0 => Response::Occupied {
                nonce,
                incarnation,
                epoch,
                retry,
            },
            1 => Response::Left { incarnation },
            2 => Response::Unknown {
                incarnation,
                epoch,
                retry,
                no_seat: match nonce % 7 {
                    0 => None,
                    1 => Some(NoSeat::Taken),
                    2 => Some(NoSeat::Full(None)),
                    3 => Some(NoSeat::NoGroup("eu".into())),
                    4 => Some(NoSeat::TooManyJoins),
                    5 => Some(NoSeat::Unwritten),
                    _ => Some(NoSeat::Full(Some("eu".into()))),
                },
            },
            _ => Response::Elsewhere {
                leader: leader.map(CoordinatorId),
                retry,
            },
        },
    );
    prop_oneof![joined.boxed(), grant(), hold.boxed(), push(), short.boxed()].boxed()
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn a_request_comes_back(request in requests()) {
        let bytes = encode_request(&request).encode_to_vec();
        let read = decode_request(proto::Request::decode(bytes.as_slice()).unwrap());
        prop_assert_eq!(read, Ok(request));
    }

    #[test]
    fn an_answer_comes_back(response in responses(), leader in option::of("https://[a-z]{1,9}:[0-9]{2}")) {
        let bytes = encode_response(&response, leader.as_deref()).encode_to_vec();
        let read = decode_response(proto::Response::decode(bytes.as_slice()).unwrap());
        let url = leader.filter(|_| matches!(response, Response::Elsewhere { .. }));
        prop_assert_eq!(read, Ok((response, url)));
    }

    /// Arbitrary bytes, and messages of which some bytes have changed, are read or refused; what is
    /// read can be written and read again.
    #[test]
    fn no_bytes_panic(request in requests(), response in responses(), changes in vec((any::<u16>(), any::<u8>()), 0..6), noise in vec(any::<u8>(), 0..200)) {
        let spoil = |mut bytes: Vec<u8>| {
            let len = bytes.len();
            for (at, byte) in changes.iter().filter(|_| len > 0) {
                bytes[usize::from(*at) % len] = *byte;
            }
            bytes
        };
        let request = spoil(encode_request(&request).encode_to_vec());
        let response = spoil(encode_response(&response, None).encode_to_vec());
        for bytes in [&request, &response, &noise] {
            if let Ok(message) = proto::Request::decode(bytes.as_slice())
                && let Ok(read) = decode_request(message)
            {
                prop_assert_eq!(decode_request(encode_request(&read)), Ok(read));
            }
            if let Ok(message) = proto::Response::decode(bytes.as_slice())
                && let Ok((read, url)) = decode_response(message)
            {
                let again = decode_response(encode_response(&read, url.as_deref()));
                prop_assert_eq!(again, Ok((read, url)));
            }
        }
    }
}

/// Judged rules in requests and reports: beside the protocol, and the same bytes in later versions.
#[test]
fn what_is_told_of_judged_rules_comes_back() {
    let judged = proto::Judged {
        rules: vec!["d/a".to_owned()],
    };
    let kind = Some(proto::response::Kind::Judged(judged));
    let response = proto::Response { kind };
    let bytes = response.encode_to_vec();
    assert_eq!(bytes, b"\x5a\x05\x0a\x03d/a");
    assert_eq!(proto::Response::decode(&*bytes), Ok(response.clone()));
    assert_eq!(decode_response(response), Err(WireError::Kind));

    let seen = proto::RulesSeen {
        counts: true,
        answered: vec![proto::RuleAnswers {
            rule: "d/a".to_owned(),
            asked: 3,
            refused: 2,
            degraded: 1,
        }],
        ..proto::RulesSeen::default()
    };
    let bytes = seen.encode_to_vec();
    assert_eq!(
        bytes,
        b"\x2a\x0b\x0a\x03d/a\x10\x03\x18\x02\x20\x01\x30\x01"
    );
    assert_eq!(proto::RulesSeen::decode(&*bytes), Ok(seen));
}

fn load(limit: u64) -> proto::Load {
    proto::Load {
        limit,
        ..Default::default()
    }
}

fn report_of(loads: Vec<proto::Load>) -> Result<Request, WireError> {
    decode_request(proto::Request {
        kind: Some(proto::request::Kind::Report(proto::Report {
            loads,
            ..Default::default()
        })),
        ..Default::default()
    })
}

/// A server's counts of its calls come with a request and are no part of it.
#[test]
fn what_a_server_sees_of_its_calls_goes_there_and_back() {
    let leave = Request::Leave(Leave {
        member: MemberId(7),
        incarnation: 3,
    });
    let entry = |value: Option<&str>| proto::KeyEntry {
        name: "user".to_owned(),
        value: value.map(str::to_owned),
    };
    let ban = proto::Ban {
        domain: "shop".to_owned(),
        rule: "login".to_owned(),
        entries: vec![entry(Some("")), entry(None)],
        left_ns: 5,
        reason: "abuse".to_owned(),
    };
    let seen = proto::NodeSeen {
        latency: Some(proto::Latency {
            edges_ns: vec![250, 500],
            counts: vec![1, 0, u64::MAX],
            window_ns: 60,
        }),
        refused: vec![proto::CandidateKey {
            name: vec![0xff, 0],
            at_least: 2,
            at_most: 3,
        }],
        others_at_most: 1,
        refused_ns: 600,
        bans: Some(proto::Bans {
            bans: vec![ban],
            total: 9,
        }),
        outcomes: Some(proto::Outcomes {
            allowed: 4,
            denied: 3,
            would_refuse: 2,
            degraded: 1,
        }),
    };
    let mut sent = encode_request(&leave);
    assert_eq!(sent.seen, None);
    sent.seen = Some(seen);
    let read = proto::Request::decode(&*sent.encode_to_vec()).unwrap();
    assert_eq!(read, sent);
    assert_eq!(decode_request(read), Ok(leave));
}

#[test]
fn lists_are_bounded_and_in_order() {
    for (limits, error) in [
        (vec![0], WireError::Order(0)),
        (vec![2, 1], WireError::Order(1)),
        (vec![1, 1], WireError::Order(1)),
    ] {
        let loads = limits.into_iter().map(load).collect();
        assert_eq!(report_of(loads), Err(error));
    }
    let most = u64::try_from(MAX_LIMITS).unwrap();
    assert!(report_of((1..=most).map(load).collect()).is_ok());
    let more = report_of((1..=most + 1).map(load).collect());
    assert_eq!(more, Err(WireError::Limits(MAX_LIMITS + 1)));
}

#[test]
fn numbers_outside_their_bounds_are_refused() {
    let join = |change: fn(&mut proto::Join)| {
        let mut join = proto::Join {
            weight: 1,
            ..Default::default()
        };
        change(&mut join);
        let kind = Some(proto::request::Kind::Join(join));
        decode_request(proto::Request {
            kind,
            ..Default::default()
        })
        .err()
    };
    assert_eq!(join(|_| {}), None);
    assert_eq!(join(|join| join.weight = 0), Some(WireError::Weight));
    assert_eq!(
        join(|join| join.groups = vec!["g".to_owned(); 17]),
        Some(WireError::Groups(17))
    );
    assert_eq!(
        join(|join| join.groups = vec![String::new()]),
        Some(WireError::Name(0))
    );
    let answer = |kind| decode_response(proto::Response { kind: Some(kind) }).err();
    let grant = |report_ns| {
        answer(proto::response::Kind::Grant(proto::Grant {
            report_ns,
            ..Default::default()
        }))
    };
    assert_eq!(grant(500_000_000), None);
    for nanos in [0, 99_999_999, 1_000_000_001, u64::MAX] {
        let period = Duration::from_nanos(nanos);
        assert_eq!(grant(nanos), Some(WireError::Report(period)));
    }
    let elsewhere = |retry_ns, url: usize| {
        answer(proto::response::Kind::Elsewhere(proto::Elsewhere {
            leader: None,
            retry_ns,
            url: "u".repeat(url),
        }))
    };
    assert_eq!(elsewhere(3_600_000_000_000, 1_000), None);
    assert_eq!(elsewhere(0, 1_001), Some(WireError::Url(1_001)));
    assert!(matches!(elsewhere(u64::MAX, 0), Some(WireError::Retry(_))));
    let empty = decode_response(proto::Response { kind: None });
    assert_eq!(empty, Err(WireError::Kind));
}

/// The largest grant that a coordinator can send is below the bound, and tonic's own is too small.
#[test]
fn the_largest_grant_fits() {
    let most = Right {
        rate: u64::MAX,
        burst: u64::MAX,
    };
    let limits = || (1..).take(MAX_LIMITS).map(LimitId);
    let granted = |limit| Granted {
        limit,
        leases: [(most, Duration::from_nanos(u64::MAX)); LEASE_STEPS],
        gap: most,
        base: most,
        floor: most,
        whole: most,
    };
    let grant = Grant {
        incarnation: u64::MAX,
        epoch: u64::MAX,
        version: u64::MAX,
        seq: u64::MAX,
        revision: u64::MAX,
        record: u64::MAX,
        report: Duration::from_secs(1),
        promise: Duration::MAX,
        hold: Duration::MAX,
        ends: Some(Duration::MAX),
        draining: true,
        rights: limits().map(granted).collect(),
        names: limits()
            .map(|limit| LimitName {
                limit,
                name: Name::from("n".repeat(MAX_NAME)),
            })
            .collect(),
    };
    let size = encode_response(&Response::Grant(grant), None).encoded_len();
    assert!(size > 4 << 20 && size < MAX_MESSAGE * 4 / 5, "{size}");
}
