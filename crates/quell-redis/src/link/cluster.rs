//! Cluster: which of several primaries has a key now.
//!
//! A key belongs to one of 16,384 slots by CRC16 of the text between its braces, and every primary serves
//! some slots. A server's redirect is followed at once, for all further commands (`MOVED`) or for one
//! (`ASK`); in both cases it ran nothing, so the command is sent again. When a server is gone the others
//! are asked who took over, a few at a time, by a task that is independent of callers. Keys seldom move
//! alone, so after one redirect the whole map is read again soon.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::resp::{Value, cmd};
use arc_swap::ArcSwap;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;

use super::command::Command;
use super::node::Node;
use super::search::{Search, look_at};
use super::shared_task::SharedTask;
use super::{AttemptFailure, Endpoint, Failure, Settings};
use crate::url::Address;

/// Number of slots.
pub(super) const SLOTS: usize = 16_384;

/// A map younger than this is not asked for again, so a thousand calls that meet a change at the same
/// time ask once.
const FRESH: Duration = Duration::from_millis(50);

/// Number of redirects that a command follows before it fails: a resharding moves a key once.
const MAX_MOVES: usize = 16;

/// After a key moved, the map is asked for in the background, at most once in this time: a resharding
/// moves many keys.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Servers that are asked for the map at the same time, so that a silent one does not delay the others,
/// and a large cluster is not asked as a whole.
const ASKED_AT_ONCE: usize = 4;

/// Number of candidates that are tried as a tag for a server's slots. For a server with a single slot none
/// fits with probability 10^-27.
const MAX_TAGS: u32 = 1 << 20;

/// Sends commands to the servers of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Arc<Node>>,
    settings: Arc<Settings>,
    map: ArcSwap<Map>,
    /// The servers in the map, their replicas, and servers that redirects named since.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// The endpoint of slots without a known server.
    nobody: Arc<Endpoint>,
    /// Instant at which the map was last learnt.
    learnt: Mutex<Option<Instant>>,
    look: SharedTask,
    /// True if a task will soon ask for the map in the background.
    is_planned: AtomicBool,
}

/// Marks that a task will ask for the map; dropped when it begins to.
struct PlannedUpdate(Arc<Cluster>);

impl Drop for PlannedUpdate {
    fn drop(&mut self) {
        self.0.is_planned.store(false, Ordering::Release);
    }
}

/// Map from slots to servers.
#[derive(Debug, Default)]
struct Map {
    /// First and last slot, and the primary that has them.
    ranges: Vec<(u16, u16, Arc<Node>)>,
    /// The servers that have any slot, each once.
    owners: Vec<Arc<Node>>,
    /// The others that were known when the whole map was read: replicas.
    replicas: HashSet<Address>,
}

impl Map {
    fn new(ranges: Vec<(u16, u16, Arc<Node>)>, servers: &HashSet<Address>) -> Self {
        let mut owners: Vec<Arc<Node>> = Vec::new();
        for (_, _, node) in &ranges {
            if !owners.iter().any(|owner| Arc::ptr_eq(owner, node)) {
                owners.push(Arc::clone(node));
            }
        }
        let is_owner = |address: &Address| owners.iter().any(|owner| owner.address == *address);
        let replicas = servers.iter().filter(|address| !is_owner(address));
        Self {
            replicas: replicas.cloned().collect(),
            ranges,
            owners,
        }
    }

    /// Replicas that have slots in the `next` map took over from their primaries.
    fn note_promoted(&self, next: &Self) {
        for node in &next.owners {
            if self.replicas.contains(&node.address) {
                node.endpoint.note_promoted(Instant::now());
            }
        }
    }

