//! What was written of stored overrides, what was answered, and by which numbers servers decided.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::json;

use crate::http::{Client, HttpResponse};
use crate::rng::Rng;

/// Tenants, each written by one writer at a time.
pub(super) const TENANTS: usize = 24;

/// Writers, each of which has its own tenants.
pub(super) const WRITERS: usize = 8;

/// The limit of the rule.
pub(super) const BASE: u64 = 7;

/// The first number of a tenant; no other is written twice.
const FIRST: u64 = 1_000;

pub(super) const RULES: &str = "
domain: d
defaults: { on_failure: deny }
rules:
  - { name: api, match: { path: /a }, per: [tenant], algorithm: fixed_window, limit: 7/day }
";

/// The address of an override, without its tenant.
pub(super) const PATH: &str = "/v1/overrides/d/api?tenant=";

/// The name of a tenant.
pub(super) fn tenant(number: usize) -> String {
    format!("t{number}")
}

/// Outcome of a change for its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It was not answered, or the answer was that nobody knows.
    Unknown,
    /// It was made, with this revision.
    Made(u64),
    /// Nothing was changed.
    Refused,
}

/// A change.
#[derive(Clone, Debug)]
struct Write {
    tenant: usize,
    number: u64,
    begun: Instant,
    ended: Instant,
    outcome: Outcome,
}

/// By which number a server decided.
#[derive(Clone, Copy, Debug)]
struct Decision {
    tenant: usize,
    number: u64,
    ended: Instant,
}

