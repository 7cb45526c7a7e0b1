//! Holds start and end at their own instants, however seldom a key is looked at.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::{prop_oneof, proptest};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::end_hold::Ending;
use quell_core::hold::OnExpiry;
use quell_core::limit::Limit;

use crate::bench::Bench;
use crate::config;
use crate::holds::START;
use crate::kind::{Kind, SECOND, kinds};

/// Number of looks at the other key in each gap.
const LOOKS: u64 = 7;

fn reserved(kind: &Kind, is_released: bool) -> Bench {
    let on_expiry = if is_released {
        OnExpiry::Release
    } else {
        OnExpiry::Charge
    };
    let limit = kind.limit().on_expiry(on_expiry);
    Bench::from_limit(limit, kind.is_calendar(), START, START)
}

/// Applies what is due, and nothing else.
fn look(bench: &mut Bench) {
    assert!(!bench.end(u64::MAX, Ending::Cancel).found);
}

/// Makes claims one after the other, `gaps` apart, on a key that is never looked at in between and on
/// one that is looked at all the time.
fn compare(mut seldom: Bench, gaps: &[(u64, u64, u64, u64)]) {
    let full = u64::try_from(seldom.active.limit.full_refill().as_nanos()).unwrap_or(u64::MAX);
    let full = full.min(1_000 * SECOND);
    let thousandths = |of: u64| u64::try_from(u128::from(full) * u128::from(of) / 1_000).unwrap();
    let mut often = seldom.clone();
    let most = seldom.active.limit.max();
    for (name, (gap, tenths, keep, wait)) in gaps.iter().enumerate() {
        let later = seldom.now + thousandths(*gap);
        if (seldom.edges)(seldom.now) != (seldom.edges)(later) {
            break;
        }
        for look_at in 1..=LOOKS {
            often.now = seldom.now + (later - seldom.now) / LOOKS * look_at;
            look(&mut often);
        }
        (seldom.now, often.now) = (later, later);
        assert_eq!(seldom.peek(1), often.peek(1), "after {name} claims");
        let cost = u64::try_from((u128::from(most) * u128::from(*tenths) / 10).max(1)).unwrap();
        let hold = (*keep > 0).then(|| Duration::from_nanos(thousandths(*keep).max(1)));
        let wait = (*wait > 0).then(|| Duration::from_nanos(thousandths(*wait)));
        let claimed = seldom.claim(name as u64, cost, hold, wait);
        let twin = often.claim(name as u64, cost, hold, wait);
        assert_eq!(claimed.decisions, twin.decisions, "claim {name}");
        assert_eq!(claimed.wait, twin.wait, "claim {name}");
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    /// A wait that ends, a hold that starts and ends before anyone looks: the result is the same as
    /// with a look at each instant.
    #[test]
    fn looking_changes_nothing(
        kind in kinds(),
        is_released in any::<bool>(),
        gaps in vec(
            (
                prop_oneof![0..=100_u64, 0..=1_500_u64],
                1..=10_u64,
                prop_oneof![0..=0_u64, 1..=300_u64, 1..=1_500_u64],
                prop_oneof![0..=0_u64, 1..=2_000_u64],
            ),
            1..=14,
        ),
    ) {
        compare(reserved(&kind, is_released), &gaps);
    }

    /// The same for permits, with a lease that ends.
    #[test]
    fn looking_at_permits_changes_nothing(
        permits in 1..=6_u64,
        gaps in vec((0..=1_000_u64, 1..=10_u64, 0..=0_u64, 0..=3_000_u64), 1..=20),
    ) {
        let lease = Duration::from_secs(10);
        let permits = Limit::concurrency(permits).lease(lease);
        let limits = [permits.clone().queue(3), permits.clone().adaptive(1), permits];
        for limit in limits {
            compare(Bench::from_limit(limit.build().unwrap(), false, START, START), &gaps);
        }
    }

    /// The same for buckets that may owe, and for those that warm up.
    #[test]
    fn looking_at_debts_changes_nothing(
        burst in 1..=20_u64,
        is_released in any::<bool>(),
        gaps in vec((0..=1_500_u64, 1..=30_u64, 0..=1_500_u64, 0..=6_000_u64), 1..=14),
    ) {
        let warming = Limit::per_second(1).warm_up(Duration::from_secs(10));
        let on_expiry = if is_released { OnExpiry::Release } else { OnExpiry::Charge };
        for bucket in [Limit::per_second(1).burst(burst).debt(true), warming] {
            let limit = bucket.build().unwrap().on_expiry(on_expiry);
            compare(Bench::from_limit(limit, false, START, START), &gaps);
        }
    }
}

/// One hold ends while another has yet to start, and both have ended by the next look: what the first
/// gives back is there for the second, and not once more after it.
#[test]
fn what_is_over_first_is_given_back_first() {
    let limit = TokenBucket::refill(1, Duration::from_secs(1)).burst(6);
    let limit = limit.build().unwrap().on_expiry(OnExpiry::Release);
    let mut seldom = Bench::from_limit(limit, false, START, START);
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    seldom.claim(1, 6, None, None);
    seldom.claim(2, 3, Some(Duration::from_millis(1_900)), seconds(60));
    seldom.claim(3, 4, None, seconds(60));
    let mut often = seldom.clone();
    for second in 1..=9 {
        often.now = START + second * SECOND;
        look(&mut often);
    }
    seldom.now = often.now;
    assert_eq!(seldom.peek(1), often.peek(1));
}

/// Limits of nearly 2^64 units: what is given back is not lost because a sum overflows.
#[test]
fn what_is_given_back_of_the_largest_limits_is_given_back_whole() {
    let kind = Kind::Refill {
        amount: 1 << 61,
        every: 1 << 61,
        burst: 6 << 61,
        initial: None,
    };
    let gaps = [
        (0, 1, 143, 0),
        (0, 3, 110, 0),
        (54, 10, 1, 89),
        (15, 1, 0, 0),
        (74, 1, 0, 0),
    ];
    compare(reserved(&kind, true), &gaps);
}
