//! Cluster: which of several primaries has a key now.
//!
//! A key belongs to one of 16,384 slots by CRC16 of what stands between its braces, and every primary
//! serves some. What a server says of a key that moved is believed at once (`MOVED`) or for one
//! command (`ASK`); either way it ran nothing, so the command is sent again. When a server is gone the
//! others are asked who took its place.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, Value};

use super::node::Node;
use super::{Attempt, Failure, PAUSE, Settings};
use crate::url::Address;

/// How many slots there are.
const SLOTS: usize = 16_384;

/// A map younger than this is not asked for again: a thousand calls that meet a change at once ask
/// once.
const FRESH: Duration = Duration::from_millis(50);

/// How often a command follows where it is sent before it is given up: a key moves once in a
/// resharding.
const MOST_MOVES: usize = 16;

/// The way to the servers of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Arc<Node>>,
    settings: Arc<Settings>,
    map: ArcSwap<Map>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// When the map was last asked for; one asks at a time.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

/// Who has which slot.
#[derive(Debug, Default)]
struct Map {
    /// First and last slot, and the primary that has them.
    ranges: Vec<(u16, u16, Arc<Node>)>,
}

impl Map {
    fn get(&self, slot: u16) -> Option<&Arc<Node>> {
        let range = self
            .ranges
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, node)| node)
    }
}

impl Cluster {
    pub(crate) fn new(seeds: &[Address], settings: Arc<Settings>) -> Self {
        let seeds = seeds
            .iter()
            .map(|seed| Node::new(seed.clone(), Arc::clone(&settings)));
        Self {
            seeds: seeds.collect(),
            settings,
            map: ArcSwap::default(),
            nodes: Mutex::default(),
            asked: tokio::sync::Mutex::new(None),
        }
    }

    /// Gives up all connections.
    pub(crate) fn hang_up(&self) {
        for node in self.nodes.lock().values().chain(&self.seeds) {
            node.hang_up();
        }
    }

    /// Sends `command`, which is about `key`, to whoever has that.
    pub(crate) async fn call(&self, key: &[u8], command: &Cmd) -> Result<Value, Failure> {
        let slot = slot_of(key);
        let mut moved: Option<(Arc<Node>, bool)> = None;
        let mut moves = 0;
        loop {
            let (node, asking) = match moved.take() {
                Some(there) => there,
                None => (self.node_of(slot).await?, false),
            };
            let answer = if asking {
                ask(&node, command).await
            } else {
                node.call(command).await
            };
            match answer {
                Ok(value) => return Ok(value),
                Err(Attempt::Moved(address)) if moves < MOST_MOVES => {
                    moves += 1;
                    let node = self.node(&address);
                    self.learn(slot, &node);
                    moved = Some((node, false));
                }
                Err(Attempt::Ask(address)) if moves < MOST_MOVES => {
                    moves += 1;
                    moved = Some((self.node(&address), true));
                }
                Err(Attempt::Moved(_) | Attempt::Ask(_)) => {
                    let reason = "its servers send a key back and forth".to_owned();
                    return Err(Failure::Refused(reason));
                }
                Err(Attempt::Away(_) | Attempt::Failed(Failure::Unreachable(_))) => {
                    // It ran nothing. Somebody else has or will have the slot: the caller limits how
                    // long we look. Redis 6.2 sends on every time before it says to try again.
                    moves = 0;
                    tokio::time::sleep(PAUSE).await;
                    self.refresh(Some(node.address())).await.ok();
                }
                Err(Attempt::Failed(failure)) => return Err(failure),
            }
        }
    }

    async fn node_of(&self, slot: u16) -> Result<Arc<Node>, Failure> {
        loop {
            if let Some(node) = self.map.load().get(slot) {
                return Ok(Arc::clone(node));
            }
            self.refresh(None).await?;
            if self.map.load().get(slot).is_none() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes
            .entry(address.clone())
            .or_insert_with(|| Node::new(address.clone(), Arc::clone(&self.settings)));
        Arc::clone(node)
    }

    /// Believes that one slot is elsewhere now.
    fn learn(&self, slot: u16, node: &Arc<Node>) {
        self.map.rcu(|map| {
            let mut ranges = vec![(slot, slot, Arc::clone(node))];
            ranges.extend(map.ranges.iter().cloned());
            // What was learnt one by one is forgotten when the whole map is asked for: before it gets
            // longer than a look at it should be.
            ranges.truncate(SLOTS);
            Map { ranges }
        });
    }

    /// Asks for the whole map, anyone but `gone` first.
    async fn refresh(&self, gone: Option<&Address>) -> Result<(), Failure> {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < FRESH) {
            return Ok(());
        }
        let known: Vec<_> = self.nodes.lock().values().cloned().collect();
        let mut nodes: Vec<_> = known
            .into_iter()
            .chain(self.seeds.iter().cloned())
            .collect();
        nodes.sort_by_key(|node| Some(node.address()) == gone);
        let mut slots = Cmd::new();
        slots.arg("CLUSTER").arg("SLOTS");
        let mut failure = Failure::Unreachable("no server of the cluster is known".to_owned());
        for node in nodes {
            match node.call(&slots).await {
                Ok(reply) => {
                    let ranges = self.read(&reply, node.address());
                    if !ranges.is_empty() {
                        self.map.store(Arc::new(Map { ranges }));
                        *asked = Some(Instant::now());
                        return Ok(());
                    }
                    failure = Failure::Refused(format!(
                        "{} knows of no cluster: write redis:// for a single server",
                        node.address()
                    ));
                }
                Err(Attempt::Failed(reason)) => failure = reason,
                Err(Attempt::Away(reason)) => failure = Failure::Refused(reason),
                Err(Attempt::Moved(_) | Attempt::Ask(_)) => {}
            }
        }
        Err(failure)
    }

    /// Reads the reply to CLUSTER SLOTS; an empty host is whoever answered.
    fn read(&self, reply: &Value, answered: &Address) -> Vec<(u16, u16, Arc<Node>)> {
        let Value::Array(rows) = reply else {
            return Vec::new();
        };
        let row = |row: &Value| {
            let Value::Array(cells) = row else {
                return None;
            };
            let [
                Value::Int(first),
                Value::Int(last),
                Value::Array(primary),
                ..,
            ] = cells.as_slice()
            else {
                return None;
            };
            let [host, Value::Int(port), ..] = primary.as_slice() else {
                return None;
            };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => {
                    String::from_utf8(host.clone()).ok()?
                }
                _ => answered.host().to_owned(),
            };
            let address = Address::new(host, u16::try_from(*port).ok()?);
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            Some((first, last, self.node(&address)))
        };
        rows.iter().filter_map(row).collect()
    }
}

/// Sends one command to a server that is about to get its key.
async fn ask(node: &Arc<Node>, command: &Cmd) -> Result<Value, Attempt> {
    let mut commands = Pipeline::new();
    commands.cmd("ASKING").add_command(command.clone());
    node.call_last(&commands, 2).await
}

/// The slot of a key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tagged = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16(tagged.unwrap_or(key)) % 16_384
}

/// CRC16-XMODEM, as Redis Cluster has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // From the cluster specification, and `CLUSTER KEYSLOT`.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(
            slot_of(b"{user1000}.following"),
            slot_of(b"{user1000}.followers")
        );
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % 16_384);
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(b"{bar") % 16_384);
    }
}
