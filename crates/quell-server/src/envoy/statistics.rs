//! Statistics: what envoyproxy/ratelimit counts, under its names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use quell_envoy::OwnLimit;
use quell_envoy::config::HitCounts;
use quell_envoy::proto::{Code, Descriptor, DescriptorStatus};
use quell_host::metrics_text::MetricsText;

/// The most names of limits that are counted apart: with `detailed_metric` and `value_to_metric` callers choose them.
/// Further ones count as [`OTHER`].
pub(crate) const MAX_STAT_NAMES: usize = 10_000;

/// Name of all limits beyond [`MAX_STAT_NAMES`].
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

/// Statistics of the service.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    limits: RwLock<HashMap<String, Arc<Counters>>>,
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
    pub(crate) fn note(&self, name: &str, counts: HitCounts) {
        let counters = self.counters(name);
        add(&counters.total_hits, counts.total);
        add(&counters.over_limit, counts.over);
        add(&counters.near_limit, counts.near);
        add(&counters.within_limit, counts.within);
        add(&counters.shadow_mode, counts.shadow);
    }

    /// Counts hits that were given back.
    pub(crate) fn note_refund(&self, name: &str, hits: u64) {
        add(&self.counters(name).total_negative_hits, hits);
    }

    /// Counts a call on a domain without limits.
    pub(crate) fn note_unknown(&self, domain: &str) {
        add(&self.counters(domain).domain_not_found, 1);
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
        self.note(&name, HitCounts { total, ..counts });
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
        for (name, counters) in &*self.limits.read() {
            for (counter, number) in counters.all() {
                let count = read(number);
                if count > 0 {
                    all.insert(
                        format!("ratelimit.service.rate_limit.{name}.{counter}"),
                        count,
                    );
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
        let limits = self.limits.read();
        for (index, about) in abouts.into_iter().enumerate() {
            let mut sums: BTreeMap<[&str; 3], u64> = BTreeMap::new();
            for (name, counters) in &*limits {
                let mut parts = name.split('.');
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
        drop(limits);
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

    fn counters(&self, name: &str) -> Arc<Counters> {
        let name = sanitized(name);
        if let Some(known) = self.limits.read().get(&name) {
            return Arc::clone(known);
        }
        let mut limits = self.limits.write();
        let name = match limits.len() < MAX_STAT_NAMES || limits.contains_key(&name) {
            true => name,
            false => OTHER.to_owned(),
        };
        Arc::clone(limits.entry(name).or_default())
    }
}

/// The name with `_` for what separates parts of statistics: colons, bars, and the dots of IPv4 addresses.
fn sanitized(name: &str) -> String {
    let mut clean = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        if let Some(length) = ipv4_length(rest) {
            let (address, after) = rest.split_at(length);
            clean.push_str(&address.replace('.', "_"));
            rest = after;
            continue;
        }
        clean.push(if matches!(first, ':' | '|') {
            '_'
        } else {
            first
        });
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
    use super::*;

    #[test]
    fn what_separates_names_is_no_part_of_one() {
        for (name, expected) in [
            ("d.remote_address_10.0.0.1", "d.remote_address_10_0_0_1"),
            ("d.a_::1|x", "d.a___1_x"),
            ("d.k_1.2.3", "d.k_1.2.3"),
            ("d.k_1.2.3.4.5", "d.k_1_2_3_4.5"),
            ("d.\u{e9}", "d.\u{e9}"),
        ] {
            assert_eq!(sanitized(name), expected);
        }
    }

    #[test]
    fn names_that_callers_choose_are_bounded() {
        let statistics = Statistics::default();
        for name in 0..MAX_STAT_NAMES + 50 {
            let one = HitCounts {
                total: 1,
                ..HitCounts::default()
            };
            statistics.note(&format!("d.key_{name}"), one);
        }
        assert_eq!(statistics.limits.read().len(), MAX_STAT_NAMES + 1);
        let all = statistics.all();
        assert_eq!(all["ratelimit.service.rate_limit.other.total_hits"], 50);
    }
}
