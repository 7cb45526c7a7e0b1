//! Places of the records of a hold: one server, or one slot of a cluster for each part.

use std::collections::BTreeMap;

use crate::resp::Value;
use futures_util::future::join_all;
use quell_core::hold::HoldId;

use crate::link::Failure;
use crate::pointer::Pointer;
use crate::script::DECIDE;
use crate::servers::Servers;

/// The keys of a hold that one script may see: all on a single server, or those in one slot.
#[derive(Debug)]
pub(crate) struct HoldLocation {
    /// The name of the hold's record.
    pub(crate) record: Vec<u8>,
    /// The name of the stream that wakes waiting callers.
    pub(crate) stream: Vec<u8>,
    /// On a cluster, the states that may list the hold: a server that lacks one runs nothing.
    pub(crate) states: Vec<Vec<u8>>,
}

impl HoldLocation {
    /// The keys of a script call that ends the hold.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let own = [self.record.clone(), self.stream.clone()];
        [&own, self.states.as_slice()].concat()
    }

    /// The location of states that one script call may see.
    pub(crate) fn new(servers: &Servers, id: &HoldId, states: Vec<Vec<u8>>) -> Self {
        let first = states.first().map_or(&[][..], Vec::as_slice);
        let tag = servers.link.tag_of(first);
        let is_spread = servers.link.is_spread();
        Self {
            record: servers.names.hold(id.as_bytes(), tag),
            stream: servers.names.turn_stream(tag),
            states: if is_spread { states } else { Vec::new() },
        }
    }

    /// The locations of states in any slots.
    pub(crate) fn all(servers: &Servers, id: &HoldId, states: &[Vec<u8>]) -> Vec<Self> {
        let mut slots: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        for state in states {
            let slot = slots.entry(servers.link.group_of(state)).or_default();
            slot.push(state.clone());
        }
        slots
            .into_values()
            .map(|states| Self::new(servers, id, states))
            .collect()
    }

    /// The locations of an id: from this node's pointer cache, or else from the pointer that `asked`
    /// reads.
    pub(crate) async fn find(
        servers: &Servers,
        id: &HoldId,
        asked: impl Future<Output = Result<Option<Pointer>, Failure>>,
    ) -> Result<Vec<Self>, Failure> {
        if !servers.link.is_spread() {
            return Ok(vec![Self::new(servers, id, Vec::new())]);
        }
        if let Some(pointer) = servers.pointer_cache.get(id) {
            return Ok(Self::all(servers, id, &pointer.states));
        }
        let pointer = asked.await?.unwrap_or_default();
        Ok(Self::all(servers, id, &pointer.states))
    }
}

/// Runs the script at each location, all at once.
pub(crate) async fn run_at(
    servers: &Servers,
    locations: impl IntoIterator<Item = &HoldLocation>,
    arguments: &[Vec<u8>],
) -> Vec<Result<Value, Failure>> {
    let calls = locations.into_iter().map(async |location| {
        let keys = location.keys();
        servers.run(&DECIDE, &keys, arguments).await
    });
    join_all(calls).await
}
