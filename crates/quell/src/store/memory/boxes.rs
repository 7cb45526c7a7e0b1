//! Boxes: states that do not fit into a slot, by number.

use quell_core::state::State;

use super::sync::Mutex;

/// Parts, each with a lock of its own that is held while one pointer is moved.
const PARTS: usize = if cfg!(test) { 1 } else { 256 };

/// States of windows, logs and bans. A number belongs to one slot, and is used under its lock.
#[derive(Debug)]
pub(super) struct Boxes {
    parts: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    boxes: Vec<Option<Box<State>>>,
    free: Vec<usize>,
}

impl Default for Boxes {
    fn default() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Boxes {
    /// Stores a state near others with the same `hint`. Returns its number.
    pub(super) fn keep(&self, hint: u32, state: State) -> u64 {
        let part = hint as usize / 8 % PARTS;
        let mut guard = self.parts[part].lock();
        let state = Some(Box::new(state));
        let index = match guard.free.pop() {
            Some(index) => {
                if let Some(place) = guard.boxes.get_mut(index) {
                    *place = state;
                }
                index
            }
            None => {
                guard.boxes.push(state);
                guard.boxes.len() - 1
            }
        };
        (index * PARTS + part) as u64
    }

    /// Runs `act` on the state with this number, if there is one.
    pub(super) fn with<R>(&self, number: u64, act: impl FnOnce(&mut State) -> R) -> Option<R> {
        let number = usize::try_from(number).ok()?;
        let mut part = self.parts[number % PARTS].lock();
        let place = part.boxes.get_mut(number / PARTS)?;
        place.as_deref_mut().map(act)
    }

    /// Removes the state with this number.
    pub(super) fn release(&self, number: u64) {
        let Ok(number) = usize::try_from(number) else {
            return;
        };
        let mut part = self.parts[number % PARTS].lock();
        let place = part.boxes.get_mut(number / PARTS).and_then(Option::take);
        if place.is_some() {
            part.free.push(number / PARTS);
        }
    }
}
