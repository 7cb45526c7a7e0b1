//! Actual: what a reservation cost in the end, and what each of its charges costs then.
//!
//! A reservation is settled with one number for each of its descriptors. Several descriptors may charge
//! one key, and a rule may set what some of them cost there. So a hold keeps where the cost of its charge
//! came from: units that a rule set, which stay, and the descriptors whose own cost was added.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::query_bounds::MAX_DESCRIPTORS;

// One bit for each descriptor.
const _: () = assert!(MAX_DESCRIPTORS <= 128, "a CostOrigin has 128 bits");

/// Final costs of the descriptors of a reservation, in units, in the order of the descriptors.
///
/// ```
/// use quell_core::actual::Actual;
/// assert_eq!(Actual::from(1_500).units(), [1_500]);
/// assert_eq!(Actual::from([1_500, 300]).units(), [1_500, 300]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actual(SmallVec<[u64; 2]>);

impl Actual {
    /// One number for each descriptor.
    #[must_use]
    pub fn units(&self) -> &[u64] {
        &self.0
    }
}

impl From<u64> for Actual {
    fn from(units: u64) -> Self {
        Self::from([units])
    }
}

impl<const N: usize> From<[u64; N]> for Actual {
    fn from(units: [u64; N]) -> Self {
        Self(SmallVec::from_slice(&units))
    }
}

impl From<Vec<u64>> for Actual {
    fn from(units: Vec<u64>) -> Self {
        Self(SmallVec::from_vec(units))
    }
}

/// Descriptor or rule that gave the cost of a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CostOrigin {
    /// Units that a rule set, whatever the call costs.
    pub fixed: u64,
    /// One bit for each descriptor whose own cost was added, the first of the query in the lowest.
    pub descriptors: u128,
}

impl CostOrigin {
    /// The cost of a query's only descriptor.
    pub const ONLY: Self = Self {
        fixed: 0,
        descriptors: 1,
    };

    /// Adds what the descriptor at `index` of its query was charged: `fixed` units that a rule set, or its
    /// own cost.
    pub(crate) fn add(&mut self, index: usize, fixed: Option<u64>) {
        match fixed {
            Some(fixed) => self.fixed = self.fixed.saturating_add(fixed),
            None => self.descriptors |= bit(index),
        }
    }

    /// The origin of the sum of both costs, saturating.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            fixed: self.fixed.saturating_add(other.fixed),
            descriptors: self.descriptors | other.descriptors,
        }
    }

    /// Final cost of the charge, saturating. A descriptor without a number costs nothing.
    #[must_use]
    pub fn total(self, actual: &Actual) -> u64 {
        let own = self.indices();
        let own = own.filter_map(|index| actual.units().get(index).copied());
        own.fold(self.fixed, u64::saturating_add)
    }

    /// The descriptors whose own cost was added, by their index in the query.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..MAX_DESCRIPTORS).filter(move |index| self.descriptors & bit(*index) != 0)
    }
}

/// The bit of a descriptor; 0 for one beyond [`MAX_DESCRIPTORS`], which no reservation has.
fn bit(index: usize) -> u128 {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    1_u128.checked_shl(index).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_charge_costs_what_its_descriptors_cost() {
        let mut origin = CostOrigin::default();
        for (index, fixed) in [(0, None), (1, Some(5)), (127, None), (200, None)] {
            origin.add(index, fixed);
        }
        assert_eq!(origin.indices().collect::<Vec<_>>(), [0, 127]);
        let mut units = vec![1; 128];
        (units[0], units[127]) = (700, 30);
        assert_eq!(origin.total(&units.into()), 735);
        assert_eq!(origin.total(&Actual::from(u64::MAX)), u64::MAX);
    }
}
