//! Index: finds the rules that can apply to a descriptor, without checking all of them.
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

use smallvec::SmallVec;

use super::pattern::DescriptorReader;
use super::{EmptyValue, Matcher, Pattern, Rule};

/// Rules that may apply, by their position in the file, ascending.
pub(super) type Candidates = SmallVec<[u32; 16]>;

/// An index of rules by what they match on.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// Where the rules of each slice of hashes begin in `filed`, and where the last ones end.
    starts: Vec<u32>,
    /// Rules with the hash that each is filed under, ascending.
    filed: Vec<(u64, u32)>,
    /// The entries that rules are filed under, in the order of their names ([`by_name`]).
    entries: Vec<Entry>,
    /// The entries under which rules are filed by network.
    networks: Vec<Networks>,
    /// Rules that cannot be filed.
    others: Vec<u32>,
}

/// An entry that rules are filed under.
#[derive(Clone, Debug)]
struct Entry {
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

/// What a pattern can be found by.
#[derive(Clone, Copy, Debug)]
enum Literal<'a> {
    Whole(&'a str),
    Beginning(&'a str),
    /// An address, of which this many bits count.
    Network(u128, u8),
}

impl Pattern {
    /// What all matching values have in common; `None` if that is nothing.
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

impl Matcher {
    /// The hashes under which a rule with this matcher is found; `None` if it could be missed.
    fn hashes(&self) -> Option<Vec<u64>> {
        let of = |pattern: &Pattern| {
            Some(match pattern.literal()? {
                Literal::Whole(text) => fold(start(WHOLE, &self.entry), text.as_bytes()),
                Literal::Beginning(text) => fold(start(BEGINNING, &self.entry), text.as_bytes()),
                Literal::Network(bits, length) => {
                    fold_bits(start(NETWORK, &self.entry), bits, length)
                }
            })
        };
        let mut hashes: Vec<u64> = self.patterns.iter().map(of).collect::<Option<_>>()?;
        hashes.sort_unstable();
        hashes.dedup();
        Some(hashes)
    }
}

impl Index {
    /// Files `rules`, which are in file order.
    pub(super) fn new<'r>(rules: impl Iterator<Item = &'r Rule>) -> Self {
        let rules: Vec<&Rule> = rules.collect();
        let mut shared: BTreeMap<u64, usize> = BTreeMap::new();
        let matchers = rules.iter().flat_map(|rule| &rule.matchers);
        for hash in matchers.filter_map(Matcher::hashes).flatten() {
            *shared.entry(hash).or_default() += 1;
        }
        let crowd = |hashes: &Vec<u64>| {
            let with = |hash: &u64| shared.get(hash).copied().unwrap_or_default();
            hashes.iter().map(with).sum::<usize>()
        };
        let mut index = Self::default();
        let mut lengths: BTreeMap<Arc<str>, BTreeSet<usize>> = BTreeMap::new();
        let mut prefixes: BTreeMap<Arc<str>, BTreeSet<u8>> = BTreeMap::new();
        for (place, rule) in (0..).zip(&rules) {
            let choices = rule
                .matchers
                .iter()
                .filter_map(|matcher| Some((matcher, matcher.hashes()?)));
            let Some((matcher, hashes)) = choices.min_by_key(|(_, hashes)| crowd(hashes)) else {
                index.others.push(place);
                continue;
            };
            index
                .filed
                .extend(hashes.into_iter().map(|hash| (hash, place)));
            let entry = || Arc::clone(&matcher.entry);
            for literal in matcher.patterns.iter().filter_map(Pattern::literal) {
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
        let entries = lengths.into_iter().map(|(name, lengths)| Entry {
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
        index.filed.sort_unstable();
        index.cut_into_slices();
        index
    }

    /// About one slice for each filed rule, all of the same width.
    fn cut_into_slices(&mut self) {
        let slices = self.filed.len().next_power_of_two();
        let below = |slice: usize| {
            let filed = &self.filed;
            filed.partition_point(|(hash, _)| slice_of(*hash, slices) < slice)
        };
        let starts = (0..=slices).map(|slice| u32::try_from(below(slice)).unwrap_or(u32::MAX));
        self.starts = starts.collect();
    }

    /// The rules that may apply to a descriptor. Cost: what its entries' values and the rules found
    /// have in length.
    pub(super) fn candidates(&self, reader: &DescriptorReader<'_>) -> Candidates {
        let mut found = Candidates::new();
        if !self.others.is_empty() {
            found.extend_from_slice(&self.others);
        }
        if self.filed.is_empty() {
            return found;
        }
        for entry in reader.entries() {
            let Some(known) = self.entry(&entry.name) else {
                continue;
            };
            self.collect(fold(known.whole, &entry.value), &mut found);
            for length in &known.lengths {
                let Some(beginning) = entry.value.get(..*length) else {
                    break;
                };
                self.collect(fold(known.beginning, beginning), &mut found);
            }
        }
        if !self.networks.is_empty() {
            self.collect_networks(reader, &mut found);
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    /// A separate function, so that rules without networks do not pay for it.
    #[inline(never)]
    fn collect_networks(&self, reader: &DescriptorReader<'_>, found: &mut Candidates) {
        for networks in &self.networks {
            let value = reader.get(&networks.entry, EmptyValue::Missing);
            if let Some(address) = value.and_then(|value| reader.address(value)) {
                let bits = bits_of(address);
                for length in &networks.prefixes {
                    self.collect(fold_bits(networks.start, bits, *length), found);
                }
            }
        }
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        let place = self
            .entries
            .binary_search_by(|entry| by_name(&entry.name, name));
        self.entries.get(place.ok()?)
    }

    fn collect(&self, hash: u64, found: &mut Candidates) {
        let slice = slice_of(hash, self.starts.len() - 1);
        let (Some(start), Some(end)) = (self.starts.get(slice), self.starts.get(slice + 1)) else {
            return;
        };
        let filed = self.filed.get(*start as usize..*end as usize);
        for (other, rule) in filed.unwrap_or_default() {
            if *other == hash {
                found.push(*rule);
            }
        }
    }
}

/// Which of `slices` (a power of two) equal ranges of hashes this one is in.
fn slice_of(hash: u64, slices: usize) -> usize {
    let scaled = (u128::from(hash) * slices as u128) >> 64;
    usize::try_from(scaled).unwrap_or(0)
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
            cost: None,
            shadow: false,
            policy: Policy::STRICT,
            nodes: None,
            group: None,
            max_hold: crate::hold::DEFAULT_MAX_HOLD,
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
        let index = Index::new(rules.iter());
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
        let index = Index::new(rules.iter());
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
