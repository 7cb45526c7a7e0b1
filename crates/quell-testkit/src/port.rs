//! Ports for servers.

use std::net::{TcpListener, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::wait::until;

/// The first port, and how many there are. The system assigns ports below 32,768 only on request, and the bus
/// of a Redis Cluster listens 10,000 above: so both are out of its hands.
const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;

/// A free port, which stays free while a server restarts. Until this process ends, the UDP port of the same
/// number tells other tests that it is taken.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static TAKEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    // Programs of tests that start one after the other begin far apart.
    let first = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    let first = u16::try_from(first).unwrap();
    until("a port is free", || {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (first + next) % COUNT;
        let taken = UdpSocket::bind(("127.0.0.1", port)).ok()?;
        for port in [port, port + COUNT] {
            TcpListener::bind(("127.0.0.1", port)).ok()?;
        }
        TAKEN.lock().unwrap().push(taken);
        Some(port)
    })
}
