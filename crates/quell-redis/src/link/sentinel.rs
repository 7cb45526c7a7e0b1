//! Sentinel: which server the sentinels name as the primary.
//!
//! They are asked when there is no primary yet, when it is gone or says that it is not (any longer) one,
//! and every second while it answers: a primary that is cut off from its sentinels keeps answering clients
//! that do not know of its successor.
//!
//! All are asked at once, since the first of them often runs on the machine that was lost. A server named
//! by more than half of them is used at once; otherwise, when all have answered or timed out, the one that
//! most of them name.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::resp::{Value, cmd};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::command::Command;
use super::node::Node;
use super::search::{Search, look_at};
use super::shared_task::SharedTask;
use super::{AttemptFailure, Endpoint, Failure, Settings};
use crate::url::Address;

/// Interval at which sentinels are asked while the primary answers. Two primaries may both be charged for
/// this long at most, and the time that the sentinels need to agree.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Sends commands to the primary that sentinels watch.
#[derive(Debug)]
pub(crate) struct Sentinel {
    sentinels: Vec<Arc<Node>>,
    name: String,
    settings: Arc<Settings>,
    /// The health of the primary, whichever server that is.
    pub(super) endpoint: Arc<Endpoint>,
    current: Mutex<Option<Current>>,
    look: SharedTask,
}

/// The primary that was found last.
#[derive(Debug)]
struct Current {
    node: Arc<Node>,
    /// Instant at which the primary was found; `None` if it failed since.
    found: Option<Instant>,
}

impl Sentinel {
    pub(crate) fn new(sentinels: &[Address], name: &str, settings: Arc<Settings>) -> Self {
        // Sentinels have no databases, and a login of their own, for which the URL has no place.
        let plain = Arc::new(settings.without_login());
        let sentinels = sentinels
            .iter()
            .map(|address| Node::new(address.clone(), Arc::clone(&plain)));
        Self {
            sentinels: sentinels.collect(),
            name: name.to_owned(),
            endpoint: Arc::new(Endpoint::new(name.to_owned(), settings.quiet)),
            settings,
            current: Mutex::new(None),
            look: SharedTask::default(),
        }
    }

    /// Gives up the connection to the primary. Those to sentinels are given up when they are silent.
    pub(crate) fn hang_up(&self) {
        if let Some(current) = self.current.lock().take() {
            current.node.hang_up();
        }
    }

    /// Sends `command` to the primary.
    pub(crate) async fn call(self: &Arc<Self>, command: &Command) -> Result<Value, Failure> {
        let search = Search::begin(self.settings.timeout);
        let nobody = || Failure::Unreachable("no primary was found in time".to_owned());
        loop {
            let node = search.bound(nobody, self.primary()).await;
            let failure = match node {
                Ok(node) => match node.call(self.endpoint.version_of(command)).await {
                    Ok(value) => return Ok(value),
                    Err(attempt) => self.failed(&node, command, attempt)?,
                },
                // The sentinels have not agreed yet.
                Err(failure @ (Failure::Unreachable(_) | Failure::NotReady(_))) => failure,
                Err(failure) => return Err(failure),
            };
            tracing::debug!(%failure, "looking for a primary by the sentinels");
            search.pause(failure).await?;
        }
    }

    async fn primary(self: &Arc<Self>) -> Result<Arc<Node>, Failure> {
        let known = {
            let mut current = self.current.lock();
            current.as_mut().and_then(|current| {
                let found = current.found.as_mut()?;
                let is_old = found.elapsed() >= LOOK_AGAIN;
                if is_old {
                    *found = Instant::now();
                }
                Some((Arc::clone(&current.node), is_old))
            })
        };
        if let Some((node, is_old)) = known {
            if is_old {
                self.look_unawaited();
            }
            return Ok(node);
        }
        self.refresh().await?;
        let current = self.current.lock();
        let node = current.as_ref().map(|current| Arc::clone(&current.node));
        node.ok_or_else(|| Failure::Unreachable("the primary was lost again".to_owned()))
    }

