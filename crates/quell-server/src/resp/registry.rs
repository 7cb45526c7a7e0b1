//! The RESP connections that are open: for `CLIENT LIST`, and to wake them when the server stops.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Instant;

use parking_lot::Mutex;
use quell_protocol::resp::{ConnectionFacts, Protocol};

/// Connections that are open.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<BTreeMap<u64, Arc<Entry>>>,
    next_id: AtomicU64,
    stopping: AtomicBool,
}

/// One connection, as others see it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: u64,
    remote: SocketAddr,
    pub(super) local: SocketAddr,
    opened: Instant,
    pub(super) about: Mutex<About>,
    waker: Mutex<Option<Waker>>,
}

/// What a connection says about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) name: Vec<u8>,
    pub(super) library_name: Vec<u8>,
    pub(super) library_version: Vec<u8>,
    pub(super) protocol: Protocol,
}

impl Connections {
    pub(super) fn add(&self, remote: SocketAddr, local: SocketAddr) -> Arc<Entry> {
        let entry = Arc::new(Entry {
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

    pub(super) fn remove(&self, entry: &Entry) {
        self.open.lock().remove(&entry.id);
    }

    /// A line about every connection.
    pub(super) fn list(&self) -> String {
        let mut text = String::new();
        // Not under the lock: writing ten thousand lines would keep others from coming.
        let all: Vec<_> = self.open.lock().values().cloned().collect();
        for entry in all {
            entry.write_line(&mut text);
        }
        text
    }

    /// Lets every connection answer what it has, and close.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let all: Vec<_> = self.open.lock().values().cloned().collect();
        for entry in all {
            if let Some(waker) = entry.waker.lock().take() {
                waker.wake();
            }
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

impl Entry {
    /// Notes whom to wake when the server stops. To be called before [`Connections::is_stopping`].
    pub(super) fn park(&self, context: &Context<'_>) {
        let mut waker = self.waker.lock();
        if waker
            .as_ref()
            .is_none_or(|known| !known.will_wake(context.waker()))
        {
            *waker = Some(context.waker().clone());
        }
    }

    pub(super) fn write_line(&self, text: &mut String) {
        let about = self.about.lock().clone();
        let facts = ConnectionFacts {
            id: self.id,
            remote_address: &self.remote.to_string(),
            local_address: &self.local.to_string(),
            name: &about.name,
            library_name: &about.library_name,
            library_version: &about.library_version,
            age: self.opened.elapsed(),
            protocol: about.protocol,
        };
        facts.write_line(text);
    }
}
