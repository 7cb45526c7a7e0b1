//! Load over HTTP, and a record of every call and its answer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::audit::{Span, worst_excess};
use crate::http::{Client, HttpResponse};
use crate::rng::Rng;

/// The most calls of one client: this bounds a run by count, not only by time.
const MAX_CALLS: usize = 20_000;

/// Default time that a server waits for its store.
const STORE_TIMEOUT: Duration = Duration::from_millis(50);

/// Ports that the clients of a load ask now. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aim(Arc<AtomicU64>);

impl Aim {
    /// Each client asks its own port.
    pub(crate) fn at_all(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// All clients ask these ports, by their places in the list of the load.
    pub(crate) fn at(&self, places: &[usize]) {
        let set = places.iter().fold(0, |set, place| set | 1 << place);
        self.0.store(set, Ordering::Relaxed);
    }

    /// The place of the port that a client asks.
    fn place(&self, client: usize, ports: usize) -> usize {
        let set = self.0.load(Ordering::Relaxed);
        let among: Vec<usize> = (0..ports).filter(|place| set >> place & 1 == 1).collect();
        match among.len() {
            0 => client % ports,
            aimed => among[client % aimed],
        }
    }
}

/// Callers who ask for keys of one rule.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// HTTP ports; the clients are spread over them, and each keeps to one, unless they are aimed.
    pub(crate) ports: Vec<u16>,
    pub(crate) aim: Aim,
    pub(crate) clients: usize,
    /// The value of the entry `path`, which chooses the rule.
    pub(crate) path: &'static str,
    /// Values of the entry `user`, drawn at random.
    pub(crate) users: Vec<String>,
    /// The pause between two calls of a client.
    pub(crate) pause: Duration,
    pub(crate) length: Duration,
}

impl Load {
    /// One client that asks one server for one user, without pauses.
    pub(crate) fn on(port: u16, path: &'static str, user: &str) -> Self {
        Self {
            ports: vec![port],
            aim: Aim::default(),
            clients: 1,
            path,
            users: vec![user.to_owned()],
            pause: Duration::ZERO,
            length: Duration::from_secs(1),
        }
    }

    pub(crate) fn clients(self, clients: usize) -> Self {
        Self { clients, ..self }
    }

    pub(crate) fn pause(self, ms: u64) -> Self {
        let pause = Duration::from_millis(ms);
        Self { pause, ..self }
    }

    pub(crate) fn length(self, ms: u64) -> Self {
        let length = Duration::from_millis(ms);
        Self { length, ..self }
    }

    /// Runs the load and returns all calls with their answers.
    pub(crate) async fn run(self, rng: &mut Rng) -> Result<Account> {
        self.start(rng).finish().await
    }

    /// Starts the load in the background.
    pub(crate) fn start(self, rng: &mut Rng) -> Running {
        let mut tasks = JoinSet::new();
        for client in 0..self.clients {
            tasks.spawn(ask(self.clone(), client, rng.fork()));
        }
        Running(tasks)
    }
}

/// Load that is running.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) JoinSet<Vec<Call>>);

impl Running {
    pub(crate) async fn finish(mut self) -> Result<Account> {
        let mut calls = Vec::new();
        while let Some(done) = self.0.join_next().await {
            calls.extend(done?);
        }
        calls.sort_by_key(|call| call.begun);
        Ok(Account { calls })
    }
}

async fn ask(load: Load, place: usize, mut rng: Rng) -> Vec<Call> {
    let mut clients: Vec<Client> = load.ports.iter().map(|port| Client::new(*port)).collect();
    let mut calls = Vec::new();
    let start = Instant::now();
    while start.elapsed() < load.length && calls.len() < MAX_CALLS {
        let place = load.aim.place(place, clients.len());
        let client = &mut clients[place];
        let user = rng.pick(&load.users);
        let entries = json!({"path": load.path, "user": user});
        let body = json!({"domain": "d", "entries": entries});
        let begun = Instant::now();
        let answer = client.post("/v1/acquire", &body).await;
        calls.push(Call::new(user, begun, answer));
        if !load.pause.is_zero() {
            tokio::time::sleep(load.pause).await;
        }
    }
    calls
}

/// One call and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) user: String,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) kind: Kind,
    pub(crate) is_degraded: bool,
    /// The status and the body, or the reply, if it is not a verdict.
    pub(crate) said: String,
}

/// Meaning of an answer for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Allowed,
    Refused,
    /// 503: the server or its store is overloaded.
    Overloaded,
    /// 503 for another reason.
    Unavailable,
    /// A status that no caller should see.
    Undocumented,
    /// No answer.
    Lost,
}

