//! Node: one server behind one connection, which is replaced when it breaks.
//!
//! All calls share the connection and are pipelined, so ten thousand concurrent calls need no ten
//! thousand connections. A task of its own connects: a call that times out does not cancel it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::resp::{Value, cmd};
use futures_util::future::{join, join_all};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::ServerName;

use super::command::Command;
use super::connection::Connection;
use super::settings::{self, CONNECT_TIMEOUT};
use super::traffic::NoAnswer;
use super::{AttemptFailure, Endpoint, Failure, Settings, judge};
use crate::sync::{self, Mutex};
use crate::url::Address;

/// The pause after a failure to connect, which doubles with each further failure up to
/// [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Short enough that a server is found within a second of coming up.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// One server.
pub(crate) struct Node {
    pub(super) address: Address,
    settings: Arc<Settings>,
    pub(super) endpoint: Arc<Endpoint>,
    state: Mutex<LinkState>,
}

enum LinkState {
    Idle,
    Connecting(Connecting),
    Live(Connection),
    Failed {
        until: Instant,
        pause: Duration,
        reason: String,
    },
}

type Connected = Result<Connection, String>;

/// Receives the result of an attempt to connect.
type Connecting = watch::Receiver<Option<Connected>>;

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.address)
    }
}

impl Node {
    pub(crate) fn new(address: Address, settings: Arc<Settings>) -> Arc<Self> {
        Arc::new(Self {
            endpoint: Arc::new(Endpoint::new(address.to_string(), settings.quiet)),
            address,
            settings,
            state: Mutex::new(LinkState::Idle),
        })
    }

    /// Sends a command and waits for the answer.
    pub(crate) async fn call(self: &Arc<Self>, command: &Command) -> Result<Value, AttemptFailure> {
        let answer = match self.connection().await {
            Err(reason) => Err(AttemptFailure::Failed(Failure::Unreachable(reason))),
            Ok(connection) => match connection.call(self.endpoint.version_of(command)).await {
                Ok(answer) => self.judge_answer(answer, &connection),
                Err(lost) => Err(self.lost(&lost, &connection)),
            },
        };
        if let Err(
            AttemptFailure::Failed(Failure::Unreachable(reason))
            | AttemptFailure::Away(Failure::NotReady(reason) | Failure::Moving(reason)),
        ) = &answer
        {
            command.note(reason);
        }
        answer
    }

    /// Failure that a missing answer means.
    fn lost(&self, lost: &NoAnswer, from: &Connection) -> AttemptFailure {
        if from.is_over() {
            self.forget(from);
        }
        let within = || format!("no answer within {:?}", self.settings.timeout);
        AttemptFailure::Failed(match lost {
            NoAnswer::Unsent => return AttemptFailure::Away(Failure::NotReady(lost.to_string())),
            NoAnswer::Silent => Failure::Unreachable(within() + " to the calls before it"),
            NoAnswer::Overloaded => Failure::Overloaded,
            NoAnswer::Late => Failure::Unknown(within()),
            NoAnswer::Broken(_) => Failure::Unknown(lost.to_string()),
        })
    }

    fn judge_answer(&self, answer: Value, from: &Connection) -> Result<Value, AttemptFailure> {
        answer.extract_error().map_err(|error| {
            let here = |address: Address| match address.host.as_str() {
                // An empty host means the server that answered.
                "" => Address::new(&*self.address.host, address.port),
                _ => address,
            };
            let attempt = match judge(&error) {
                AttemptFailure::Moved(address) => AttemptFailure::Moved(here(address)),
                AttemptFailure::Ask(address) => AttemptFailure::Ask(here(address)),
                other => other,
            };
            // Another server may soon answer at this address, or already does.
            if let AttemptFailure::Away(Failure::NotReady(reason)) = &attempt {
                self.endpoint.note_not_ready(Instant::now());
                if reason.contains("READONLY ") {
                    self.forget(from);
                }
            }
            attempt
        })
    }

    /// Gives the connection up; the next call makes another. Calls that it has are still answered.
    pub(crate) fn hang_up(&self) {
        self.hang_up_if(|_| true);
    }

    /// Gives the connection up if nothing was heard on it since then; returns whether anything was.
    pub(super) fn hang_up_if_silent(&self, since: Instant) -> bool {
        self.hang_up_if(|connection| !connection.is_heard_since(since)) == Some(false)
    }

    fn forget(&self, connection: &Connection) {
        self.hang_up_if(|other| other.is_same(connection));
    }

    /// Gives the connection up if `is_over` says so; `None` if there is no connection.
    fn hang_up_if(&self, is_over: impl FnOnce(&Connection) -> bool) -> Option<bool> {
        let mut state = self.state.lock();
        let LinkState::Live(connection) = &*state else {
            return None;
        };
        let is_over = is_over(connection);
        if is_over {
            *state = LinkState::Idle;
        }
        Some(is_over)
    }

    /// Returns true if there is a connection on which anything was heard since then.
    pub(super) fn is_heard_since(&self, since: Instant) -> bool {
        matches!(&*self.state.lock(), LinkState::Live(live) if live.is_heard_since(since))
    }

