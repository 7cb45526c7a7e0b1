//! A hash tag for each slot: a number that, between braces in a name, puts the name in that slot.

use std::sync::OnceLock;

use super::cluster::{SLOTS, slot_of};

/// Number of candidates that are tried: fewer are enough for every slot to have one.
const MOST: u32 = 1 << 18;

static TAGS: OnceLock<Vec<u32>> = OnceLock::new();

/// The smallest number in this slot.
pub(super) fn tag_of(slot: u16) -> u32 {
    let tags = TAGS.get_or_init(all);
    tags.get(usize::from(slot)).copied().unwrap_or_default()
}

/// Computes all tags, which takes some milliseconds, before a call waits for one.
pub(super) fn prepare() {
    TAGS.get_or_init(all);
}

fn all() -> Vec<u32> {
    let mut tags = vec![MOST; SLOTS];
    let mut missing = SLOTS;
    for tag in 0..MOST {
        let slot = slot_of(tag.to_string().as_bytes());
        if let Some(place) = tags
            .get_mut(usize::from(slot))
            .filter(|place| **place == MOST)
        {
            *place = tag;
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_number_of_its_own() {
        for slot in 0..16_384 {
            assert_eq!(slot_of(tag_of(slot).to_string().as_bytes()), slot);
        }
        let greatest = all().into_iter().max();
        assert!(greatest < Some(MOST / 2), "{greatest:?}");
    }
}
