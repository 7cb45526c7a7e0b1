//! Returns of a lease: what is given back, how much counts as held meanwhile, and until when.

use std::num::NonZeroU32;
use std::time::Duration;

use quell_core::decision::{Decision, Outcome};
use quell_core::over_admission::{LeaseTerms, Supply};
use quell_core::time::{Monotonic, Wall};
use quell_shares::lease::{LIFE, Lease, Request, Step};

const CAP: u64 = 10;
const MS: u64 = 1_000_000;

fn at(millis: u64) -> Monotonic {
    Monotonic::from_nanos(millis * MS)
}

const fn allowed(remaining: u64) -> Decision {
    Decision {
        outcome: Outcome::Allow,
        limit: 1_000,
        remaining,
        reset_after: Duration::from_millis(10),
        delay: Duration::ZERO,
        banned: false,
    }
}

/// A lease of ten units, asked for at 0 ms and answered at 20 ms, of which one is used.
fn granted() -> Lease {
    let terms = LeaseTerms {
        cap: CAP,
        nodes: NonZeroU32::MIN.saturating_add(1),
        max: 1_000,
        supply: Supply::Steady(1_000, Duration::from_secs(1)),
    };
    let mut lease = Lease::new(terms, at(0));
    lease.warm(at(0), 20, 1);
    let request = Request {
        number: 1,
        units: CAP,
    };
    assert_eq!(lease.take(at(0), 1), Step::Ask(request));
    let decided = Wall::from_nanos(7_000 * MS);
    lease.answer(at(20), request.number, &allowed(990), Some(decided));
    assert_eq!(lease.take(at(20), 1), Step::Allow { refill: None });
    lease
}

/// Demand of the units that a node asks for, at this time.
fn ask(lease: &mut Lease, now: Monotonic) -> Option<u64> {
    lease.warm(now, 100, 1);
    match lease.take(now, CAP) {
        Step::Ask(request) => Some(request.units),
        _ => None,
    }
}

#[test]
fn what_is_not_asked_for_is_given_back_and_not_used() {
    let mut lease = granted();
    assert_eq!(lease.surplus(at(100)), None, "callers may go on");
    let back = lease.surplus(at(250)).unwrap();
    assert_eq!((back.number, back.units), (1, 9));
    assert_eq!(back.charged, Wall::from_nanos(7_000 * MS));
    assert_eq!((lease.held(at(250)), lease.surplus(at(250))), (0, None));
}

/// The grant ends at 500 ms, the charge was made at 0 to 20 ms: the store takes back for 480 ms, less drift.
#[test]
fn a_return_is_over_when_its_grant_is() {
    let mut lease = granted();
    let back = lease.leave(at(30)).unwrap();
    let life = (LIFE - Duration::from_millis(20)).mul_f64(0.999);
    assert_eq!(back.until, back.charged.saturating_add(life));
    // One that would arrive too late is not sent.
    assert_eq!(granted().leave(at(490)), None);
}

#[test]
fn units_on_their_way_back_count_as_held_until_they_arrive_or_are_over() {
    for (confirmed, now, room) in [
        (None, 260, false),
        (Some(2), 260, false),
        (Some(1), 260, true),
        (None, 499, false),
        (None, 501, true),
    ] {
        let mut lease = granted();
        lease.surplus(at(250)).unwrap();
        if let Some(number) = confirmed {
            lease.returned(number);
        }
        let asked = ask(&mut lease, at(now));
        assert_eq!(asked, room.then_some(CAP), "{confirmed:?} at {now} ms");
    }
}

/// A reload: units of a return that is late would come on top of those of the next lease.
#[test]
fn units_on_their_way_back_count_as_held_although_the_limit_has_changed() {
    for (now, room) in [(270, false), (499, false), (501, true)] {
        let mut lease = granted();
        lease.surplus(at(250)).unwrap();
        let terms = *lease.terms();
        lease.renew(terms, at(260));
        let asked = ask(&mut lease, at(now));
        assert_eq!(asked, room.then_some(CAP), "at {now} ms");
    }
    let mut lease = granted();
    let terms = *lease.terms();
    lease.renew(terms, at(30));
    assert_eq!(lease.held(at(30)), 0, "what was held is forfeited");
}

/// No number is used twice, so that an answer from before a reload grants nothing after it.
#[test]
fn an_answer_from_before_a_change_grants_nothing() {
    let mut lease = granted();
    let terms = *lease.terms();
    let mut requests = (0..CAP).filter_map(|_| match lease.take(at(20), 1) {
        Step::Allow { refill } => refill,
        Step::Ask(request) => Some(request),
        _ => None,
    });
    let before = requests.next().unwrap();
    lease.renew(terms, at(22));
    lease.warm(at(22), 100, 1);
    let Step::Ask(after) = lease.take(at(22), 1) else {
        panic!("a third request");
    };
    assert_ne!(before.number, after.number);
    let decided = Some(Wall::from_nanos(7_000 * MS));
    lease.answer(at(23), before.number, &allowed(980), decided);
    assert_eq!(lease.held(at(23)), 0);
    lease.answer(at(24), after.number, &allowed(980), decided);
    assert_eq!(lease.held(at(24)), after.units);
}
