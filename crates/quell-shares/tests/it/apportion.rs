//! The division of a rate: exact, fair, steady, and independent of order.

use proptest::collection::vec;
use proptest::prelude::*;
use quell_shares::apportion::{Claim, apportion, steady};

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let one = (1_u32..20, 0_u64..50, 0_u64..3_000, 0_u64..1_500);
    vec(one, 1..12).prop_map(|claims| {
        let claim = |(key, (weight, floor, want, last))| Claim {
            key: u64::try_from(key).unwrap(),
            weight,
            floor,
            want,
            last,
        };
        claims.into_iter().enumerate().map(claim).collect()
    })
}

fn divided(rate: u64, claims: &[Claim]) -> Vec<u64> {
    let mut shares = Vec::new();
    apportion(rate, claims, 3, &mut shares);
    shares
}

fn want(claim: &Claim) -> u64 {
    claim.want.max(claim.floor)
}

#[test]
fn the_essays_example() {
    let claim = |key, want| Claim {
        key,
        weight: 1,
        floor: 25,
        want,
        last: 0,
    };
    let claims = [claim(0, 900), claim(1, 60), claim(2, 25), claim(3, 25)];
    assert_eq!(divided(1_000, &claims), [890, 60, 25, 25]);
    let mut content = claims;
    content[0].want = 300;
    // Two halves become units; with this rotation the last claim comes first.
    assert_eq!(divided(1_000, &content), [448, 207, 172, 173]);
}

proptest! {
    #![proptest_config(crate::config(2_000))]

    #[test]
    fn the_sum_is_exact(rate in 0_u64..10_000, claims in claims()) {
        let shares = divided(rate, &claims);
        prop_assert_eq!(shares.iter().sum::<u64>(), rate);
    }

    #[test]
    fn nobody_is_above_its_want_while_another_is_below(rate in 0_u64..10_000, claims in claims()) {
        let shares = divided(rate, &claims);
        let pairs = || claims.iter().zip(&shares);
        let short = pairs().any(|(claim, share)| *share < want(claim));
        let above = pairs().any(|(claim, share)| *share > want(claim));
        prop_assert!(!(short && above), "{shares:?}");
    }

    #[test]
    fn everybody_has_its_floor_if_floors_fit(rate in 1_000_u64..10_000, claims in claims()) {
        for (claim, share) in claims.iter().zip(divided(rate, &claims)) {
            prop_assert!(share >= claim.floor);
        }
    }

    #[test]
    fn who_is_short_is_level_by_weight(rate in 1_000_u64..10_000, claims in claims()) {
        let shares = divided(rate, &claims);
        let all = || claims.iter().zip(&shares);
        for (a, a_share) in all().filter(|(claim, share)| **share < want(claim)) {
            for (b, b_share) in all().filter(|(claim, share)| **share > claim.floor) {
                // b is not higher than a by more than the rounding of both.
                let (high, low) = (b_share * u64::from(a.weight), a_share * u64::from(b.weight));
                prop_assert!(high <= low + u64::from(a.weight + b.weight), "{shares:?}");
            }
        }
    }

    #[test]
    fn wanting_or_weighing_more_loses_at_most_a_unit(
        rate in 0_u64..10_000, claims in claims(), more in 1_u64..500, heavier in any::<bool>(),
    ) {
        let before = divided(rate, &claims);
        let mut claims = claims;
        if heavier {
            claims[0].weight += u32::try_from(more).unwrap();
        } else {
            claims[0].want += more;
        }
        prop_assert!(divided(rate, &claims)[0] + 1 >= before[0]);
    }

    #[test]
    fn who_asks_for_more_takes_nothing_from_those_below_their_level(
        rate in 0_u64..10_000, claims in claims(), times in 2_u64..1_000,
    ) {
        let mut claims = claims;
        for claim in &mut claims {
            claim.floor = 0;
        }
        claims[0].want *= times;
        let weights: u64 = claims.iter().map(|claim| u64::from(claim.weight)).sum();
        for (claim, share) in claims.iter().zip(divided(rate, &claims)).skip(1) {
            let level = rate * u64::from(claim.weight) / weights;
            prop_assert!(share + 1 >= claim.want.min(level));
        }
    }

    #[test]
    fn the_order_of_claims_plays_no_part(rate in 0_u64..10_000, claims in claims(), turn in 0_usize..12) {
        let shares = divided(rate, &claims);
        let turn = turn % claims.len();
        let mut turned = claims;
        turned.rotate_left(turn);
        let mut expected = shares;
        expected.rotate_left(turn);
        prop_assert_eq!(divided(rate, &turned), expected);
    }

    #[test]
    fn steadiness_never_exceeds_the_rate(rate in 500_u64..10_000, claims in claims()) {
        let mut shares = divided(rate, &claims);
        steady(rate, &claims, &mut shares);
        prop_assert!(shares.iter().sum::<u64>() <= rate);
    }

    /// Whatever is kept, no member has more than it wants while another has less.
    #[test]
    fn steadiness_starves_nobody(rate in 600_u64..10_000, claims in claims(), parts in vec(0_u64..100, 12)) {
        // Any shares that an earlier plan of the same limit may have given.
        let mut claims = claims;
        let whole: u64 = parts.iter().take(claims.len()).sum::<u64>().max(1);
        for (claim, part) in claims.iter_mut().zip(&parts) {
            claim.last = rate * part / whole;
        }
        let mut shares = divided(rate, &claims);
        steady(rate, &claims, &mut shares);
        let short = claims.iter().zip(&shares).any(|(claim, share)| *share < want(claim));
        let above = claims.iter().zip(&shares).any(|(claim, share)| *share > want(claim));
        prop_assert!(!(short && above), "{claims:?} {shares:?}");
    }

    #[test]
    fn nothing_moves_while_nobody_is_short(rate in 500_u64..10_000, claims in claims()) {
        let mut claims = claims;
        for (claim, share) in claims.clone().iter().zip(divided(rate, &claims)) {
            let own = usize::try_from(claim.key).unwrap();
            claims[own].last = share;
            claims[own].want = claim.want.min(share);
        }
        let mut shares = divided(rate, &claims);
        steady(rate, &claims, &mut shares);
        let last: Vec<u64> = claims.iter().map(|claim| claim.last).collect();
        prop_assert_eq!(shares, last);
    }
}
