//! Top: the keys that were refused most often in the last few minutes.
//!
//! RefusedKeys are approximate and bounded (`space_saving`). They are kept for two halves of the time that is
//! shown; when a half is over, the older one is dropped. A refusal that comes while another thread counts
//! one is left out and itself counted, so no call waits here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quell_core::key::with_ad_hoc;
use quell_core::time::Monotonic;
use quell_host::refused_key::refused_key;
use quell_protocol::http::RefusedKeyBody;

use crate::key_hash::{KeyHash, KeyNaming};
use crate::metrics::Number;
use crate::sample::one_in;

mod space_saving;

use space_saving::SpaceSaving;

/// Counters of each half. With names of some 100 bytes all of them take less than a megabyte; names are
/// shortened, so that 64 KiB of a caller's text take no more than 64 bytes.
const COUNTERS: usize = 1_024;

/// After how long a half is over.
const HALF: Duration = Duration::from_secs(5 * 60);

/// One in so many refusals of `CL.THROTTLE` is counted, as so many: counting each would take a fifth of
/// the time of such a call.
const AD_HOC_ONE_IN: u64 = 16;

/// RefusedKeys refusals by key.
#[derive(Debug)]
pub(crate) struct Top {
    naming: KeyNaming,
    halves: Mutex<Halves>,
    /// Refusals that were left out.
    missed: Number,
}

/// The two halves of the time that is shown.
#[derive(Debug)]
struct Halves {
    latest: Half,
    before: Option<Half>,
}

#[derive(Debug)]
struct Half {
    began: Monotonic,
    /// Keys of rules.
    rules: RefusedKeys,
    /// Keys of `CL.THROTTLE`, which callers make up as they like, so that these push out no others.
    ad_hoc: RefusedKeys,
}

/// Counters, and what is known of their keys.
type RefusedKeys = SpaceSaving<KnownKey>;

/// Record of a key.
#[derive(Clone, Debug)]
struct KnownKey {
    /// Its bytes, shortened.
    name: Arc<[u8]>,
    last: Option<LastRefusal>,
}

/// Reason and time of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LastRefusal {
    pub(crate) at: Monotonic,
    pub(crate) cost: u64,
    pub(crate) why: RefusalReason,
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefusalReason {
    /// The key has used what its limit allows.
    Used,
    /// No key may ever have that much at once.
    Cost,
    Banned,
    /// No store or coordinator answered.
    Degraded,
}

/// A key, and how often it was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) hash: KeyHash,
    /// The bytes of the key, shortened.
    pub(crate) name: Arc<[u8]>,
    /// At most so often.
    pub(crate) at_most: u64,
    /// At least so often; of keys of `CL.THROTTLE`, probably.
    pub(crate) at_least: u64,
    /// The last refusal; of keys of rules.
    pub(crate) last: Option<LastRefusal>,
}

impl Top {
    pub(crate) fn new(naming: KeyNaming, now: Monotonic) -> Self {
        let halves = Mutex::new(Halves {
            latest: Half::new(now),
            before: None,
        });
        Self {
            naming,
            halves,
            missed: Number::default(),
        }
    }

    /// The hash of a key, as lists and the decision log show it.
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        self.naming.hash(key)
    }

    /// Naming of the keys of lists.
    pub(crate) const fn naming(&self) -> KeyNaming {
        self.naming
    }

    /// RefusedKeys the refusal of a key of a rule.
    pub(crate) fn note(&self, key: &[u8], refusal: LastRefusal) {
        self.count(refusal.at, 1, |half| {
            let hash = self.hash(key);
            let known = half
                .rules
                .add(hash, || KnownKey::new(key, hash, self.naming));
            if let Some(known) = known {
                known.last = Some(refusal);
            }
        });
    }

    /// RefusedKeys the refusal of a key of `CL.THROTTLE`, if it is its turn.
    pub(crate) fn note_ad_hoc(&self, key: &[u8], now: Monotonic) {
        if one_in(AD_HOC_ONE_IN) {
            self.count(now, AD_HOC_ONE_IN, |half| {
                let hash = self.hash(key);
                with_ad_hoc(key, |whole| {
                    half.ad_hoc
                        .add(hash, || KnownKey::new(whole.as_bytes(), hash, self.naming));
                });
            });
        }
    }

    fn count(&self, now: Monotonic, weight: u64, add: impl FnOnce(&mut Half)) {
        let Some(mut halves) = self.halves.try_lock() else {
            return self.missed.add(weight);
        };
        halves.turn(now);
        add(&mut halves.latest);
    }

    /// Refusals that were left out so far.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.get()
    }

    /// The keys that were refused, most often first, and how far back they are counted.
    pub(crate) fn list(&self, now: Monotonic) -> (Vec<Refused>, Duration) {
        let mut halves = self.halves.lock();
        halves.turn(now);
        let oldest = halves.before.as_ref().unwrap_or(&halves.latest);
        let window = now.since(oldest.began);
        let of = |counts: fn(&Half) -> &RefusedKeys, weight| {
            let before = halves.before.as_ref().map(counts);
            merge(counts(&halves.latest), before, weight)
        };
        let mut keys = of(|half| &half.rules, 1);
        keys.extend(of(|half| &half.ad_hoc, AD_HOC_ONE_IN));
        drop(halves);
        sort(&mut keys);
        (keys, window)
    }
}

