//! Overrides: numbers for single keys that come and go while the rules stay, with a beginning and an end.
//!
//! What is kept of each is a fingerprint of its key and a pointer to its numbers, which all keys of a rule with the
//! same numbers share: 16 bytes in a table that is twice as large ([`KeyTable`]). A change copies a small part of it; a
//! call that began before it goes on with the old one.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use quell_core::charge::KeyHash;
use quell_core::descriptor::Descriptor;
use quell_core::limit::{Limit, LimitId};
use quell_core::rule::{
    Changes, Effect, LimitIds, Numbers, RuleSet, StoredChoice, StoredEffect, StoredNumbers,
    StoredOverrides,
};
use quell_core::time::{Now, Wall};

use crate::store::memory::{Fingerprint, HashKey, PrefetchedKey, StateTable};

mod key_table;
mod memos;

use key_table::{KeyTable, TableKey};
use memos::{Memos, Recalled};

/// Other numbers for one key of a rule, which replace those that were stored for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOverride<'a> {
    /// The domain of the rule.
    pub domain: &'a str,
    /// The name of the rule.
    pub rule: &'a str,
    /// The entries of the rule's `per`, with the values of the key.
    pub entries: Vec<(&'a str, &'a str)>,
    /// Which of the key's overrides it is.
    pub rank: OverrideRank,
    /// The numbers, of which the first applies whose time it is. None: there is no such override any more.
    pub spans: Vec<Span>,
}

/// The overrides that a key can have, the first of which applies whose time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverrideRank {
    /// For one rule, with an end.
    RuleBoost,
    /// For every rule of the domain, with an end.
    DomainBoost,
    /// For one rule, without an end.
    Rule,
    /// For every rule of the domain, without an end.
    Domain,
}

impl OverrideRank {
    /// The rank of an override.
    #[must_use]
    pub const fn new(has_end: bool, is_of_one_rule: bool) -> Self {
        match (has_end, is_of_one_rule) {
            (true, true) => Self::RuleBoost,
            (true, false) => Self::DomainBoost,
            (false, true) => Self::Rule,
            (false, false) => Self::Domain,
        }
    }

    /// The rank in two bits.
    const fn note(self) -> u8 {
        match self {
            Self::RuleBoost => 0,
            Self::DomainBoost => 1,
            Self::Rule => 2,
            Self::Domain => 3,
        }
    }

    const fn from_note(note: u8) -> Self {
        match note {
            0 => Self::RuleBoost,
            1 => Self::DomainBoost,
            2 => Self::Rule,
            _ => Self::Domain,
        }
    }
}

/// Numbers from one instant to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first instant; `None` is always.
    pub from: Option<Wall>,
    /// The instant at which they no longer apply; `None` is never.
    pub until: Option<Wall>,
    /// The numbers, in words that [`ReadNumbers`] reads.
    pub numbers: Arc<str>,
}

/// Reads the numbers of a [`Span`] for a rule of a domain, by their names; `None` if they do not go with the rule.
///
/// Called once for each distinct text and rule, and again when rules change.
pub type ReadNumbers<'f> = dyn Fn(&str, &str, &str) -> Option<StoredEffect> + 'f;

/// The numbers of all keys that have any, as a call sees them.
#[derive(Clone)]
struct Table {
    hash: HashKey,
    /// Those beside the states of the same keys, under the same hash.
    memos: Option<Memos>,
    /// Those that are the same at any time have their rank as a note.
    keys: KeyTable<Arc<Stored>>,
}

/// The overrides that a list of all of them had, each a key and its rank.
pub(crate) type Seen = HashSet<(TableKey, OverrideRank)>;

/// The numbers of a key. In one piece with the numbers that nearly all keys share, since a decision waits for each
/// pointer that it follows.
enum Stored {
    /// The same at any time, for all keys of a rule that have them.
    Always(Shared),
    /// Those of one key, each with its time.
    Timed(Vec<Timed>),
}

#[derive(Clone)]
struct Timed {
    rank: OverrideRank,
    from: Wall,
    until: Option<Wall>,
    /// [`Stored::Always`].
    numbers: Arc<Stored>,
}

