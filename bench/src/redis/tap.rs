//! Tap: a proxy between a store and its server, which records what the store sends and may delay
//! answers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::wire::frame_length;

/// A listener in front of a server; its threads end with their connections.
#[derive(Debug)]
pub(super) struct Tap {
    pub(super) address: SocketAddr,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    /// Listens, and passes everything on to `server`. Every `every`-th piece of what comes back is
    /// delayed by `delay`, and with it everything behind it.
    pub(super) fn start(server: SocketAddr, delay: Duration, every: u64) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sent);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(upstream) = TcpStream::connect(server) else {
                    continue;
                };
                let (Ok(client_too), Ok(upstream_too)) = (client.try_clone(), upstream.try_clone())
                else {
                    continue;
                };
                let kept = Arc::clone(&kept);
                let is_plain = delay.is_zero();
                thread::spawn(move || {
                    pass(client, upstream, |bytes| {
                        if is_plain {
                            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                            kept.extend_from_slice(bytes);
                        }
                    });
                });
                thread::spawn(move || answers(upstream_too, client_too, delay, every));
            }
        });
        Ok(Self { address, sent })
    }

    /// The commands sent so far that begin with `word`.
    pub(super) fn frames(&self, word: &[u8]) -> Vec<Vec<u8>> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = sent.as_slice();
        let mut frames = Vec::new();
        while let Some(length) = frame_length(rest) {
            let (frame, after) = rest.split_at(length);
            if frame.windows(word.len()).take(16).any(|part| part == word) {
                frames.push(frame.to_vec());
            }
            rest = after;
        }
        frames
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count) = from.read(&mut buffer) {
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        see(bytes);
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Passes answers on, some of them late: a second thread reads them and notes when each is due.
fn answers(mut from: TcpStream, mut to: TcpStream, delay: Duration, every: u64) {
    if delay.is_zero() {
        return pass(from, to, |_| {});
    }
    let (sender, due) = std::sync::mpsc::sync_channel::<(Instant, Vec<u8>)>(4_096);
    thread::spawn(move || {
        for (at, bytes) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    let count = AtomicU64::new(1);
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length) = from.read(&mut buffer) {
        let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        let is_late = count.fetch_add(1, Ordering::Relaxed).is_multiple_of(every);
        let at = Instant::now() + if is_late { delay } else { Duration::ZERO };
        if sender.send((at, bytes.to_vec())).is_err() {
            break;
        }
    }
}
