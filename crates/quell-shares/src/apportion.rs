//! Apportion: how a rate is divided among members, as weighted max-min with a floor.
//!
//! Simplest idea: in proportion to demand. It fails because a member that asks for ten times as
//! much gets ten times as much, so retries pay. Max-min by weight works like pouring water instead:
//! every member's level rises by its weight until it has what it wants, and a member that wants
//! little leaves the rest to others.
//!
//! ```text
//! find the level at which  sum of clamp(level * weight, floor, want) = rate;
//! what is left when all have what they want is spread by weight
//! ```
//!
//! Example: 1000/s, four equal members with floor 25 that want 900, 60, 25 and 25. The first member
//! gets 890. If it wanted 300, the other 590 would be slack: 147.5 more for each.
//!
//! Levels are fractions, compared by cross-multiplication. Shares are rounded down, and the units
//! left over go one by one to the largest fractions, so sums are exact. O(n log n).

use alloc::vec::Vec;

/// One member's claim when a rate is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Identifies the member where fractions are equal, so that the order of claims does not
    /// matter.
    pub key: u64,
    /// Its weight; 0 counts as 1.
    pub weight: u32,
    /// Part that it gets in any case.
    pub floor: u64,
    /// Part that it wants; less than the floor counts as the floor.
    pub want: u64,
    /// Its previous share.
    pub last: u64,
}

/// Divides `rate` into `shares`, one per claim and in the same order; their sum is exactly `rate`.
///
/// Floors that together exceed the rate are cut in proportion. `rotation` decides which of several
/// equal fractions comes first: the same number gives the same result.
pub fn apportion(rate: u64, claims: &[Claim], rotation: u64, shares: &mut Vec<u64>) {
    shares.clear();
    if claims.is_empty() {
        return;
    }
    let wanted: u128 = claims.iter().map(|claim| u128::from(want(claim))).sum();
    if wanted <= u128::from(rate) {
        shares.extend(claims.iter().map(want));
        let slack = rate - shares.iter().sum::<u64>();
        spread(slack, claims, rotation, shares, |claim| {
            u64::from(weight(claim))
        });
        return;
    }
    let floors: u128 = claims.iter().map(|claim| u128::from(claim.floor)).sum();
    shares.resize(claims.len(), 0);
    if floors >= u128::from(rate) {
        spread(rate, claims, rotation, shares, |claim| claim.floor);
        return;
    }
    let level = water_level(rate, claims);
    let mut left = rate;
    for (claim, share) in claims.iter().zip(shares.iter_mut()) {
        *share = match level.side(claim) {
            Side::Floor => claim.floor,
            Side::Want => want(claim),
            Side::Level => 0,
        };
        left -= *share;
    }
    spread(left, claims, rotation, shares, |claim| {
        match level.side(claim) {
            Side::Level => u64::from(weight(claim)),
            Side::Floor | Side::Want => 0,
        }
    });
}

/// Keeps previous shares where a change would help no member.
///
/// A share is not reduced while no member is short (lazy reclaim), and a share that would grow by
/// less than a twentieth stays (hysteresis). Every share is either the previous one, and the sum of
/// those is checked, or at most what [`apportion`] computed; so the sum never exceeds the rate.
pub fn steady(rate: u64, claims: &[Claim], shares: &mut [u64]) {
    let sum: u128 = claims.iter().map(|claim| u128::from(claim.last)).sum();
    let short = |(claim, share): (&Claim, &u64)| claim.last < (*share).min(want(claim));
    let kept = claims.iter().all(|claim| claim.last >= claim.floor);
    if kept && sum <= u128::from(rate) && !claims.iter().zip(shares.iter()).any(short) {
        for (claim, share) in claims.iter().zip(shares.iter_mut()) {
            *share = claim.last;
        }
        return;
    }
    for (claim, share) in claims.iter().zip(shares.iter_mut()) {
        let grows = *share > claim.last && *share - claim.last < claim.last / 20;
        if grows && claim.last >= want(claim).min(*share) {
            *share = claim.last;
        }
    }
}

