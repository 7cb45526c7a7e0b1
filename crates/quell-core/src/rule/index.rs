//! Index: finds the rules that can apply to a descriptor, without checking all of them. So are found the
//! overrides of a rule, and the patterns of a long list.
//!
//! Checking every rule takes time linear in their number. But most rules name a value, `path: /login`,
//! or the beginning of one, `path: /api/*`, or a network, `remote_address: 10.0.0.0/8`: such a rule
//! can only apply to a descriptor with a matching entry. So every rule is filed under one of its
//! matchers, the one that it shares with the fewest other rules, by a hash of the entry's name and the
//! value, its beginning or its network. For each entry of a descriptor there is one lookup for the
//! value, and one for each length of a beginning or of a network prefix among the rules. Rules that
//! cannot be filed are checked every time.
//!
//! A rule that is found may apply, and is then checked; a hash collision only costs a check. The
//! values of a descriptor come from outside, but the hashes under which rules are filed do not: a
//! caller cannot make rules collide, so the hash needs no secret.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::net::IpAddr;
use core::{iter, slice};

use smallvec::SmallVec;
use smol_str::SmolStr;

use super::pattern::{DescriptorReader, Pattern};
use super::{EmptyValue, Matcher, Rule};

/// The most patterns of a list that are tried one after the other: to hash a value takes about as long.
pub(super) const SHORT_LIST: usize = 8;

/// Rules that may apply, by their position in the file, ascending.
pub(super) type Candidates = SmallVec<[u32; 16]>;

/// The hashes of a matcher, which mostly has one pattern.
type Hashes = SmallVec<[u64; 1]>;

/// An index of rules by what they match on.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// The rules that are filed.
    filed: HashTable,
    /// The entries that rules are filed under, in the order of their names ([`by_name`]).
    entries: Vec<FiledEntry>,
    /// The entries under which rules are filed by network.
    networks: Vec<Networks>,
    /// Rules that cannot be filed.
    others: Vec<u32>,
}

/// Rules by the hashes that they are filed under: a hash table with linear probing, built once.
///
/// The slots are in the order of the hashes, each as near behind its own place as those before it allow, so
/// that a lookup reads one cache line as a rule, however many rules there are.
#[derive(Clone, Debug, Default)]
struct HashTable {
    /// With [`WINDOW`] empty slots at the end.
    slots: Vec<FiledRule>,
    /// Number of places over which hashes are spread; behind them lie those that had to give way.
    places: u64,
}

/// Number of slots that [`HashTable::first`] looks at in one go. Few rules give way by more than that.
const WINDOW: usize = 8;

/// A rule, and the upper half of a hash that it is filed under. Another hash that begins in the same way
/// only costs a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct FiledRule {
    hash: u32,
    /// One more than the rule's position in the file; 0 in an empty slot.
    rule: u32,
}

/// The bytes of a rule in an index, beside free slots.
#[cfg(test)]
pub(super) const SLOT_BYTES: usize = size_of::<FiledRule>();

impl FiledRule {
    const fn is_empty(self) -> bool {
        self.rule == 0
    }
}

impl HashTable {
    fn new(mut filed: Vec<FiledRule>) -> Self {
        filed.sort_unstable();
        // A quarter of the places stays free, so that rows of rules stay short.
        let places = filed.len() + filed.len() / 3 + 1;
        let mut table = Self {
            slots: Vec::with_capacity(places + WINDOW),
            places: places as u64,
        };
        if filed.is_empty() {
            return table;
        }
        for one in filed {
            let place = table.place(one.hash);
            if place > table.slots.len() {
                table.slots.resize(place, FiledRule::default());
            }
            table.slots.push(one);
        }
        table
            .slots
            .resize(table.slots.len() + WINDOW, FiledRule::default());
        table.slots.shrink_to_fit();
        table
    }

    /// Place of a hash.
    #[inline]
    fn place(&self, hash: u32) -> usize {
        let scaled = (u64::from(hash) * self.places) >> 32;
        usize::try_from(scaled).unwrap_or(0)
    }

    #[inline]
    fn find(&self, hash: u64, found: &mut Candidates) {
        let hash = upper_half(hash);
        let row = self.slots.get(self.place(hash)..).unwrap_or_default();
        for slot in row.iter().take_while(|slot| !slot.is_empty()) {
            if slot.hash == hash {
                found.push(slot.rule - 1);
            } else if slot.hash > hash {
                return;
            }
        }
    }

