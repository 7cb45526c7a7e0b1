//! Leader task: everything that the task of a coordinator has, and its loop.

mod leadership;
mod record_writes;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::Clock;
use quell_core::time::Monotonic;
use quell_shares::generation;
use quell_shares::leader::{Coordinator, Effect, Number, Why};
use quell_shares::ledger::Operation;
use quell_shares::message::{CoordinatorId, Request};
use quell_shares::plan::{MICRO, Plan, Record};
use quell_shares::suspend_detector::SuspendDetector;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::audit::Audit;
use super::dominant_member::DominantMember;
use super::generation_raise::raise;
use super::judge::Judge;
use super::rejected_joins::RejectedJoins;
use super::tally::ReportTally;
use super::{
    ChangeError, DesiredLimits, Edit, Ended, Message, Outboxes, RecentReports, Refused,
    ReplySender, Status,
};
use crate::rule_distribution::{RecordedRules, RuleDistribution};
use crate::session::{Health, Leadership, Rollback, Session, key};
use crate::store::{Committed, ConfigStore, Listing, StoreError};

/// Period of the state machine's ticks: a few per shortest report period.
const TICK: Duration = Duration::from_millis(25);

/// A node that names numbers which the store has not given, as anybody with a node's token can at any time, is
/// logged so often at most.
const UNPROVEN_EVERY: Duration = Duration::from_secs(60);

/// The result of work that was done beside the loop.
pub(super) enum Done {
    Wrote {
        epoch: u64,
        record: Box<Record>,
        result: Result<Committed, StoreError>,
        origin: WriteOrigin,
    },
    /// A write failed, and it is time to make it again.
    Again {
        epoch: u64,
    },
    /// Wanted limits were not written, and it is time to compare them again.
    Compare,
    /// An operator who raises the generation was told what became of it.
    Raised,
    Verified {
        asked: Monotonic,
        epoch: u64,
        result: Result<Listing, StoreError>,
    },
    Resigned(Result<Committed, StoreError>),
    /// It is time to see whether a store that refused to write does it again.
    TryToWrite,
    /// Result of that.
    Tried(Result<Committed, StoreError>),
}

/// Origin of a record's write.
pub(super) enum WriteOrigin {
    /// The state machine: it wants it until it is written.
    Core,
    /// The limits that are wanted: they are compared again.
    Desired,
    /// An operator, who is told.
    Operator(ReplySender),
}

pub(super) struct LeaderTask<S> {
    pub(super) session: Arc<Session<S>>,
    pub(super) wanted: watch::Receiver<DesiredLimits>,
    pub(super) show: watch::Sender<Status>,
    /// The rules for nodes.
    pub(super) rule_distribution: Arc<RuleDistribution>,
    /// The leader's record of them, and the revision of the store that changed it.
    recorded_rules: (Option<Arc<RecordedRules>>, u64),
    pub(super) core: Coordinator,
    /// Value of the leader's key.
    named: Option<String>,
    still: SuspendDetector,
    outboxes: Outboxes,
    pub(super) effects: Vec<Effect>,
    /// Changes of operators that the state machine has taken.
    pub(super) taken: Vec<(Operation, ReplySender)>,
    pub(super) jobs: JoinSet<Done>,
    /// Lead known to the state machine.
    pub(super) leadership: Option<Leadership>,
    /// The epoch that it has with that, with the generation of the fleet.
    epoch: u64,
    /// The revision of the store that changed the record last, as far as the state machine knows.
    changed: u64,
    /// Rollbacks of the store that the state machine was told of.
    rollbacks: u64,
    /// True if the wanted limits have to be compared with the plan.
    pub(super) compare: bool,
    /// Reason why they are not in force.
    refused: Option<Refused>,
    /// True if they wait for an operator.
    pub(super) waits: bool,
    /// Judges what nodes admit, under this leadership.
    audit: Audit,
    /// Number of excesses it found.
    violated: u64,
    /// Instant of the last log line about numbers which the store has not issued.
    unproven_said: Option<Monotonic>,
    /// Adds up what nodes answer, under this leadership.
    pub(super) tally: ReportTally,
    /// Judges the rollout, under this leadership.
    pub(super) judge: Judge,
    /// The rollout that is being taken back; perhaps the lead was lost before that was known to be stored.
    pub(super) taking_back: Option<Operation>,
    /// Number taken back.
    pub(super) taken_back: u64,
    /// Instant of this coordinator's election.
    elected: Monotonic,
    /// Instant of the last log line about what is reserved after a restore, under this leadership.
    pub(super) reminded: Option<Monotonic>,
    /// Members that were given no seat when they joined last, under this leadership.
    rejected_joins: RejectedJoins,
    /// Reason why the store refused the last write.
    pub(super) unwritten: Option<StoreError>,
    /// True if it is being tried again.
    pub(super) is_trying: bool,
    /// A member that has nearly all, in this version of the record.
    dominant: (u64, Option<DominantMember>),
}

