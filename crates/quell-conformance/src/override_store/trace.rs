//! Random batches, against a store and against a map.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell::override_store::{
    ApplyOutcome, Change, OverrideFilter, OverrideId, OverrideStore, OverrideStoreError, Prorated,
    RuleFilter, StoredNumbers, StoredOverride,
};
use quell_core::time::Wall;

use super::{Follower, get, list_all, position, record};
use crate::rules::Random;

/// Values, among them some that stand escaped in JSON and in keys.
const VALUES: [&str; 7] = ["", "a", "ab", "abc", "b\u{0}", "b\u{0}\u{1}", "ä\"\\:\n"];

/// Runs `steps` random batches from `seed` against a store that is empty, and against a map. What the store has, lists
/// and tells of changes must be what the map has.
///
/// # Panics
/// When something differs; the message names the seed and the step.
pub async fn same_as_map(store: &dyn OverrideStore, seed: u64, steps: usize) {
    same_as_bounded_map(store, seed, steps, u64::MAX).await;
}

/// The same of a store that may have `most` overrides.
///
/// # Panics
/// As [`same_as_map`].
pub async fn same_as_bounded_map(store: &dyn OverrideStore, seed: u64, steps: usize, most: u64) {
    let mut random = Random::new(seed);
    let mut model = Model {
        most,
        ..Model::default()
    };
    let mut followers = vec![Follower::default()];
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let batch = random_batch(&mut random, &model);
        match (store.apply(&batch).await, model.apply(&batch)) {
            (
                Ok(ApplyOutcome::Applied {
                    revisions,
                    position,
                }),
                Ok(expected),
            ) => {
                assert_eq!(revisions, expected, "{at}: {batch:?}");
                assert_eq!(position.revision(), model.revision, "{at}");
            }
            (outcome, Err(expected)) => assert_eq!(outcome, expected, "{at}: {batch:?}"),
            other => unreachable!("{at}: {other:?}"),
        }
        match random.below(8) {
            0 => {
                let id = random_id(&mut random);
                let expected = model.overrides.get(&id).cloned();
                assert_eq!(get(store, &id).await, expected, "{at}");
            }
            1 => {
                let filter = random_filter(&mut random);
                let most = 1 + random.index(9);
                let found = list_all(store, Some(&filter), most).await;
                let expected = model.overrides.values();
                let expected = expected.filter(|stored| filter.matches(stored)).cloned();
                let expected: Vec<_> = expected.collect();
                assert_same(found, &expected, &format!("{at}: {filter:?}"));
            }
            // One that has everything up to here, and goes on later.
            2 => followers.push(Follower::new(position(store).await, model.all())),
            3 => {
                let late = random.index(followers.len());
                if let Some(follower) = followers.get_mut(late) {
                    follower.follow(store).await;
                    assert_same(follower.overrides(), &model.all(), &at);
                    assert_eq!(follower.position(), &position(store).await, "{at}");
                }
            }
            _ => {}
        }
    }
    let end = format!("seed {seed}, at the end");
    assert_same(list_all(store, None, 10).await, &model.all(), &end);
    for mut follower in followers {
        follower.follow(store).await;
        assert_same(follower.overrides(), &model.all(), &end);
    }
}

/// Overrides in any order are those that are expected in the order of the ids; else the first that is not is named.
fn assert_same(mut found: Vec<StoredOverride>, expected: &[StoredOverride], at: &str) {
    found.sort_by(|one, other| one.id.cmp(&other.id));
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{at}");
    }
    assert_eq!(found.len(), expected.len(), "{at}");
}

/// Answer of a store that makes nothing of a batch.
type Refused = Result<ApplyOutcome, OverrideStoreError>;

/// The shortest store that is right.
#[derive(Debug, Default)]
struct Model {
    most: u64,
    revision: u64,
    overrides: BTreeMap<OverrideId, StoredOverride>,
}

impl Model {
    fn all(&self) -> Vec<StoredOverride> {
        self.overrides.values().cloned().collect()
    }

    fn revision_of(&self, id: &OverrideId) -> u64 {
        self.overrides.get(id).map_or(0, |stored| stored.revision)
    }