    #[cfg(test)]
    pub(super) fn live(&self) -> Option<Connection> {
        match &*self.state.lock() {
            LinkState::Live(connection) => Some(connection.clone()),
            _ => None,
        }
    }

    /// A connection that is open.
    async fn connection(self: &Arc<Self>) -> Connected {
        let mut connecting = match self.live_or_connecting()? {
            Ok(live) => return Ok(live),
            Err(connecting) => connecting,
        };
        let done = connecting.wait_for(Option::is_some).await;
        let done = done.ok().and_then(|done| done.clone());
        done.unwrap_or_else(|| Err("the attempt to connect was given up".to_owned()))
    }

    /// The connection, or the attempt to make one; an error during the pause after a failure.
    fn live_or_connecting(self: &Arc<Self>) -> Result<Result<Connection, Connecting>, String> {
        let mut state = self.state.lock();
        let pause = match &*state {
            LinkState::Live(connection) if !connection.is_over() => {
                return Ok(Ok(connection.clone()));
            }
            // The task that connects may have ended with its runtime.
            LinkState::Connecting(connecting) if connecting.has_changed().is_ok() => {
                return Ok(Err(connecting.clone()));
            }
            LinkState::Failed { until, reason, .. } if Instant::now() < *until => {
                return Err(reason.clone());
            }
            LinkState::Failed { pause, .. } => (*pause * 2).min(MAX_PAUSE),
            LinkState::Live(_) | LinkState::Idle | LinkState::Connecting(_) => FIRST_PAUSE,
        };
        let (sender, connecting) = watch::channel(None);
        *state = LinkState::Connecting(connecting.clone());
        let node = Arc::clone(self);
        sync::spawn(async move {
            let connected = node.connect().await;
            *node.state.lock() = match &connected {
                Ok(connection) => LinkState::Live(connection.clone()),
                Err(reason) => LinkState::Failed {
                    until: Instant::now() + pause,
                    pause,
                    reason: reason.clone(),
                },
            };
            let _ = sender.send(Some(connected));
        });
        Ok(Err(connecting))
    }

    async fn connect(&self) -> Connected {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.try_connect()).await;
        let late = |_| Err(format!("no connection within {CONNECT_TIMEOUT:?}"));
        let connected = connected.unwrap_or_else(late);
        connected.map_err(|reason| format!("{}: {reason}", self.address))
    }

    async fn try_connect(&self) -> Result<Connection, String> {
        #[cfg(test)]
        if sync::model::is_on() {
            return self.log_in(super::fake::dial()).await;
        }
        let text = |error: io::Error| error.to_string();
        let address = (self.address.host.as_str(), self.address.port);
        let stream = TcpStream::connect(address).await.map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        if !self.settings.url.is_encrypted {
            return self.log_in(stream).await;
        }
        let name = ServerName::try_from(self.address.host.clone());
        let name = name.map_err(|_| "this name can be in no certificate".to_owned())?;
        let connector = settings::tls().map_err(text)?;
        let stream = connector.connect(name, stream).await.map_err(text)?;
        self.log_in(stream).await
    }

    async fn log_in<S>(&self, stream: S) -> Result<Connection, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let settings = &self.settings;
        let (connection, driver) = Connection::new(stream, CONNECT_TIMEOUT);
        sync::spawn(driver.run());
        let said = settings.greeting().into_iter().map(|(command, is_needed)| {
            let connection = connection.clone();
            async move { (connection.call(&Command::from(&command)).await, is_needed) }
        });
        let run = async {
            let server = Command::from(&*cmd("INFO").arg("server"));
            connection.call(&server).await
        };
        let mut refusal = None;
        let (said, run) = join(join_all(said), run).await;
        for (answer, is_needed) in said {
            match answer.map(|answer| answer.extract_error()) {
                Ok(Err(error)) if is_needed => return Err(error.to_string()),
                Ok(Err(error)) => refusal = refusal.or(Some(error.to_string())),
                Ok(Ok(_)) => {}
                // A server with too many clients says so before it hangs up.
                Err(lost) => return Err(refusal.unwrap_or_else(|| lost.to_string())),
            }
        }
        let run = run.ok().and_then(|reply| reply.read::<String>());
        let id = run.as_deref().and_then(run_id);
        match id {
            Some(id) => self.endpoint.note_run(id, Instant::now()),
            // A managed service may not allow `INFO`.
            None => tracing::debug!(server = %self.address, "the server does not say its run_id"),
        }
        connection.set_timeout(settings.timeout);
        Ok(connection)
    }
}

