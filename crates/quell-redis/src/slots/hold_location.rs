//! Where the records of a hold are: one server, or one slot of a cluster for each part.

use std::collections::BTreeMap;

use quell_core::hold::HoldId;

use super::pointer::Pointer;
use crate::link::Failure;
use crate::store::RedisStore;

/// What one script may see of an id: the only one of a server, or one of each slot of a cluster.
#[derive(Debug)]
pub(crate) struct HoldLocation {
    /// The name of what is known of the id.
    pub(crate) record: Vec<u8>,
    /// The name of the stream that wakes waiting callers.
    pub(crate) stream: Vec<u8>,
    /// On a cluster, the states that it may stand on: whoever has not all of them runs nothing.
    pub(crate) states: Vec<Vec<u8>>,
}

impl HoldLocation {
    /// What the script is given to end a hold.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys = vec![self.record.clone(), self.stream.clone()];
        keys.extend(self.states.iter().cloned());
        keys
    }

    /// The location of states that one script may see.
    pub(crate) fn of(store: &RedisStore, id: &HoldId, states: Vec<Vec<u8>>) -> Self {
        let first = states.first().map_or(&[][..], Vec::as_slice);
        let tag = store.link.tag_of(first);
        let is_spread = store.link.is_spread();
        Self {
            record: store.names.hold(id.as_bytes(), tag),
            stream: store.names.turn_stream(tag),
            states: if is_spread { states } else { Vec::new() },
        }
    }

    /// The locations of states wherever they are.
    pub(crate) fn all(store: &RedisStore, id: &HoldId, states: &[Vec<u8>]) -> Vec<Self> {
        let mut slots: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        for state in states {
            let slot = slots.entry(store.link.group_of(state)).or_default();
            slot.push(state.clone());
        }
        slots
            .into_values()
            .map(|states| Self::of(store, id, states))
            .collect()
    }

    /// The locations that an id points to: as this node remembers it, and else as `asked` says, which is
    /// not awaited before.
    pub(crate) async fn find(
        store: &RedisStore,
        id: &HoldId,
        asked: impl Future<Output = Result<Option<Pointer>, Failure>>,
    ) -> Result<Vec<Self>, Failure> {
        if !store.link.is_spread() {
            return Ok(vec![Self::of(store, id, Vec::new())]);
        }
        if let Some(pointer) = store.pointer_cache.get(id) {
            return Ok(Self::all(store, id, &pointer.states));
        }
        let pointer = asked.await?.unwrap_or_default();
        Ok(Self::all(store, id, &pointer.states))
    }
}
