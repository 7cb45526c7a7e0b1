//! Neighbour: another client, whose scripts keep the same Redis busy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::redis::wire::Wire;

/// A script that counts up to its argument; this determines how long it takes.
const SCRIPT: &[u8] = b"local sum = 0 for i = 1, ARGV[1] do sum = sum + i end return sum";

/// How far it counts at first, to measure how long that takes.
const TRIAL: u64 = 1_000_000;

/// A thread that runs script after script until this is dropped.
#[derive(Debug)]
pub(super) struct Neighbour {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts it. On a quiet machine each of its scripts takes about `length`.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(super) fn start(store: SocketAddr, length: Duration) -> Result<Self> {
        let mut wire = Wire::connect(store)?;
        let mut run = move |count: u64| {
            let count = count.to_string();
            wire.ask(&[b"EVAL", SCRIPT, b"0", count.as_bytes()])
        };
        let began = Instant::now();
        run(TRIAL)?;
        let count = TRIAL as f64 * length.as_secs_f64() / began.elapsed().as_secs_f64();
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            // The store may be stopped before this thread is.
            while !told.load(Ordering::Relaxed) && run(count as u64).is_ok() {}
        });
        Ok(Self {
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread's result is of no use.
            let _ = thread.join();
        }
    }
}