/// Most often first.
fn sort(keys: &mut [Refused]) {
    keys.sort_by(|one, other| {
        let by_count = other.at_most.cmp(&one.at_most);
        by_count.then_with(|| one.name.cmp(&other.name))
    });
}

impl Refused {
    /// Body that shows the key, by its hash alone if that is wanted; none if its bytes are no key.
    pub(crate) fn body(&self, is_hashed: bool) -> Option<RefusedKeyBody> {
        let key = refused_key(&self.name, self.at_least, self.at_most)?;
        Some(match is_hashed {
            true => RefusedKeyBody {
                entries: None,
                hash: Some(self.hash.to_string()),
                ..key
            },
            false => key,
        })
    }
}

/// RefusedKeys refusals by key since it was made, without an end. One that comes while another thread counts is
/// left out.
#[derive(Debug)]
pub(crate) struct SinceStart {
    naming: KeyNaming,
    counts: Mutex<RefusedKeys>,
}

impl SinceStart {
    pub(crate) fn new(naming: KeyNaming) -> Self {
        let counts = Mutex::new(SpaceSaving::new(COUNTERS));
        Self { naming, counts }
    }

    /// Returns true if its keys have no values.
    pub(crate) const fn is_hashed(&self) -> bool {
        self.naming.is_hashed
    }

    pub(crate) fn note(&self, key: &[u8]) {
        if let Some(mut counts) = self.counts.try_lock() {
            let hash = self.naming.hash(key);
            counts.add(hash, || KnownKey::new(key, hash, self.naming));
        }
    }

    /// The keys, most often first.
    pub(crate) fn list(&self) -> Vec<Refused> {
        let mut keys = merge(&self.counts.lock(), None, 1);
        sort(&mut keys);
        keys
    }
}

impl KnownKey {
    fn new(key: &[u8], hash: KeyHash, naming: KeyNaming) -> Self {
        let name = naming.name(key, hash);
        Self { name, last: None }
    }
}

impl Half {
    fn new(began: Monotonic) -> Self {
        Self {
            began,
            rules: SpaceSaving::new(COUNTERS),
            ad_hoc: SpaceSaving::new(COUNTERS),
        }
    }
}

impl Halves {
    /// Begins a new half if the latest is over.
    fn turn(&mut self, now: Monotonic) {
        let age = now.since(self.latest.began);
        if age >= HALF {
            let last = std::mem::replace(&mut self.latest, Half::new(now));
            self.before = (age < 2 * HALF).then_some(last);
        }
    }
}

/// The counters of both halves together. What a half has no counter for came there at most as often as
/// its smallest counter says.
fn merge(latest: &RefusedKeys, before: Option<&RefusedKeys>, weight: u64) -> Vec<Refused> {
    let mut merged = HashMap::new();
    let floors = before.map_or(0, RefusedKeys::floor) + latest.floor();
    for counts in before.into_iter().chain([latest]) {
        for counter in counts.counters() {
            let entry = merged.entry(counter.key);
            let refused: &mut Refused = entry.or_insert_with(|| Refused {
                hash: counter.key,
                name: Arc::clone(&counter.item.name),
                at_most: floors * weight,
                at_least: 0,
                last: None,
            });
            refused.last = refused.last.max(counter.item.last);
            refused.at_most += (counter.count - counts.floor()) * weight;
            refused.at_least += (counter.count - counter.error) * weight;
        }
    }
    merged.into_values().collect()
}

#[cfg(test)]
mod tests {
    use quell::store::memory::HashKey;
    use quell_core::key::KeyName;

    use super::*;

