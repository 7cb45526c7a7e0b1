//! The RESP connections that are open: for `CLIENT LIST`, and to wake them when the server stops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Instant;

use parking_lot::Mutex;
use quell_protocol::resp::{ConnectionFacts, Protocol};

use crate::address::Address;

/// Connections that are open.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<BTreeMap<u64, Arc<ConnectionEntry>>>,
    next_id: AtomicU64,
    stopping: AtomicBool,
}

/// One connection, as the others see it.
#[derive(Debug)]
pub(crate) struct ConnectionEntry {
    pub(crate) id: u64,
    pub(crate) remote: Address,
    pub(crate) local: Address,
    pub(crate) opened: Instant,
    pub(crate) about: Mutex<About>,
    waker: Mutex<Option<Waker>>,
}

/// Information that a client gave about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub(crate) name: Vec<u8>,
    pub(crate) library_name: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) protocol: Protocol,
}

impl Connections {
    pub(crate) fn add(&self, remote: Address, local: Address) -> Arc<ConnectionEntry> {
        let entry = Arc::new(ConnectionEntry {
            id: self.next_id.fetch_add(1, Ordering::Relaxed) + 1,
            remote,
            local,
            opened: Instant::now(),
            about: Mutex::default(),
            waker: Mutex::default(),
        });
        self.open.lock().insert(entry.id, Arc::clone(&entry));
        entry
    }

    pub(crate) fn remove(&self, entry: &ConnectionEntry) {
        self.open.lock().remove(&entry.id);
    }

    /// A line about every connection.
    pub(crate) fn list(&self) -> String {
        let mut text = String::new();
        // Not under the lock: new connections would wait until ten thousand lines are written.
        let all: Vec<_> = self.open.lock().values().cloned().collect();
        for entry in all {
            entry.write_line(&mut text);
        }
        text
    }

    /// Lets every connection answer what it received, and close.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let all: Vec<_> = self.open.lock().values().cloned().collect();
        for entry in all {
            if let Some(waker) = entry.waker.lock().take() {
                waker.wake();
            }
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

impl ConnectionEntry {
    /// Notes the task to wake when the server stops. To be called before [`Connections::is_stopping`].
    pub(crate) fn park(&self, context: &Context<'_>) {
        let mut waker = self.waker.lock();
        if waker
            .as_ref()
            .is_none_or(|known| !known.will_wake(context.waker()))
        {
            *waker = Some(context.waker().clone());
        }
    }

    pub(crate) fn write_line(&self, text: &mut String) {
        let about = self.about.lock().clone();
        let facts = ConnectionFacts {
            id: self.id,
            remote_address: &self.remote.in_client_list(),
            local_address: &self.local.in_client_list(),
            name: &about.name,
            library_name: &about.library_name,
            library_version: &about.library_version,
            age: self.opened.elapsed(),
            protocol: about.protocol,
        };
        facts.write_line(text);
    }
}
