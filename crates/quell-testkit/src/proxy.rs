//! A TCP proxy that delays, loses, changes and ends what passes.
//!
//! It runs on threads of its own, so that tests with and without an async runtime use it alike.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use crate::wait::until_it;

/// Fault that a proxy inflicts on connections. A stream cannot miss bytes: once some were lost in one
/// direction, nothing passes in it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All passes.
    None,
    /// Each piece of an answer arrives so much later.
    Delay(Duration),
    /// No byte arrives in either direction until the fault changes; then every byte does.
    Stall,
    /// The same of answers alone.
    StallAnswers,
    /// All that is sent is lost, and so is the connection that it was sent on.
    Lose,
    /// All that callers send is lost.
    LoseRequests,
    /// All that is sent to callers is lost.
    LoseAnswers,
    /// The machine at the other end is gone: as [`Fault::Lose`], new connections are silent, and all these
    /// connections end when the fault changes.
    HalfOpen,
    /// Something on the way forgot the connections that are open now: what is sent on them is lost, and they end
    /// when the fault changes. New ones work.
    Forgotten,
    /// Connections end, and new ones do at once.
    Refuse,
    /// One bit of each piece of an answer is changed.
    Garble,
    /// Pieces of answers are missing, and the connection goes on: each later answer seems to be that of an earlier
    /// question.
    Swallow,
    /// Bytes arrive one to three at a time.
    Split,
    /// Half a piece of an answer arrives, and then the connection is reset.
    Cut,
}

/// The direction of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Requests,
    Answers,
}

/// Listens on a port of its own, and passes connections on to another.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    weather: Mutex<Weather>,
    changed: Condvar,
}

#[derive(Debug)]
struct Weather {
    fault: Fault,
    open: Vec<Weak<Connection>>,
    rng: fastrand::Rng,
    /// Pieces that wait until the fault changes.
    stalled: usize,
    is_over: bool,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Opened before [`Fault::Forgotten`].
    is_old: AtomicBool,
    /// Directions in which no byte passes any more: both, requests, answers.
    lost: [AtomicBool; 3],
}

impl Proxy {
    /// A proxy that passes connections on to this port.
    pub fn start(server: u16) -> Self {
        Self::seeded(server, 0)
    }

    /// The same; what a fault leaves to chance follows from `seed`.
    pub fn seeded(server: u16, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let weather = Weather {
            fault: Fault::None,
            open: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            stalled: 0,
            is_over: false,
        };
        let state = Arc::new(State {
            weather: Mutex::new(weather),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if own.weather().is_over {
                    break;
                }
                accept(client, server, &own);
            }
        });
        Self { port, state }
    }

    /// Port on which the proxy listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of the proxy, over HTTP.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// URL of the proxy, as a store.
    pub fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Changes what it does.
    pub fn set(&self, fault: Fault) {
        let mut weather = self.state.weather();
        let before = std::mem::replace(&mut weather.fault, fault);
        let ends_lost = matches!(before, Fault::HalfOpen | Fault::Forgotten) && before != fault;
        weather.open.retain(|open| open.strong_count() > 0);
        for open in weather.open.iter().filter_map(Weak::upgrade) {
            if fault == Fault::Forgotten {
                open.is_old.store(true, Ordering::SeqCst);
            }
            if fault == Fault::Refuse || ends_lost && open.is_lost() {
                open.end();
            }
        }
        drop(weather);
        self.state.changed.notify_all();
    }

    /// Number of pieces that the proxy holds back now.
    pub fn stalled(&self) -> usize {
        self.state.weather().stalled
    }

    /// Waits until no connection is left, once their callers are gone: then all that was sent on them has arrived, or
    /// never will.
    pub async fn until_unused(&self) {
        until_it("the proxy has no connections", async || {
            let weather = self.state.weather();
            weather.open.iter().all(|open| open.strong_count() == 0)
        })
        .await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Fault::Refuse);
        self.state.weather().is_over = true;
        // So that the thread that listens sees it.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl State {
    fn weather(&self) -> MutexGuard<'_, Weather> {
        self.weather.lock().unwrap()
    }

    /// Waits while nothing passes this way. Returns what happens to it then.
    fn pass(&self, way: Way) -> Fault {
        let stalls = |weather: &mut Weather| match weather.fault {
            Fault::Stall => true,
            Fault::StallAnswers => way == Way::Answers,
            _ => false,
        };
        let mut weather = self.weather();
        weather.stalled += 1;
        weather = self.changed.wait_while(weather, stalls).unwrap();
        weather.stalled -= 1;
        weather.fault
    }

    fn below(&self, end: usize) -> usize {
        self.weather().rng.usize(0..end.max(1))
    }
}