impl<S: ConfigStore> LeaderTask<S> {
    pub(super) fn new(
        session: Session<S>,
        wanted: watch::Receiver<DesiredLimits>,
        show: watch::Sender<Status>,
        rule_distribution: Arc<RuleDistribution>,
    ) -> Self {
        let options = session.options();
        let core = Coordinator::new(options.drift, options.ttl);
        let still = SuspendDetector::since(options.clock.now());
        Self {
            session: Arc::new(session),
            wanted,
            show,
            rule_distribution,
            recorded_rules: (None, 0),
            core,
            named: None,
            still,
            outboxes: Outboxes::default(),
            effects: Vec::new(),
            taken: Vec::new(),
            jobs: JoinSet::new(),
            leadership: None,
            epoch: 0,
            changed: 0,
            rollbacks: 0,
            compare: true,
            refused: None,
            waits: false,
            audit: Audit::default(),
            violated: 0,
            unproven_said: None,
            tally: ReportTally::new(Monotonic::ORIGIN),
            judge: Judge::default(),
            taking_back: None,
            taken_back: 0,
            elected: Monotonic::ORIGIN,
            reminded: None,
            rejected_joins: RejectedJoins::default(),
            unwritten: None,
            is_trying: false,
            dominant: (0, None),
        }
    }

    pub(super) async fn run(mut self, mut messages: mpsc::Receiver<Message>) -> Result<(), Ended> {
        let ended = self.serve(&mut messages).await;
        self.jobs.shutdown().await;
        if let Some(session) = Arc::into_inner(self.session) {
            session.close().await;
        }
        ended
    }

    /// Starts a job, and hears of its end.
    pub(super) fn start_job(&mut self, job: impl Future<Output = Done> + Send + 'static) {
        let job: Pin<Box<dyn Future<Output = Done> + Send>> = Box::pin(job);
        self.jobs.spawn(job);
    }

    fn clock(&self) -> &dyn Clock {
        &*self.session.options().clock
    }

    /// Time of the clock that does not stop.
    pub(super) fn now(&self) -> Monotonic {
        self.clock().monotonic()
    }