    const NAMING: KeyNaming = KeyNaming {
        secret: HashKey([1, 2]),
        is_hashed: false,
    };

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_nanos(seconds * 1_000_000_000)
    }

    fn shown(top: &Top, seconds: u64) -> Vec<(Vec<u8>, u64, u64)> {
        let (keys, _) = top.list(at(seconds));
        let shown = keys.into_iter();
        shown
            .map(|key| (key.name.to_vec(), key.at_least, key.at_most))
            .collect()
    }

    fn refusal(seconds: u64, why: RefusalReason) -> LastRefusal {
        LastRefusal {
            at: at(seconds),
            cost: 1,
            why,
        }
    }

    fn note(top: &Top, key: &[u8], seconds: u64, times: u64) {
        (0..times).for_each(|_| top.note(key, refusal(seconds, RefusalReason::Used)));
    }

    #[test]
    fn refusals_are_forgotten_after_ten_minutes() {
        let top = Top::new(NAMING, at(0));
        note(&top, b"a", 10, 3);
        note(&top, b"b", 20, 1);
        assert_eq!(
            shown(&top, 299),
            [(b"a".to_vec(), 3, 3), (b"b".to_vec(), 1, 1)]
        );
        note(&top, b"b", 300, 4);
        assert_eq!(
            shown(&top, 599),
            [(b"b".to_vec(), 5, 5), (b"a".to_vec(), 3, 3)]
        );
        assert_eq!(top.list(at(599)).1, Duration::from_secs(599));
        assert_eq!(shown(&top, 600), [(b"b".to_vec(), 4, 4)]);
        assert_eq!(top.list(at(700)).1, Duration::from_secs(400));
        assert_eq!(shown(&top, 1_200), []);
    }

    /// A key that is refused in both halves was last refused in the second, whichever has more of it.
    #[test]
    fn the_last_refusal_of_a_key_is_known() {
        let top = Top::new(NAMING, at(0));
        note(&top, b"a", 1, 9);
        note(&top, b"b", 2, 1);
        top.note(b"a", refusal(300, RefusalReason::Banned));
        note(&top, b"c", 301, 5);
        let (keys, _) = top.list(at(302));
        let last = |name: &[u8]| keys.iter().find(|key| *key.name == *name).unwrap().last;
        assert_eq!(last(b"a"), Some(refusal(300, RefusalReason::Banned)));
        assert_eq!(last(b"b"), Some(refusal(2, RefusalReason::Used)));
    }

    /// More keys than counters in both halves: a count says what it may be.
    #[test]
    fn a_count_of_both_halves_is_never_too_small() {
        let top = Top::new(NAMING, at(0));
        for half in [0, 300] {
            note(&top, b"hot", half, 500);
            for key in 0_u32..5_000 {
                note(&top, &key.to_le_bytes(), half, 1);
            }
        }
        note(&top, b"new", 300, 7);
        let keys = shown(&top, 300);
        assert!(keys.len() <= 2 * COUNTERS);
        let of = |name: &[u8]| keys.iter().find(|(key, ..)| key == name).unwrap();
        let (_, at_least, at_most) = of(b"hot");
        assert_eq!((*at_least, keys[0].0.as_slice()), (1_000, &b"hot"[..]));
        assert!((1_000..1_020).contains(at_most), "{at_most}");
        let (_, at_least, at_most) = of(b"new");
        assert!((1..=7).contains(at_least) && (7..=20).contains(at_most));
    }

    #[test]
    fn callers_choose_keys_and_not_how_much_memory_they_take() {
        let top = Top::new(NAMING, at(0));
        for _ in 0..1_000 {
            top.note_ad_hoc(&[b'x'; 60_000], at(0));
        }
        let (keys, _) = top.list(at(0));
        assert!(keys[0].name.len() < 128, "{}", keys[0].name.len());
        let name = KeyName::parse(&keys[0].name).unwrap();
        assert!(name.values[0].1.as_ref().unwrap().starts_with("xxx"));
        assert!((300..3_000).contains(&keys[0].at_most), "{keys:?}");
        assert_eq!(keys[0].at_most % AD_HOC_ONE_IN, 0);
    }

    #[test]
    fn a_refusal_waits_for_nobody() {
        let top = Top::new(NAMING, at(0));
        let held = top.halves.lock();
        note(&top, b"a", 0, 1);
        assert_eq!(top.missed(), 1);
        drop(held);
        assert_eq!(shown(&top, 0), []);
    }
}
