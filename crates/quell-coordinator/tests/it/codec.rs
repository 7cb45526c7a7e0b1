//! Records and hand-overs as bytes.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use quell_coordinator::codec::{
    CodecError, FORMAT, check_room, decode_record, decode_snapshot, encode_record, encode_snapshot,
    fit_record,
};
use quell_coordinator::store::MAX_WRITE;
use quell_shares::ledger::{Left, Snapshot, SnapshotAccount};
use quell_shares::message::Held;
use quell_shares::plan::{
    Band, Fallback, Group, Limit, LimitId, MemberId, Membership, Plan, Quota, Record, Restored,
    ReturnSeats, Seat, Size, Sizing, Stage, TakenBack, Timing,
};
use quell_shares::schedule::Right;

fn size(seats: u32) -> Size {
    Size {
        total_weight: 100,
        seats,
        sizing: Sizing::Auto,
    }
}

fn quota(rate: u64) -> Quota {
    Quota {
        rate,
        burst: rate,
        least_burst: 1_000_000,
        fallback: Fallback::Floor,
    }
}

fn plan(rates: &[u64]) -> Plan {
    let limit = |(at, rate): (usize, &u64)| {
        let limit = Limit::new(format!("limit {at}"), quota(*rate));
        if at % 3 == 1 {
            limit.of_group("edge")
        } else {
            limit
        }
    };
    Plan {
        revision: 1,
        limits: rates.iter().enumerate().map(limit).collect(),
        size: size(100),
        groups: vec![Group {
            name: Arc::from("edge"),
            size: size(10),
        }],
        timing: Timing::DEFAULT,
        return_seats: ReturnSeats::After(Duration::from_secs(60)),
        rules: Some("1f2e3d4c5b6a".into()),
    }
}

/// A record of a member and so many limits, with names of so many bytes.
fn large(limits: usize, name: usize) -> Record {
    let mut plan = plan(&vec![1_000_000_000_000; limits]);
    plan.groups.clear();
    for (at, limit) in plan.limits.iter_mut().enumerate() {
        limit.name = format!("{at:0name$}").into();
        limit.group = None;
    }
    let mut record = Record::new(plan);
    record.seats = vec![Seat::new(MemberId(1), 1, 1, 1)];
    record
}

/// Older plans are merged until the record fits.
#[test]
fn a_record_has_room_for_many_limits_and_their_next_change() {
    for (limits, name) in [(10_000, 30), (4_000, 150)] {
        assert_eq!(check_room(&large(limits, name)), Ok(()));
    }
    let alone = large(9_000, 100);
    encode_record(&alone).unwrap();
    let refused = check_room(&alone);
    assert!(matches!(refused, Err(CodecError::TooLarge { .. })));
}

#[test]
fn as_many_older_plans_are_merged_as_have_to_be() {
    let mut record = large(4_000, 40);
    for _ in 0..8 {
        record.replace_plan(record.plan.clone()).unwrap();
    }
    assert_eq!((record.older.len(), record.merged.is_some()), (8, false));
    let refused = encode_record(&record);
    assert!(matches!(refused, Err(CodecError::TooLarge { .. })));
    let newest = record.older.last().cloned();
    let bytes = fit_record(&mut record).unwrap();
    assert!(record.merged.is_some() && (1..8).contains(&record.older.len()));
    assert_eq!(record.older.last().cloned(), newest);
    assert_eq!(decode_record(&bytes), Ok(record.clone()));
    // With one plan fewer merged it would not have fitted.
    assert!(bytes.len() + bytes.len() / 4 > MAX_WRITE, "{}", bytes.len());
    // One that fits is left alone.
    let before = record.clone();
    fit_record(&mut record).unwrap();
    assert_eq!(record, before);
}

/// A record with everything that there may be: older plans, merged ones, a rollout.
fn record(rates: &[Vec<u64>], seats: &[u32], percent: u8) -> Record {
    let mut rates = rates.iter().map(|rates| plan(rates));
    let mut record = Record::new(rates.next().unwrap());
    for (at, weight) in (0_u32..).zip(seats) {
        let mut seat = Seat::new(MemberId(at * 7), u64::from(at), u64::MAX, *weight);
        seat.groups.push(Membership {
            group: Arc::from("edge"),
            based: at.is_multiple_of(2),
        });
        seat.former_groups.push(Arc::from("old"));
        seat.draining = at.is_multiple_of(3);
        record.seats.push(seat);
    }
    record.version = 1 << 50;
    for plan in rates.by_ref() {
        record.replace_plan(plan).unwrap();
    }
    if percent > 0 {
        let staged = record.plan.clone();
        let band = (percent > 10).then_some(Band {
            max_refused: Some(u32::from(percent)),
            max_degraded: None,
            window: Band::WINDOW,
        });
        record
            .roll_out(staged, Stage::Percent(percent), band)
            .unwrap();
        record.taken_back = (percent > 50).then(|| TakenBack {
            at_ms: 7,
            why: Arc::from("it refused"),
        });
        record.restored = Some(Restored {
            lease: Duration::from_nanos(u64::from(percent)),
        });
    }
    record
}

