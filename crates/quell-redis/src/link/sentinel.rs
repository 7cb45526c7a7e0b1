//! Sentinel: who the primary is, as the sentinels say.
//!
//! They are asked when there is no primary yet, when it is gone or says that it is none (any more),
//! and every second while it answers: a primary that was cut off from its sentinels goes on answering
//! those who do not know that another took its place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Cmd, Value};

use super::node::Node;
use super::{Attempt, Failure, PAUSE, Place, Settings};
use crate::url::Address;

/// How often sentinels are asked while all is well: for at most this long, and the time that they
/// need to agree, two primaries may both count.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The way to a primary that sentinels watch.
#[derive(Debug)]
pub(crate) struct Sentinel {
    watch: Arc<Watch>,
    place: Arc<Place>,
}

#[derive(Debug)]
struct Watch {
    sentinels: Vec<Arc<Node>>,
    name: String,
    settings: Arc<Settings>,
    current: Mutex<Option<(Arc<Node>, Instant)>>,
}

impl Sentinel {
    pub(crate) fn new(sentinels: &[Address], name: &str, settings: Arc<Settings>) -> Self {
        // Sentinels have no databases, and logins of their own, which are not asked for here.
        let plain = Arc::new(settings.without_login());
        let sentinels = sentinels
            .iter()
            .map(|address| Node::new(address.clone(), Arc::clone(&plain)));
        Self {
            place: Arc::new(Place::new(name.to_owned())),
            watch: Arc::new(Watch {
                sentinels: sentinels.collect(),
                name: name.to_owned(),
                settings,
                current: Mutex::new(None),
            }),
        }
    }

    /// The primary, whoever that is.
    pub(crate) const fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Gives up all connections.
    pub(crate) fn hang_up(&self) {
        for sentinel in &self.watch.sentinels {
            sentinel.hang_up();
        }
        if let Some((node, _)) = self.watch.current.lock().take() {
            node.hang_up();
        }
    }

    /// Sends `command` to the primary.
    pub(crate) async fn call(&self, command: &Cmd) -> Result<Value, Failure> {
        loop {
            let node = match self.watch.primary().await {
                Ok(node) => node,
                Err(Failure::Unreachable(reason)) => {
                    // They have not agreed yet: the caller limits how long we look.
                    tracing::debug!(reason, "looking for a primary");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            match node.call(command).await {
                Ok(value) => return Ok(value),
                Err(Attempt::Failed(failure @ (Failure::Refused(_) | Failure::NoScript))) => {
                    return Err(failure);
                }
                Err(Attempt::Failed(failure)) => {
                    self.watch.forget(&node);
                    if !matches!(failure, Failure::Unreachable(_)) {
                        return Err(failure);
                    }
                }
                Err(Attempt::Away(_) | Attempt::Moved(_) | Attempt::Ask(_)) => {
                    self.watch.forget(&node);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Watch {
    async fn primary(self: &Arc<Self>) -> Result<Arc<Node>, Failure> {
        let current = {
            let mut current = self.current.lock();
            match &mut *current {
                Some((node, looked)) if looked.elapsed() >= LOOK_AGAIN => {
                    *looked = Instant::now();
                    Some((Arc::clone(node), true))
                }
                Some((node, _)) => Some((Arc::clone(node), false)),
                None => None,
            }
        };
        if let Some((node, is_old)) = current {
            if is_old {
                // Nobody waits for this look: what it finds counts from the next call on.
                let watch = Arc::clone(self);
                tokio::spawn(async move { watch.look().await.ok() });
            }
            return Ok(node);
        }
        self.look().await
    }

    fn forget(&self, node: &Arc<Node>) {
        node.hang_up();
        let mut current = self.current.lock();
        if matches!(&*current, Some((other, _)) if Arc::ptr_eq(other, node)) {
            *current = None;
        }
    }

    /// Asks the sentinels, and takes whoever the first one names that says it is a primary.
    async fn look(&self) -> Result<Arc<Node>, Failure> {
        let mut get = Cmd::new();
        get.arg("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(self.name.as_str());
        let mut failure = Failure::Unreachable("no sentinel is known".to_owned());
        for sentinel in &self.sentinels {
            let address = match sentinel.call(&get).await {
                Ok(reply) => address(&reply),
                Err(Attempt::Failed(reason)) => {
                    failure = reason;
                    continue;
                }
                Err(_) => continue,
            };
            let Some(address) = address else {
                failure = Failure::Refused(format!(
                    "sentinel {} watches nobody called {:?}: write the name from its configuration \
                     as ?master=NAME",
                    sentinel.address(),
                    self.name
                ));
                continue;
            };
            let node = self.known_or_new(&address);
            let mut role = Cmd::new();
            role.arg("ROLE");
            match node.call(&role).await {
                Ok(reply) if is_primary(&reply) => {
                    *self.current.lock() = Some((Arc::clone(&node), Instant::now()));
                    return Ok(node);
                }
                Ok(_) => {
                    failure = Failure::Unreachable(format!("{address} is no primary yet"));
                }
                Err(Attempt::Failed(reason)) => failure = reason,
                Err(_) => {}
            }
        }
        Err(failure)
    }

    fn known_or_new(&self, address: &Address) -> Arc<Node> {
        match &*self.current.lock() {
            Some((node, _)) if node.address() == address => Arc::clone(node),
            _ => Node::new(address.clone(), Arc::clone(&self.settings)),
        }
    }
}

fn address(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else {
        return None;
    };
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Address::new(std::str::from_utf8(host).ok()?, port))
}

fn is_primary(reply: &Value) -> bool {
    matches!(reply, Value::Array(parts)
        if matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master"))
}