impl Timed {
    /// Those whose time it is. Numbers that do not go with the rule leave the choice to the next ones.
    fn now(all: &[Self], wall: Wall) -> impl Iterator<Item = &Self> {
        let is_now =
            move |timed: &&Self| timed.from <= wall && timed.until.is_none_or(|until| wall < until);
        let now = all.iter().filter(is_now);
        now.filter(|timed| timed.choice().is_some())
    }

    fn choice(&self) -> Option<StoredChoice<'_>> {
        self.numbers.shared()?.get()
    }
}

/// Numbers that keys of one rule share.
struct Shared {
    /// Domain, rule and text.
    name: Name,
    choice: Choice,
    /// Number of spans that have them, in the newest table.
    users: AtomicUsize,
}

type Name = (Arc<str>, Arc<str>, Arc<str>);

enum Choice {
    Numbers(Numbers),
    /// Those of a plan.
    Plan(Numbers),
    /// The plan leaves the rule as it is.
    WithoutPlan,
    /// They do not go with the rule: the rules choose.
    Nothing,
}

impl Shared {
    fn get(&self) -> Option<StoredChoice<'_>> {
        match &self.choice {
            Choice::Numbers(numbers) | Choice::Plan(numbers) => {
                Some(StoredChoice::Numbers(numbers))
            }
            Choice::WithoutPlan => Some(StoredChoice::WithoutPlan),
            Choice::Nothing => None,
        }
    }

    /// The numbers, if they are not those of a rule or a plan.
    fn own(&self) -> Option<&Numbers> {
        match &self.choice {
            Choice::Numbers(numbers) => Some(numbers),
            Choice::Plan(_) | Choice::WithoutPlan | Choice::Nothing => None,
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl StoredOverrides for Table {
    #[inline]
    fn find(&self, key: &[u8], wall: Wall) -> (Option<StoredChoice<'_>>, KeyHash) {
        match &self.memos {
            Some(memos) => {
                let key = memos.prefetch(key);
                (self.recall(memos, &key, wall), memos.hash(&key))
            }
            None => {
                let stored = self.stored(self.hash.of_bytes(key));
                (stored.and_then(|stored| stored.get(wall)), KeyHash::NONE)
            }
        }
    }

    fn find_lasting(&self, key: &[u8], wall: Wall) -> Option<StoredChoice<'_>> {
        match &**self.stored(self.hash.of_bytes(key))? {
            Stored::Always(shared) => shared.get(),
            Stored::Timed(all) => {
                let mut now = Timed::now(all, wall);
                let first = now.next()?;
                let others = now.take_while(|timed| timed.rank == first.rank);
                others.last().unwrap_or(first).choice()
            }
        }
    }

    fn instants(&self, key: &[u8]) -> Vec<Wall> {
        let stored = self.stored(self.hash.of_bytes(key));
        let Some(Stored::Timed(all)) = stored.map(|stored| &**stored) else {
            return Vec::new();
        };
        let times = all.iter().flat_map(|timed| [Some(timed.from), timed.until]);
        times.flatten().filter(|at| *at > Wall::ORIGIN).collect()
    }
}

impl Table {
    /// The numbers stored for a key, by its memo if it has one.
    #[inline]
    fn recall<'a>(
        &'a self,
        memos: &'a Memos,
        key: &PrefetchedKey<'a>,
        wall: Wall,
    ) -> Option<StoredChoice<'a>> {
        let found = memos.find(key);
        match found.as_ref().and_then(|found| memos.recall(found)) {
            Some(Recalled::Nothing) => return None,
            Some(Recalled::Numbers(stored)) => return stored.get(wall),
            None => {}
        }
        let stored = self.stored(key.fingerprint);
        if let Some(found) = found {
            memos.note(found, stored);
        }
        stored?.get(wall)
    }

    fn new(states: Option<&StateTable>) -> Self {
        let hash = states.map(StateTable::hash_key);
        Self {
            hash: hash.unwrap_or_else(HashKey::random),
            memos: states.and_then(Memos::new),
            keys: KeyTable::new(),
        }
    }

    #[inline]
    fn stored(&self, key: Fingerprint) -> Option<&Arc<Stored>> {
        let (stored, _) = self.keys.get(TableKey::new(key))?;
        Some(stored)
    }

    fn key(&self, key: &[u8]) -> TableKey {
        TableKey::new(self.hash.of_bytes(key))
    }

    /// The numbers of a key, in the order of their ranks.
    fn spans(&self, key: TableKey) -> Vec<Timed> {
        let stored = self.keys.get(key);
        stored.map_or_else(Vec::new, |(stored, note)| spans_of(stored, note))
    }

    /// Begins a change of single keys.
    fn begin_change(&mut self) {
        if let Some(memos) = &mut self.memos {
            memos.begin_change();
        }
    }

    /// Stores the numbers of a key.
    fn set(&mut self, key: TableKey, mut spans: Vec<Timed>) {
        let stored = match spans.as_slice() {
            [] => None,
            [one] if one.from == Wall::ORIGIN && one.until.is_none() => {
                spans.pop().map(|one| (one.numbers, one.rank.note()))
            }
            _ => Some((Arc::new(Stored::Timed(spans)), 0)),
        };
        if let Some(memos) = &self.memos {
            memos.drop_memo(key);
        }
        self.keys.set(key, stored);
    }
}