    /// The first rule in file order that is filed under a hash and applies.
    ///
    /// Where in its row a rule lies nobody can foresee, and a processor that waits for memory to tell goes on
    /// with nothing else meanwhile. So all slots of a window are compared, without a branch between them.
    #[inline]
    fn first(&self, hash: u64, applies: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = upper_half(hash);
        let mut row = self.slots.get(self.place(hash)..)?;
        while let Some((window, rest)) = row.split_first_chunk::<WINDOW>() {
            let mut same = 0_u32;
            for (bit, slot) in window.iter().enumerate() {
                same |= u32::from(slot.hash == hash) << bit;
            }
            while same != 0 {
                let slot = window.get(same.trailing_zeros() as usize)?;
                let rule = (slot.rule as usize).checked_sub(1)?;
                if applies(rule) {
                    return Some(rule);
                }
                same &= same - 1;
            }
            let last = window.last()?;
            if last.is_empty() || last.hash > hash {
                return None;
            }
            row = rest;
        }
        None
    }
}

#[inline]
const fn upper_half(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// An entry that rules are filed under.
#[derive(Clone, Debug)]
struct FiledEntry {
    name: Arc<str>,
    /// Initial hashes for values and for beginnings, from the name.
    whole: u64,
    beginning: u64,
    /// The lengths of beginnings, ascending.
    lengths: Vec<usize>,
}

/// The networks of an entry under which rules are filed.
#[derive(Clone, Debug)]
struct Networks {
    entry: Arc<str>,
    /// The initial hash for networks, from the entry.
    start: u64,
    /// Lengths of their prefixes in bits, with all addresses as 128 bits ([`bits_of`]), ascending.
    prefixes: Vec<u8>,
}

/// Shorter names first: names of different lengths are distinguished without comparing bytes.
fn by_name(one: &str, other: &str) -> Ordering {
    let lengths = one.len().cmp(&other.len());
    lengths.then_with(|| one.cmp(other))
}

/// Part of a pattern by which it can be found.
#[derive(Clone, Copy, Debug)]
enum Literal<'a> {
    Whole(&'a str),
    Beginning(&'a str),
    /// An address, of which this many bits count.
    Network(u128, u8),
}

impl Pattern {
    /// Literal that all matching values have in common; `None` if there is none.
    fn literal(&self) -> Option<Literal<'_>> {
        match self {
            Self::Exact(text) => Some(Literal::Whole(text)),
            Self::Glob(glob) => {
                let beginning = glob.split('*').next().unwrap_or_default();
                (!beginning.is_empty()).then_some(Literal::Beginning(beginning))
            }
            Self::Network(network) => {
                let before = if network.addr().is_ipv4() { 96 } else { 0 };
                let length = network.prefix_len().saturating_add(before);
                Some(Literal::Network(bits_of(network.network()), length))
            }
        }
    }
}

/// The name of an entry, and the patterns of which its value must match one.
pub(super) type Condition<'r> = (&'r Arc<str>, &'r [Pattern]);

/// Conditions of these matchers.
pub(super) fn conditions(matchers: &[Matcher]) -> impl Iterator<Item = Condition<'_>> + Clone {
    let conditions = matchers.iter();
    conditions.map(|matcher| (&matcher.entry, &*matcher.patterns))
}

/// The hashes under which a rule that asks for these values is found; `None` if it could be missed.
fn hashes((entry, patterns): Condition<'_>) -> Option<Hashes> {
    let of = |pattern: &Pattern| {
        Some(match pattern.literal()? {
            Literal::Whole(text) => fold(start(WHOLE, entry), text.as_bytes()),
            Literal::Beginning(text) => fold(start(BEGINNING, entry), text.as_bytes()),
            Literal::Network(bits, length) => fold_bits(start(NETWORK, entry), bits, length),
        })
    };
    let mut hashes: Hashes = patterns.iter().map(of).collect::<Option<_>>()?;
    hashes.sort_unstable();
    hashes.dedup();
    Some(hashes)
}

