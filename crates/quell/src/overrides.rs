//! Overrides: numbers for single keys that come and go while the rules stay, with a beginning and an end.
//!
//! What is kept of each is a fingerprint of its key and a pointer to its numbers, which all keys of a rule with the
//! same numbers share: 32 bytes in one of many short lists ([`Lists`]). A change copies one list; a call that began
//! before it goes on with the old ones.

use std::array;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use quell_core::descriptor::Descriptor;
use quell_core::rule::{
    Changes, LimitIds, Numbers, RuleSet, StoredChoice, StoredEffect, StoredNumbers, StoredOverrides,
};
use quell_core::time::{Now, Wall};

use crate::store::memory::HashKey;

/// Number of rows of lists, and of lists in a row: of a million keys some 60 are in each list.
const SIDE: usize = 128;

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
    lists: Lists,
}

/// Keys by their fingerprints, in lists: a change copies one list, its row, and the row of rows.
#[derive(Clone)]
struct Lists(Arc<[Arc<Row>; SIDE]>);

type Row = [Arc<[Entry]>; SIDE];

impl Lists {
    fn new() -> Self {
        let empty: Arc<[Entry]> = Arc::from([]);
        let row: Arc<Row> = Arc::new(array::from_fn(|_| Arc::clone(&empty)));
        Self(Arc::new(array::from_fn(|_| Arc::clone(&row))))
    }

    /// The row of a key, and its list there.
    fn place((high, _): Fingerprint) -> (usize, usize) {
        let bits = usize::try_from(high & 0xffff_ffff).unwrap_or(0);
        (bits / SIDE % SIDE, bits % SIDE)
    }

    fn get(&self, key: Fingerprint) -> &[Entry] {
        let (row, list) = Self::place(key);
        let list = self.0.get(row).and_then(|row| row.get(list));
        list.map_or(&[], |list| list)
    }

    fn set(&mut self, key: Fingerprint, entries: Vec<Entry>) {
        let (row, list) = Self::place(key);
        let rows = Arc::make_mut(&mut self.0);
        if let Some(row) = rows.get_mut(row)
            && let Some(list) = Arc::make_mut(row).get_mut(list)
        {
            *list = Arc::from(entries);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        let lists = self.0.iter().flat_map(|row| row.iter());
        lists.flat_map(|list| list.iter())
    }

    /// The same lists with other entries.
    fn map(&self, entry: impl Fn(&Entry) -> Entry) -> Self {
        let list = |list: &Arc<[Entry]>| -> Arc<[Entry]> { list.iter().map(&entry).collect() };
        let rows = array::from_fn(|row| {
            let row = self.0.get(row);
            let lists = array::from_fn(|place| {
                let before = row.and_then(|row| row.get(place));
                before.map_or_else(|| Arc::from([]), &list)
            });
            Arc::new(lists)
        });
        Self(Arc::new(rows))
    }
}

/// The place of a key in a list, or the place where it belongs. Fingerprints are spread evenly, so it is looked for
/// where it should lie, and from there on.
fn search(list: &[Entry], key: Fingerprint) -> Result<usize, usize> {
    let scaled = ((key.0 >> 32) * list.len() as u64) >> 32;
    let mut place = usize::try_from(scaled).unwrap_or(0);
    while place > 0 && list.get(place - 1).is_some_and(|entry| entry.key >= key) {
        place -= 1;
    }
    while let Some(entry) = list.get(place) {
        match entry.key.cmp(&key) {
            Ordering::Less => place += 1,
            Ordering::Equal => return Ok(place),
            Ordering::Greater => break,
        }
    }
    Err(place)
}

/// A key with its numbers.
#[derive(Clone)]
struct Entry {
    key: Fingerprint,
    spans: Spans,
}

type Fingerprint = (u64, u32);

/// The overrides that a list of all of them had, each a key and its rank.
pub(crate) type Seen = HashSet<(Fingerprint, OverrideRank)>;

/// The numbers of a key.
#[derive(Clone)]
enum Spans {
    /// The same at any time.
    Always(OverrideRank, Arc<Shared>),
    /// Behind a thin pointer, since few have these.
    Timed(Arc<Vec<Timed>>),
}

#[derive(Clone)]
struct Timed {
    rank: OverrideRank,
    from: Wall,
    until: Option<Wall>,
    shared: Arc<Shared>,
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
    fn find(&self, key: &[u8], wall: Wall) -> Option<StoredChoice<'_>> {
        let key = self.fingerprint(key);
        let list = self.lists.get(key);
        match &list.get(search(list, key).ok()?)?.spans {
            Spans::Always(_, shared) => shared.get(),
            Spans::Timed(all) => {
                let mut all = all.iter();
                let is_now = |timed: &&Timed| {
                    timed.from <= wall && timed.until.is_none_or(|until| wall < until)
                };
                all.find(is_now)?.shared.get()
            }
        }
    }
}