impl Call {
    pub(crate) fn new(user: String, begun: Instant, answer: Result<HttpResponse>) -> Self {
        let (kind, is_degraded, said) = match answer {
            Ok(answer) => (kind(&answer), answer.is_degraded(), answer_text(&answer)),
            Err(error) => (Kind::Lost, false, format!("{error:#}")),
        };
        Self {
            user,
            begun,
            ended: Instant::now(),
            kind,
            is_degraded,
            said,
        }
    }
}

impl Call {
    fn is_allowed_in(&self, times: &[(Instant, Instant)]) -> bool {
        let is_then =
            |(from, until): &(Instant, Instant)| self.begun <= *until && self.ended >= *from;
        self.kind == Kind::Allowed && times.iter().any(is_then)
    }
}

fn answer_text(answer: &HttpResponse) -> String {
    match answer.status {
        200 => String::new(),
        status => format!("{status} {}", answer.text),
    }
}

fn kind(answer: &HttpResponse) -> Kind {
    let overloaded = [
        "urn:quell:problem:overloaded",
        "urn:quell:problem:store-overloaded",
    ];
    let is_overloaded = overloaded.iter().any(|kind| answer.body["type"] == *kind);
    match (answer.status, &answer.body["allowed"]) {
        (200, Value::Bool(true)) => Kind::Allowed,
        (200, Value::Bool(false)) => Kind::Refused,
        (503, _) if is_overloaded => Kind::Overloaded,
        (503, _) if answer.body["type"].is_string() => Kind::Unavailable,
        _ => Kind::Undocumented,
    }
}

/// All calls and their answers, in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) calls: Vec<Call>,
}

impl Account {
    pub(crate) fn add(&mut self, other: Self) {
        self.calls.extend(other.calls);
    }

    pub(crate) fn count(&self, what: impl Fn(&Call) -> bool) -> usize {
        self.calls.iter().filter(|call| what(call)).count()
    }

    pub(crate) fn kinds(&self, kind: Kind) -> usize {
        self.count(|call| call.kind == kind)
    }

    pub(crate) fn allowed(&self) -> usize {
        self.kinds(Kind::Allowed)
    }

    pub(crate) fn degraded(&self) -> usize {
        self.count(|call| call.is_degraded)
    }

    /// The times in which callers waited longer than the store's timeout and were answered without
    /// the store: it was lost then, with all calls on their way to it.
    pub(crate) fn given_up(&self) -> Vec<(Instant, Instant)> {
        let degraded = self.calls.iter().filter(|call| call.is_degraded);
        let times = degraded.map(|call| (call.begun + STORE_TIMEOUT, call.ended));
        times.filter(|(from, until)| from <= until).collect()
    }

    /// Number of calls that were admitted without the store during one of these times. They may have
    /// reached the store, which then charged them, or not: this cannot be known, and no debt is recorded
    /// for them.
    pub(crate) fn on_the_way(&self, times: &[(Instant, Instant)]) -> usize {
        self.count(|call| call.is_degraded && call.is_allowed_in(times))
    }

    /// Number of calls that were admitted during one of these times.
    pub(crate) fn allowed_in(&self, times: &[(Instant, Instant)]) -> usize {
        self.count(|call| call.is_allowed_in(times))
    }

    /// The calls that were answered before this instant.
    pub(crate) fn until(&self, end: Instant) -> Self {
        let calls = self.calls.iter().filter(|call| call.ended < end);
        Self {
            calls: calls.cloned().collect(),
        }
    }

    /// The calls for one user.
    pub(crate) fn of(&self, user: &str) -> Self {
        let calls = self.calls.iter().filter(|call| call.user == user);
        Self {
            calls: calls.cloned().collect(),
        }
    }

    /// Number of allowed calls of each user.
    pub(crate) fn per_user(&self) -> BTreeMap<&str, usize> {
        let mut users = BTreeMap::new();
        for call in &self.calls {
            *users.entry(call.user.as_str()).or_default() +=
                usize::from(call.kind == Kind::Allowed);
        }
        users
    }

    /// From the first call to the last answer.
    pub(crate) fn length(&self) -> Duration {
        let first = self.calls.iter().map(|call| call.begun).min();
        let last = self.calls.iter().map(|call| call.ended).max();
        let between = first.zip(last).map(|(first, last)| last - first);
        between.unwrap_or_default()
    }

    /// By how many calls at most they exceeded `burst + rate * t` in any interval of length t; negative if
    /// they never came near. A call counts in an interval in which it was sent and answered.
    pub(crate) fn excess(&self, rate: f64, burst: f64) -> f64 {
        worst_excess(&self.admitted(), rate) - burst
    }