fn records() -> impl Strategy<Value = Record> {
    let rates = vec(vec(1_000_000..u64::MAX >> 20, 1..6), 1..12);
    let parts = (rates, vec(1_u32..1_000, 0..9), 0_u8..=100);
    parts.prop_map(|(rates, seats, percent)| record(&rates, &seats, percent))
}

fn left(rate: u64) -> Left {
    let right = Right {
        rate,
        burst: rate / 3,
    };
    let held = Held {
        limit: LimitId(7),
        leases: [(right, Duration::from_nanos(rate)); 3],
        gap: right,
        base_in: Duration::from_secs(1),
        base: Right::NONE,
        base_for: Duration::from_millis(rate % 1_000),
        floor: right,
        floor_for: rate.is_multiple_of(2).then_some(Duration::from_secs(9)),
        whole: right,
    };
    Left {
        held,
        sure: rate,
        revision: rate % 5,
    }
}

fn snapshot(members: u32, limits: u64) -> Snapshot {
    let account = |member| SnapshotAccount {
        member: MemberId(member),
        incarnation: u64::from(member) + 1,
        limits: (0..limits).map(|limit| left(1 << 40 | limit)).collect(),
    };
    Snapshot {
        epoch: 77,
        accounts: (0..members).map(account).collect(),
    }
}

fn decoded(parts: &[Vec<u8>]) -> Result<Option<Snapshot>, CodecError> {
    decode_snapshot(parts.iter().map(|part| &part[..]))
}

proptest! {
    #[test]
    fn a_record_comes_back(record in records()) {
        let bytes = encode_record(&record).unwrap();
        prop_assert_eq!(decode_record(&bytes).unwrap(), record);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..300), as_record: bool) {
        let kind = if as_record { b"qr" } else { b"qs" };
        let framed: Vec<u8> = [&kind[..], &[FORMAT], &bytes].concat();
        for bytes in [&bytes, &framed] {
            if let Ok(record) = decode_record(bytes) {
                let again = encode_record(&record).unwrap();
                prop_assert_eq!(decode_record(&again).unwrap(), record);
            }
            decode_snapshot([&bytes[..]]).ok();
        }
    }

    #[test]
    fn a_damaged_record_is_refused_or_read(record in records(), at: proptest::sample::Index, to: u8) {
        let mut bytes = encode_record(&record).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        decode_record(&bytes).ok();
        prop_assert!(decode_record(&bytes[..at]).is_err() || at > 3);
    }

    #[test]
    fn a_hand_over_comes_back(members in 0_u32..9, limits in 0_u64..9) {
        let snapshot = snapshot(members, limits);
        let parts = encode_snapshot(&snapshot).unwrap();
        prop_assert_eq!(decoded(&parts), Ok(Some(snapshot)));
    }
}

#[test]
fn a_record_of_another_format_is_refused_with_what_to_do() {
    let mut bytes = encode_record(&record(&[vec![1_000_000]], &[1], 0)).unwrap();
    for found in [FORMAT - 1, FORMAT + 1] {
        bytes[2] = found;
        let error = decode_record(&bytes).unwrap_err();
        assert_eq!(error, CodecError::OtherFormat { found });
        assert!(
            error
                .to_string()
                .contains("start the version that wrote it")
        );
    }
    // Nor is a hand-over taken for a record.
    let parts = encode_snapshot(&snapshot(1, 1)).unwrap();
    assert!(matches!(
        decode_record(&parts[0]),
        Err(CodecError::Damaged(_))
    ));
}

#[test]
fn a_record_that_no_store_takes_is_refused() {
    let many = vec![1_000_000_u64; 10_000];
    let plans = vec![many; 6];
    let error = encode_record(&record(&plans, &[1; 10], 0)).unwrap_err();
    assert!(
        matches!(error, CodecError::TooLarge { bytes } if bytes > MAX_WRITE),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("use fewer limits, shorter names or fewer members")
    );
    // Ten thousand members fit.
    let bytes = encode_record(&{
        let mut record = record(&[vec![1_000_000]], &[], 0);
        record.seats = (0..10_000)
            .map(|at| Seat::new(MemberId(at), 1 << 50, u64::MAX, 1))
            .collect();
        record
    });
    assert!(bytes.unwrap().len() < MAX_WRITE / 2);
}

#[test]
fn a_hand_over_is_split_and_used_as_a_whole_or_not_at_all() {
    // A hundred members with a hundred limits.
    let snapshot = snapshot(100, 100);
    let mut parts = encode_snapshot(&snapshot).unwrap();
    assert!(parts.len() > 1, "{}", parts.len());
    assert!(parts.iter().all(|part| part.len() < MAX_WRITE));
    parts.reverse();
    assert_eq!(decoded(&parts), Ok(Some(snapshot)));
    let lost = parts.pop().unwrap();
    assert_eq!(decoded(&parts), Ok(None));
    parts.push(parts[0].clone());
    assert_eq!(decoded(&parts), Ok(None));
    assert_eq!(decoded(&[lost]), Ok(None));
    assert_eq!(decoded(&[]), Ok(None));
}

#[test]
fn a_hand_over_that_takes_too_long_to_write_is_left_out() {
    assert_eq!(encode_snapshot(&snapshot(1_000, 1_000)), None);
    assert_eq!(encode_snapshot(&snapshot(1, 20_000)), None);
}