    fn get(&self, slot: u16) -> Option<&Arc<Node>> {
        let range = self
            .ranges
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, node)| node)
    }

    /// Returns true if every slot has a server.
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
            map: ArcSwap::default(),
            nodes: Mutex::default(),
            nobody: Arc::new(Endpoint::new("the cluster".to_owned(), settings.quiet)),
            settings,
            learnt: Mutex::new(None),
            look: SharedTask::default(),
            is_planned: AtomicBool::default(),
        }
    }

    /// The server that is asked about a slot.
    pub(crate) fn endpoint_of(&self, slot: u16) -> Arc<Endpoint> {
        let map = self.map.load();
        let endpoint = map.get(slot).map(|node| &node.endpoint);
        Arc::clone(endpoint.unwrap_or(&self.nobody))
    }

    /// All servers that are asked about slots.
    pub(crate) fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        let map = self.map.load();
        let owners = map.owners.iter().map(|node| Arc::clone(&node.endpoint));
        let is_unknown = map.owners.is_empty() || self.nobody.breaker.is_open();
        owners
            .chain(is_unknown.then(|| Arc::clone(&self.nobody)))
            .collect()
    }

    pub(crate) fn is_any_gone(&self) -> bool {
        let map = self.map.load();
        let mut owners = map.owners.iter();
        self.nobody.breaker.is_open() || owners.any(|node| node.endpoint.breaker.is_open())
    }

    /// A hash tag whose slot the server has, if it has any.
    pub(crate) fn tag_at(&self, endpoint: &Arc<Endpoint>) -> Option<String> {
        let map = self.map.load();
        let is_there = |slot| match map.get(slot) {
            Some(node) => Arc::ptr_eq(&node.endpoint, endpoint),
            None => Arc::ptr_eq(&self.nobody, endpoint),
        };
        let owns = map
            .owners
            .iter()
            .any(|node| Arc::ptr_eq(&node.endpoint, endpoint));
        if !owns && (!Arc::ptr_eq(&self.nobody, endpoint) || map.is_whole()) {
            return None;
        }
        let mut tags = (0..MAX_TAGS).map(|number| number.to_string());
        tags.find(|tag| is_there(slot_of(tag.as_bytes())))
    }

    /// Asks for the map of slots; the server that does not answer is asked last.
    pub(crate) async fn find_successor(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
    ) -> Result<(), Failure> {
        let node = self.node_at(endpoint);
        let gone = node.as_ref().map(|node| &node.address);
        self.refresh(gone).await
    }

    fn node_at(&self, endpoint: &Arc<Endpoint>) -> Option<Arc<Node>> {
        let map = self.map.load();
        let mut owners = map.owners.iter();
        owners
            .find(|node| Arc::ptr_eq(&node.endpoint, endpoint))
            .cloned()
    }

    /// Gives up the connections to a server.
    pub(crate) fn hang_up(&self, endpoint: &Arc<Endpoint>) {
        if let Some(node) = self.node_at(endpoint) {
            node.hang_up();
        }
        if Arc::ptr_eq(endpoint, &self.nobody) {
            for seed in &self.seeds {
                seed.hang_up();
            }
        }
    }

    /// Sends `command`, which is about `key`, to the server that has it.
    pub(crate) async fn call(
        self: &Arc<Self>,
        key: &[u8],
        command: &Command,
    ) -> Result<Value, Failure> {
        let search = Search::begin(self.settings.timeout);
        let slot = slot_of(key);
        let mut moved: Option<(Arc<Node>, bool)> = None;
        let mut moves = 0;
        loop {
            let (node, asking) = match moved.take() {
                Some(there) => there,
                None => (self.node_of(slot, search).await?, false),
            };
            let answer = if asking {
                node.call(&command.asking()).await
            } else {
                node.call(command).await
            };
            let failure = match answer {
                Ok(value) => return Ok(value),
                Err(AttemptFailure::Moved(address)) if moves < MAX_MOVES => {
                    moves += 1;
                    let node = self.node(&address);
                    self.learn(slot, &node);
                    self.refresh_soon();
                    moved = Some((node, false));
                    continue;
                }
                Err(AttemptFailure::Ask(address)) if moves < MAX_MOVES => {
                    moves += 1;
                    moved = Some((self.node(&address), true));
                    continue;
                }
                Err(AttemptFailure::Moved(_) | AttemptFailure::Ask(_)) => {
                    let reason = "its servers send a key back and forth".to_owned();
                    return Err(Failure::Refused(reason));
                }
                Err(
                    AttemptFailure::Away(failure)
                    | AttemptFailure::Failed(failure @ Failure::Unreachable(_)),
                ) => failure,
                Err(AttemptFailure::Failed(failure)) => return Err(failure),
            };
            // It ran nothing. Another server has the slot, or soon will. Redis 6.2 redirects every time
            // before it says to try again.
            moves = 0;
            search.pause(failure.clone()).await?;
            let looked = search.bound(|| failure.clone(), self.refresh(Some(&node.address)));
            if let Err(reason) = looked.await {
                tracing::debug!(
                    %reason,
                    "cannot learn from any server which servers have the slots"
                );
            }
        }
    }

    async fn node_of(self: &Arc<Self>, slot: u16, search: Search) -> Result<Arc<Node>, Failure> {
        let nobody = || {
            Failure::Unreachable(
                "cannot learn from any server which servers have the slots".to_owned(),
            )
        };
        loop {
            if let Some(node) = self.map.load().get(slot) {
                return Ok(Arc::clone(node));
            }
            let failure = match search.bound(nobody, self.refresh(None)).await {
                Ok(()) if self.map.load().get(slot).is_some() => continue,
                Ok(()) => Failure::NotReady(format!("CLUSTERDOWN slot {slot} has no server")),
                // A look ends sooner than a call that has more time.
                Err(failure @ (Failure::Unreachable(_) | Failure::NotReady(_))) => failure,
                Err(failure) => return Err(failure),
            };
            search.pause(failure).await?;
        }
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes
            .entry(address.clone())
            .or_insert_with(|| Node::new(address.clone(), Arc::clone(&self.settings)));
        Arc::clone(node)
    }

    /// Notes that one slot is on another server now.
    fn learn(&self, slot: u16, node: &Arc<Node>) {
        self.map.rcu(|map| {
            let mut ranges = vec![(slot, slot, Arc::clone(node))];
            ranges.extend(map.ranges.iter().cloned());
            // Single slots are replaced when the whole map is read; until then their number is bounded,
            // because every lookup walks through them.
            ranges.truncate(SLOTS);
            let next = Map::new(ranges, &map.replicas);
            map.note_promoted(&next);
            next
        });
    }

    /// Asks for the whole map, `gone` last, or joins the task that is asking.
    async fn refresh(self: &Arc<Self>, gone: Option<&Address>) -> Result<(), Failure> {
        if self.since_learnt().is_some_and(|since| since < FRESH) {
            return Ok(());
        }
        let (cluster, gone) = (Arc::clone(self), gone.cloned());
        let look = async move { cluster.look(gone.as_ref()).await };
        self.look.join(look).await
    }

    /// Asks for the whole map in the background.
    fn refresh_soon(self: &Arc<Self>) {
        if self.is_planned.swap(true, Ordering::AcqRel) {
            return;
        }
        let planned = PlannedUpdate(Arc::clone(self));
        let since = self.since_learnt().unwrap_or(LOOK_AGAIN);
        tokio::spawn(async move {
            tokio::time::sleep(LOOK_AGAIN.saturating_sub(since)).await;
            let cluster = Arc::clone(&planned.0);
            // A key that moves from now on may be missing in the map that is read.
            drop(planned);
            if let Err(failure) = cluster.refresh(None).await {
                tracing::debug!(
                    %failure,
                    "cannot learn from any server which servers have the slots"
                );
            }
        });
    }

    fn since_learnt(&self) -> Option<Duration> {
        self.learnt.lock().map(|learnt| learnt.elapsed())
    }

    /// Asks a few servers at a time until one has a map; servers that may be gone are asked last.
    async fn look(&self, gone: Option<&Address>) -> Result<(), Failure> {
        let known = self.nodes.lock().clone();
        let seeds = self.seeds.iter();
        let seeds = seeds.filter(|seed| !known.contains_key(&seed.address));
        let nodes = known.values().chain(seeds).cloned();
        let is_doubtful =
            |node: &Arc<Node>| Some(&node.address) == gone || node.endpoint.breaker.is_open();
        let (doubtful, well): (Vec<_>, Vec<_>) = nodes.partition(is_doubtful);
        let mut slots = cmd("CLUSTER");
        slots.arg("SLOTS");
        let mut failure = Failure::Unreachable("no server of the cluster is known".to_owned());
        for nodes in [well, doubtful] {
            let asked = nodes.into_iter().map(|node| {
                let slots = &slots;
                async move { (look_at(&node, slots).await, node) }
            });
            let mut asked = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
            while let Some((answer, node)) = asked.next().await {
                match answer.map(|reply| self.read(reply, &node.address)) {
                    Ok(found) if !found.ranges.is_empty() => {
                        self.adopt(found);
                        return Ok(());
                    }
                    Ok(_) => {
                        failure = Failure::Refused(format!(
                            "{} knows of no cluster: write redis:// for a single server",
                            node.address
                        ));
                    }
                    Err(reason) => failure = reason,
                }
            }
        }
        Err(failure)
    }

    /// Adopts a whole map. Calls no longer wait for servers without slots, and servers that left are no
    /// longer asked.
    fn adopt(&self, found: SlotsReply) {
        let map = Arc::new(Map::new(found.ranges, &found.servers));
        let is_whole = map.is_whole();
        self.nodes
            .lock()
            .retain(|address, _| found.servers.contains(address));
        *self.learnt.lock() = Some(Instant::now());
        let before = self.map.swap(Arc::clone(&map));
        before.note_promoted(&map);
        let without = before.owners.iter().filter(|node| {
            let mut owners = map.owners.iter();
            !owners.any(|owner| Arc::ptr_eq(owner, node))
        });
        let mut over: Vec<_> = without.map(|node| &node.endpoint).collect();
        if is_whole {
            over.push(&self.nobody);
        }
        for endpoint in over {
            if endpoint.breaker.note_answer().is_some() {
                let server = endpoint.name.as_str();
                tracing::info!(
                    server,
                    "other servers of the cluster have this server's keys now"
                );
            }
        }
    }

    /// Reads the reply to CLUSTER SLOTS; an empty host means the server that answered.
    fn read(&self, reply: Value, answered: &Address) -> SlotsReply {
        let mut found = SlotsReply::default();
        // First and last slot, the primary, and its replicas.
        let rows = reply.read::<Vec<Vec<Value>>>().unwrap_or_default();
        for row in rows {
            let [Value::Int(first), Value::Int(last), servers @ ..] = row.as_slice() else {
                continue;
            };
            let (Ok(first), Ok(last)) = (u16::try_from(*first), u16::try_from(*last)) else {
                continue;
            };
            for (place, server) in servers.iter().enumerate() {
                if let Some(address) = address(server, answered) {
                    let node = self.node(&address);
                    if place == 0 {
                        found.ranges.push((first, last, node));
                    }
                    found.servers.insert(address);
                }
            }
        }
        found
    }
}

