//! Hold id: ids for holds whose caller names none.

use std::hash::{BuildHasher, RandomState};

use quell_core::hold::HoldId;

/// A new id of 128 random bits.
pub(crate) fn new_id(domain: &str) -> HoldId {
    // Each state has keys of its own, drawn from the system's randomness.
    let bits = || RandomState::new().hash_one(domain);
    loop {
        let name = format!("{:016x}{:016x}", bits(), bits());
        if let Some(id) = HoldId::new(domain, &name) {
            return id;
        }
    }
}