impl Table {
    fn new() -> Self {
        Self {
            hash: HashKey::random(),
            lists: Lists::new(),
        }
    }

    fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        let hash = self.hash.of_bytes(key);
        (hash.high, hash.low)
    }
}

/// The overrides in force, as they are changed: one change at a time.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    /// `None` as long as there was never one.
    table: Option<Table>,
    known: HashMap<Name, Arc<Shared>>,
    keys: usize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.name).finish()
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
        let mut table = self.table.take().unwrap_or_else(Table::new);
        let mut given_up: Vec<Arc<Shared>> = Vec::new();
        for one in all {
            let mut descriptor = Descriptor::new();
            for (entry, value) in &one.entries {
                descriptor.push((*entry).to_owned(), (*value).to_owned());
            }
            let Some(key) = rules.key_of(one.domain, one.rule, &descriptor) else {
                continue;
            };
            let key = table.fingerprint(&key);
            let spans = one.spans.iter().map(|span| Timed {
                rank: one.rank,
                from: span.from.unwrap_or(Wall::ORIGIN),
                until: span.until,
                shared: self.share((one.domain, one.rule), &span.numbers, context, &mut changed),
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

    /// Drops all overrides that are not in `seen`.
    pub(crate) fn retain(&mut self, rules: &RuleSet, seen: &Seen, context: &Naming<'_>) -> Changed {
        let changed = Changed::new(rules);
        let Some(mut table) = self.table.take() else {
            return changed;
        };
        let is_gone = |entry: &Entry| {
            let ranks = entry.spans.all();
            let mut ranks = ranks.iter().map(|timed| timed.rank);
            ranks.any(|rank| !seen.contains(&(entry.key, rank)))
        };
        let gone = table.lists.all().filter(|entry| is_gone(entry));
        let gone: Vec<Fingerprint> = gone.map(|entry| entry.key).collect();
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
        key: Fingerprint,
        is_gone: impl Fn(&Timed) -> bool,
        spans: Vec<Timed>,
    ) -> impl Iterator<Item = Arc<Shared>> {
        let before = table.lists.get(key);
        let place = search(before, key);
        let old = place.ok().and_then(|place| before.get(place));
        let old = old.map_or_else(Vec::new, |entry| entry.spans.all());
        self.keys -= usize::from(!old.is_empty());
        let is_new = old.is_empty();
        let (gone, mut next): (Vec<Timed>, Vec<Timed>) = old.into_iter().partition(is_gone);
        next.extend(spans);
        next.sort_by_key(|timed| timed.rank);
        self.keys += usize::from(!next.is_empty());
        let (head, tail) = match place {
            Ok(place) => (before.get(..place), before.get(place + 1..)),
            Err(place) => (before.get(..place), before.get(place..)),
        };
        let mut entries = Vec::with_capacity(before.len() + usize::from(is_new));
        entries.extend_from_slice(head.unwrap_or_default());
        entries.extend(Spans::new(next).map(|spans| Entry { key, spans }));
        entries.extend_from_slice(tail.unwrap_or_default());
        table.lists.set(key, entries);
        gone.into_iter().map(|timed| timed.shared)
    }

    /// Puts the table into the rules.
    fn end(
        &mut self,
        table: Table,
        given_up: Vec<Arc<Shared>>,
        context: &Naming<'_>,
        mut changed: Changed,
    ) -> Changed {
        for shared in given_up {
            self.give_up(&shared, context, &mut changed);
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
        (domain, rule): (&str, &str),
        text: &Arc<str>,
        context: &Naming<'_>,
        changed: &mut Changed,
    ) -> Arc<Shared> {
        let name: Name = (Arc::from(domain), Arc::from(rule), Arc::clone(text));
        let known = self.known.entry(name.clone()).or_insert_with(|| {
            let choice = choose(&name, None, context, changed);
            Arc::new(Shared {
                name,
                choice,
                users: AtomicUsize::new(0),
            })
        });
        known.users.fetch_add(1, Relaxed);
        Arc::clone(known)
    }

    /// Takes numbers from a key. If it was the last one, its other keys' use goes to the limit of the rule.
    fn give_up(&mut self, shared: &Arc<Shared>, context: &Naming<'_>, changed: &mut Changed) {
        if shared.users.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        self.known.remove(&shared.name);
        if let Some(numbers) = shared.own() {
            let (domain, rule, _) = &shared.name;
            let gone = StoredNumbers {
                rule: (domain, rule),
                effect: None,
                before: Some(numbers),
            };
            let (rules, _, changes) = changed.rules.name_stored(&[gone], context.now, context.ids);
            changed.rules = rules;
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
            let choice = choose(&name, before.own(), context, changed);
            let users = AtomicUsize::new(before.users.load(Relaxed));
            let shared = Shared {
                name: name.clone(),
                choice,
                users,
            };
            next.insert(name, Arc::new(shared));
        }
        self.known = next;
        let renew = |shared: &Arc<Shared>| {
            let now = self.known.get(&shared.name);
            Arc::clone(now.unwrap_or(shared))
        };
        table.lists = table.lists.map(|entry| Entry {
            key: entry.key,
            spans: entry.spans.map(renew),
        });
        changed.rules = changed
            .rules
            .with_stored((self.keys > 0).then(|| Arc::new(table.clone()) as Arc<_>));
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
    let effect = (context.read)(domain, rule, text);
    let own = match &effect {
        Some(StoredEffect::Effect(effect)) => Some(effect),
        _ => None,
    };
    let stored = StoredNumbers {
        rule: (domain, rule),
        effect: own,
        before,
    };
    let (rules, named, changes) = changed
        .rules
        .name_stored(&[stored], context.now, context.ids);
    changed.rules = rules;
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

impl Spans {
    /// `None` if there are none.
    fn new(mut all: Vec<Timed>) -> Option<Self> {
        Some(match all.as_slice() {
            [] => return None,
            [one] if one.from == Wall::ORIGIN && one.until.is_none() => {
                let one = all.pop()?;
                Self::Always(one.rank, one.shared)
            }
            _ => Self::Timed(Arc::new(all)),
        })
    }

    fn all(&self) -> Vec<Timed> {
        match self {
            Self::Always(rank, shared) => vec![Timed {
                rank: *rank,
                from: Wall::ORIGIN,
                until: None,
                shared: Arc::clone(shared),
            }],
            Self::Timed(all) => all.to_vec(),
        }
    }

    fn map(&self, renew: impl Fn(&Arc<Shared>) -> Arc<Shared>) -> Self {
        match self {
            Self::Always(rank, shared) => Self::Always(*rank, renew(shared)),
            Self::Timed(all) => {
                let all = all.iter().map(|timed| Timed {
                    shared: renew(&timed.shared),
                    ..*timed
                });
                Self::Timed(Arc::new(all.collect()))
            }
        }
    }
}
