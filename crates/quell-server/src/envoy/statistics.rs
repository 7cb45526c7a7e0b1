//! Statistics: what envoyproxy/ratelimit counts, under its names.
//!
//! Callers choose some of the names: unknown domains, limits that come with a call, and those with values that the
//! configuration does not have. They are counted apart from the other limits of the configuration and have bounds of
//! their own, so that they take no place of one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use quell_core::descriptor::Descriptor as AskedDescriptor;
use quell_envoy::OwnLimit;
use quell_envoy::config::{Found, HitCounts};
use quell_envoy::proto::{Code, Descriptor, DescriptorStatus};
use quell_host::metrics_text::MetricsText;

/// The most names of limits that are counted apart where callers choose them: those with values (`detailed_metric`,
/// `value_to_metric`) and those that come with calls. Further ones count as [`OTHER`].
pub(crate) const MAX_STAT_NAMES: usize = 10_000;

/// The most unknown domains that are counted apart: enough to find those that were forgotten in the configuration.
/// Further ones count as [`OTHER`].
const MAX_UNKNOWN_DOMAINS: usize = 1_000;

/// Longest name in bytes. What is longer is cut, so names that begin alike may count together.
const MAX_NAME_BYTES: usize = 256;

/// Name of all beyond a bound.
const OTHER: &str = "other";

/// Counters of one limit.
#[derive(Debug, Default)]
struct Counters {
    total_hits: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    within_limit: AtomicU64,
    shadow_mode: AtomicU64,
    total_negative_hits: AtomicU64,
    domain_not_found: AtomicU64,
}

impl Counters {
    fn add(&self, counts: HitCounts) {
        add(&self.total_hits, counts.total);
        add(&self.over_limit, counts.over);
        add(&self.near_limit, counts.near);
        add(&self.within_limit, counts.within);
        add(&self.shadow_mode, counts.shadow);
    }