impl Index {
    /// Files rules, which are in file order, each under one of its conditions.
    pub(super) fn new<'r, M>(rules: impl Iterator<Item = M> + Clone) -> Self
    where
        M: Iterator<Item = Condition<'r>>,
    {
        let mut shared: Vec<u64> = Vec::new();
        shared.extend(rules.clone().flatten().filter_map(hashes).flatten());
        shared.sort_unstable();
        let crowd = |hashes: &Hashes| {
            let with = |hash: &u64| {
                let from = shared.partition_point(|other| other < hash);
                let rest = shared.get(from..).unwrap_or_default();
                rest.partition_point(|other| other == hash)
            };
            hashes.iter().map(with).sum::<usize>()
        };
        let mut index = Self::default();
        let mut all_filed = Vec::new();
        let mut lengths: BTreeMap<Arc<str>, BTreeSet<usize>> = BTreeMap::new();
        let mut prefixes: BTreeMap<Arc<str>, BTreeSet<u8>> = BTreeMap::new();
        for (place, matchers) in (0..).zip(rules) {
            let choices = matchers.filter_map(|condition| Some((condition, hashes(condition)?)));
            let Some(((name, patterns), hashes)) = choices.min_by_key(|(_, hashes)| crowd(hashes))
            else {
                index.others.push(place);
                continue;
            };
            all_filed.extend(hashes.into_iter().map(|hash| FiledRule {
                hash: upper_half(hash),
                rule: place + 1,
            }));
            let entry = || Arc::clone(name);
            for literal in patterns.iter().filter_map(Pattern::literal) {
                match literal {
                    Literal::Whole(_) => _ = lengths.entry(entry()).or_default(),
                    Literal::Beginning(text) => {
                        lengths.entry(entry()).or_default().insert(text.len());
                    }
                    Literal::Network(_, length) => {
                        prefixes.entry(entry()).or_default().insert(length);
                    }
                }
            }
        }
        let entries = lengths.into_iter().map(|(name, lengths)| FiledEntry {
            whole: start(WHOLE, &name),
            beginning: start(BEGINNING, &name),
            lengths: lengths.into_iter().collect(),
            name,
        });
        index.entries = entries.collect();
        index
            .entries
            .sort_by(|one, other| by_name(&one.name, &other.name));
        let networks = prefixes.into_iter().map(|(entry, prefixes)| Networks {
            start: start(NETWORK, &entry),
            prefixes: prefixes.into_iter().collect(),
            entry,
        });
        index.networks = networks.collect();
        index.filed = HashTable::new(all_filed);
        index
    }

    /// The rules that may apply to a descriptor. Cost: what its entries' values and the rules found
    /// have in length.
    pub(super) fn candidates(&self, reader: &DescriptorReader<'_>) -> Candidates {
        let mut found = Candidates::new();
        if !self.others.is_empty() {
            found.extend_from_slice(&self.others);
        }
        if self.filed.slots.is_empty() {
            return found;
        }
        for entry in reader.entries() {
            if let Some(known) = self.entry(&entry.name) {
                self.collect_texts(known, &entry.value, &mut found);
            }
        }
        if !self.networks.is_empty() {
            self.collect_networks(reader, &mut found);
        }
        put_in_order(&mut found);
        found
    }

    /// Rules that match the value of a known entry, or its beginning.
    #[inline]
    fn collect_texts(&self, known: &FiledEntry, value: &[u8], found: &mut Candidates) {
        self.filed.find(fold(known.whole, value), found);
        for length in &known.lengths {
            let Some(beginning) = value.get(..*length) else {
                break;
            };
            self.filed.find(fold(known.beginning, beginning), found);
        }
    }

    /// A separate function, so that rules without networks do not pay for it.
    #[inline(never)]
    fn collect_networks(&self, reader: &DescriptorReader<'_>, found: &mut Candidates) {
        for networks in &self.networks {
            let value = reader.get(&networks.entry, EmptyValue::Missing);
            if let Some(address) = value.and_then(|value| reader.address(value)) {
                self.collect_address(networks, address, found);
            }
        }
    }

    fn collect_address(&self, networks: &Networks, address: IpAddr, found: &mut Candidates) {
        let bits = bits_of(address);
        for length in &networks.prefixes {
            self.filed
                .find(fold_bits(networks.start, bits, *length), found);
        }
    }

    /// The entry under whose values all rules are filed, if there is nothing else.
    #[inline]
    fn only_values(&self) -> Option<&FiledEntry> {
        match &*self.entries {
            [entry] if entry.lengths.is_empty() => {
                let is_alone = self.networks.is_empty() && self.others.is_empty();
                is_alone.then_some(entry)
            }
            _ => None,
        }
    }

