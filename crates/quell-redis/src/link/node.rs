//! Node: one server behind one connection, made anew when it breaks.
//!
//! All calls share the connection and follow each other on it without waiting, so ten thousand calls
//! at once need no ten thousand connections. A connection is made by a task of its own: a call that
//! runs out of time leaves it alone.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisResult, Value};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::ServerName;

use super::counted::Counted;
use super::{Attempt, Failure, Place, Settings, judge, settings};
use crate::url::Address;

/// Calls that may wait to be written; more wait before that, for nothing is dropped.
const QUEUE: usize = 1_024;

/// After a failure to connect nobody tries again for this long, and twice as long each time up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Short enough that a server is found within a second of coming up.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// One server.
pub(crate) struct Node {
    address: Address,
    settings: Arc<Settings>,
    place: Arc<Place>,
    state: Mutex<State>,
}

enum State {
    Idle,
    Connecting(watch::Receiver<Option<Connected>>),
    Live(Live),
    Failed {
        until: Instant,
        pause: Duration,
        reason: String,
    },
}

type Connected = Result<Live, String>;

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Bytes that were given to the system to send.
    sent: Arc<AtomicU64>,
    /// Set once nothing can be sent any more.
    is_over: Arc<AtomicBool>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.address)
    }
}

impl Node {
    pub(crate) fn new(address: Address, settings: Arc<Settings>) -> Arc<Self> {
        Arc::new(Self {
            place: Arc::new(Place::new(address.to_string())),
            address,
            settings,
            state: Mutex::new(State::Idle),
        })
    }

