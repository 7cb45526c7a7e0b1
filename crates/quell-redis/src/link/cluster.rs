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
use super::{Attempt, Failure, PAUSE, Place, Settings};
use crate::url::Address;

/// How many slots there are.
pub(super) const SLOTS: usize = 16_384;

/// A map younger than this is not asked for again: a thousand calls that meet a change at once ask
/// once.
const FRESH: Duration = Duration::from_millis(50);

/// How often a command follows where it is sent before it is given up: a key moves once in a
/// resharding.
const MOST_MOVES: usize = 16;

/// How long one server may take to say who has which slot, before the next is asked.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// Numbers that are tried until one has a slot that is looked for. Of a server that has a single slot
/// none is found with probability 10^-27.
const MOST_TAGS: u32 = 1 << 20;

/// The way to the servers of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Arc<Node>>,
    settings: Arc<Settings>,
    map: ArcSwap<Map>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// Stands for slots of which nobody knows who has them.
    nobody: Arc<Place>,
    /// When the map was last asked for; one asks at a time.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

/// Who has which slot.
#[derive(Debug, Default)]
struct Map {
    /// First and last slot, and the primary that has them.
    ranges: Vec<(u16, u16, Arc<Node>)>,
    /// Who has any, each once.
    owners: Vec<Arc<Node>>,
}

impl Map {
    fn new(ranges: Vec<(u16, u16, Arc<Node>)>) -> Self {
        let mut owners: Vec<Arc<Node>> = Vec::new();
        for (_, _, node) in &ranges {
            if !owners.iter().any(|owner| Arc::ptr_eq(owner, node)) {
                owners.push(Arc::clone(node));
            }
        }
        Self { ranges, owners }
    }