    /// The same, as if each call had been decided when it was answered.
    pub(crate) fn excess_at_answers(&self, rate: f64, burst: f64) -> f64 {
        let at_answer = |Span { ended, .. }| Span {
            begun: ended,
            ended,
        };
        let admitted: Vec<Span> = self.admitted().into_iter().map(at_answer).collect();
        worst_excess(&admitted, rate) - burst
    }

    fn admitted(&self) -> Vec<Span> {
        let allowed = self.calls.iter().filter(|call| call.kind == Kind::Allowed);
        let span = |call: &Call| Span {
            begun: call.begun,
            ended: call.ended,
        };
        allowed.map(span).collect()
    }

    /// By how many calls at most they exceeded `limit` in any minute of the calendar. A call counts in a minute
    /// in which it was sent and answered.
    pub(crate) fn excess_in_minutes(&self, limit: f64) -> f64 {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let minute = |at: Instant| {
            let since = (wall - (now - at)).duration_since(UNIX_EPOCH);
            since.unwrap_or_default().as_secs() / 60
        };
        let mut admitted: BTreeMap<u64, u32> = BTreeMap::new();
        for call in self.calls.iter().filter(|call| call.kind == Kind::Allowed) {
            let counted = minute(call.begun);
            *admitted.entry(counted).or_default() += u32::from(counted == minute(call.ended));
        }
        let most = admitted.values().max().copied().unwrap_or_default();
        f64::from(most) - limit
    }

    /// Checks that every call was answered as documented: with a verdict, or with 503 and a problem
    /// document.
    ///
    /// # Errors
    ///
    /// Names the first answer that was not.
    pub(crate) fn is_documented(&self) -> Result<()> {
        ensure!(!self.calls.is_empty(), "no calls were made");
        let wrong = |call: &&Call| matches!(call.kind, Kind::Undocumented | Kind::Lost);
        let first = self.calls.iter().find(wrong);
        let count = self.calls.iter().filter(wrong).count();
        let said = first.map_or("", |call| call.said.as_str());
        ensure!(
            first.is_none(),
            "{count} undocumented answers: {said}; {self}"
        );
        Ok(())
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
        for call in &self.calls {
            *kinds.entry(call.kind).or_default() += 1;
        }
        write!(f, "{} calls", self.calls.len())?;
        for (kind, count) in kinds {
            write!(f, ", {count} {}", format!("{kind:?}").to_lowercase())?;
        }
        write!(f, ", {} degraded", self.degraded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_interval_is_found() {
        let begin = Instant::now();
        let at = |ms: u64, kind| Call {
            user: String::new(),
            begun: begin + Duration::from_millis(ms),
            ended: begin + Duration::from_millis(ms + 1),
            kind,
            is_degraded: false,
            said: String::new(),
        };
        // A burst of 10, then 100 a second, and many refusals.
        let mut calls: Vec<Call> = (0..10).map(|_| at(0, Kind::Allowed)).collect();
        calls.extend((1..200).map(|n| at(n * 10, Kind::Allowed)));
        calls.extend((0..200).map(|n| at(n, Kind::Refused)));
        let mut account = Account { calls };
        assert!(account.excess(100.0, 10.0) <= 0.0);
        account
            .calls
            .extend((0..3).map(|_| at(1_000, Kind::Allowed)));
        let worst = account.excess(100.0, 10.0);
        assert!((2.0..3.0).contains(&worst), "{worst}");
        assert_eq!(Account::default().excess(1.0, 1.0), f64::NEG_INFINITY);
    }

    #[test]
    fn the_worst_minute_of_the_calendar_is_found() {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let since = wall.duration_since(UNIX_EPOCH).unwrap();
        // A minute that is over: calls on both sides of its end, one across it, and one that is refused.
        let end = now - (since - Duration::from_secs(since.as_secs() / 60 * 60));
        let call = |from: i64, kind| {
            let at = |ms: i64| match u64::try_from(ms) {
                Ok(ms) => end + Duration::from_millis(ms),
                Err(_) => end - Duration::from_millis(ms.unsigned_abs()),
            };
            Call {
                user: String::new(),
                begun: at(from),
                ended: at(from + 10),
                kind,
                is_degraded: false,
                said: String::new(),
            }
        };
        let mut calls: Vec<Call> = [-900, -800, -100, -5, 50, 60]
            .map(|ms| call(ms, Kind::Allowed))
            .into();
        calls.push(call(-300, Kind::Refused));
        assert_eq!(Account { calls }.excess_in_minutes(2.0), 1.0);
        assert_eq!(Account::default().excess_in_minutes(2.0), -2.0);
    }
}