    /// The revisions of the changes, or what the store answers if it makes none.
    fn apply(&mut self, batch: &[Change]) -> Result<Vec<Option<u64>>, Refused> {
        for (index, change) in batch.iter().enumerate() {
            let current = self.revision_of(change.id());
            if change
                .expected()
                .is_some_and(|expected| expected != current)
            {
                return Err(Ok(ApplyOutcome::Conflict { index, current }));
            }
        }
        let mut ids: BTreeSet<&OverrideId> = self.overrides.keys().collect();
        for change in batch {
            match change {
                Change::Put { record, .. } => ids.insert(&record.id),
                Change::Delete { id, .. } => ids.remove(id),
            };
        }
        let (count, most) = (ids.len() as u64, self.most);
        if count > most && ids.len() > self.overrides.len() {
            return Err(Err(OverrideStoreError::Full { count, most }));
        }
        Ok(batch.iter().map(|change| self.change(change)).collect())
    }

    fn change(&mut self, change: &Change) -> Option<u64> {
        match change {
            Change::Put { record, .. } => {
                self.revision += 1;
                let mut stored = record.clone();
                stored.revision = self.revision;
                self.overrides.insert(stored.id.clone(), stored);
            }
            Change::Delete { id, .. } => {
                self.overrides.remove(id)?;
                self.revision += 1;
            }
        }
        Some(self.revision)
    }
}

/// A few changes of different overrides, most of which expect what is there.
fn random_batch(random: &mut Random, model: &Model) -> Vec<Change> {
    let mut changes = BTreeMap::new();
    for _ in 0..random.below(6) {
        let id = random_id(random);
        let expected = match random.below(12) {
            0 => Some(random.below(model.revision + 2)),
            1..=5 => Some(model.revision_of(&id)),
            _ => None,
        };
        let change = if random.one_in(3) {
            Change::Delete {
                id: id.clone(),
                expected,
            }
        } else {
            let record = random_override(random, &id);
            Change::Put { record, expected }
        };
        changes.insert((random.below(100), id.clone()), change);
    }
    // Each id once.
    let mut seen = BTreeSet::new();
    let changes = changes.into_values();
    changes
        .filter(|change| seen.insert(change.id().clone()))
        .collect()
}

fn random_override(random: &mut Random, id: &OverrideId) -> StoredOverride {
    let numbers = match random.below(6) {
        0 => StoredNumbers::Unlimited,
        1 => StoredNumbers::Refuse,
        2 => StoredNumbers::Plan(pick(random, &["free", "gold"])),
        3 => StoredNumbers::PlanFrom {
            plan: pick(random, &["free", "gold"]),
            calendar: Arc::from("{\"anchor\":17}"),
        },
        _ => super::rate(random.below(1_000)),
    };
    let mut stored = record(id, numbers);
    stored.reason = pick(random, &VALUES);
    stored.from = random
        .one_in(3)
        .then(|| Wall::from_nanos(random.below(1 << 50)));
    stored.prorated = random.one_in(3).then(|| Prorated {
        limit: random.below(u64::MAX),
        until: Wall::from_nanos(random.below(u64::MAX)),
    });
    stored
}

fn random_id(random: &mut Random) -> OverrideId {
    let rule = match random.below(3) {
        0 => None,
        1 => Some(Arc::from("a")),
        _ => Some(Arc::from("a\",\"")),
    };
    let mut entries = Vec::new();
    for name in ["tenant", "user\":\""] {
        if random.one_in(2) {
            entries.push((Arc::from(name), pick(random, &VALUES)));
        }
    }
    let domain = pick(random, &["d", "d\u{0}"]);
    let id = OverrideId::new(domain, rule, entries, random.one_in(3));
    id.unwrap_or_else(|error| unreachable!("{error}"))
}

fn random_filter(random: &mut Random) -> OverrideFilter {
    OverrideFilter {
        domain: pick(random, &["d", "d\u{0}"]),
        rule: match random.below(4) {
            0 => RuleFilter::Star,
            1 => RuleFilter::Named(pick(random, &["a", "a\",\"", "b"])),
            _ => RuleFilter::Any,
        },
        prefix: pick(random, &["", "", "a", "ab", "b\u{0}", "ä\"", "ä\"\\"]),
        plan: random.one_in(4).then(|| pick(random, &["free", "gold"])),
    }
}

fn pick(random: &mut Random, texts: &[&str]) -> Arc<str> {
    Arc::from(texts.get(random.index(texts.len())).copied().unwrap_or(""))
}
