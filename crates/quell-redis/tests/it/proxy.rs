//! A TCP proxy that delays, cuts and drops connections.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to the bytes that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fine,
    /// Nothing arrives in either direction until the weather changes; then everything does.
    BlackHole,
    /// Requests arrive, answers do not until the weather changes.
    NoAnswers,
    /// The other end has silently gone. What was sent is lost, and so is the connection once the
    /// other end is back.
    HalfOpen,
    /// The other end is gone: existing connections break, and so do new ones.
    Down,
    /// Something on the way has forgotten all earlier connections: bytes sent on them are lost.
    Forgotten,
    /// Half of the next answer arrives, and then the connection is reset.
    Reset,
    /// Answers are 200 ms late, or later if the weather is [`Weather::NoAnswers`] by then.
    Slow,
}

/// Listens on a port of its own, and passes connections on to another.
pub(crate) struct Proxy {
    pub(crate) port: u16,
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

    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn connect(client: TcpStream, server: u16, mut seen: watch::Receiver<Weather>) {
    client.set_nodelay(true).unwrap();
    if *seen.borrow() == Weather::Down {
        return;
    }
    if *seen.borrow() == Weather::HalfOpen {
        // The other end cannot answer; the connection is found dead later.
        seen.wait_for(|weather| *weather != Weather::HalfOpen)
            .await
            .ok();
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (over, mut is_over) = watch::channel(());
    let over = Arc::new(over);
    let is_new = *seen.borrow() == Weather::Forgotten;
    let requests = pump(from_client, to_server, (false, is_new), seen.clone());
    let answers = pump(from_server, to_client, (true, is_new), seen);
    tokio::select! {
        () = requests => {}
        () = answers => {}
        _ = is_over.changed() => {}
    }
    drop(over);
}

/// Passes bytes on until one side has closed.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (are_answers, is_new): (bool, bool),
    mut seen: watch::Receiver<Weather>,
) {
    let mut bytes = vec![0; 64 * 1_024];
    let mut is_lost = false;
    loop {
        let count = match from.read(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        let weather = *seen.borrow_and_update();
        match weather {
            Weather::BlackHole => {
                seen.wait_for(|weather| *weather != Weather::BlackHole)
                    .await
                    .ok();
            }
            Weather::NoAnswers if are_answers => {
                seen.wait_for(|weather| *weather != Weather::NoAnswers)
                    .await
                    .ok();
            }
            Weather::Down => is_lost = true,
            Weather::HalfOpen => {
                is_lost = true;
                seen.wait_for(|weather| *weather != Weather::HalfOpen)
                    .await
                    .ok();
            }
            Weather::Forgotten if !is_new => {
                is_lost = true;
                seen.wait_for(|weather| *weather != Weather::Forgotten)
                    .await
                    .ok();
            }
            Weather::Reset if are_answers => {
                to.write_all(&bytes[..count / 2]).await.ok();
                to.as_ref().set_zero_linger().ok();
                is_lost = true;
            }
            Weather::Slow if are_answers => {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                seen.wait_for(|weather| *weather != Weather::NoAnswers)
                    .await
                    .ok();
            }
            Weather::Fine
            | Weather::NoAnswers
            | Weather::Forgotten
            | Weather::Reset
            | Weather::Slow => {}
        }
        if is_lost || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