/// All that was written and seen.
#[derive(Debug, Default)]
pub(super) struct History {
    number: AtomicU64,
    writes: Mutex<Vec<Write>>,
    decisions: Mutex<Vec<Decision>>,
    has_lost: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl History {
    /// A number that was never written.
    pub(super) fn next_number(&self) -> u64 {
        FIRST + self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes a change that is sent now. Returns its place.
    pub(super) fn begin(&self, tenant: usize, number: u64) -> usize {
        let mut writes = lock(&self.writes);
        let now = Instant::now();
        writes.push(Write {
            tenant,
            number,
            begun: now,
            ended: now,
            outcome: Outcome::Unknown,
        });
        writes.len() - 1
    }

    /// Notes its answer.
    pub(super) fn end(&self, place: usize, answer: &HttpResponse) {
        let mut writes = lock(&self.writes);
        let write = &mut writes[place];
        write.ended = Instant::now();
        write.outcome = match answer.status {
            200 | 201 => Outcome::Made(answer.body["revision"].as_u64().unwrap_or_default()),
            504 => Outcome::Unknown,
            _ => Outcome::Refused,
        };
    }

    /// Checks that the store has what was acknowledged last of each tenant, or something that was written later. What
    /// was acknowledged before the primary of the store was killed may be lost.
    pub(super) fn is_kept(
        &self,
        stored: &HashMap<usize, (u64, u64)>,
        killed: Option<Instant>,
    ) -> Result<String> {
        let writes = lock(&self.writes);
        let (mut made, mut unknown, mut lost) = (0, 0, 0);
        for number in 0..TENANTS {
            let mut last = None;
            let of_tenant = || writes.iter().filter(|write| write.tenant == number);
            for write in of_tenant() {
                match write.outcome {
                    Outcome::Made(revision) => {
                        made += 1;
                        last = Some((write, revision));
                    }
                    Outcome::Unknown => unknown += 1,
                    Outcome::Refused => {}
                }
            }
            let Some((last, revision)) = last else {
                bail!("{} was never written", tenant(number));
            };
            let has = stored.get(&number);
            if has == Some(&(last.number, revision)) {
                continue;
            }
            // A change that nobody answered may be made at any time later.
            let is_unknown = |write: &Write| write.outcome == Outcome::Unknown;
            let is_later = has.is_some_and(|(limit, after)| {
                let mut all = of_tenant();
                *after > revision && all.any(|write| write.number == *limit && is_unknown(write))
            });
            if is_later {
                continue;
            }
            let may_be_lost = killed.is_some_and(|killed| last.begun <= killed);
            ensure!(
                may_be_lost,
                "{} was answered {last:?}, and the store has {has:?}",
                tenant(number)
            );
            lost += 1;
        }
        if lost > 0 {
            self.has_lost.store(true, Ordering::Relaxed);
        }
        Ok(format!(
            "{made} changes acknowledged, {unknown} unknown, {lost} tenants of {TENANTS} lost the last"
        ))
    }

    /// Whether the store lost what was acknowledged.
    pub(super) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// Checks that each decision was by a number that somebody had written, and that was not refused.
    pub(super) fn is_honest(&self) -> Result<String> {
        let (writes, decisions) = (lock(&self.writes), lock(&self.decisions));
        let all = writes.iter();
        let all: HashMap<u64, &Write> = all.map(|write| (write.number, write)).collect();
        for decision in decisions.iter() {
            let write = all.get(&decision.number);
            let is_honest = write.is_some_and(|write| {
                write.tenant == decision.tenant
                    && write.outcome != Outcome::Refused
                    && write.begun <= decision.ended
            });
            ensure!(is_honest, "{decision:?} is by {write:?}");
        }
        ensure!(decisions.len() > 20, "{} decisions", decisions.len());
        Ok(format!("{} decisions", decisions.len()))
    }
}

/// Where servers are found by those who write and ask.
#[derive(Clone, Debug)]
pub(super) struct Callers {
    ports: Arc<Mutex<Vec<Option<u16>>>>,
    is_over: Arc<AtomicBool>,
}

impl Callers {
    pub(super) fn new(ports: Vec<u16>) -> Self {
        Self {
            ports: Arc::new(Mutex::new(ports.into_iter().map(Some).collect())),
            is_over: Arc::default(),
        }
    }

    /// Sets the port of a server; `None` while it is not there.
    pub(super) fn set_port(&self, at: usize, port: Option<u16>) {
        lock(&self.ports)[at] = port;
    }

    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// A server that is there.
    fn pick(&self, rng: &mut Rng) -> Option<Client> {
        let ports = lock(&self.ports).clone();
        rng.pick(&ports).map(Client::new)
    }

    /// The number by which a server decides a tenant, if it answers and its store does.
    pub(super) async fn decided(client: &mut Client, number: usize) -> Option<u64> {
        let entries = json!({"path": "/a", "tenant": tenant(number)});
        let body = json!({"domain": "d", "entries": entries});
        let answer = client.post("/v1/peek", &body).await.ok()?;
        let is_decided = answer.status == 200 && !answer.is_degraded();
        let limit = &answer.body["decisions"][0]["limit"];
        limit.as_u64().filter(|_| is_decided)
    }

    /// Gives each tenant its first number.
    pub(super) async fn write_all(&self, history: &History) -> Result<()> {
        let port = lock(&self.ports)[0];
        let mut client = port.map(Client::new);
        let Some(client) = &mut client else {
            bail!("there is no server");
        };
        for number in 0..TENANTS {
            Self::write_one(client, number, history).await?;
        }
        Ok(())
    }

    async fn write_one(client: &mut Client, number: usize, history: &History) -> Result<()> {
        let limit = history.next_number();
        let path = format!("{PATH}{}", tenant(number));
        let body = json!({"limit": limit}).to_string();
        let asked = history.begin(number, limit);
        // Without an answer nobody knows.
        if let Ok(answer) = client.request("PUT", &path, body.into()).await {
            history.end(asked, &answer);
            let is_documented = [200, 201, 503, 504].contains(&answer.status);
            ensure!(is_documented, "{} {}", answer.status, answer.text);
        }
        Ok(())
    }

    /// Changes the tenants of one writer until it is over.
    pub(super) async fn write(
        self,
        writer: usize,
        history: Arc<History>,
        mut rng: Rng,
    ) -> Result<()> {
        while !self.is_over() {
            tokio::time::sleep(Duration::from_millis(rng.within(1..20))).await;
            let place = usize::try_from(rng.within(0..(TENANTS / WRITERS) as u64))?;
            if let Some(mut client) = self.pick(&mut rng) {
                Self::write_one(&mut client, writer + WRITERS * place, &history).await?;
            }
        }
        Ok(())
    }

    /// Asks any server about any tenant until it is over.
    pub(super) async fn call(self, history: Arc<History>, mut rng: Rng) -> Result<()> {
        while !self.is_over() {
            tokio::time::sleep(Duration::from_millis(rng.within(1..10))).await;
            let number = usize::try_from(rng.within(0..TENANTS as u64))?;
            let Some(mut client) = self.pick(&mut rng) else {
                continue;
            };
            if let Some(decided) = Self::decided(&mut client, number).await {
                let ended = Instant::now();
                lock(&history.decisions).push(Decision {
                    tenant: number,
                    number: decided,
                    ended,
                });
            }
        }
        Ok(())
    }
}