    /// Failure after which another attempt is made; an error if none is.
    fn failed(
        self: &Arc<Self>,
        node: &Arc<Node>,
        command: &Command,
        attempt: AttemptFailure,
    ) -> Result<Failure, Failure> {
        let (failure, is_over) = match attempt {
            AttemptFailure::Failed(failure @ Failure::Unreachable(_)) => (failure, false),
            AttemptFailure::Failed(failure @ Failure::Unknown(_)) => {
                // It answers other calls, so calls still go there while the sentinels are asked.
                if command.sent().is_some_and(|sent| node.is_heard_since(sent)) {
                    self.look_unawaited();
                    return Err(failure);
                }
                (failure, true)
            }
            // The server answered: it is still the primary.
            AttemptFailure::Failed(failure) => return Err(failure),
            AttemptFailure::Away(failure) => (failure, false),
            AttemptFailure::Moved(_) | AttemptFailure::Ask(_) => {
                let reason = format!("{} is one of a cluster", node.address);
                (Failure::NotReady(reason), false)
            }
        };
        if let Some(current) = &mut *self.current.lock()
            && Arc::ptr_eq(&current.node, node)
        {
            current.found = None;
        }
        if is_over { Err(failure) } else { Ok(failure) }
    }

    /// Looks for the primary in the background: the result counts from the next call on.
    fn look_unawaited(self: &Arc<Self>) {
        let sentinel = Arc::clone(self);
        tokio::spawn(async move { sentinel.refresh().await.ok() });
    }

    /// Asks the sentinels for the primary, or joins the task that is asking.
    pub(super) async fn refresh(self: &Arc<Self>) -> Result<(), Failure> {
        let sentinel = Arc::clone(self);
        self.look.join(async move { sentinel.look().await }).await
    }

    /// Asks the sentinels, and takes the server that they name if it says that it is a primary.
    async fn look(&self) -> Result<(), Failure> {
        let (mut named, mut failure) = self.ask_all().await;
        // The server that most sentinels name first, then by the order of the sentinels.
        named.sort_unstable();
        let votes = named.clone();
        named.sort_by_cached_key(|(_, address)| {
            let mut others = votes.iter().filter(|(_, other)| other == address);
            let first = others.next().map(|(index, _)| *index);
            (Reverse(others.count()), first)
        });
        named.dedup_by(|(_, one), (_, other)| one == other);
        let role = cmd("ROLE");
        for (_, address) in named {
            let node = self.known_or_new(&address);
            match look_at(&node, &role).await {
                Ok(reply) if is_primary(&reply) => return self.found(node),
                // It answers calls, late: those tell whether it is a primary.
                Err(Failure::Overloaded) => return self.found(node),
                Ok(_) => failure = Failure::Unreachable(format!("{address} is not a primary yet")),
                Err(reason) => failure = reason,
            }
        }
        Err(failure)
    }

    fn found(&self, node: Arc<Node>) -> Result<(), Failure> {
        if let Some(run) = node.endpoint.run_id() {
            self.endpoint.note_run(&run, Instant::now());
        }
        *self.current.lock() = Some(Current {
            node,
            found: Some(Instant::now()),
        });
        Ok(())
    }

    /// The server that each sentinel names, as soon as more than half of them name the same; and the
    /// failure of one that names none.
    async fn ask_all(&self) -> (Vec<(usize, Address)>, Failure) {
        let mut get = cmd("SENTINEL");
        get.arg("GET-MASTER-ADDR-BY-NAME").arg(self.name.as_str());
        // Each in a task of its own, so that the connection to a silent one is closed even if its answer is
        // no longer needed.
        let mut asked = JoinSet::new();
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            let (sentinel, get) = (Arc::clone(sentinel), get.clone());
            asked.spawn(async move { (index, look_at(&sentinel, &get).await, sentinel) });
        }
        let mut all = Vec::new();
        let mut failure = Failure::Unreachable("no sentinel is known".to_owned());
        while let Some(Ok((index, answer, sentinel))) = asked.join_next().await {
            let address = match answer.and_then(|reply| self.named(&sentinel, reply)) {
                Ok(address) => address,
                Err(reason) => {
                    // Prefer to report a name that they do not know: the operator can correct it.
                    if !matches!(failure, Failure::Refused(_)) {
                        failure = reason;
                    }
                    continue;
                }
            };
            let same = all.iter().filter(|(_, other)| *other == address);
            let is_most = same.count() + 1 > self.sentinels.len() / 2;
            all.push((index, address));
            if is_most {
                break;
            }
        }
        asked.detach_all();
        (all, failure)
    }

    /// The server in a sentinel's reply.
    fn named(&self, sentinel: &Node, reply: Value) -> Result<Address, Failure> {
        let address = reply.read::<(String, u16)>();
        let address = address.map(|(host, port)| Address::new(host, port));
        address.ok_or_else(|| {
            Failure::Refused(format!(
                "sentinel {} watches no primary called {:?}: write the name from its configuration as \
                ?master=NAME",
                sentinel.address, self.name
            ))
        })
    }

    fn known_or_new(&self, address: &Address) -> Arc<Node> {
        match &*self.current.lock() {
            Some(current) if current.node.address == *address => Arc::clone(&current.node),
            _ => Node::new(address.clone(), Arc::clone(&self.settings)),
        }
    }
}