    /// Where it is.
    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }

    /// How it is asked.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether it answers, as far as is known.
    pub(crate) const fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Sends one command and waits for the answer.
    pub(crate) async fn call(self: &Arc<Self>, command: &Cmd) -> Result<Value, Attempt> {
        let mut live = self.live().await?;
        let sent_before = live.sent.load(Ordering::Acquire);
        let answer = live.connection.send_packed_command(command).await;
        self.judged(answer.and_then(Value::extract_error), &live, sent_before)
    }

    /// Sends `count` commands in a row and returns the answer to the last.
    pub(crate) async fn call_last(
        self: &Arc<Self>,
        commands: &Pipeline,
        count: usize,
    ) -> Result<Value, Attempt> {
        let mut live = self.live().await?;
        let sent_before = live.sent.load(Ordering::Acquire);
        let sent = live.connection.send_packed_commands(commands, 0, count);
        let last = sent.await.map(|mut answers| answers.pop());
        let answer = last.and_then(|last| last.unwrap_or(Value::Nil).extract_error());
        self.judged(answer, &live, sent_before)
    }

    fn judged<T>(
        &self,
        answer: RedisResult<T>,
        live: &Live,
        sent_before: u64,
    ) -> Result<T, Attempt> {
        answer.map_err(|error| {
            // Half an answer is no answer either, and nothing that follows it is one.
            let is_broken = error.code().is_none();
            if is_broken || live.is_over.load(Ordering::Acquire) {
                self.forget(live);
            }
            if is_broken && live.sent.load(Ordering::Acquire) == sent_before {
                return Attempt::Away("the connection was broken already".to_owned());
            }
            let attempt = judge(&error);
            // Another server may answer at this address soon, or does already.
            if matches!(&attempt, Attempt::Away(reason) if reason.contains("READONLY ")) {
                self.forget(live);
            }
            attempt
        })
    }

    /// Gives the connection up; the next call makes another.
    pub(crate) fn hang_up(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Live(_)) {
            *state = State::Idle;
        }
    }

    fn forget(&self, live: &Live) {
        let mut state = self.state.lock();
        let is_same = |other: &Live| Arc::ptr_eq(&other.is_over, &live.is_over);
        if matches!(&*state, State::Live(other) if is_same(other)) {
            *state = State::Idle;
        }
    }

    /// A connection on which something can be sent.
    async fn live(self: &Arc<Self>) -> Result<Live, Attempt> {
        let mut connecting = match self.live_or_connecting() {
            Ok(live) => return Ok(live),
            Err(connecting) => connecting?,
        };
        let unreachable = |reason| Attempt::Failed(Failure::Unreachable(reason));
        let done = connecting.wait_for(Option::is_some).await;
        match done.ok().and_then(|done| done.clone()) {
            Some(connected) => connected.map_err(unreachable),
            None => Err(unreachable(
                "the attempt to connect was given up".to_owned(),
            )),
        }
    }

    fn live_or_connecting(
        self: &Arc<Self>,
    ) -> Result<Live, Result<watch::Receiver<Option<Connected>>, Attempt>> {
        let mut state = self.state.lock();
        let pause = match &*state {
            State::Live(live) if !live.is_over.load(Ordering::Acquire) => return Ok(live.clone()),
            State::Connecting(connecting) => return Err(Ok(connecting.clone())),
            State::Failed { until, reason, .. } if Instant::now() < *until => {
                return Err(Err(Attempt::Failed(Failure::Unreachable(reason.clone()))));
            }
            State::Failed { pause, .. } => (*pause * 2).min(LONGEST_PAUSE),
            State::Live(_) | State::Idle => FIRST_PAUSE,
        };
        let (sender, connecting) = watch::channel(None);
        *state = State::Connecting(connecting.clone());
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let connected = node.connect().await;
            *node.state.lock() = match &connected {
                Ok(live) => State::Live(live.clone()),
                Err(reason) => State::Failed {
                    until: Instant::now() + pause,
                    pause,
                    reason: reason.clone(),
                },
            };
            let _ = sender.send(Some(connected));
        });
        Err(Ok(connecting))
    }

    async fn connect(&self) -> Connected {
        let timeout = self.settings.connect_timeout;
        let at = |reason: &dyn fmt::Display| format!("{}: {reason}", self.address);
        match tokio::time::timeout(timeout, self.try_connect()).await {
            Ok(Ok(live)) => Ok(live),
            Ok(Err(reason)) => Err(at(&reason)),
            Err(_) => Err(at(&format_args!("no connection within {timeout:?}"))),
        }
    }

    async fn try_connect(&self) -> Result<Live, String> {
        let text = |error: io::Error| error.to_string();
        let address = (self.address.host(), self.address.port());
        let stream = TcpStream::connect(address).await.map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        if !self.settings.tls {
            return self.log_in(stream).await;
        }
        let name = ServerName::try_from(self.address.host().to_owned());
        let name = name.map_err(|_| "this name can be in no certificate".to_owned())?;
        let connector = settings::tls().map_err(text)?;
        let stream = connector.connect(name, stream).await.map_err(text)?;
        self.log_in(stream).await
    }

    async fn log_in<S>(&self, stream: S) -> Result<Live, String>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let sent = Arc::new(AtomicU64::new(0));
        let stream = Counted::new(stream, Arc::clone(&sent));
        let made = MultiplexedConnection::new_with_config(&self.settings.login, stream, config);
        let (connection, driver) = made.await.map_err(|error| error.to_string())?;
        let is_over = Arc::new(AtomicBool::new(false));
        let live = Live {
            connection,
            sent,
            is_over: Arc::clone(&is_over),
        };
        tokio::spawn(async move {
            driver.await;
            is_over.store(true, Ordering::Release);
        });
        Ok(live)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers every command with OK.
    async fn serve(listener: TcpListener) {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4_096];
                while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                    let commands = bytes[..count].iter().filter(|byte| **byte == b'*').count();
                    let answers = b"+OK\r\n".repeat(commands);
                    if stream.write_all(&answers).await.is_err() {
                        return;
                    }
                }
            });
        }
    }

    #[tokio::test]
    async fn who_says_that_it_is_a_replica_is_hung_up_and_nobody_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
        tokio::spawn(serve(listener));
        let url = "redis://localhost".parse().unwrap();
        let settings = Settings::new(&url, Duration::from_secs(60));
        let node = Node::new(address, Arc::new(settings));
        let demoted = node.live().await.unwrap();
        node.hang_up();
        let next = node.live().await.unwrap();
        let is = |one: &Live, other: &Live| Arc::ptr_eq(&one.is_over, &other.is_over);
        assert!(!is(&demoted, &next));
        let reply = b"-READONLY You can't write against a read only replica.\r\n";
        let said = || redis::parse_redis_value(reply).and_then(Value::extract_error);
        for (from, is_kept) in [(&demoted, true), (&next, false)] {
            let attempt = node.judged(said(), from, 0).unwrap_err();
            assert!(matches!(attempt, Attempt::Away(_)), "{attempt:?}");
            let live = node.live().await.unwrap();
            assert_eq!(is(&live, &next), is_kept);
        }
    }
}