/// Names the run of a server, in its answer to `INFO server`.
fn run_id(info: &str) -> Option<&str> {
    let mut lines = info.lines();
    let id = lines.find_map(|line| line.strip_prefix("run_id:"))?;
    Some(id.trim()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use shuttle::future::block_on;
    use shuttle::rand::{Rng, thread_rng};
    use shuttle::thread;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::fake::{CALLS, Calls, FakeServer};
    use super::*;
    use crate::link::reply::read;

    /// Asks for a number; the caller goes away in between if `goes_away`.
    fn ask(node: &Arc<Node>, calls: &Calls, number: usize, goes_away: bool) {
        let mut echo = cmd("ECHO");
        let command = Command::from(&*echo.arg(number));
        let mut call = pin!(node.call(&command));
        if goes_away {
            for _ in 0..thread_rng().gen_range(0..60) {
                let mut context = Context::from_waker(Waker::noop());
                if call.as_mut().poll(&mut context).is_ready() {
                    return;
                }
                thread::yield_now();
            }
            return;
        }
        match block_on(call) {
            Ok(answer) => calls.answered(number, &answer),
            Err(AttemptFailure::Failed(Failure::Unknown(_))) => {}
            Err(_) => calls.was_not_sent(number),
        }
    }

    /// Connections are made, break and are given up while callers come and go, and the runtime ends
    /// that drives them: each caller gets one true result, and later callers find a connection.
    #[test]
    fn a_connection_is_made_once_at_a_time_and_every_caller_hears_what_is_true() {
        sync::model::check(500, || {
            let (server, calls) = (FakeServer::start(), Arc::new(Calls::default()));
            let url = "redis://localhost".parse().unwrap();
            let settings = Settings::new(&url, Duration::from_secs(60));
            let node = Node::new(Address::new("h", 7_000), Arc::new(settings));
            let run = |words: &[Vec<u8>]| {
                let number = std::str::from_utf8(&words[1]).unwrap();
                match thread_rng().gen_range(0..10) {
                    0 => "-READONLY You can't write against a read only replica.\r\n".to_owned(),
                    _ => calls.run(number.parse().unwrap()),
                }
            };
            let done = Arc::new(AtomicUsize::new(0));
            let callers = (0..3).map(|caller| {
                let (node, calls) = (Arc::clone(&node), Arc::clone(&calls));
                let done = Arc::clone(&done);
                thread::spawn(move || {
                    for round in 0..2 {
                        ask(&node, &calls, caller * 2 + round, caller == 1);
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                })
            });
            let callers: Vec<_> = callers.collect();
            let trouble = {
                let (node, server) = (Arc::clone(&node), Arc::clone(&server));
                thread::spawn(move || {
                    server.wait();
                    match thread_rng().gen_range(0..4) {
                        0 => node.hang_up(),
                        1 => drop(node.hang_up_if_silent(Instant::now())),
                        2 => server.end_clients(),
                        _ => server.hang_up(),
                    }
                })
            };
            while done.load(Ordering::SeqCst) < 3 {
                server.answer(run);
            }
            trouble.join().unwrap();
            callers
                .into_iter()
                .for_each(|caller| caller.join().unwrap());
            // Whatever happened, later callers find a connection, unless one failed just now.
            let has_failed = || matches!(&*node.state.lock(), LinkState::Failed { until, .. } if Instant::now() < *until);
            while has_failed() {
                thread::yield_now();
            }
            let last = {
                let (node, calls) = (Arc::clone(&node), Arc::clone(&calls));
                let done = Arc::clone(&done);
                thread::spawn(move || {
                    for number in 6..CALLS {
                        ask(&node, &calls, number, false);
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                })
            };
            while done.load(Ordering::SeqCst) < 4 {
                server.answer(|words| {
                    let number = std::str::from_utf8(&words[1]).unwrap();
                    calls.run(number.parse().unwrap())
                });
            }
            last.join().unwrap();
            assert!((6..CALLS).any(|number| calls.is_answered(number)));
            calls.check();
        });
    }

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
    async fn a_key_that_moved_to_a_host_without_a_name_is_where_it_was_asked_for() {
        let url = "redis://localhost".parse().unwrap();
        let settings = Settings::new(&url, Duration::from_secs(60));
        let node = Node::new(Address::new("h", 7_000), Arc::new(settings));
        let (connection, _driver) = Connection::new(tokio::io::empty(), Duration::from_secs(60));
        for (reply, expected) in [
            (b"-MOVED 42 :7001\r\n".as_slice(), Address::new("h", 7_001)),
            (b"-ASK 42 :7001\r\n", Address::new("h", 7_001)),
            (b"-MOVED 42 other:7001\r\n", Address::new("other", 7_001)),
        ] {
            let reply = read(reply).unwrap().unwrap().0;
            match node.judge_answer(reply, &connection) {
                Err(AttemptFailure::Moved(address) | AttemptFailure::Ask(address)) => {
                    assert_eq!(address, expected);
                }
                other => panic!("{other:?}"),
            }
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
        let demoted = node.connection().await.unwrap();
        node.hang_up();
        let next = node.connection().await.unwrap();
        assert!(!demoted.is_same(&next));
        let reply = b"-READONLY You can't write against a read only replica.\r\n";
        let reply = read(reply).unwrap().unwrap().0;
        for (from, is_kept) in [(&demoted, true), (&next, false)] {
            let attempt = node.judge_answer(reply.clone(), from).unwrap_err();
            assert!(matches!(attempt, AttemptFailure::Away(_)), "{attempt:?}");
            let connection = node.connection().await.unwrap();
            assert_eq!(connection.is_same(&next), is_kept);
        }
    }
}