    /// All numbers with their names.
    fn all(&self) -> [(&'static str, &AtomicU64); 7] {
        [
            ("total_hits", &self.total_hits),
            ("over_limit", &self.over_limit),
            ("near_limit", &self.near_limit),
            ("within_limit", &self.within_limit),
            ("shadow_mode", &self.shadow_mode),
            ("total_negative_hits", &self.total_negative_hits),
            ("domain_not_found", &self.domain_not_found),
        ]
    }
}

/// Counters by name.
#[derive(Debug, Default)]
struct Names(RwLock<HashMap<String, Arc<Counters>>>);

impl Names {
    /// The counters of a name, or of [`OTHER`] if it is new and `most` are known.
    fn get(&self, name: &str, most: usize) -> Arc<Counters> {
        let name = sanitized(name);
        if let Some(known) = self.0.read().get(&name) {
            return Arc::clone(known);
        }
        let mut names = self.0.write();
        let name = match names.len() < most || names.contains_key(&name) {
            true => name,
            false => OTHER.to_owned(),
        };
        Arc::clone(names.entry(name).or_default())
    }
}

/// Statistics of the service.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    /// Limits of the configurations so far, which are as many as their files have.
    limits: Names,
    /// Limits whose names have values that callers chose.
    chosen: Names,
    unknown_domains: Names,
    redis_error: AtomicU64,
    service_error: AtomicU64,
    global_shadow_mode: AtomicU64,
    config_load_success: AtomicU64,
    config_load_error: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Statistics {
    /// Counts hits of a limit.
    pub(crate) fn note(
        &self,
        found: &Found<'_>,
        descriptor: &AskedDescriptor<'_>,
        counts: HitCounts,
    ) {
        let name = found.stat_name(descriptor);
        self.limit(&name, found.shows_values()).add(counts);
    }

    /// Counts hits that were given back.
    pub(crate) fn note_refund(
        &self,
        found: &Found<'_>,
        descriptor: &AskedDescriptor<'_>,
        hits: u64,
    ) {
        let counters = self.limit(&found.stat_name(descriptor), found.shows_values());
        add(&counters.total_negative_hits, hits);
    }

    /// Counts a call on a domain without limits.
    pub(crate) fn note_unknown(&self, domain: &str) {
        let counters = self.unknown_domains.get(domain, MAX_UNKNOWN_DOMAINS);
        add(&counters.domain_not_found, 1);
    }

    /// Counts a call on a limit that came with it.
    pub(crate) fn note_own(
        &self,
        domain: &str,
        descriptor: Option<&Descriptor>,
        own: &OwnLimit,
        status: &DescriptorStatus,
    ) {
        let hits = own.hits.map_or(0, quell_core::cost::Cost::get);
        let counts = match status.code() {
            Code::OverLimit => HitCounts {
                over: hits,
                ..HitCounts::default()
            },
            _ => HitCounts {
                within: hits,
                ..HitCounts::default()
            },
        };
        let entries = descriptor.into_iter().flat_map(|one| &one.entries);
        let parts = entries.map(|entry| match entry.value.is_empty() {
            true => entry.key.clone(),
            false => format!("{}_{}", entry.key, entry.value),
        });
        let name = [domain.to_owned()].into_iter().chain(parts);
        let name = name.collect::<Vec<_>>().join(".");
        let total = hits;
        let counters = self.limit(&name, true);
        counters.add(HitCounts { total, ..counts });
    }

    /// Counts a call that the store did not answer.
    pub(crate) fn note_store_error(&self) {
        add(&self.redis_error, 1);
    }

    /// Counts a call that was not valid.
    pub(crate) fn note_service_error(&self) {
        add(&self.service_error, 1);
    }

    /// Counts a call that passes since all limits are in shadow.
    pub(crate) fn note_global_shadow(&self) {
        add(&self.global_shadow_mode, 1);
    }

    /// Counts a load of the configuration.
    pub(crate) fn note_load(&self, is_sound: bool) {
        let counter = match is_sound {
            true => &self.config_load_success,
            false => &self.config_load_error,
        };
        add(counter, 1);
    }

    /// Every counter with its full name, in the order of names.
    pub(crate) fn all(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for names in self.names() {
            for (name, counters) in &*names.0.read() {
                for (counter, number) in counters.all() {
                    let count = read(number);
                    if count > 0 {
                        let name = format!("ratelimit.service.rate_limit.{name}.{counter}");
                        *all.entry(name).or_default() += count;
                    }
                }
            }
        }
        for (name, number) in [
            ("call.should_rate_limit.redis_error", &self.redis_error),
            ("call.should_rate_limit.service_error", &self.service_error),
            ("global_shadow_mode", &self.global_shadow_mode),
            ("config_load_success", &self.config_load_success),
            ("config_load_error", &self.config_load_error),
        ] {
            all.insert(format!("ratelimit.service.{name}"), read(number));
        }
        all
    }

    /// Writes them as the mapping of that service names them for Prometheus: with the first two keys as labels.
    pub(crate) fn write(&self, text: &mut MetricsText) {
        let abouts = [
            "ratelimit_service_rate_limit_total_hits counter Hits of calls on limits of --envoy-config.",
            "ratelimit_service_rate_limit_over_limit counter Hits beyond the limit.",
            "ratelimit_service_rate_limit_near_limit counter Hits within the limit that came near to it.",
            "ratelimit_service_rate_limit_within_limit counter Hits of calls within the limit.",
            "ratelimit_service_rate_limit_shadow_mode counter Hits beyond a limit in shadow.",
            "ratelimit_service_rate_limit_total_negative_hits counter Hits that were given back.",
            "ratelimit_service_rate_limit_domain_not_found counter Calls on domains without limits.",
        ];
        let names = self.names().map(|names| names.0.read());
        for (index, about) in abouts.into_iter().enumerate() {
            let mut sums: BTreeMap<[&str; 3], u64> = BTreeMap::new();
            for (name, counters) in names.iter().flat_map(|names| &**names) {
                // What is behind an empty part is not shown.
                let mut parts = name.split('.').take_while(|part| !part.is_empty()).fuse();
                let labels = [(); 3].map(|()| parts.next().unwrap_or_default());
                let count = counters
                    .all()
                    .get(index)
                    .map_or(0, |(_, number)| read(number));
                *sums.entry(labels).or_default() += count;
            }
            let name = text.head(about);
            for ([domain, key1, key2], count) in sums {
                let labels = [("domain", domain), ("key1", key1), ("key2", key2)];
                let known = labels.iter().position(|(_, value)| value.is_empty());
                let labels = labels.get(..known.unwrap_or(3)).unwrap_or_default();
                text.labelled(name, labels, count);
            }
        }
        drop(names);
        text.by(
            "ratelimit_service_should_rate_limit_error counter Calls that were not answered.",
            "err_type",
            [
                ("redis_error", read(&self.redis_error)),
                ("service_error", read(&self.service_error)),
            ],
        );
        for (about, number) in [
            (
                "ratelimit_service_global_shadow_mode counter Calls that pass since all limits are in shadow.",
                &self.global_shadow_mode,
            ),
            (
                "ratelimit_service_config_load_success counter Times that the limits of --envoy-config or --envoy-xds were loaded.",
                &self.config_load_success,
            ),
            (
                "ratelimit_service_config_load_error counter Times that they had mistakes.",
                &self.config_load_error,
            ),
        ] {
            text.number(about, read(number));
        }
    }

    fn limit(&self, name: &str, is_chosen: bool) -> Arc<Counters> {
        match is_chosen {
            true => self.chosen.get(name, MAX_STAT_NAMES),
            false => self.limits.get(name, usize::MAX),
        }
    }

    const fn names(&self) -> [&Names; 3] {
        [&self.limits, &self.chosen, &self.unknown_domains]
    }
}

/// The first [`MAX_NAME_BYTES`] of a name, with `_` for what separates statistics and their parts: colons, bars, the
/// dots of IPv4 addresses, white space and control characters.
fn sanitized(name: &str) -> String {
    let (mut rest, _) = name.split_at(name.floor_char_boundary(MAX_NAME_BYTES));
    let mut clean = String::with_capacity(rest.len());
    while let Some(first) = rest.chars().next() {
        if let Some(length) = ipv4_length(rest) {
            let (address, after) = rest.split_at(length);
            clean.push_str(&address.replace('.', "_"));
            rest = after;
            continue;
        }
        let separates = matches!(first, ':' | '|') || first.is_whitespace() || first.is_control();
        clean.push(if separates { '_' } else { first });
        rest = rest.get(first.len_utf8()..).unwrap_or_default();
    }
    clean
}

/// Length of the four numbers of one to three digits, with dots between them, with which a text begins.
fn ipv4_length(text: &str) -> Option<usize> {
    let mut length = 0;
    for place in 0..4 {
        let rest = text.get(length..)?;
        let rest = match place {
            0 => rest,
            _ => rest.strip_prefix('.')?,
        };
        let digits = rest.bytes().take(3).take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return None;
        }
        length += digits + usize::from(place > 0);
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use quell_core::cost::Cost;
    use quell_envoy::proto::Entry;

    use super::*;

    const ONE: HitCounts = HitCounts {
        total: 1,
        over: 0,
        near: 0,
        within: 1,
        shadow: 0,
    };

    #[test]
    fn what_separates_names_is_no_part_of_one() {
        for (name, expected) in [
            ("d.remote_address_10.0.0.1", "d.remote_address_10_0_0_1"),
            ("d.a_::1|x", "d.a___1_x"),
            ("d.k_1.2.3", "d.k_1.2.3"),
            ("d.k_1.2.3.4.5", "d.k_1_2_3_4.5"),
            ("d.\u{e9}", "d.\u{e9}"),
            ("d.a\nb\r\u{0}\u{2028} \u{9b}c", "d.a_b_____c"),
            (&"\u{e9}".repeat(200), &"\u{e9}".repeat(128)),
        ] {
            assert_eq!(sanitized(name), expected);
        }
    }

    #[test]
    fn names_that_callers_choose_are_bounded_and_those_of_files_are_not() {
        let statistics = Statistics::default();
        for name in 0..MAX_STAT_NAMES + 50 {
            statistics.limit(&format!("d.key_{name}"), true).add(ONE);
        }
        assert_eq!(statistics.chosen.0.read().len(), MAX_STAT_NAMES + 1);
        statistics.limit("d.key", false).add(ONE);
        let all = statistics.all();
        assert_eq!(all["ratelimit.service.rate_limit.other.total_hits"], 50);
        assert_eq!(all["ratelimit.service.rate_limit.d.key.total_hits"], 1);
    }

    #[test]
    fn unknown_domains_and_own_limits_take_no_place_of_a_limit() {
        let statistics = Statistics::default();
        for domain in 0..=MAX_UNKNOWN_DOMAINS {
            statistics.note_unknown(&format!("domain{domain}"));
        }
        let own = OwnLimit {
            place: 0,
            key: Vec::new(),
            bucket: None,
            window: Duration::from_secs(1),
            hits: Some(Cost::ONE),
        };
        let passed = DescriptorStatus::default();
        for value in 0..=MAX_STAT_NAMES {
            let entry = Entry {
                key: "own".to_owned(),
                value: value.to_string(),
            };
            let descriptor = Descriptor {
                entries: vec![entry],
                ..Descriptor::default()
            };
            statistics.note_own("d", Some(&descriptor), &own, &passed);
        }
        statistics.limit("d.key", false).add(ONE);
        let all = statistics.all();
        let count = |name: &str| all[&format!("ratelimit.service.rate_limit.{name}")];
        assert_eq!(count("d.key.total_hits"), 1);
        assert_eq!(count("domain0.domain_not_found"), 1);
        assert_eq!(count("d.own_0.total_hits"), 1);
        assert_eq!(count("other.domain_not_found"), 1);
        assert_eq!(count("other.total_hits"), 1);
    }

    #[test]
    fn no_series_is_written_twice() {
        let statistics = Statistics::default();
        for domain in ["d..x", "d..y", "d"] {
            statistics.note_unknown(domain);
        }
        statistics.limit("d", false).add(ONE);
        let mut text = MetricsText::default();
        statistics.write(&mut text);
        let series = |line: &str| line.rsplit_once(' ').map(|(series, _)| series.to_owned());
        let lines = text.0.lines().filter(|line| !line.starts_with('#'));
        let all: Vec<_> = lines.filter_map(series).collect();
        let apart: HashSet<_> = all.iter().collect();
        assert_eq!(apart.len(), all.len(), "{}", text.0);
        let line = "ratelimit_service_rate_limit_domain_not_found{domain=\"d\"} 3\n";
        assert!(text.0.contains(line), "{}", text.0);
    }

    #[test]
    fn a_name_holds_no_line_of_its_own() {
        let statistics = Statistics::default();
        statistics
            .limit("d.key_x\nratelimit.forged: 1", false)
            .add(ONE);
        statistics.note_unknown("d\rforged:1|c\n");
        let all = statistics.all();
        let mut names = all.keys();
        assert!(names.all(|name| !name.contains([' ', '\n', '\r', ':', '|'])));
        let hits = "ratelimit.service.rate_limit.d.key_x_ratelimit.forged__1.total_hits";
        assert_eq!(all[hits], 1);
    }
}