fn is_primary(reply: &Value) -> bool {
    matches!(reply, Value::Array(parts)
        if matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master"))
}

#[cfg(test)]
mod tests {
    use quell_testkit::wait::paced_by;
    use tokio::sync::Semaphore;

    use super::super::search::tests::{Fake, MANY, settings};
    use super::*;

    /// An overloaded server that sentinels name stays the primary, on the same connection.
    #[tokio::test]
    async fn a_primary_that_is_overloaded_is_found_again() {
        let primary = Fake::start(b"*1\r\n$6\r\nmaster\r\n").await;
        primary.answers.add_permits(Semaphore::MAX_PERMITS);
        let port = primary.address.port.to_string();
        let named = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
        let sentinel = Fake::start(named.leak().as_bytes()).await;
        sentinel.answers.add_permits(Semaphore::MAX_PERMITS);
        let subject = Arc::new(Sentinel::new(&[sentinel.address], "shop", settings()));
        let watch = &subject;
        let node = watch.primary().await.unwrap();
        let before = node.live().unwrap();
        primary.answers.forget_permits(Semaphore::MAX_PERMITS);
        let calls = primary.calls(&node, MANY).await;
        if let Some(current) = &mut *watch.current.lock() {
            // A call failed.
            current.found = None;
        }
        let again = watch.primary().await.unwrap();
        assert!(Arc::ptr_eq(&node, &again));
        assert!(again.live().is_some_and(|live| live.is_same(&before)));
        primary.answers.add_permits(MANY + 1);
        assert_eq!(calls.await.unwrap(), MANY);
    }

    /// A call that is late behind others that are answered does not lose the primary for all: while
    /// sentinels are asked again, calls go where they went.
    #[tokio::test]
    async fn a_late_call_does_not_lose_a_primary_that_answers_others() {
        for answers_others in [true, false] {
            let primary = Fake::start(b"*1\r\n$6\r\nmaster\r\n").await;
            primary.answers.add_permits(Semaphore::MAX_PERMITS);
            let port = primary.address.port.to_string();
            let named = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
            let sentinel = Fake::start(named.leak().as_bytes()).await;
            sentinel.answers.add_permits(Semaphore::MAX_PERMITS);
            let url = "redis://localhost".parse().unwrap();
            let settings = Arc::new(Settings::new(&url, Duration::from_secs(3)));
            let subject = Arc::new(Sentinel::new(&[sentinel.address], "shop", settings));
            let node = subject.primary().await.unwrap();
            primary.answers.forget_permits(Semaphore::MAX_PERMITS);
            let calls = primary.calls(&node, MANY - 100).await;
            let late = Command::from(&cmd("PING"));
            // One answer after the other until the call ends, in pauses far shorter than it may take; before its own
            // they take 100 s, since on a busy machine a call may take several times as long as it should.
            let answer_others = async {
                while !late.is_on_connection() {
                    tokio::task::yield_now().await;
                }
                loop {
                    paced_by(Duration::from_millis(100)).await;
                    primary.answers.add_permits(1);
                }
            };
            let answer = tokio::select! {
                answer = subject.call(&late) => answer,
                () = answer_others, if answers_others => unreachable!("it goes on for ever"),
            };
            assert!(matches!(answer, Err(Failure::Unknown(_))), "{answer:?}");
            let is_known = match &*subject.current.lock() {
                Some(current) => current.found.is_some(),
                None => false,
            };
            assert_eq!(is_known, answers_others);
            primary.answers.add_permits(64);
            calls.await.unwrap();
        }
    }
}