/// The numbers that are stored with this note.
fn spans_of(stored: &Arc<Stored>, note: u8) -> Vec<Timed> {
    match &**stored {
        Stored::Always(_) => vec![Timed {
            rank: OverrideRank::from_note(note),
            from: Wall::ORIGIN,
            until: None,
            numbers: Arc::clone(stored),
        }],
        Stored::Timed(all) => all.clone(),
    }
}

impl Stored {
    const fn shared(&self) -> Option<&Shared> {
        match self {
            Self::Always(shared) => Some(shared),
            Self::Timed(_) => None,
        }
    }

    /// The numbers that apply at an instant of the wall clock.
    #[inline]
    fn get(&self, wall: Wall) -> Option<StoredChoice<'_>> {
        match self {
            Self::Always(shared) => shared.get(),
            Self::Timed(all) => Timed::now(all, wall).next()?.choice(),
        }
    }

    /// The limit under which the state of a key is that has these numbers at any time.
    fn limit(&self) -> Option<LimitId> {
        let Some(StoredChoice::Numbers(numbers)) = self.shared()?.get() else {
            return None;
        };
        let active = numbers.active().filter(|_| !numbers.refuses())?;
        Some(active.id)
    }
}

/// The overrides in force, as they are changed: one change at a time.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    /// `None` as long as there was never one.
    table: Option<Table>,
    /// All [`Stored::Always`].
    known: HashMap<Name, Arc<Stored>>,
    keys: usize,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.shared().map(|shared| &shared.name);
        f.debug_tuple("Stored").field(&name).finish()
    }
}

/// Rules with other overrides, and what that changes for a store.
pub(crate) struct Changed {
    pub(crate) rules: RuleSet,
    pub(crate) changes: Changes,
}

impl Changed {
    pub(crate) fn new(rules: &RuleSet) -> Self {
        Self {
            rules: rules.clone(),
            changes: Changes::default(),
        }
    }
}

/// Reads numbers, and gives ids to their limits.
pub(crate) struct Naming<'f> {
    pub(crate) read: &'f ReadNumbers<'f>,
    pub(crate) now: Now,
    pub(crate) ids: &'f LimitIds,
    /// The states of keys, if they are in memory.
    pub(crate) states: Option<&'f StateTable>,
}

impl Overrides {
    /// Number of keys that have numbers of their own.
    pub(crate) const fn keys(&self) -> usize {
        self.keys
    }

