//! Apportion: who should have how much, as weighted max-min with a floor.
//!
//! Simplest idea: proportional to demand. It fails because whoever asks for ten times as much gets
//! ten times as much, so retries pay. Max-min by weight pours water instead: every member's level
//! rises by its weight until it has what it wants, and who wants little leaves the rest to others.
//!
//! ```text
//! find the level at which  sum of clamp(level * weight, floor, want) = rate;
//! what is left when all have what they want is spread by weight
//! ```
//!
//! Example: 1000/s, four equal members with floor 25 that want 900, 60, 25 and 25. The level stops
//! the first at 890. If it wanted 300, the other 590 would be slack: 147.5 more for each.
//!
//! Levels are fractions, compared by cross-multiplication; shares are rounded down and the units
//! left over go one by one to the largest fractions, so sums are exact. O(n log n).

use alloc::vec::Vec;

/// What is known of one member when a rate is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Tells members apart where fractions are equal, so that the order of claims plays no part.
    pub key: u64,
    /// What it counts for; 0 counts as 1.
    pub weight: u32,
    /// What it has in any case.
    pub floor: u64,
    /// What it wants; less than the floor counts as the floor.
    pub want: u64,
    /// What it was given the last time.
    pub last: u64,
}

/// Divides `rate` into `shares`, one for each claim and in the same order; the sum is exact.
///
/// Floors that together exceed the rate are cut in proportion. `rotation` moves the turn of equal
/// fractions: the same number gives the same answer.
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

/// Keeps the shares of the last time where a change would help nobody.
///
/// Nothing is taken back while nobody is short (lazy reclaim), and a share that would grow by less
/// than a twentieth stays (hysteresis). Shares only ever become smaller than what
/// [`apportion`] said, or equal the last ones, whose sum is checked; so the sum holds.
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

/// A fraction of rate by weight.
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

/// A place where the sum over all members bends: somebody leaves its floor or has what it wants.
#[derive(Clone, Copy, Debug)]
struct Bend {
    value: u64,
    weight: u32,
    leaves_floor: bool,
}

/// The level at which the sum is the rate; wants exceed it and floors do not.
fn water_level(rate: u64, claims: &[Claim]) -> Level {
    let mut bends = Vec::with_capacity(claims.len() * 2);
    let mut fixed: u128 = 0;
    for claim in claims {
        fixed += u128::from(claim.floor);
        for (value, leaves_floor) in [(claim.floor, true), (want(claim), false)] {
            bends.push(Bend {
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
        // The sum where this bend lies, times its weight.
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

/// Adds `rate` to the shares in proportion to `part`, exactly: rounded down, the rest one by one to
/// the largest fractions.
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