    fn get(&self, slot: u16) -> Option<&Arc<Node>> {
        let range = self
            .ranges
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, node)| node)
    }

    /// Whether every slot is somebody's.
    fn is_whole(&self) -> bool {
        let mut ranges: Vec<_> = self.ranges.iter().map(|range| (range.0, range.1)).collect();
        ranges.sort_unstable();
        let mut next = 0;
        for (first, last) in ranges {
            if usize::from(first) > next {
                return false;
            }
            next = next.max(usize::from(last) + 1);
        }
        next >= SLOTS
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
            nobody: Arc::new(Place::new("the cluster".to_owned())),
            asked: tokio::sync::Mutex::new(None),
        }
    }

    /// Who is asked about a slot.
    pub(crate) fn place_of(&self, slot: u16) -> Arc<Place> {
        let map = self.map.load();
        let place = map.get(slot).map(|node| node.place());
        Arc::clone(place.unwrap_or(&self.nobody))
    }

    /// All who are asked about slots.
    pub(crate) fn places(&self) -> Vec<Arc<Place>> {
        let map = self.map.load();
        let owners = map.owners.iter().map(|node| Arc::clone(node.place()));
        let is_unknown = map.owners.is_empty() || self.nobody.breaker.is_open();
        owners
            .chain(is_unknown.then(|| Arc::clone(&self.nobody)))
            .collect()
    }

    pub(crate) fn is_any_gone(&self) -> bool {
        let map = self.map.load();
        let mut owners = map.owners.iter();
        self.nobody.breaker.is_open() || owners.any(|node| node.place().breaker.is_open())
    }

    /// A text whose slot a place has, if it has any.
    pub(crate) fn tag_at(&self, place: &Arc<Place>) -> Option<String> {
        let map = self.map.load();
        let is_there = |slot| match map.get(slot) {
            Some(node) => Arc::ptr_eq(node.place(), place),
            None => Arc::ptr_eq(&self.nobody, place),
        };
        let owns = map
            .owners
            .iter()
            .any(|node| Arc::ptr_eq(node.place(), place));
        if !owns && (!Arc::ptr_eq(&self.nobody, place) || map.is_whole()) {
            return None;
        }
        let mut tags = (0..MOST_TAGS).map(|number| number.to_string());
        tags.find(|tag| is_there(slot_of(tag.as_bytes())))
    }

    /// Asks who has which slot, a place that does not answer last.
    pub(crate) async fn look_around(&self, place: &Arc<Place>) {
        let node = self.node_at(place);
        let gone = node.as_ref().map(|node| node.address());
        if let Err(failure) = self.refresh(gone).await {
            tracing::debug!(%failure, "nobody says who has the slots");
        }
    }

    fn node_at(&self, place: &Arc<Place>) -> Option<Arc<Node>> {
        let map = self.map.load();
        let mut owners = map.owners.iter();
        owners
            .find(|node| Arc::ptr_eq(node.place(), place))
            .cloned()
    }

    /// Gives up the connections to a place.
    pub(crate) fn hang_up(&self, place: &Arc<Place>) {
        if let Some(node) = self.node_at(place) {
            node.hang_up();
        }
        if Arc::ptr_eq(place, &self.nobody) {
            for seed in &self.seeds {
                seed.hang_up();
            }
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
            Map::new(ranges)
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
        nodes.sort_by_key(|node| {
            let is_gone = Some(node.address()) == gone;
            (is_gone, node.place().breaker.is_open())
        });
        let mut slots = Cmd::new();
        slots.arg("CLUSTER").arg("SLOTS");
        let mut failure = Failure::Unreachable("no server of the cluster is known".to_owned());
        for node in nodes {
            let Ok(answer) = tokio::time::timeout(LOOK_TIME, node.call(&slots)).await else {
                let reason = format!("{}: no answer within {LOOK_TIME:?}", node.address());
                failure = Failure::Unreachable(reason);
                continue;
            };
            match answer {
                Ok(reply) => {
                    let ranges = self.read(&reply, node.address());
                    if !ranges.is_empty() {
                        self.adopt(Map::new(ranges));
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

    /// Takes over a whole map. Whoever has nothing any more is not waited for either.
    fn adopt(&self, map: Map) {
        let is_whole = map.is_whole();
        let map = Arc::new(map);
        let before = self.map.swap(Arc::clone(&map));
        let without = before.owners.iter().filter(|node| {
            let mut owners = map.owners.iter();
            !owners.any(|owner| Arc::ptr_eq(owner, node))
        });
        let mut over: Vec<_> = without.map(|node| node.place()).collect();
        if is_whole {
            over.push(&self.nobody);
        }
        for place in over {
            if place.breaker.answered().is_some() {
                let server = place.name();
                tracing::info!(server, "others of the cluster have its keys now");
            }
        }
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
pub(super) fn slot_of(key: &[u8]) -> u16 {
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
        let [high, _] = crc.to_be_bytes();
        let entry = CRC16.get(usize::from(high ^ byte));
        (crc << 8) ^ entry.copied().unwrap_or_default()
    })
}

/// What each first byte makes of the rest.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

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

    fn node(port: u16) -> Arc<Node> {
        let url = "redis://localhost".parse().unwrap();
        Node::new(Address::new("h", port), Arc::new(Settings::new(&url)))
    }

    #[test]
    fn a_map_says_whether_it_has_every_slot() {
        let (a, b) = (node(1), node(2));
        let half = (0, 8_000, Arc::clone(&a));
        let map = Map::new(vec![half.clone(), (8_002, 16_383, Arc::clone(&b))]);
        assert!(!map.is_whole());
        assert!(!Map::default().is_whole());
        // Learnt one by one, and twice.
        let learnt = (8_001, 8_001, Arc::clone(&a));
        let map = Map::new(vec![learnt, half, (7_000, 16_383, b)]);
        assert!(map.is_whole());
        assert_eq!(map.owners.len(), 2);
    }

    #[test]
    fn a_place_is_found_by_a_key_of_its_own() {
        let url: crate::StoreUrl = "redis+cluster://h:1".parse().unwrap();
        let cluster = Cluster::new(&[], Arc::new(Settings::new(&url)));
        let places = [1, 2].map(|port| Arc::clone(cluster.node(&Address::new("h", port)).place()));
        assert!(cluster.tag_at(&places[0]).is_none(), "nobody knows it");
        let at = |port| cluster.node(&Address::new("h", port));
        // One slot for the first.
        let ranges = vec![(0, 41, at(2)), (42, 42, at(1)), (43, 16_383, at(2))];
        cluster.adopt(Map::new(ranges));
        let tag = cluster.tag_at(&places[0]).unwrap();
        assert_eq!(slot_of(tag.as_bytes()), 42);
        assert!(Arc::ptr_eq(&cluster.place_of(42), &places[0]));
        assert!(Arc::ptr_eq(&cluster.place_of(43), &places[1]));
    }
}
