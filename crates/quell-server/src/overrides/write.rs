//! Write: an override is checked against the rules in force before the store has it.

use std::sync::Arc;
use std::time::Duration;

use quell::AskError;
use quell::calendar::SystemCalendar;
use quell::override_store::{
    ApplyOutcome, Change, InvalidOverride, OverrideId, OverrideStoreError, Position, Prorated,
    StoredNumbers, StoredOverride,
};
use quell::store::Action;
use quell_core::descriptor::Descriptor;
use quell_core::limit::Limit;
use quell_core::rule::{
    ActiveRule, CalendarEdges as _, DescriptorReader, Effect, Numbers, Per, RuleSet, StoredEffect,
};
use quell_core::time::{Now, Wall};
use quell_protocol::http::OverrideServersBody;
use quell_protocol::printable;
use quell_rules::{Problem, StoredFields, meant, wrong_address};
use tokio::time::Instant;

use super::carry::{KeyCalendars, UsePlace};
use super::{has_seen, names_of, rules_of, rules_with_entries, spans_of, text_of, windows_of};
use crate::shared::Shared;

/// What becomes of the window, or the use, that a key has when its numbers change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChangeMode {
    /// What was used is kept, and counts under the new numbers.
    #[default]
    Keep,
    /// The same, and the limit of this window is made of the old and the new one, each for its part of the time.
    Prorate,
    /// The key begins with nothing used.
    Restart,
}

impl ChangeMode {
    /// Its words in a request.
    pub(crate) const WORDS: [(&'static str, Self); 3] = [
        ("keep", Self::Keep),
        ("prorate", Self::Prorate),
        ("restart", Self::Restart),
    ];
}

/// An override that a caller wants.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) id: OverrideId,
    pub(crate) numbers: StoredNumbers,
    pub(crate) from: Option<Wall>,
    pub(crate) until: Option<Wall>,
    pub(crate) mode: ChangeMode,
    /// Another limit for the first window, if there is one already.
    pub(crate) prorated: Option<Prorated>,
    pub(crate) reason: Arc<str>,
    pub(crate) by: Arc<str>,
    /// The revision that the caller saw, 0 for none; `None` for whatever is there.
    pub(crate) expected: Option<u64>,
}

/// Reason why an override is not written.
#[derive(Debug)]
pub(crate) enum OverrideProblem {
    /// Something is wrong with it. The text says what to write.
    Invalid(String),
    /// The domain, or the rule, is not there.
    Unknown(String),
    /// It has another revision than the caller saw, or 0 for none: of the change with this index.
    Conflict { index: usize, current: u64 },
    /// There would be so many, and no more than `most` are allowed: by this server, or by the coordinators of its fleet.
    Full {
        count: u64,
        most: u64,
        is_of_fleet: bool,
    },
    /// The store.
    Store(OverrideStoreError),
}