    async fn serve(&mut self, messages: &mut mpsc::Receiver<Message>) -> Result<(), Ended> {
        let mut leadership = self.session.leadership();
        let mut view = self.session.view();
        let mut health = self.session.health();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.session.beat();
            tokio::select! {
                biased;
                Ok(()) = leadership.changed() => {
                    let leadership = leadership.borrow_and_update().clone();
                    self.lead(leadership).await?;
                }
                Ok(()) = view.changed() => {
                    let view = Arc::clone(&view.borrow_and_update());
                    self.see(&view)?;
                }
                Ok(()) = health.changed() => {
                    let health = health.borrow_and_update().clone();
                    self.hear_of_store(&health)?;
                }
                Some(Ok(done)) = self.jobs.join_next() => self.finish(done)?,
                _ = ticks.tick() => self.tick(),
                message = messages.recv() => match message {
                    Some(Message::Request(request, _room)) => {
                        let now = self.now();
                        self.judge(now, &request);
                        self.compare_weight(now, &request);
                        let joins = match &request {
                            Request::Join(join) => Some(join.member),
                            _ => None,
                        };
                        self.core.receive(now, request, &mut self.effects);
                        joins.into_iter().for_each(|member| self.answer_unwritten(member));
                    }
                    Some(Message::Connect(member, reply_to)) => {
                        reply_to.send(self.outboxes.connect(member)).ok();
                    }
                    Some(Message::Change(edit, reply_to)) => self.change(edit, reply_to),
                    Some(Message::Raise { to, lease, reply_to }) => {
                        let session = Arc::clone(&self.session);
                        self.start_job(async move {
                            reply_to.send(raise(&session, to, lease).await).ok();
                            Done::Raised
                        });
                    }
                    Some(Message::Operate(operation, reply_to)) => self.operate(operation, reply_to),
                    Some(Message::RollOut(step, mark, reply_to)) => self.roll_out((step, mark), reply_to),
                    Some(Message::Look(look)) => {
                        look(&self.core, &self.wanted.borrow(), self.now());
                    }
                    Some(Message::RecentReports(reply_to)) => {
                        reply_to.send(self.recent_reports()).ok();
                    }
                    Some(Message::HandOver(done)) => {
                        self.hand_over().await;
                        done.send(()).ok();
                        return Ok(());
                    }
                    None => return Ok(()),
                },
            }
            self.carry_out();
            self.settle();
        }
    }

    /// Nodes' reports on their calls, as this leader heard them.
    fn recent_reports(&mut self) -> RecentReports {
        RecentReports {
            admitted: self.audit.admitted(self.now()),
            tallies: self.tally.tallies(),
            hearing: self.judge.hearing(),
        }
    }

    /// Tells an operator of a process that takes over a seat, and names another weight.
    fn compare_weight(&self, now: Monotonic, request: &Request) {
        if let Request::Join(join) = request
            && let Some(ledger) = self.core.leads(now)
            && let Some(seat) = ledger.record().seat(join.member)
            && seat.incarnation == join.replaces
            && seat.nonce != join.nonce
            && seat.weight != join.weight
        {
            tracing::info!(
                member = join.member.0,
                weight = seat.weight,
                named = join.weight,
                "a node joined with another weight than its seat has; the seat keeps its weight, which \
                `quell fleet weight` changes"
            );
        }
    }

    /// Reports the store's health; rollbacks to the state machine.
    fn hear_of_store(&mut self, health: &Health) -> Result<(), Ended> {
        report(health);
        let trouble = health.trouble().cloned();
        self.show.send_modify(|status| status.trouble = trouble);
        let is_new = |one: &&Rollback| one.times > self.rollbacks;
        let Some(rollback) = health.rollback.as_ref().filter(is_new) else {
            return Ok(());
        };
        self.rollbacks = rollback.times;
        let view = Arc::clone(&self.session.view().borrow());
        let generation_of = |listing| -> Result<u64, Ended> {
            let record = self.record(listing)?;
            Ok(record.map_or(0, |(record, _)| record.generation()))
        };
        let (before, now_in) = (generation_of(&rollback.before)?, generation_of(&view)?);
        // An operator may have raised it before this coordinator looked.
        if now_in <= before {
            let seen = generation::number(before, rollback.seen);
            let stored = generation::number(now_in, rollback.stored);
            let store_rollback = (Number::Revision, seen, stored);
            let now = self.now();
            self.core
                .store_went_back(now, store_rollback, &mut self.effects);
        }
        Ok(())
    }

    /// The watch has seen something.
    fn see(&mut self, view: &Listing) -> Result<(), Ended> {
        let options = self.session.options();
        let leader = format!("{}{}", options.prefix, key::LEADER);
        let leader = view.entries.get(&leader);
        let name = leader.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        let other = name.as_ref().filter(|name| **name != options.name);
        let number = other.map(|name| CoordinatorId(crc32fast::hash(name.as_bytes())));
        self.core.follow(number);
        self.show.send_if_modified(|status| {
            // With the key alone it does not lead, and nobody is sent from here to here.
            let leads = status.epoch.is_some();
            let leader = { name.as_ref() }.filter(|name| leads || **name != options.name);
            let is_new = status.leader.as_ref() != leader;
            status.leader = leader.cloned();
            is_new
        });
        self.named = name;
        let record_key = format!("{}{}", options.prefix, key::RECORD);
        if self.leadership.is_none() {
            let changed = view
                .entries
                .get(&record_key)
                .map_or(0, |entry| entry.changed);
            // Also if the revision is a known one: a store that was restored gives it again.
            let record = self.record(view).ok().flatten();
            if let Some((record, _)) = &record {
                self.core.note_generation(record.generation());
            }
            let recorded_rules = record.map(|(record, _)| Arc::new(RecordedRules::new(&record)));
            self.recorded_rules = (recorded_rules, changed);
            return Ok(());
        }
        let is_newer = |revision| revision > self.changed;
        if view
            .entries
            .get(&record_key)
            .is_some_and(|entry| is_newer(entry.changed))
            && let Some((record, changed)) = self.record(view)?
        {
            self.changed = changed;
            self.compare = true;
            self.core.note_generation(record.generation());
            self.core.stored(self.now(), record, &mut self.effects);
        }
        Ok(())
    }

    fn tick(&mut self) {
        let now = self.clock().now();
        if let Some(hidden) = self.still.observe(now) {
            tracing::warn!(
                ?hidden,
                "the machine was suspended: this coordinator gives up the lead"
            );
            self.core.step_down(Why::ClockStoodStill, &mut self.effects);
        }
        self.core.tick(now.monotonic, &mut self.effects);
        self.outboxes.prune();
        if self.wanted.has_changed().unwrap_or(false) {
            self.compare = true;
        }
        // A leader that may not know what was lost when the store went back waits for an operator, and one
        // whose store refuses to write for room.
        if self.compare && !self.core.is_stopped() && self.unwritten.is_none() {
            self.put_wanted_into_force(now.monotonic);
        }
        if let Some(ledger) = self.core.leads(now.monotonic) {
            self.tally.turn(now.monotonic, ledger.record());
        }
        self.judge_rollout(now);
        self.remind_of_reserved(now.monotonic);
        self.publish(now.monotonic);
    }

    /// Makes a change of an operator.
    fn change(&mut self, edit: Edit, reply_to: oneshot::Sender<Result<(), ChangeError>>) {
        let Some(ledger) = self.core.leads(self.now()) else {
            let leader = self.show.borrow().leader.clone();
            reply_to.send(Err(ChangeError::Elsewhere { leader })).ok();
            return;
        };
        let mut next = ledger.record().clone();
        if let Err(error) = edit(&mut next) {
            reply_to.send(Err(ChangeError::Wrong(error))).ok();
            return;
        }
        next.version += 1;
        self.write(next, WriteOrigin::Operator(reply_to));
    }

    /// Counts what a node answered, and judges what it admitted.
    fn judge(&mut self, now: Monotonic, request: &Request) {
        let (Request::Report(report), Some(ledger)) = (request, self.core.leads(now)) else {
            return;
        };
        let (record, drift) = (ledger.record(), self.session.options().drift);
        if let Some(step) = self.tally.count(report, record) {
            self.judge
                .count(report, &step, record, &self.rule_distribution);
        }
        for exceeded in self.audit.report(now, report, record, drift) {
            let name = record.plan.limit(exceeded.limit).map(|limit| &*limit.name);
            tracing::error!(
                limit = name,
                units = exceeded.excess / MICRO,
                most = exceeded.most.0,
                "nodes report that they admitted more than the limit, and node `most` reports most of it: \
                check whether that node was fenced or deregistered and still runs, whether two nodes have \
                its number, whether its clock runs fast, and whether a stranger has its token; if none of \
                these, report a bug"
            );
            self.violated += 1;
        }
    }

    fn refuse(&mut self, refused: Refused) {
        self.set_refused(Some(refused));
    }

    pub(super) fn set_refused(&mut self, refused: Option<Refused>) {
        if let Some(error) = refused.as_ref().filter(|_| self.refused != refused) {
            tracing::error!(%error, "cannot put the limits into force");
        }
        self.refused = refused;
    }

    /// Looks whether one member has nearly all, when the record is another one.
    fn find_dominant(&mut self, now: Monotonic) {
        let Some(record) = self.core.leads(now).map(|ledger| ledger.record()) else {
            return;
        };
        if self.dominant.0 == record.version {
            return;
        }
        let found = DominantMember::find(&record.seats, &record.plan.groups);
        if let Some(dominant) = found.as_ref().filter(|_| self.dominant.1 != found) {
            tracing::warn!("{dominant}");
        }
        self.dominant = (record.version, found);
    }

    fn publish(&mut self, now: Monotonic) {
        self.find_dominant(now);
        let ledger = self.core.leads(now);
        let rejected_joins = self.rejected_joins.list(now);
        if let Some(ledger) = ledger.filter(|_| self.recorded_rules.1 != self.changed) {
            let recorded_rules = Arc::new(RecordedRules::new(ledger.record()));
            self.recorded_rules = (Some(recorded_rules), self.changed);
        }
        let unproven = self.core.unproven();
        let is_due = |last| now.since(last) >= UNPROVEN_EVERY;
        if let Some(said) = unproven.filter(|_| self.unproven_said.is_none_or(is_due)) {
            tracing::warn!(
                %said,
                "nodes name generations, epochs or versions that the configuration store has not issued"
            );
            self.unproven_said = Some(now);
        }
        // Rules of a backup are for an operator to look at first.
        let recorded_rules = { self.recorded_rules.0.clone() }.filter(|_| !self.core.is_stopped());
        // Before anybody knows that this coordinator leads.
        self.rule_distribution
            .set_recorded_rules(recorded_rules, ledger.is_some());
        let own = &self.session.options().name;
        let leader = { self.named.as_ref() }.filter(|name| ledger.is_some() || *name != own);
        self.show.send_if_modified(|status| {
            let record = ledger.map(|ledger| ledger.record());
            let revision = record.map_or(0, |record| record.plan.revision);
            let changed = status.revision != revision;
            let next = Status {
                epoch: ledger.map(|ledger| ledger.epoch()),
                grants: ledger.is_some_and(|ledger| ledger.grants()),
                leader: leader.cloned(),
                members: record.map_or(0, |record| record.seats.len()),
                revision,
                limits: match record {
                    Some(record) if changed => names(&record.plan),
                    Some(_) => std::mem::take(&mut status.limits),
                    None => Vec::new(),
                },
                refused: self.refused.clone(),
                store_rollback: self.core.store_rollback(),
                unproven,
                waits: self.waits && ledger.is_some(),
                trouble: status.trouble.take(),
                unwritten: self.unwritten.clone(),
                elected: ledger.map(|_| self.elected),
                bound_violated: self.violated,
                taken_back: self.taken_back,
                rejected_joins,
                dominant: ledger.and(self.dominant.1.clone()),
            };
            let is_new = changed
                || (status.bound_violated, status.taken_back)
                    != (next.bound_violated, next.taken_back)
                || (status.epoch, status.grants, status.members, status.waits)
                    != (next.epoch, next.grants, next.members, next.waits)
                || (&status.leader, &status.refused) != (&next.leader, &next.refused)
                || status.unwritten != next.unwritten
                || (&status.rejected_joins, &status.dominant)
                    != (&next.rejected_joins, &next.dominant)
                || (&status.store_rollback, &status.unproven)
                    != (&next.store_rollback, &next.unproven);
            *status = next;
            is_new
        });
    }

    /// Carries out what the state machine wants done.
    fn carry_out(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Response { to, answer } => {
                    self.rejected_joins.follow(self.now(), to, &answer);
                    self.outboxes.send(to, answer);
                }
                Effect::Write(record) => self.write(record, WriteOrigin::Core),
                Effect::SteppedDown { epoch, why } => {
                    tracing::warn!(epoch, %why, "this coordinator does not lead any more");
                }
                Effect::Resign { epoch } => {
                    tracing::info!(epoch, "released the leader's key");
                    self.resign();
                }
                Effect::Suspect(member) => {
                    let member = member.0;
                    tracing::warn!(member, "a node is silent: its share stays reserved");
                }
                Effect::Heard(member) => {
                    let member = member.0;
                    tracing::info!(member, "a silent node reports again");
                }
                Effect::Verify { epoch } => self.verify(epoch),
                Effect::StoreRollback(proof) => tracing::error!("{proof}"),
            }
        }
    }
}

/// Tells an operator how the store is.
fn report(health: &Health) {
    if let Some(other) = &health.other_ttl {
        tracing::error!(
            "this coordinator does not campaign, because the leader's key of the others lasts {other} ms: \
            give all coordinators the same --leader-ttl"
        );
    }
    match health.trouble() {
        Some(error) if error.is_passing() => tracing::warn!(
            %error,
            "the configuration store does not answer: nodes keep their shares, and later use their static \
            shares"
        ),
        Some(error) => tracing::error!(%error, "the configuration store cannot be used"),
        None if health.other_ttl.is_none() => tracing::info!("the configuration store answers"),
        None => {}
    }
}

fn names(plan: &Plan) -> Vec<Arc<str>> {
    let names = plan.limits.iter().map(|limit| Arc::clone(&limit.name));
    names.collect()
}
