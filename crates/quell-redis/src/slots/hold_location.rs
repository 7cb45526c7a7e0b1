//! Where the records of a hold are: one server, or one slot of a cluster for each part.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use quell_core::hold::HoldId;
use redis::{Cmd, Value};

use super::pointer::Pointer;
use crate::answer::Reply;
use crate::hold::ids;
use crate::link::Failure;
use crate::script_request::strange;
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
}

impl RedisStore {
    /// The spot of states that lie in one slot.
    pub(crate) fn location(&self, id: &HoldId, states: Vec<Vec<u8>>) -> HoldLocation {
        let first = states.first().map_or(&[][..], Vec::as_slice);
        let tag = self.link.tag_of(first);
        let is_spread = self.link.is_spread();
        HoldLocation {
            record: self.names.hold(id.as_bytes(), tag),
            stream: self.names.turn_stream(tag),
            states: if is_spread { states } else { Vec::new() },
        }
    }

    /// The spots of states wherever they lie.
    pub(crate) fn locations(&self, id: &HoldId, states: &[Vec<u8>]) -> Vec<HoldLocation> {
        let mut slots: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        for state in states {
            let slot = slots.entry(self.link.group_of(state)).or_default();
            slot.push(state.clone());
        }
        slots
            .into_values()
            .map(|states| self.location(id, states))
            .collect()
    }

    /// The spots that an id points to: as this node remembers it, and else as `asked` says, which is
    /// not awaited before.
    pub(crate) async fn locations_of(
        &self,
        id: &HoldId,
        asked: impl Future<Output = Result<Option<Pointer>, Failure>>,
    ) -> Result<Vec<HoldLocation>, Failure> {
        if !self.link.is_spread() {
            return Ok(vec![self.location(id, Vec::new())]);
        }
        if let Some(pointer) = self.pointer_cache.get(id) {
            return Ok(self.locations(id, &pointer.states));
        }
        let pointer = asked.await?.unwrap_or_default();
        Ok(self.locations(id, &pointer.states))
    }

    /// What stands in the store of where an id points to.
    pub(crate) async fn read_pointer(&self, id: &HoldId) -> Result<Option<Pointer>, Failure> {
        let name = self.names.pointer(id.as_bytes());
        let mut get = Cmd::new();
        get.arg("GET").arg(name.as_slice());
        match self.link.call(&name, &get).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => read(&bytes).map(Some),
            reply => Err(strange(&reply)),
        }
    }

    /// Ends a hold without a caller that waits for it; returns who may go sooner now, and how many holds
    /// were over by themselves.
    pub(crate) async fn end_unawaited(
        &self,
        id: &HoldId,
        arguments: &[Vec<u8>],
    ) -> Result<(Vec<HoldId>, u64), Failure> {
        let locations = self.locations_of(id, self.read_pointer(id)).await?;
        let script = &self.scripts.hold;
        let ended = locations.iter().map(|location| async move {
            let keys = location.keys();
            script.run(&self.link, &keys, arguments).await
        });
        let (mut called, mut expired) = (Vec::new(), 0);
        for reply in join_all(ended).await {
            let reply = reply?;
            if let Some(mut reply) = Reply::of(&reply)
                && (0..4).all(|_| reply.number().is_some())
            {
                expired += reply.natural().unwrap_or_default();
                called.extend(ids(&mut reply));
            }
        }
        Ok((called, expired))
    }
}

/// A pointer that is one of ours.
pub(super) fn read(bytes: &[u8]) -> Result<Pointer, Failure> {
    let foreign = || Failure::Foreign("what says where an id points to".to_owned());
    Pointer::read(bytes).ok_or_else(foreign)
}