/// A reply to CLUSTER SLOTS.
#[derive(Default)]
struct SlotsReply {
    ranges: Vec<(u16, u16, Arc<Node>)>,
    /// Primaries and their replicas.
    servers: HashSet<Address>,
}

/// One server in the reply to CLUSTER SLOTS.
fn address(server: &Value, answered: &Address) -> Option<Address> {
    let Value::Array(parts) = server else {
        return None;
    };
    let [host, Value::Int(port), ..] = parts.as_slice() else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
        _ => answered.host.clone(),
    };
    Some(Address::new(host, u16::try_from(*port).ok()?))
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

/// The checksum of a key, from which its slot follows: XMODEM, polynomial 0x1021.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let crc = crc.rotate_left(8) ^ u16::from(*byte);
        let crc = crc ^ ((crc & 0xff) >> 4);
        let crc = crc ^ (crc << 12);
        crc ^ ((crc & 0xff) << 5)
    })
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use quell_testkit::wait::until_it;
    use tokio::sync::Semaphore;

    use super::super::search::tests::{Fake, settings};
    use super::*;

    /// A look at a silent server ends long before this call has to, which then looks again.
    #[tokio::test]
    async fn a_call_that_has_time_looks_again_for_the_slots() {
        let server = Fake::start(b"+OK\r\n").await;
        server.answers.add_permits(Semaphore::MAX_PERMITS);
        let port = server.address.port;
        let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
        let seed = Fake::start(slots.leak().as_bytes()).await;
        // It greets, and is silent then.
        seed.answers.add_permits(2);
        let cluster = Arc::new(Cluster::new(from_ref(&seed.address), settings()));
        let ping = Command::from(&cmd("PING"));
        let call = tokio::spawn({
            let cluster = Arc::clone(&cluster);
            async move { cluster.call(b"key", &ping).await }
        });
        until_it("it ends, or looks on another connection", async || {
            call.is_finished() || seed.accepted.load(Ordering::Relaxed) > 1
        })
        .await;
        seed.answers.add_permits(1_000);
        let answer = call.await.unwrap();
        assert!(answer.is_ok(), "{answer:?}");
    }

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
        Node::new(
            Address::new("h", port),
            Arc::new(Settings::new(&url, LOOK_AGAIN)),
        )
    }

    #[test]
    fn a_map_says_whether_it_has_every_slot() {
        let (a, b) = (node(1), node(2));
        let half = (0, 8_000, Arc::clone(&a));
        let none = HashSet::new();
        let map = Map::new(vec![half.clone(), (8_002, 16_383, Arc::clone(&b))], &none);
        assert!(!map.is_whole());
        assert!(!Map::default().is_whole());
        // Learnt one by one, and twice.
        let learnt = (8_001, 8_001, Arc::clone(&a));
        let map = Map::new(vec![learnt, half, (7_000, 16_383, b)], &none);
        assert!(map.is_whole());
        assert_eq!(map.owners.len(), 2);
    }

    #[test]
    fn a_place_is_found_by_a_key_of_its_own() {
        let url: crate::StoreUrl = "redis+cluster://h:1".parse().unwrap();
        let cluster = Cluster::new(&[], Arc::new(Settings::new(&url, LOOK_AGAIN)));
        let endpoints =
            [1, 2].map(|port| Arc::clone(&cluster.node(&Address::new("h", port)).endpoint));
        assert!(cluster.tag_at(&endpoints[0]).is_none(), "nobody knows it");
        let at = |port| cluster.node(&Address::new("h", port));
        // One slot for the first.
        cluster.adopt(SlotsReply {
            ranges: vec![(0, 41, at(2)), (42, 42, at(1)), (43, 16_383, at(2))],
            servers: [1, 2].map(|port| Address::new("h", port)).into(),
        });
        let tag = cluster.tag_at(&endpoints[0]).unwrap();
        assert_eq!(slot_of(tag.as_bytes()), 42);
        assert!(Arc::ptr_eq(&cluster.endpoint_of(42), &endpoints[0]));
        assert!(Arc::ptr_eq(&cluster.endpoint_of(43), &endpoints[1]));
    }

    /// A replica that serves slots took over, and may lack states. A server that other slots are moved to
    /// gets their states.
    #[test]
    fn a_replica_that_gets_slots_is_quiet() {
        let url: crate::StoreUrl = "redis+cluster://h:1".parse().unwrap();
        let cluster = Cluster::new(&[], Arc::new(Settings::new(&url, LOOK_AGAIN)));
        let address = |port| Address::new("h", port);
        let at = |port| cluster.node(&address(port));
        let found = |ranges, servers: &[u16]| SlotsReply {
            ranges,
            servers: servers.iter().map(|port| address(*port)).collect(),
        };
        let is_quiet = |slot| cluster.endpoint_of(slot).is_quiet(Instant::now());
        // 3 and 4 replicate 1 and 2.
        let halves = vec![(0, 8_000, at(1)), (8_001, 16_383, at(2))];
        cluster.adopt(found(halves, &[1, 2, 3, 4]));
        // 5 joins, and gets a slot of 1.
        let third = vec![(0, 0, at(5)), (1, 8_000, at(1)), (8_001, 16_383, at(2))];
        cluster.adopt(found(third, &[1, 2, 3, 4, 5]));
        assert!(![0, 1, 9_000].into_iter().any(is_quiet));
        // A redirect is the first to say that 3 took over.
        cluster.learn(7, &at(3));
        assert!(is_quiet(7) && !is_quiet(8));
        let next = vec![(0, 0, at(5)), (1, 8_000, at(3)), (8_001, 16_383, at(4))];
        cluster.adopt(found(next, &[3, 4, 5]));
        assert!(is_quiet(1) && is_quiet(9_000) && !is_quiet(0));
    }
}