impl Connection {
    fn is_lost(&self) -> bool {
        self.lost.iter().any(|lost| lost.load(Ordering::SeqCst))
    }

    /// Ends it. A client that is to see a reset sees it when the last thread has let go of its stream.
    fn end(&self) {
        let is_reset = matches!(SockRef::from(&self.client).linger(), Ok(Some(_)));
        let how = if is_reset {
            Shutdown::Read
        } else {
            Shutdown::Both
        };
        drop(self.client.shutdown(how));
        drop(self.server.shutdown(Shutdown::Both));
    }

    /// Returns true if bytes that are sent this way are lost now; from then on all are.
    fn loses(&self, fault: Fault, way: Way) -> bool {
        let [both, requests, answers] = &self.lost;
        let one = match way {
            Way::Requests => requests,
            Way::Answers => answers,
        };
        let loses = match fault {
            Fault::Lose | Fault::HalfOpen => Some(both),
            Fault::Forgotten if self.is_old.load(Ordering::SeqCst) => Some(both),
            Fault::LoseRequests if way == Way::Requests => Some(requests),
            Fault::LoseAnswers if way == Way::Answers => Some(answers),
            _ => None,
        };
        if let Some(loses) = loses {
            loses.store(true, Ordering::SeqCst);
        }
        both.load(Ordering::SeqCst) || one.load(Ordering::SeqCst)
    }
}

fn accept(client: TcpStream, server: u16, state: &Arc<State>) {
    match state.weather().fault {
        Fault::Refuse => return,
        Fault::HalfOpen => {
            let state = Arc::clone(state);
            thread::spawn(move || {
                let is_gone = |weather: &mut Weather| weather.fault == Fault::HalfOpen;
                drop(state.changed.wait_while(state.weather(), is_gone));
                drop(client);
            });
            return;
        }
        _ => {}
    }
    // If nobody listens there, the client is told by the end of its connection.
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
        return;
    };
    for stream in [&client, &server] {
        drop(stream.set_nodelay(true));
    }
    let connection = Arc::new(Connection {
        client,
        server,
        is_old: AtomicBool::new(false),
        lost: Default::default(),
    });
    let mut weather = state.weather();
    if weather.fault == Fault::Refuse {
        return;
    }
    weather.open.push(Arc::downgrade(&connection));
    drop(weather);
    for way in [Way::Requests, Way::Answers] {
        let (connection, state) = (Arc::clone(&connection), Arc::clone(state));
        thread::spawn(move || pump(&connection, way, &state));
    }
}

/// Passes bytes on until one side has closed, or the fault ends the connection.
fn pump(connection: &Connection, way: Way, state: &State) {
    let (mut from, to) = match way {
        Way::Requests => (&connection.client, &connection.server),
        Way::Answers => (&connection.server, &connection.client),
    };
    let mut bytes = vec![0; 64 * 1_024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let mut fault = state.pass(way);
        if let (Fault::Delay(delay), Way::Answers) = (fault, way) {
            thread::sleep(delay);
            fault = state.pass(way);
        }
        if connection.loses(fault, way) {
            continue;
        }
        if !forward(&mut bytes[..count], to, (fault, way), state) {
            connection.end();
            return;
        }
    }
    // What was sent before the end has arrived.
    match connection.is_lost() {
        true => connection.end(),
        false => drop(to.shutdown(Shutdown::Write)),
    }
}

/// Passes one piece on. Returns whether the connection continues.
fn forward(
    bytes: &mut [u8],
    mut to: &TcpStream,
    (fault, way): (Fault, Way),
    state: &State,
) -> bool {
    match (fault, way) {
        (Fault::Refuse, _) => false,
        (Fault::Garble, Way::Answers) => {
            bytes[state.below(bytes.len())] ^= 1 << state.below(8);
            to.write_all(bytes).is_ok()
        }
        (Fault::Swallow, Way::Answers) => true,
        (Fault::Split, _) => {
            let mut rest = &*bytes;
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(1 + state.below(3)));
                if to.write_all(piece).is_err() {
                    return false;
                }
                rest = after;
            }
            true
        }
        (Fault::Cut, Way::Answers) => {
            drop(to.write_all(&bytes[..bytes.len() / 2]));
            drop(SockRef::from(to).set_linger(Some(Duration::ZERO)));
            false
        }
        _ => to.write_all(bytes).is_ok(),
    }
}