fn weight(claim: &Claim) -> u32 {
    claim.weight.max(1)
}

fn want(claim: &Claim) -> u64 {
    claim.want.max(claim.floor)
}

/// A rate per weight, as a fraction.
#[derive(Clone, Copy, Debug)]
struct Level {
    rate: u128,
    weight: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Floor,
    Level,
    Want,
}

impl Level {
    fn side(&self, claim: &Claim) -> Side {
        let reaches = self.rate * u128::from(weight(claim));
        if reaches <= u128::from(claim.floor) * self.weight {
            Side::Floor
        } else if reaches >= u128::from(want(claim)) * self.weight {
            Side::Want
        } else {
            Side::Level
        }
    }
}

/// A level at which the sum over all members bends: a member rises above its floor, or has what it
/// wants.
#[derive(Clone, Copy, Debug)]
struct Breakpoint {
    value: u64,
    weight: u32,
    leaves_floor: bool,
}

/// The level at which the sum is the rate. The wants must exceed the rate, and the floors must not.
fn water_level(rate: u64, claims: &[Claim]) -> Level {
    let mut bends = Vec::with_capacity(claims.len() * 2);
    let mut fixed: u128 = 0;
    for claim in claims {
        fixed += u128::from(claim.floor);
        for (value, leaves_floor) in [(claim.floor, true), (want(claim), false)] {
            bends.push(Breakpoint {
                value,
                weight: weight(claim),
                leaves_floor,
            });
        }
    }
    bends.sort_unstable_by(|a, b| {
        let left = u128::from(a.value) * u128::from(b.weight);
        let right = u128::from(b.value) * u128::from(a.weight);
        left.cmp(&right).then(b.leaves_floor.cmp(&a.leaves_floor))
    });
    let mut rising: u128 = 0;
    for bend in bends {
        let (value, weight) = (u128::from(bend.value), u128::from(bend.weight));
        // The sum at this bend, times its weight.
        let sum = fixed * weight + rising * value;
        if rising > 0 && sum >= u128::from(rate) * weight {
            break;
        }
        if bend.leaves_floor {
            fixed -= value;
            rising += weight;
        } else {
            fixed += value;
            rising -= weight;
        }
    }
    Level {
        rate: u128::from(rate).saturating_sub(fixed),
        weight: rising.max(1),
    }
}

/// Adds `rate` to the shares in proportion to `part`, exactly: rounded down, with the rest added
/// one by one to the largest fractions.
fn spread(
    rate: u64,
    claims: &[Claim],
    rotation: u64,
    shares: &mut [u64],
    part: impl Fn(&Claim) -> u64,
) {
    let total: u128 = claims.iter().map(|claim| u128::from(part(claim))).sum();
    if total == 0 {
        return;
    }
    let mut left = rate;
    let mut fractions: Vec<(u128, u64, usize)> = Vec::with_capacity(claims.len());
    for (index, (claim, share)) in claims.iter().zip(shares.iter_mut()).enumerate() {
        let product = u128::from(rate) * u128::from(part(claim));
        let whole = u64::try_from(product / total).unwrap_or(u64::MAX);
        *share += whole;
        left -= whole;
        let fraction = product % total;
        if fraction > 0 {
            fractions.push((fraction, claim.key.wrapping_sub(rotation), index));
        }
    }
    // Fewer units are left than there are fractions.
    let count = usize::try_from(left).unwrap_or(usize::MAX);
    if count == 0 {
        return;
    }
    let order = |a: &(u128, u64, usize), b: &(u128, u64, usize)| b.0.cmp(&a.0).then(a.1.cmp(&b.1));
    if count < fractions.len() {
        fractions.select_nth_unstable_by(count, order);
    }
    for (_, _, index) in fractions.into_iter().take(count) {
        if let Some(share) = shares.get_mut(index) {
            *share += 1;
        }
    }
}
