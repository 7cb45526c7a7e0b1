//! A TCP proxy that silences, cuts and drops connections.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to the bytes that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fine,
    /// Nothing arrives, in either direction; what was sent is lost, and so is the connection.
    Silent,
    /// What is sent on connections that exist is lost; new ones work.
    Forgotten,
}

/// Listens on a port of its own, and passes connections on to another.
pub(crate) struct Proxy {
    port: u16,
    weather: watch::Sender<Weather>,
    listening: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Proxy {
    pub(crate) async fn new(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (weather, seen) = watch::channel(Weather::Fine);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connect(client, server, seen.clone()));
            }
        });
        Self {
            port,
            weather,
            listening,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn connect(client: TcpStream, server: u16, seen: watch::Receiver<Weather>) {
    client.set_nodelay(true).unwrap();
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let is_new = *seen.borrow() == Weather::Forgotten;
    let is_lost = Arc::new(watch::Sender::new(false));
    let requests = pump(
        from_client,
        to_server,
        is_new,
        (seen.clone(), Arc::clone(&is_lost)),
    );
    let answers = pump(from_server, to_client, is_new, (seen, is_lost));
    tokio::join!(requests, answers);
}

/// Passes bytes on until one side has closed. Once bytes were lost, nothing passes any more.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    is_new: bool,
    (seen, is_lost): (watch::Receiver<Weather>, Arc<watch::Sender<bool>>),
) {
    let mut bytes = vec![0; 64 * 1_024];
    while let Ok(count) = from.read(&mut bytes).await {
        if count == 0 {
            return;
        }
        let loses = match *seen.borrow() {
            Weather::Fine => false,
            Weather::Silent => true,
            Weather::Forgotten => !is_new,
        };
        if loses {
            is_lost.send_replace(true);
        }
        if *is_lost.borrow() {
            continue;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