impl From<InvalidOverride> for OverrideProblem {
    fn from(error: InvalidOverride) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<OverrideStoreError> for OverrideProblem {
    fn from(error: OverrideStoreError) -> Self {
        match error {
            OverrideStoreError::Unfit { reason, .. } => Self::Invalid(reason),
            other => Self::Store(other),
        }
    }
}

impl Wanted {
    /// The record, if it goes with the rules in force.
    pub(crate) fn check(self, shared: &Shared, now: Now) -> Result<Change, OverrideProblem> {
        let names = check_keys(shared, &self.id)?;
        for (name, value) in &self.id.entries {
            if let Some(reason) = wrong_address(name, value.as_bytes()) {
                return Err(OverrideProblem::Invalid(format!("{name}: {reason}")));
            }
        }
        let rules = shared.limiter.rules();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let fields = shared.overrides.fields();
        let text = text_of(&self.numbers);
        let mut prorated = self.prorated;
        if let StoredNumbers::PlanFrom { plan, .. } = &self.numbers {
            self.check_calendar(&fields, &names, plan)?;
        }
        for rule in &names {
            let effect = fields.read(&self.id.domain, rule, &text);
            let effect = effect.map_err(|problems| {
                let told: Vec<String> = problems.iter().map(mistake_words).collect();
                OverrideProblem::Invalid(format!("rule {rule}: {}", told.join("; ")))
            })?;
            if let StoredEffect::Effect(Effect::Limit(limit)) = &effect {
                let checked = shared.limiter.check_override(&self.id.domain, rule, limit);
                checked.map_err(|error| OverrideProblem::Invalid(error.to_string()))?;
            }
        }
        if self.mode == ChangeMode::Prorate {
            prorated = Some(self.prorate(&rules, &fields, now.wall)?);
        }
        if self.mode != ChangeMode::Keep && self.from.is_some_and(|from| from > now.wall) {
            let reason =
                "a change that begins later keeps what is used then: leave `change` out, or `from`";
            return Err(OverrideProblem::Invalid(reason.to_owned()));
        }
        if self.mode == ChangeMode::Restart && self.numbers == StoredNumbers::Unlimited {
            let reason = "a key without a limit counts nothing: leave `change` out";
            return Err(OverrideProblem::Invalid(reason.to_owned()));
        }
        if self.until.is_some_and(|until| until <= now.wall) {
            let reason = "`until` is over: write an instant in the future";
            return Err(OverrideProblem::Invalid(reason.to_owned()));
        }
        let record = StoredOverride {
            id: self.id,
            numbers: self.numbers,
            from: self.from,
            until: self.until,
            prorated,
            reason: self.reason,
            by: self.by,
            at: now.wall,
            revision: 0,
        };
        record.check()?;
        for rule in &names {
            for span in spans_of(&record, rule, &rules) {
                if fields.read(&record.id.domain, rule, &span.numbers).is_err() {
                    let reason = format!(
                        "`prorated` does not go with these numbers and rule {rule}: leave it out"
                    );
                    return Err(OverrideProblem::Invalid(reason));
                }
            }
        }
        Ok(Change::Put {
            record,
            expected: self.expected,
        })
    }
}

impl Wanted {
    /// The limit of this window, of the rule that has one.
    fn prorate(
        &self,
        rules: &RuleSet,
        fields: &StoredFields,
        wall: Wall,
    ) -> Result<Prorated, OverrideProblem> {
        let (domain, name) = (&*self.id.domain, self.prorated_rule(rules)?);
        let mut all = rules.domain(domain).iter();
        let in_force = all.find(|active| *active.rule().name == *name);
        let effect = fields.read(domain, name, &text_of(&self.numbers)).ok();
        let after = match &effect {
            Some(StoredEffect::Effect(effect)) => effect.limit(),
            Some(StoredEffect::Plan(plan)) => {
                let numbers = in_force.and_then(|active| active.plan(plan));
                let active = numbers.and_then(Numbers::active);
                active.map(|active| &active.limit)
            }
            None => None,
        };
        let descriptor = descriptor(&self.id);
        let reader = DescriptorReader::new(&descriptor);
        let limit = |numbers: &'_ Numbers| numbers.active().map(|active| active.limit.clone());
        let now = in_force.and_then(|active| limit(rules.numbers_for(active, &reader, wall)));
        let lasting = in_force.map(|active| rules.lasting_numbers_for(active, &reader, wall));
        prorate((now, lasting.and_then(limit)), after, wall)
    }

    /// The rule of which a window is divided.
    fn prorated_rule<'r>(&self, rules: &'r RuleSet) -> Result<&'r str, OverrideProblem> {
        let windows = windows_of((&self.id, &self.numbers), rules);
        let reason = match windows.as_slice() {
            [one] => return Ok(one),
            [] => "the plan has windows of the calendar for no rule of these keys: leave `change: prorate` out".to_owned(),
            several => format!(
                "a record has the limit of one window, and this is for {}: write `change: prorate` for each rule by its \
                 name",
                several.join(" and ")
            ),
        };
        Err(OverrideProblem::Invalid(reason))
    }

    /// Refuses another calendar for a plan that has no windows of it, for any of these rules.
    fn check_calendar(
        &self,
        fields: &StoredFields,
        rules: &[&str],
        plan: &str,
    ) -> Result<(), OverrideProblem> {
        let domain = &self.id.domain;
        let mut has_calendar = rules
            .iter()
            .map(|rule| fields.has_calendar(domain, rule, plan));
        // What is wrong with the plan is told as for a plan alone.
        if !fields.has_plan(domain, plan) || has_calendar.any(|has_calendar| has_calendar) {
            return Ok(());
        }
        Err(OverrideProblem::Invalid(format!(
            "plan `{plan}` has no limit with `align: calendar` for {}: leave `anchor` and `time_zone` out",
            match self.id.rule.as_deref() {
                Some(rule) => format!("rule `{rule}`"),
                None => "any rule of these keys".to_owned(),
            }
        )))
    }
}

/// A mistake in numbers, with its field. They have no lines that anybody wrote.
fn mistake_words(problem: &Problem) -> String {
    let field = match &*problem.path {
        "" => String::new(),
        path => format!("{path}: "),
    };
    printable(&format!("{field}{}", problem.message)).into_owned()
}

