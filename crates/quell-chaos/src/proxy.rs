//! A TCP proxy that injects network faults into connections.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::{Either, select};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::rng::Rng;

/// How long requests are still passed on after the caller closed its connection.
const LAST: Duration = Duration::from_millis(100);

/// What happens to the bytes that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Every piece of an answer is delayed by this much.
    Delay(Duration),
    /// Nothing arrives in either direction until the fault changes; then everything does.
    Stall,
    /// Bytes are silently lost in both directions.
    Drop,
    /// Requests arrive, answers are silently lost.
    DropAnswers,
    /// Connections are closed, and new ones are closed at once.
    Refuse,
    /// One byte of each piece of an answer is changed.
    Garble,
    /// Bytes arrive one to three at a time.
    Split,
    /// Half a piece of an answer arrives, and then the connection ends.
    Cut,
}

/// The faults that every connection has to know.
#[derive(Clone, Copy, Debug)]
struct Weather {
    fault: Fault,
    /// Connections up to this number are silently lost for good: a router forgot them.
    forgotten: u64,
}

/// Listens on a port of its own and passes connections on to another port.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    weather: watch::Sender<Weather>,
    connections: Arc<AtomicU64>,
    listening: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Proxy {
    pub(crate) async fn start(to: u16, rng: &mut Rng) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (weather, seen) = watch::channel(Weather {
            fault: Fault::None,
            forgotten: 0,
        });
        let connections = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&connections);
        let rng = Arc::new(Mutex::new(rng.fork()));
        let listening = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                while open.try_join_next().is_some() {}
                let pump = Pump {
                    number: count.fetch_add(1, Ordering::Relaxed) + 1,
                    seen: seen.clone(),
                    rng: Arc::clone(&rng),
                };
                open.spawn(pump.connect(client, to));
            }
        });
        Ok(Self {
            port,
            weather,
            connections,
            listening,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.weather.send_modify(|weather| weather.fault = fault);
    }

    /// From now on, bytes sent over the connections that are open now are lost; new connections
    /// work.
    pub(crate) fn forget_connections(&self) {
        let forgotten = self.connections.load(Ordering::Relaxed);
        let forget = |weather: &mut Weather| weather.forgotten = forgotten;
        self.weather.send_modify(forget);
    }
}

/// One connection.
#[derive(Clone)]
struct Pump {
    number: u64,
    seen: watch::Receiver<Weather>,
    rng: Arc<Mutex<Rng>>,
}

impl Pump {
    async fn connect(self, client: TcpStream, to: u16) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else {
            return;
        };
        if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
            return;
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let requests = pin!(self.clone().pass(from_client, to_server, false));
        let answers = self.pass(from_server, to_client, true);
        // A caller that hung up may have sent a request just before.
        if let Either::Right(((), requests)) = select(requests, pin!(answers)).await {
            drop(timeout(LAST, requests).await);
        }
    }

    fn below(&self, end: usize) -> usize {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let end = u64::try_from(end.max(1)).unwrap_or(1);
        usize::try_from(rng.within(0..end)).unwrap_or(0)
    }

    /// Passes bytes on until one side has closed.
    async fn pass(mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, are_answers: bool) {
        let mut bytes = vec![0; 64 * 1_024];
        loop {
            if self.seen.borrow_and_update().fault == Fault::Refuse {
                return;
            }
            let count = tokio::select! {
                read = from.read(&mut bytes) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(count) => count,
                },
                changed = self.seen.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            if !self
                .forward(&mut bytes[..count], &mut to, are_answers)
                .await
            {
                return;
            }
        }
    }

    /// Passes one piece on. Returns whether the connection continues.
    async fn forward(
        &mut self,
        bytes: &mut [u8],
        to: &mut OwnedWriteHalf,
        are_answers: bool,
    ) -> bool {
        let weather = *self.seen.borrow_and_update();
        if self.number <= weather.forgotten {
            return true;
        }
        match weather.fault {
            Fault::Refuse => return false,
            Fault::Drop => return true,
            Fault::DropAnswers if are_answers => return true,
            Fault::Delay(length) if are_answers => tokio::time::sleep(length).await,
            Fault::Stall => {
                let is_over = |weather: &Weather| weather.fault != Fault::Stall;
                drop(self.seen.wait_for(is_over).await);
            }
            Fault::Garble if are_answers => {
                let at = self.below(bytes.len());
                bytes[at] ^= 1 << self.below(8);
            }
            Fault::Split => {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(rest.len().min(1 + self.below(3)));
                    if to.write_all(piece).await.is_err() {
                        return false;
                    }
                    tokio::task::yield_now().await;
                    rest = after;
                }
                return true;
            }
            Fault::Cut if are_answers => {
                drop(to.write_all(&bytes[..bytes.len() / 2]).await);
                return false;
            }
            Fault::None | Fault::Delay(_) | Fault::DropAnswers | Fault::Garble | Fault::Cut => {}
        }
        to.write_all(bytes).await.is_ok()
    }
}
