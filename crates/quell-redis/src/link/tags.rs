//! Tags: a number for each slot, so that a name with it between braces lies there.

use std::sync::OnceLock;

use super::cluster::{SLOTS, slot_of};

/// Numbers that are tried: with them every slot has one.
const MOST: u32 = 1 << 18;

/// The least number whose slot this is.
pub(super) fn tag_of(slot: u16) -> u32 {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![0; SLOTS];
        // From the greatest down, so that the least stays.
        for tag in (0..MOST).rev() {
            let slot = slot_of(tag.to_string().as_bytes());
            if let Some(place) = tags.get_mut(usize::from(slot)) {
                *place = tag;
            }
        }
        tags
    });
    tags.get(usize::from(slot)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_number_of_its_own() {
        for slot in 0..16_384 {
            assert_eq!(slot_of(tag_of(slot).to_string().as_bytes()), slot);
        }
    }
}