    /// Replaces overrides of keys. Keys that no rule has are left out. Those that have one are added to `seen`.
    pub(crate) fn change(
        &mut self,
        rules: &RuleSet,
        all: &[KeyOverride<'_>],
        context: &Naming<'_>,
        mut seen: Option<&mut Seen>,
    ) -> Changed {
        let mut changed = Changed::new(rules);
        let table = self.table.take();
        let mut table = table.unwrap_or_else(|| Table::new(context.states));
        table.begin_change();
        let mut given_up: Vec<Arc<Stored>> = Vec::new();
        for one in all {
            let mut descriptor = Descriptor::new();
            for (entry, value) in &one.entries {
                descriptor.push((*entry).to_owned(), (*value).to_owned());
            }
            let Some(key) = rules.key_of(one.domain, one.rule, &descriptor) else {
                continue;
            };
            let key = table.key(&key);
            let spans = one.spans.iter().map(|span| Timed {
                rank: one.rank,
                from: span.from.unwrap_or(Wall::ORIGIN),
                until: span.until,
                numbers: self.share(
                    &mut table,
                    (one.domain, one.rule),
                    &span.numbers,
                    context,
                    &mut changed,
                ),
            });
            let spans: Vec<Timed> = spans.collect();
            if let (Some(seen), false) = (&mut seen, spans.is_empty()) {
                seen.insert((key, one.rank));
            }
            let is_gone = |timed: &Timed| timed.rank == one.rank;
            given_up.extend(self.put(&mut table, key, is_gone, spans));
        }
        self.end(table, given_up, context, changed)
    }

    /// Drops all overrides that are not in `seen`. Limits from before a restart whose numbers have not come back hand
    /// their keys on.
    pub(crate) fn retain(&mut self, rules: &RuleSet, seen: &Seen, context: &Naming<'_>) -> Changed {
        let mut changed = Changed::new(rules);
        changed.changes = changed.rules.hand_on_dropped(context.now, context.ids);
        let Some(mut table) = self.table.take() else {
            return changed;
        };
        table.begin_change();
        let is_gone = |key: TableKey, stored: &Arc<Stored>, note: u8| {
            let spans = spans_of(stored, note);
            let mut ranks = spans.iter().map(|timed| timed.rank);
            ranks.any(|rank| !seen.contains(&(key, rank)))
        };
        let all = table.keys.all();
        let gone = all.filter(|(key, stored, note)| is_gone(*key, stored, *note));
        let gone: Vec<TableKey> = gone.map(|(key, ..)| key).collect();
        let mut given_up = Vec::new();
        for key in gone {
            let is_gone = |timed: &Timed| !seen.contains(&(key, timed.rank));
            given_up.extend(self.put(&mut table, key, is_gone, Vec::new()));
        }
        self.end(table, given_up, context, changed)
    }

    /// Replaces those spans of a key that are gone, and returns what they had.
    fn put(
        &mut self,
        table: &mut Table,
        key: TableKey,
        is_gone: impl Fn(&Timed) -> bool,
        spans: Vec<Timed>,
    ) -> impl Iterator<Item = Arc<Stored>> {
        let old = table.spans(key);
        self.keys -= usize::from(!old.is_empty());
        let (gone, mut next): (Vec<Timed>, Vec<Timed>) = old.into_iter().partition(is_gone);
        next.extend(spans);
        next.sort_by_key(|timed| timed.rank);
        self.keys += usize::from(!next.is_empty());
        table.set(key, next);
        gone.into_iter().map(|timed| timed.numbers)
    }

    /// Puts the table into the rules.
    fn end(
        &mut self,
        mut table: Table,
        given_up: Vec<Arc<Stored>>,
        context: &Naming<'_>,
        mut changed: Changed,
    ) -> Changed {
        for stored in given_up {
            self.give_up(&mut table, &stored, context, &mut changed);
        }
        changed.rules = changed
            .rules
            .with_stored((self.keys > 0).then(|| Arc::new(table.clone()) as Arc<_>));
        self.table = Some(table);
        changed
    }

    /// The numbers with this text, for a rule; named if no key has them yet.
    fn share(
        &mut self,
        table: &mut Table,
        (domain, rule): (&str, &str),
        text: &Arc<str>,
        context: &Naming<'_>,
        changed: &mut Changed,
    ) -> Arc<Stored> {
        let name: Name = (Arc::from(domain), Arc::from(rule), Arc::clone(text));
        let known = self.known.entry(name.clone()).or_insert_with(|| {
            let choice = choose(&name, None, context, changed);
            let stored = Arc::new(Stored::Always(Shared {
                name,
                choice,
                users: AtomicUsize::new(0),
            }));
            if let Some(memos) = &mut table.memos {
                memos.add(&stored);
            }
            stored
        });
        if let Some(shared) = known.shared() {
            shared.users.fetch_add(1, Relaxed);
        }
        Arc::clone(known)
    }

    /// Takes numbers from a key. If it was the last one, its other keys' use goes to the limit of the rule.
    fn give_up(
        &mut self,
        table: &mut Table,
        stored: &Arc<Stored>,
        context: &Naming<'_>,
        changed: &mut Changed,
    ) {
        let Some(shared) = stored.shared() else {
            return;
        };
        if shared.users.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        self.known.remove(&shared.name);
        if let Some(memos) = &mut table.memos {
            memos.remove(stored);
        }
        if let Some(numbers) = shared.own() {
            let (domain, rule, _) = &shared.name;
            let gone = StoredNumbers {
                rule: (domain, rule),
                effect: None,
                before: Some(numbers),
            };
            let (_, changes) = changed.rules.name_stored(&[gone], context.now, context.ids);
            changed.changes.add(changes);
        }
    }

    /// The same keys under other rules, whose names and `per` are as before: what they mean is read again.
    pub(crate) fn follow(&mut self, changed: &mut Changed, context: &Naming<'_>) {
        let Some(table) = &mut self.table else {
            return;
        };
        let mut next = HashMap::with_capacity(self.known.len());
        for (name, before) in self.known.drain() {
            let Some(before) = before.shared() else {
                continue;
            };
            let choice = choose(&name, before.own(), context, changed);
            let users = AtomicUsize::new(before.users.load(Relaxed));
            let shared = Shared {
                name: name.clone(),
                choice,
                users,
            };
            next.insert(name, Arc::new(Stored::Always(shared)));
        }
        self.known = next;
        if let Some(memos) = &mut table.memos {
            memos.begin_rules(self.known.values());
        }
        let renew = |stored: &Arc<Stored>| {
            let now = stored.shared().and_then(|it| self.known.get(&it.name));
            Arc::clone(now.unwrap_or(stored))
        };
        table.keys = table.keys.map(|stored| match &**stored {
            Stored::Always(_) => renew(stored),
            Stored::Timed(all) => {
                let all = all.iter().map(|timed| Timed {
                    numbers: renew(&timed.numbers),
                    ..*timed
                });
                Arc::new(Stored::Timed(all.collect()))
            }
        });
        changed.rules = changed
            .rules
            .with_stored((self.keys > 0).then(|| Arc::new(table.clone()) as Arc<_>));
    }
}

/// Shares the memory of a shape that the rule has: else a decision would read one of its own for each of many numbers.
fn adopt_shape(limit: &mut Limit, rules: &RuleSet, (domain, rule): (&str, &str)) {
    let mut all = rules.domain(domain).iter();
    let Some(in_force) = all.find(|active| *active.rule().name == *rule) else {
        return;
    };
    let rule = in_force.rule();
    let plans = rule.plans.iter().flat_map(|plans| plans.effects.values());
    for effect in [&rule.effect].into_iter().chain(plans) {
        if let Some(known) = effect.limit() {
            limit.adopt_shape(known.shape());
        }
    }
}

/// Reads numbers for a rule, and gives them an id, or that of the numbers that they had before.
fn choose(
    name: &Name,
    before: Option<&Numbers>,
    context: &Naming<'_>,
    changed: &mut Changed,
) -> Choice {
    let (domain, rule, text) = name;
    let mut effect = (context.read)(domain, rule, text);
    if let Some(StoredEffect::Effect(Effect::Limit(limit))) = &mut effect {
        adopt_shape(limit, &changed.rules, (domain, rule));
    }
    let own = match &effect {
        Some(StoredEffect::Effect(effect)) => Some(effect),
        _ => None,
    };
    let stored = StoredNumbers {
        rule: (domain, rule),
        effect: own,
        before,
    };
    let (named, changes) = changed
        .rules
        .name_stored(&[stored], context.now, context.ids);
    changed.changes.add(changes);
    if let Some(Some(numbers)) = named.into_iter().next() {
        return Choice::Numbers(numbers);
    }
    let Some(StoredEffect::Plan(plan)) = effect else {
        return Choice::Nothing;
    };
    let mut rules = changed.rules.domain(domain).iter();
    let in_force = rules.find(|active| active.rule().name == *rule);
    match in_force.and_then(|in_force| in_force.plan(&plan)) {
        Some(numbers) => Choice::Plan(numbers.clone()),
        None => Choice::WithoutPlan,
    }
}