/// The id of the overrides of a key by these entries. Addresses have the spelling of the first one that the rules count
/// as the same, so that a key has one id, whichever of them is written.
///
/// # Errors
/// [`InvalidOverride`] if there can be no such key.
pub(crate) fn key_id(
    shared: &Shared,
    (domain, rule): (&Arc<str>, Option<&Arc<str>>),
    entries: &[(Arc<str>, Arc<str>)],
    has_end: bool,
) -> Result<OverrideId, InvalidOverride> {
    let new = |entries: Vec<(Arc<str>, Arc<str>)>| {
        OverrideId::new(Arc::clone(domain), rule.cloned(), entries, has_end)
    };
    let id = new(entries.to_vec())?;
    let rules = shared.limiter.rules();
    let names = names_of(&rules_with_entries(&id, &rules));
    let counted = |(name, value): &(Arc<str>, Arc<str>)| {
        let mut per = captures_of(&rules, domain, &names, name);
        let counted = per.next().and_then(|per| per.counted(value));
        let value = counted.map_or_else(|| Arc::clone(value), |it| it.to_string().into());
        (Arc::clone(name), value)
    };
    new(entries.iter().map(counted).collect())
}

/// The ways in which these rules capture an entry.
fn captures_of<'a>(
    rules: &'a RuleSet,
    domain: &str,
    names: &'a [&str],
    entry: &'a str,
) -> impl Iterator<Item = &'a Per> {
    let all = rules.domain(domain).iter().map(ActiveRule::rule);
    let all = all.filter(|rule| names.contains(&&*rule.name));
    all.flat_map(move |rule| rule.per.iter().filter(move |per| *per.entry == *entry))
}

/// Checks that rules count addresses as one in the same way, if an override is for all of them.
fn check_prefixes(rules: &RuleSet, id: &OverrideId, names: &[&str]) -> Result<(), OverrideProblem> {
    for (name, _) in &id.entries {
        let per = captures_of(rules, &id.domain, names, name);
        let prefixes: Vec<_> = per.map(|per| per.prefix).collect();
        if prefixes.windows(2).any(|two| two.first() != two.last()) {
            return Err(OverrideProblem::Invalid(format!(
                "the rules {} count different addresses of `{name}` as one: write an override for each rule by its name",
                names.join(", ")
            )));
        }
    }
    Ok(())
}

/// Checks that there are keys with this id, and returns the names of their rules.
pub(crate) fn check_keys(
    shared: &Shared,
    id: &OverrideId,
) -> Result<Vec<Arc<str>>, OverrideProblem> {
    id.check()?;
    let rules = shared.limiter.rules();
    if !rules.has_domain(&id.domain) {
        let reason = format!("there is no domain `{}`", id.domain);
        return Err(OverrideProblem::Unknown(reason));
    }
    let names = names_of(&rules_with_entries(id, &rules));
    if !names.is_empty() {
        check_prefixes(&rules, id, &names)?;
        let mut keys = names
            .iter()
            .map(|name| rules.key_of(&id.domain, name, &descriptor(id)));
        if keys.all(|key| key.is_none()) {
            let reason = "an empty value counts as a missing one, so no caller has such a key: write a value";
            return Err(OverrideProblem::Invalid(reason.to_owned()));
        }
        return Ok(names.into_iter().map(Arc::from).collect());
    }
    let Some(rule) = id.rule.as_deref() else {
        let reason =
            "no rule of the domain has exactly these entries in its `per`: write those of one";
        return Err(OverrideProblem::Unknown(reason.to_owned()));
    };
    let mut all = rules.domain(&id.domain).iter();
    let Some(active) = all.find(|active| &*active.rule().name == rule) else {
        let names = rules.domain(&id.domain).iter();
        let names: Vec<&str> = names.map(|active| &*active.rule().name).collect();
        let meant = match meant(rule, &names) {
            Some(meant) => format!(", did you mean `{meant}`?"),
            None => String::new(),
        };
        let reason = format!(
            "there is no rule `{rule}` in the domain `{}`{meant}",
            id.domain
        );
        return Err(OverrideProblem::Unknown(reason));
    };
    let per: Vec<&str> = active.rule().per.iter().map(|per| &*per.entry).collect();
    Err(OverrideProblem::Invalid(match per.as_slice() {
        [] => format!(
            "the keys of rule `{rule}` have no entries: its numbers stand in the rules file"
        ),
        per => format!(
            "a key of rule `{rule}` has the entries {}: write a value for each, and no other",
            per.join(", ")
        ),
    }))
}

/// The entries of an override as a descriptor.
pub(crate) fn descriptor(id: &OverrideId) -> Descriptor<'static> {
    let mut descriptor = Descriptor::new();
    for (name, value) in &id.entries {
        descriptor.push(name.to_string(), value.to_string());
    }
    descriptor
}

