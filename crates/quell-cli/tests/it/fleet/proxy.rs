//! A TCP proxy, which delays, loses or ends what passes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// What a proxy does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Nothing,
    /// All that is sent arrives so much later, each way.
    Delay(Duration),
    /// All that callers send is lost.
    Requests,
    /// All that is sent to callers is lost.
    Answers,
    /// All is lost.
    Both,
    /// Connections end, and new ones do at once.
    Cut,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    open: Vec<Weak<TcpStream>>,
}

/// Listens on a port of its own until the tests end.
#[derive(Debug)]
pub(super) struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    /// A proxy that passes connections on to this port.
    pub(super) fn before(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State {
            fault: Fault::Nothing,
            open: Vec::new(),
        }));
        let own = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If nobody listens there, the client is told by the end of its connection.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)) {
                    connect([client, server].map(Arc::new), &own);
                }
            }
        });
        Self { port, state }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn set(&self, fault: Fault) {
        let mut state = self.state.lock().unwrap();
        state.fault = fault;
        if fault == Fault::Cut {
            for stream in state.open.drain(..).filter_map(|open| open.upgrade()) {
                drop(stream.shutdown(Shutdown::Both));
            }
        }
    }
}

fn connect(streams: [Arc<TcpStream>; 2], state: &Arc<Mutex<State>>) {
    let mut known = state.lock().unwrap();
    if known.fault == Fault::Cut {
        return;
    }
    known.open.retain(|open| open.strong_count() > 0);
    known.open.extend(streams.each_ref().map(Arc::downgrade));
    drop(known);
    let [client, server] = &streams;
    pass([client, server], Fault::Requests, state);
    pass([server, client], Fault::Answers, state);
}

/// Passes bytes on until one side has closed. A stream cannot miss bytes: once some were lost, nothing passes
/// in this direction, until the connection ends.
fn pass(streams: [&Arc<TcpStream>; 2], way: Fault, state: &Arc<Mutex<State>>) {
    let [from, to] = streams.map(Arc::clone);
    to.set_nodelay(true).unwrap();
    let state = Arc::clone(state);
    thread::spawn(move || {
        let (mut bytes, mut is_lost) = (vec![0; 16 * 1_024], false);
        while let Ok(count @ 1..) = (&*from).read(&mut bytes) {
            let fault = state.lock().unwrap().fault;
            if let Fault::Delay(delay) = fault {
                thread::sleep(delay);
            }
            is_lost |= fault == way || fault == Fault::Both;
            if !is_lost && (&*to).write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        for stream in [from, to] {
            drop(stream.shutdown(Shutdown::Both));
        }
    });
}
