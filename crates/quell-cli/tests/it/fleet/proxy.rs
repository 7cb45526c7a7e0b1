//! A TCP proxy before a coordinator, which loses what goes one way, or both.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What a proxy loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    Nothing,
    /// All that nodes say.
    Requests,
    /// All that the coordinator says.
    Answers,
    /// All: nodes are cut off.
    Both,
}

/// Listens on a port of its own until the tests end.
pub(super) struct Proxy {
    port: u16,
    loss: Arc<Mutex<Loss>>,
}

impl Proxy {
    /// A proxy that passes connections on to this port.
    pub(super) fn before(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let loss = Arc::new(Mutex::new(Loss::Nothing));
        let lost = Arc::clone(&loss);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If nobody listens there, the client is told by the end of its connection.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)) {
                    pass(&client, &server, Loss::Requests, &lost);
                    pass(&server, &client, Loss::Answers, &lost);
                }
            }
        });
        Self { port, loss }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn lose(&self, loss: Loss) {
        *self.loss.lock().unwrap() = loss;
    }
}

/// Passes bytes on until one side has closed. A stream cannot miss bytes: once some were lost, nothing passes
/// in this direction, until the connection ends.
fn pass(from: &TcpStream, to: &TcpStream, way: Loss, loss: &Arc<Mutex<Loss>>) {
    let [mut from, mut to] = [from, to].map(|stream| stream.try_clone().unwrap());
    to.set_nodelay(true).unwrap();
    let loss = Arc::clone(loss);
    thread::spawn(move || {
        let (mut bytes, mut is_lost) = (vec![0; 16 * 1_024], false);
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let lost = *loss.lock().unwrap();
            is_lost |= lost == way || lost == Loss::Both;
            if !is_lost && to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        for stream in [from, to] {
            drop(stream.shutdown(Shutdown::Both));
        }
    });
}