/// The limit of the window around `wall`: what stood until now for the part that is over, and the new one for the rest,
/// rounded up. Of a window that is divided already, `now` is its limit, and `lasting` the one that it had for the rest.
fn prorate(
    (now, lasting): (Option<Limit>, Option<Limit>),
    after: Option<&Limit>,
    wall: Wall,
) -> Result<Prorated, OverrideProblem> {
    let wrong = |reason: &str| OverrideProblem::Invalid(reason.to_owned());
    let after = after.ok_or_else(|| {
        wrong("only a limit of this rule has parts of a window: leave `change: prorate` out")
    })?;
    let (now, lasting) = now.zip(lasting).ok_or_else(|| {
        wrong(
            "the key has no limit now, of which a part of the window could remain: leave `change: prorate` out",
        )
    })?;
    let (calendar, before) = after.calendar().zip(now.calendar()).ok_or_else(|| {
        wrong(
            "only windows of the calendar have parts: leave `change: prorate` out, or write `align: calendar` into the \
             rule",
        )
    })?;
    if calendar.unit != before.unit {
        return Err(OverrideProblem::Invalid(format!(
            "the limit was for each {}, and this one is for each {}, so no window has a part of both: leave \
             `change: prorate` out",
            before.unit.name(),
            calendar.unit.name()
        )));
    }
    let edges = SystemCalendar::default().edges(calendar, wall);
    let nanos = |duration: Duration| duration.as_nanos();
    let whole = nanos(edges.end.since(edges.start)).max(1);
    let rest = whole - nanos(wall.since(edges.start)).min(whole);
    let units = |limit: &Limit| u128::from(limit.max());
    let with_rest = units(&now) * whole + units(after) * rest;
    let limit = with_rest.saturating_sub(units(&lasting) * rest);
    let limit = u64::try_from(limit.div_ceil(whole)).unwrap_or(u64::MAX);
    Ok(Prorated {
        limit: limit.max(1),
        until: edges.end,
    })
}

/// Changes that were made.
#[derive(Debug)]
pub(crate) struct ChangedOverrides {
    /// The revision of each; `None` where there was nothing to delete.
    pub(crate) revisions: Vec<Option<u64>>,
    /// The position of the store.
    pub(crate) position: Position,
    /// Whether this server has them.
    pub(crate) is_here: bool,
    /// The servers that have them, if the caller waits for all.
    pub(crate) servers: Option<OverrideServersBody>,
}

impl Shared {
    /// Makes all changes of overrides or none, and waits until they are in force: on all servers for at most `most`, or
    /// here for a second.
    pub(crate) async fn change_overrides(
        &self,
        changes: &[Change],
        most: Option<Duration>,
    ) -> Result<ChangedOverrides, OverrideProblem> {
        /// Usual wait until this server has what it wrote: it does not answer by older numbers then.
        const IN_FORCE: Duration = Duration::from_secs(1);
        let overrides = &self.overrides;
        let before = overrides.position();
        let ids: Vec<_> = changes.iter().map(Change::id).collect();
        let calendars = KeyCalendars::now(self, UsePlace::Shared, &ids).await;
        let applied = overrides.store().apply(changes).await;
        let applied = applied.map_err(|error| match error {
            OverrideStoreError::Full { count, most } => OverrideProblem::Full {
                count,
                most,
                is_of_fleet: self.node.is_some(),
            },
            other => other.into(),
        });
        match applied? {
            ApplyOutcome::Applied {
                revisions,
                position,
            } => {
                let made = Instant::now();
                let Some(newest) = revisions.iter().flatten().max().copied() else {
                    return Ok(ChangedOverrides {
                        revisions,
                        position,
                        is_here: true,
                        servers: None,
                    });
                };
                let change = (&position, newest);
                let own = overrides.wait_for(change, &before, most.unwrap_or(IN_FORCE));
                let is_here = own.await;
                calendars.carry_moved(self, is_here).await;
                let servers = match most {
                    Some(most) => {
                        let is_here = || has_seen(&overrides.position(), change, &before);
                        let register = &overrides.register;
                        let store = overrides.store();
                        let wait =
                            register.wait_for_all(store, (newest, made), is_here, made + most);
                        wait.await
                    }
                    None => None,
                };
                Ok(ChangedOverrides {
                    revisions,
                    position,
                    is_here,
                    servers,
                })
            }
            ApplyOutcome::Conflict { index, current } => {
                Err(OverrideProblem::Conflict { index, current })
            }
        }
    }

    /// Forgets what the keys of an override used, where a limit applies to them. Returns false if none does. A failure is
    /// the caller's to tell: the override is written.
    pub(crate) async fn restart_keys(&self, id: &OverrideId) -> Result<bool, AskError> {
        let rules = self.limiter.rules();
        let (descriptor, mut has_limit) = (descriptor(id), false);
        for rule in rules_of(id, &rules) {
            let forgiven =
                self.limiter
                    .administer_key(&id.domain, rule, &descriptor, Action::Forgive);
            match forgiven.await {
                Ok(_) => has_limit = true,
                Err(AskError::UnknownRule) => {}
                Err(error) => return Err(error),
            }
        }
        self.note_change();
        Ok(has_limit)
    }
}