    fn entry(&self, name: &str) -> Option<&FiledEntry> {
        let place = self
            .entries
            .binary_search_by(|entry| by_name(&entry.name, name));
        self.entries.get(place.ok()?)
    }
}

/// An index of the overrides of a rule.
#[derive(Clone, Debug, Default)]
pub(super) struct OverrideIndex(Option<Index>);

impl OverrideIndex {
    pub(super) fn new(rule: &Rule) -> Self {
        let whens = rule.overrides.iter();
        let whens = whens.map(|entry| conditions(&entry.when));
        let is_long = rule.overrides.len() > SHORT_LIST;
        Self(is_long.then(|| Index::new(whens)))
    }

    /// The index of the first override of `rule` whose `when` holds; the rule has those of [`Self::new`].
    /// `value` may know the one value of an entry that an override asks for ([`Override::only_value`]).
    /// Cost: as [`Index::candidates`].
    #[inline]
    pub(super) fn find<'r>(
        &self,
        rule: &'r Rule,
        reader: &DescriptorReader<'_>,
        value: impl Fn(usize) -> Option<&'r SmolStr>,
    ) -> Option<usize> {
        // Rules without overrides pay for nothing else.
        match rule.overrides.is_empty() {
            true => None,
            false => self.search(rule, reader, value),
        }
    }

    #[inline(never)]
    fn search<'r>(
        &self,
        rule: &'r Rule,
        reader: &DescriptorReader<'_>,
        value_of: impl Fn(usize) -> Option<&'r SmolStr>,
    ) -> Option<usize> {
        let Some(index) = &self.0 else {
            return first_match(rule, reader);
        };
        let applies = |place: usize| {
            let entry = rule.overrides.get(place);
            entry.is_some_and(|entry| rule.check_all(&entry.when, reader).is_ok())
        };
        if let Some(entry) = index.only_values() {
            let value = reader.get(&entry.name, rule.empty)?;
            let applies = |place: usize| match value_of(place) {
                // Of the entry under which it is filed.
                Some(text) => text.as_bytes() == value,
                None => applies(place),
            };
            return index.filed.first(fold(entry.whole, value), applies);
        }
        let candidates = index.candidates(reader);
        let mut candidates = candidates.iter().map(|place| *place as usize);
        candidates.find(|place| applies(*place))
    }
}

/// The index of the first override whose `when` holds. Cost: linear in their number.
pub(super) fn first_match(rule: &Rule, reader: &DescriptorReader<'_>) -> Option<usize> {
    let mut overrides = rule.overrides.iter();
    overrides.position(|entry| rule.check_all(&entry.when, reader).is_ok())
}

/// An index of patterns for one value.
#[derive(Clone, Debug)]
pub(super) struct PatternIndex(Index);

impl PatternIndex {
    pub(super) fn new(patterns: &[Pattern]) -> Self {
        // One index serves both: a pattern is filed like a rule that has nothing else.
        let entry: Arc<str> = Arc::from("");
        let alone = patterns.iter().map(slice::from_ref);
        Self(Index::new(alone.map(|one| iter::once((&entry, one)))))
    }

    /// The patterns that may match a value, by their position.
    pub(super) fn candidates(
        &self,
        value: &[u8],
        address: impl Fn() -> Option<IpAddr>,
    ) -> Candidates {
        let Self(index) = self;
        let mut found = Candidates::from_slice(&index.others);
        if let Some(texts) = index.entries.first() {
            index.collect_texts(texts, value, &mut found);
        }
        if let Some(networks) = index.networks.first()
            && let Some(address) = address()
        {
            index.collect_address(networks, address, &mut found);
        }
        found
    }
}

/// Brings what was found into file order, each once.
#[inline]
fn put_in_order(found: &mut Candidates) {
    if found.len() > 1 {
        found.sort_unstable();
        found.dedup();
    }
}

const WHOLE: u64 = 1;
const BEGINNING: u64 = 2;
const NETWORK: u64 = 3;

/// The initial hash for texts in the entry `name`.
fn start(kind: u64, name: &str) -> u64 {
    fold(kind, name.as_bytes())
}

/// An address as 128 bits; IPv4 addresses are mapped to IPv6.
fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Hashes the first `length` bits of an address.
fn fold_bits(seed: u64, bits: u128, length: u8) -> u64 {
    let after = u128::MAX.checked_shr(length.into()).unwrap_or(0);
    fold(seed ^ u64::from(length), &(bits & !after).to_be_bytes())
}

