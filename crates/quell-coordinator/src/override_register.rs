//! The register of the nodes that follow the overrides of a coordinator, beside their store.
//!
//! All nodes speak to the coordinator that leads, so it knows all of them. Another one that leads later hears of each
//! within seconds.
//!
//! A follower is a member of the fleet, for as long as its stream lasts and it has a seat: so there are no more of them
//! than seats, and each speaks for itself. While a restored store is not trusted members without a seat count as well:
//! they may have had one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quell::override_store::{
    ApplyOutcome, Change, Changes, Cursor, FOLLOWER_LIFE, Follower, OverrideFilter, OverrideId,
    OverrideStore, OverrideStoreError, Page, Position, Reply, StoredOverride, Waiting,
};
use quell_core::time::Wall;
use quell_shares::plan::MemberId;
use tokio::time::{Instant, sleep, timeout};

/// Longest wait of a report for the seat of its member: a node that starts reports while it joins.
const SEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which it is looked whether the member has its seat.
const GLANCE: Duration = Duration::from_millis(50);

/// A store of overrides whose followers report to this process; for one caller.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredOverrides {
    store: Arc<dyn OverrideStore>,
    members: Arc<SeatedMembers>,
    /// The member that calls, and the name of its credentials.
    caller: Option<(MemberId, Arc<str>)>,
}

/// The members whose streams are here and that have seats, with what they reported.
#[derive(Debug, Default)]
struct SeatedMembers(Mutex<BTreeMap<MemberId, SeatedMember>>);

#[derive(Debug)]
struct SeatedMember {
    /// The number of its stream.
    stream: u64,
    /// The name of the credentials that it showed there.
    credential: Arc<str>,
    /// As a follower, by what it reported last.
    report: Option<Report>,
}

#[derive(Debug)]
struct Report {
    name: Arc<str>,
    at: Instant,
    seen: Position,
    behind: Duration,
}

impl RegisteredOverrides {
    pub(crate) fn new(store: Arc<dyn OverrideStore>) -> Self {
        Self {
            store,
            members: Arc::default(),
            caller: None,
        }
    }

    /// The same for a member that calls with these credentials, which may be those of that member.
    pub(crate) fn for_member(self, member: MemberId, credential: Arc<str>) -> Self {
        Self {
            caller: Some((member, credential)),
            ..self
        }
    }

    /// A member has a seat, as the leader answers on a stream.
    pub(crate) fn seat(&self, member: MemberId, stream: u64, credential: Arc<str>) {
        let mut members = self.members.0.lock();
        if members.get(&member).is_none_or(|it| it.stream <= stream) {
            let seated = SeatedMember {
                stream,
                credential,
                report: None,
            };
            members.insert(member, seated);
        }
    }

    /// A stream has ended, or its member has no seat any more. What is known by a newer one stays.
    pub(crate) fn unseat(&self, member: MemberId, stream: u64) {
        let mut members = self.members.0.lock();
        if members.get(&member).is_some_and(|it| it.stream == stream) {
            members.remove(&member);
        }
    }

    /// Does something with what the caller reported, if it has a seat.
    fn with_caller<T>(&self, act: impl FnOnce(&mut Option<Report>) -> T) -> Option<T> {
        let (member, credential) = self.caller.as_ref()?;
        let mut members = self.members.0.lock();
        let seated = members.get_mut(member)?;
        (seated.credential == *credential).then(|| act(&mut seated.report))
    }

    /// Notes a report of the caller. Returns whether it has a seat.
    fn note(&self, name: &str, seen: &Position, behind: Duration) -> bool {
        let report = Report {
            name: name.into(),
            at: Instant::now(),
            seen: seen.clone(),
            behind,
        };
        self.with_caller(|last| *last = Some(report)).is_some()
    }

    /// Reports again and again while the caller waits.
    async fn renew(&self, follower: &str, seen: &Position) -> Infallible {
        loop {
            let pause = match self.note(follower, seen, Duration::ZERO) {
                true => FOLLOWER_LIFE / 4,
                false => GLANCE,
            };
            sleep(pause).await;
        }
    }

    /// Reports once, when the caller has its seat.
    async fn note_seated(&self, follower: &str, seen: &Position, behind: Duration) {
        while !self.note(follower, seen, behind) {
            sleep(GLANCE).await;
        }
    }
}

impl OverrideStore for RegisteredOverrides {
    fn url(&self) -> &str {
        self.store.url()
    }

    fn position(&self) -> Reply<'_, Position> {
        self.store.position()
    }

    fn get<'a>(&'a self, id: &'a OverrideId) -> Reply<'a, Option<StoredOverride>> {
        self.store.get(id)
    }

    fn list<'a>(
        &'a self,
        filter: &'a OverrideFilter,
        after: Option<&'a Cursor>,
        most: usize,
    ) -> Reply<'a, Page> {
        self.store.list(filter, after, most)
    }

    fn all<'a>(&'a self, after: Option<&'a Cursor>, most: usize) -> Reply<'a, Page> {
        self.store.all(after, most)
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Reply<'a, ApplyOutcome> {
        self.store.apply(changes)
    }

    fn ended<'a>(&'a self, before: Wall, after: Option<&'a Cursor>) -> Reply<'a, Page> {
        self.store.ended(before, after)
    }

    fn changes<'a>(&'a self, since: &'a Position, most: usize) -> Reply<'a, Changes> {
        self.store.changes(since, most)
    }

    fn wait<'a>(&'a self, seen: &'a Position) -> Waiting<'a> {
        self.store.wait(seen)
    }

    fn wait_as<'a>(&'a self, follower: &'a str, seen: &'a Position) -> Waiting<'a> {
        Box::pin(async move {
            tokio::select! {
                () = self.store.wait(seen) => {}
                never = self.renew(follower, seen) => match never {},
            }
        })
    }

    fn report<'a>(
        &'a self,
        follower: &'a str,
        seen: &'a Position,
        behind: Duration,
    ) -> Reply<'a, ()> {
        Box::pin(async move {
            let noted = timeout(SEAT_TIMEOUT, self.note_seated(follower, seen, behind)).await;
            noted.map_err(|_| {
                let reason =
                    "a node without a seat in the fleet is not registered: nobody waits for it";
                OverrideStoreError::NoAnswer(reason.to_owned())
            })
        })
    }

    fn leave<'a>(&'a self, follower: &'a str) -> Reply<'a, ()> {
        self.with_caller(|last| last.take_if(|last| *last.name == *follower));
        Box::pin(std::future::ready(Ok(())))
    }

    fn followers(&self) -> Reply<'_, Vec<Follower>> {
        Box::pin(async {
            let newest = self.store.position().await?;
            let now = Instant::now();
            // A position of another history is none.
            let revision = |seen: &Position| {
                let is_older = seen.revision() < newest.revision();
                let is_of_it = seen.identity() == newest.identity() && is_older || *seen == newest;
                if is_of_it { seen.revision() } else { 0 }
            };
            let members = self.members.0.lock();
            let reports = members.values().filter_map(|seated| seated.report.as_ref());
            let fresh = reports.filter(|report| report.at + FOLLOWER_LIFE > now);
            let all = fresh.map(|report| Follower {
                name: Arc::clone(&report.name),
                revision: revision(&report.seen),
                behind: report.behind,
            });
            Ok(all.collect())
        })
    }
}
