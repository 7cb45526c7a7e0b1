//! The mistakes, each a defect that limiters of this world have shipped.
//!
//! A row is added when a defect is found (by us or in somebody else's limiter):
//! the line that would bring it back, and the test that must not let it.

use super::Mutant;

mod layer;
mod outage;
mod rules_store;
mod scripts;

/// Every mistake that must be caught.
pub(super) fn all() -> impl Iterator<Item = &'static Mutant> {
    let apart = layer::MUTANTS.iter().chain(rules_store::MUTANTS);
    let apart = apart.chain(outage::MUTANTS).chain(scripts::MUTANTS);
    MUTANTS.iter().chain(apart)
}

/// Mistakes of deciding.
const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "retry_after truncated to milliseconds: buckets",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "Some(excess) => Outcome::Deny(RetryAfter::After(self.duration(excess))),",
        replacement: "Some(excess) => Outcome::Deny(RetryAfter::After(Duration::from_millis(\n                u64::try_from(self.duration(excess).as_millis()).unwrap_or(u64::MAX),\n            ))),",
        package: "quell-core",
        caught_by: "answers::every_wait_is_true",
    },
    Mutant {
        name: "retry_after truncated to a nanosecond: buckets",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "duration_from_nanos(div_ceil(ticks, self.per_nano))",
        replacement: "duration_from_nanos(div_floor(ticks, self.per_nano))",
        package: "quell-core",
        caught_by: "answers::every_wait_is_true",
    },
    Mutant {
        name: "retry_after truncated to seconds: sliding log",
        file: "crates/quell-core/src/algorithm/sliding_log.rs",
        original: "let wait = self.left(*instant, at.now.monotonic);",
        replacement: "let wait = Duration::from_secs(self.left(*instant, at.now.monotonic).as_secs());",
        package: "quell-core",
        caught_by: "answers::every_wait_is_true",
    },
    Mutant {
        name: "retry_after truncated to seconds: sliding window",
        file: "crates/quell-core/src/algorithm/sliding_window.rs",
        original: "let wait = self.left(*segment, at.now.monotonic);",
        replacement: "let wait = Duration::from_secs(self.left(*segment, at.now.monotonic).as_secs());",
        package: "quell-core",
        caught_by: "answers::every_wait_is_true",
    },
    Mutant {
        name: "retry_after truncated to seconds: fixed window",
        file: "crates/quell-core/src/algorithm/fixed_window.rs",
        original: "Outcome::Deny(RetryAfter::After(left))",
        replacement: "Outcome::Deny(RetryAfter::After(Duration::from_secs(left.as_secs())))",
        package: "quell-core",
        caught_by: "answers::every_wait_is_true",
    },
    Mutant {
        name: "abs(elapsed): refill",
        file: "crates/quell-core/src/algorithm/refill.rs",
        original: "((*anchor).min(at.now.monotonic), (*used).min(self.burst))",
        replacement: "let now = at.now.monotonic.as_nanos();\n                let elapsed = now.abs_diff(anchor.as_nanos());\n                let anchor = Monotonic::from_nanos(now.saturating_sub(elapsed));\n                (anchor, (*used).min(self.burst))",
        package: "quell-core",
        caught_by: "clocks::",
    },
    Mutant {
        name: "abs(elapsed): sliding log",
        file: "crates/quell-core/src/algorithm/sliding_log.rs",
        original: "*instant = now;",
        replacement: "*instant = now.saturating_sub(instant.since(now));",
        package: "quell-core",
        caught_by: "clocks::",
    },
    Mutant {
        name: "abs(elapsed): fixed window",
        file: "crates/quell-core/src/algorithm/fixed_window.rs",
        original: "Duration::from_nanos(self.window).saturating_sub(now.since(start))",
        replacement: "Duration::from_nanos(self.window)\n            .saturating_sub(now.since(start).max(start.since(now)))",
        package: "quell-core",
        caught_by: "clocks::",
    },
    Mutant {
        name: "a clock that goes back fills the bucket",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "tat.min(now + self.full)",
        replacement: "if tat - now > self.full { 0 } else { tat }",
        package: "quell-core",
        caught_by: "clocks::",
    },
    Mutant {
        name: "a clock that goes back locks the key",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "tat.min(now + self.full)",
        replacement: "tat",
        package: "quell-core",
        caught_by: "clocks::",
    },
    Mutant {
        name: "now - tolerance in place of max(tat, now)",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "let start = tat.max(self.ticks(now));",
        replacement: "let tolerance = self.full - u128::from(self.interval);\n        let start = tat.max(self.ticks(now).saturating_sub(tolerance));",
        package: "quell-core",
        caught_by: "bounds::no_interval",
    },
    Mutant {
        name: "one unit above the burst",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "match new.checked_sub(self.full) {",
        replacement: "match new.checked_sub(self.full + u128::from(self.interval)) {",
        package: "quell-core",
        caught_by: "bounds::no_interval",
    },
    Mutant {
        name: "remaining rounded up",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "u64::try_from(div_floor(free, self.interval))",
        replacement: "u64::try_from(div_ceil(free, self.interval))",
        package: "quell-core",
        caught_by: "answers::every_remaining_is_true",
    },
    Mutant {
        name: "the interval floored",
        file: "crates/quell-core/src/rate.rs",
        original: "interval: nanos / divisor,\n            per_nano: self.count / divisor,",
        replacement: "interval: nanos / self.count,\n            per_nano: divisor / divisor,",
        package: "quell-core",
        caught_by: "bounds::each_period",
    },
    Mutant {
        name: "the fraction of a batch lost",
        file: "crates/quell-core/src/algorithm/refill.rs",
        original: "let last = Monotonic::from_nanos(now.as_nanos() - elapsed % self.every);",
        replacement: "let last = if ticks == 0 { anchor } else { now };",
        package: "quell-core",
        caught_by: "answers::refill_answers",
    },
    Mutant {
        name: "ten counters in place of eleven segments",
        file: "crates/quell-core/src/algorithm/sliding_window.rs",
        original: "let oldest = current.saturating_sub(self.segments);",
        replacement: "let oldest = (current + 1).saturating_sub(self.segments);",
        package: "quell-core",
        caught_by: "bounds::no_interval",
    },
    Mutant {
        name: "a log entry that counts a nanosecond too long",
        file: "crates/quell-core/src/algorithm/sliding_log.rs",
        original: "|(instant, _)| self.left(*instant, now).is_zero()",
        replacement: "|(instant, _)| now.since(*instant) > Duration::from_nanos(self.window)",
        package: "quell-core",
        caught_by: "answers::sliding_log_answers",
    },
    Mutant {
        name: "a window that ends a nanosecond late",
        file: "crates/quell-core/src/algorithm/fixed_window.rs",
        original: "Usage::CalendarWindow { end, used } if *end > at.now.wall =>",
        replacement: "Usage::CalendarWindow { end, used } if *end >= at.now.wall =>",
        package: "quell-core",
        caught_by: "answers::calendar_window",
    },
    Mutant {
        name: "a leaky bucket that delays the first call",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "self.duration(self.ahead(tat, now).saturating_sub(free))",
        replacement: "self.duration((self.ahead(tat, now) + u128::from(self.interval)).saturating_sub(free))",
        package: "quell-core",
        caught_by: "answers::leaky_bucket",
    },
    Mutant {
        name: "a refusal charged",
        file: "crates/quell-core/src/charge.rs",
        original: "Outcome::Deny(_) if operation == Operation::Acquire && !banned => {",
        replacement: "Outcome::Deny(_) if operation == Operation::Acquire && !banned => {\n            limit\n                .engine()\n                .take(&mut state.usage, &at, entry.charge.cost.get());",
        package: "quell-core",
        caught_by: "answers::a_refusal_and_a_peek_cost_nothing",
    },
    Mutant {
        name: "a refused call stored in the log",
        file: "crates/quell-core/src/charge.rs",
        original: "Outcome::Deny(_) if operation == Operation::Acquire && !banned => {",
        replacement: "Outcome::Deny(_) if operation == Operation::Acquire && !banned => {\n            if matches!(state.usage, crate::state::Usage::SlidingLog { .. }) {\n                limit\n                    .engine()\n                    .take(&mut state.usage, &at, entry.charge.cost.get());\n            }",
        package: "quell-core",
        caught_by: "answers::a_refusal_and_a_peek_cost_nothing",
    },
    Mutant {
        name: "one limit of a set charged",
        file: "crates/quell-core/src/charge.rs",
        original: "Outcome::Allow if passes => {",
        replacement: "Outcome::Allow => {",
        package: "quell-core",
        caught_by: "sets::one_limit_refuses_and_none_is_charged",
    },
    Mutant {
        name: "a shadow limit that refuses",
        file: "crates/quell-core/src/charge.rs",
        original: ".all(|(entry, judged)| judged.outcome.is_allow() || entry.charge.shadow);",
        replacement: ".all(|(_, judged)| judged.outcome.is_allow());",
        package: "quell-core",
        caught_by: "sets::a_shadow_limit_has_no_say",
    },
    Mutant {
        name: "a peek that charges",
        file: "crates/quell-core/src/charge.rs",
        original: "            if operation == Operation::Acquire {",
        replacement: "            if operation == Operation::Acquire || passes {",
        package: "quell-core",
        caught_by: "answers::every_remaining_is_true",
    },
    Mutant {
        name: "a peek that counts towards a ban",
        file: "crates/quell-core/src/charge.rs",
        original: "Outcome::Deny(_) if operation == Operation::Acquire && !banned => {",
        replacement: "Outcome::Deny(_) if !banned => {",
        package: "quell-core",
        caught_by: "bans::bans_are_the_oracles",
    },
    Mutant {
        name: "a call during a ban that counts towards the next",
        file: "crates/quell-core/src/charge.rs",
        original: "Outcome::Deny(_) if operation == Operation::Acquire && !banned => {",
        replacement: "Outcome::Deny(_) if operation == Operation::Acquire => {",
        package: "quell-core",
        caught_by: "bans::peeks_and_calls",
    },
    Mutant {
        name: "one key charged twice by one query",
        file: "crates/quell-core/src/charge.rs",
        original: "Some(other) => other.cost = other.cost.saturating_add(charge.cost),\n                None => merged.push(charge),",
        replacement: "Some(other) if other.cost == charge.cost => {}\n                _ => merged.push(charge),",
        package: "quell-core",
        caught_by: "rules::a_key_matched_twice_is_charged_once_with_the_sum",
    },
    Mutant {
        name: "time kept in place of use: token bucket",
        file: "crates/quell-core/src/algorithm/mod.rs",
        original: "(Self::Token(from), Self::Token(to)) => to.with_used(from.used(&usage, at), at),",
        replacement: "(Self::Token(_), Self::Token(_)) => usage,",
        package: "quell-core",
        caught_by: "carry::use_is_carried_over_in_units",
    },
    Mutant {
        name: "time kept in place of use: leaky bucket",
        file: "crates/quell-core/src/algorithm/mod.rs",
        original: "(Self::Leaky(from), Self::Leaky(to)) => to.with_used(from.used(&usage, at), at),",
        replacement: "(Self::Leaky(_), Self::Leaky(_)) => usage,",
        package: "quell-core",
        caught_by: "carry::use_is_carried_over_in_units",
    },
    Mutant {
        name: "what was left kept in place of use",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "self.ticks(now) + u128::from(used.min(self.burst)) * u128::from(self.interval)",
        replacement: "self.ticks(now) + u128::from(self.burst.saturating_sub(used)) * u128::from(self.interval)",
        package: "quell-core",
        caught_by: "carry::use_is_carried_over_in_units",
    },
    Mutant {
        name: "expiry 0",
        file: "crates/quell-core/src/state.rs",
        original: "limit.engine().reset_after(&self.usage, &At::plain(now))",
        replacement: "limit.engine().reset_after(&Usage::Rest, &At::plain(now))",
        package: "quell-core",
        caught_by: "answers::a_state_is_told_from_a_fresh_one",
    },
    Mutant {
        name: "expiry 0 at a burst of one",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "self.duration(self.ahead(tat, now))",
        replacement: "self.duration(self.ahead(tat, now).saturating_sub(u128::from(self.interval)))",
        package: "quell-core",
        caught_by: "answers::a_state_is_told_from_a_fresh_one",
    },
    Mutant {
        name: "keys joined without escaping",
        file: "crates/quell-core/src/key.rs",
        original: "bytes.extend_from_slice(&length.to_be_bytes());\n    bytes.extend_from_slice(part);",
        replacement: "bytes.extend_from_slice(part);\n    let _ = length;",
        package: "quell-core",
        caught_by: "keys::joined_names_do_not_meet",
    },
    Mutant {
        name: "refusals that count for ever",
        file: "crates/quell-core/src/ban.rs",
        original: ".retain(|refusal| now.since(*refusal) < self.within);",
        replacement: ".retain(|_| true);",
        package: "quell-core",
        caught_by: "bans::refusals_count",
    },
    Mutant {
        name: "bans that never step down",
        file: "crates/quell-core/src/ban.rs",
        original: "record.level -= steps;",
        replacement: "record.level -= steps.min(0);",
        package: "quell-core",
        caught_by: "bans::quiet_times",
    },
    Mutant {
        name: "the shortest wait reported for a set",
        file: "crates/quell-core/src/verdict.rs",
        original: "(Some(wait), Some(longest)) if wait > longest => self.bind(index, wait),",
        replacement: "(Some(wait), Some(longest)) if wait < longest => self.bind(index, wait),",
        package: "quell-core",
        caught_by: "verdicts::one_denial_denies_and_the_longest_wait_binds",
    },
    Mutant {
        name: "a live offender forgotten in a flood",
        file: "crates/quell/src/store/memory/registry.rs",
        original: "state.time_to_rest(&known.installed.limit, now).is_zero()",
        replacement: "{\n                    let _ = now;\n                    state.ban.is_none()\n                }",
        package: "quell",
        caught_by: "memory::a_flood_of_keys_lets_no_offender_off",
    },
    Mutant {
        name: "new keys past the bound let off",
        file: "crates/quell/src/store/memory/table/load.rs",
        original: "let state = slot.and_then(|slot| self.read(slot, is_moved, now, keeper));",
        replacement: "let state: Option<State> = None;",
        package: "quell",
        caught_by: "memory::past_the_bound",
    },
    Mutant {
        name: "a key that leaves an overflow state starts fresh",
        file: "crates/quell/src/store/memory/table/load.rs",
        original: "                state,\n                fingerprint: wanted.key,",
        replacement: "                state: rest(),\n                fingerprint: wanted.key,",
        package: "quell",
        caught_by: "memory::past_the_bound",
    },
    Mutant {
        name: "a word written whatever happened since it was read",
        file: "crates/quell/src/store/memory/line.rs",
        original: "        if claim.is_err() {\n            return false;\n        }",
        replacement: "        let _ = claim;",
        package: "quell",
        caught_by: "line::tests::no_charge_in_place_is_lost",
    },
    Mutant {
        name: "a refusal reckoned from what was half written",
        file: "crates/quell/src/store/memory/line.rs",
        original: "self.line.header.load(Ordering::Relaxed) == self.header",
        replacement: "self.line.header.load(Ordering::Relaxed) == self.header\n            || self.header < u64::MAX",
        package: "quell",
        caught_by: "line::tests::what_a_reader_makes_sure_of",
    },
    Mutant {
        name: "the last override wins",
        file: "crates/quell-core/src/rule/mod.rs",
        original: ".position(|entry| check_all(&entry.when, descriptor).is_ok())",
        replacement: ".rposition(|entry| check_all(&entry.when, descriptor).is_ok())",
        package: "quell-core",
        caught_by: "rules::the_first_override_that_matches_wins",
    },
    Mutant {
        name: "one key for all addresses that are not cut",
        file: "crates/quell-core/src/key.rs",
        original: "bytes.extend_from_slice(&address.octets());\n        }\n        Captured::Address(IpAddr::V6(address))",
        replacement: "bytes.extend_from_slice(&address.octets()[..3]);\n        }\n        Captured::Address(IpAddr::V6(address))",
        package: "quell-core",
        caught_by: "keys::a_key_reads_back_as_what_it_was_made_of",
    },
    Mutant {
        name: "hold: a cancel gives back what has been refilled already",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "let left = self.ahead(mark.min(tat), now);",
        replacement: "let left = self.ahead(tat.max(mark), now);",
        package: "quell-core",
        caught_by: "holds::what_was_truly_used_is_bounded",
    },
    Mutant {
        name: "hold: a cancel gives back too much of those after it",
        file: "crates/quell-core/src/algorithm/returns.rs",
        original: "&& *later > *mark",
        replacement: "&& *later > u128::MAX - 1",
        package: "quell-core",
        caught_by: "holds::what_was_truly_used_is_bounded",
    },
    Mutant {
        name: "hold: who does not wait goes before those who do",
        file: "crates/quell-core/src/hold/held.rs",
        original: "if self.line() == 0 && engine.check",
        replacement: "if engine.check",
        package: "quell-core",
        caught_by: "holds::those_who_wait_go_in_turn",
    },
    Mutant {
        name: "hold: a debt is forgiven at the next look",
        file: "crates/quell-core/src/algorithm/gcra.rs",
        original: "(tat.min(full.saturating_add(self.owable())), tat > full)",
        replacement: "(tat.min(full), tat > full.saturating_add(self.owable()))",
        package: "quell-core",
        caught_by: "holds::a_debt_is_refused_until_it_is_repaid",
    },
    Mutant {
        name: "hold: what is ended twice is not said to be",
        file: "crates/quell/src/store/memory/hold.rs",
        original: "finished.repeated = !found;",
        replacement: "finished.repeated = found;",
        package: "quell",
        caught_by: "memory::holds_as_the_model_does",
    },
    Mutant {
        name: "hold: who leaves the line tells nobody",
        file: "crates/quell/src/holding.rs",
        original: "let next = self.store.abandon(id, ending, self.now());\n        self.room.call(&next);",
        replacement: "drop(self.store.abandon(id, ending, self.now()));",
        package: "quell",
        caught_by: "schedules::every_permit_that_comes_back_wakes_somebody",
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::repository::Repository;

    /// The mistakes that the table may never lose.
    const REQUIRED: [&str; 10] = [
        "retry_after truncated",
        "abs(elapsed)",
        "now - tolerance in place of max(tat, now)",
        "a refusal charged",
        "time kept in place of use",
        "the interval floored",
        "expiry 0",
        "a refused call stored in the log",
        "keys joined without escaping",
        "one limit of a set charged",
    ];

    #[test]
    fn every_row_fits_the_source() {
        let repository = Repository::load().unwrap();
        for row in all() {
            let file = repository.files.iter().find(|file| file.path == row.file);
            let file = file.unwrap_or_else(|| panic!("{}: no file {}", row.name, row.file));
            let wrong = row.apply(&file.text).unwrap();
            assert_ne!(wrong, file.text, "{} changes nothing", row.name);
        }
    }

    #[test]
    fn names_are_unique_and_none_that_is_required_is_missing() {
        let names: BTreeSet<&str> = all().map(|row| row.name).collect();
        assert_eq!(names.len(), all().count());
        for required in REQUIRED {
            assert!(
                names.iter().any(|name| name.starts_with(required)),
                "missing: {required}"
            );
        }
    }
}