/// Multiplies word by word and keeps both halves of the product; begins with the number of bytes.
fn fold(seed: u64, bytes: &[u8]) -> u64 {
    // An odd number with half of its bits set: the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(FACTOR);
        #[expect(clippy::cast_possible_truncation, reason = "both halves are kept")]
        let folded = product as u64 ^ (product >> 64) as u64;
        folded.wrapping_add(FACTOR)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let hash = words.fold(mix(seed, bytes.len() as u64), mix);
    let last = match bytes.last_chunk::<8>() {
        // Some bytes may be used twice.
        Some(last) => u64::from_le_bytes(*last),
        None => {
            let bytes = rest.iter().rev();
            bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
        }
    };
    mix(hash, last)
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;

    use super::*;
    use crate::descriptor::Descriptor;
    use crate::policy::Policy;
    use crate::rule::{Effect, OnMissing};

    fn rule(place: usize, entries: &[(&str, &[String])]) -> Rule {
        let matchers = entries.iter().map(|(entry, patterns)| Matcher {
            entry: Arc::from(*entry),
            patterns: patterns.iter().map(|text| Pattern::parse(text)).collect(),
        });
        Rule {
            name: Arc::from(format!("rule-{place}")),
            matchers: matchers.collect(),
            per: vec![],
            on_missing: OnMissing::default(),
            empty: EmptyValue::default(),
            effect: Effect::Unlimited,
            overrides: vec![],
            plans: None,
            cost: None,
            shadow: false,
            policy: Policy::STRICT,
            nodes: None,
            group: None,
            max_hold: crate::hold::DEFAULT_MAX_HOLD,
            reserve: None,
            refusal_page: None,
        }
    }

    #[test]
    fn one_of_ten_thousand_addresses_and_networks_is_looked_at() {
        let rules: Vec<Rule> = (0..10_000)
            .map(|place| {
                let (high, low) = (place / 256, place % 256);
                let address = match place % 4 {
                    0 => format!("10.{high}.{low}.0/24"),
                    1 => format!("11.{high}.{low}.1/32"),
                    2 => format!("2001:db8:{high:x}:{low:x}::/64"),
                    _ => format!("2001:db9:{high:x}::{low:x}/128"),
                };
                let post = [String::from("POST")];
                rule(place, &[("method", &post), ("remote_address", &[address])])
            })
            .collect();
        let index = Index::new(rules.iter().map(|rule| conditions(&rule.matchers)));
        assert_eq!(index.others, [0; 0]);
        for (address, expected) in [
            ("10.3.4.77", vec![3 * 256 + 4]),
            ("::ffff:10.3.4.77", vec![3 * 256 + 4]),
            ("10.3.5.77", vec![]),
            ("11.3.5.1", vec![3 * 256 + 5]),
            ("11.3.5.2", vec![]),
            ("2001:db8:3:6:1:2:3:4", vec![3 * 256 + 6]),
            ("2001:0DB9:0003::0007", vec![3 * 256 + 7]),
            ("no address", vec![]),
        ] {
            let mut descriptor = Descriptor::new();
            descriptor.push("method", "POST");
            descriptor.push("remote_address", address);
            let candidates = index.candidates(&DescriptorReader::new(&descriptor));
            assert_eq!(candidates.to_vec(), expected, "{address}");
        }
    }

    #[test]
    fn a_network_of_any_length_is_found() {
        let texts = [
            "0.0.0.0/0",
            "::/0",
            "10.0.0.0/9",
            "::ffff:10.0.0.0/104",
            "::/90",
        ];
        let rules = texts
            .iter()
            .enumerate()
            .map(|(place, text)| rule(place, &[("remote_address", &[String::from(*text)])]));
        let rules: Vec<Rule> = rules.collect();
        let index = Index::new(rules.iter().map(|rule| conditions(&rule.matchers)));
        for address in ["10.127.0.1", "10.128.0.1", "1.1.1.1", "::1", "2001:db8::1"] {
            let mut descriptor = Descriptor::new();
            descriptor.push("remote_address", address);
            let candidates = index.candidates(&DescriptorReader::new(&descriptor));
            for (place, rule) in rules.iter().enumerate() {
                let applies = rule.applies(&DescriptorReader::new(&descriptor)).is_ok();
                let place = u32::try_from(place).unwrap();
                assert!(
                    !applies || candidates.contains(&place),
                    "{address} {}",
                    rule.name
                );
            }
        }
    }
}
