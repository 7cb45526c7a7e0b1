//! The mistakes in what a Redis server runs: its short ways must be no other rules.

use crate::mutants::Mutant;

const WARM: &str = "crates/quell-redis/src/script/hold/warm.lua";
const STRAIGHT: &str = "crates/quell-redis/src/script/straight.lua";

/// Every mistake in a script that must be caught.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a window one microsecond too long: script",
        file: STRAIGHT,
        original: "mono - start >= window",
        replacement: "mono - start > window",
        package: "quell-redis",
        caught_by: "hostile_time::a_window_ends_on_the_microsecond",
    },
    Mutant {
        name: "a refusal that no ban counts: script",
        file: STRAIGHT,
        original: "elseif flags >= 8 and op == 1 then is_straight = false break",
        replacement: "",
        package: "quell-redis",
        caught_by: "bans::refusals_by_two_servers_add_up_to_one_ban",
    },
    Mutant {
        name: "parts of a unit lost: script",
        file: STRAIGHT,
        original: "if new_r >= parts then new, new_r = new + 1, new_r - parts end",
        replacement: "",
        package: "quell-redis",
        caught_by: "extremes::limits_at_the_edges_have_the_same_answers_as_in_memory",
    },
    Mutant {
        name: "an expiry that does not follow its state: script",
        file: STRAIGHT,
        original: "call('PEXPIRE', key, expiry)",
        replacement: "",
        package: "quell-redis",
        caught_by: "long_states::a_long_log_is_not_written_anew_with_every_charge",
    },
    Mutant {
        name: "a log that is only ever appended to: script",
        file: STRAIGHT,
        original: "elseif is_long and gone * 2 <= last then",
        replacement: "elseif is_long then",
        package: "quell-redis",
        caught_by: "long_states::a_long_log_is_not_written_anew_with_every_charge",
    },
    Mutant {
        name: "a set charged where one limit refuses: script",
        file: STRAIGHT,
        original: "elseif flags % 4 < 2 then passes = false end",
        replacement: "end",
        package: "quell-redis",
        caught_by: "conformance::random_traces_have_the_same_answers_as_in_one_process",
    },
    Mutant {
        name: "what was let in under another ceiling is measured: script",
        file: "crates/quell-redis/src/script/hold/adaptive.lua",
        original: "learned.skip = before == after and 0 or before + after",
        replacement: "learned.skip = 0",
        package: "quell-redis",
        caught_by: "holds::a_ceiling_is_learned_as_in_one_process",
    },
    Mutant {
        name: "a hold that is over counted on each of its keys: script",
        file: "crates/quell-redis/src/script/hold/timeline.lua",
        original: "if flag % 8 >= COUNTED then state.lapsed",
        replacement: "if flag then state.lapsed",
        package: "quell-redis",
        caught_by: "held_numbers::what_nobody_ends_is_counted_once_in_all",
    },
    Mutant {
        name: "a server of before forgets holds in columns: script",
        file: "crates/quell-redis/src/script/hold/box.lua",
        original: "box.h, box.c = false,",
        replacement: "box.h, box.c = {},",
        package: "quell-redis",
        caught_by: "versions::a_server_of_before_leaves_columns_alone",
    },
    Mutant {
        name: "stored permits cost as much as others: script",
        file: WARM,
        original: "above * (limit.factor - 1), above",
        replacement: "0, above",
        package: "quell-redis",
        caught_by: "holds::a_bucket_warms_up_as_in_one_process",
    },
    Mutant {
        name: "a bucket cools for longer than it was idle: script",
        file: WARM,
        original: "return idle * to.fine - (over > 0 and parts + 1 or parts)",
        replacement: "return idle * to.fine - parts",
        package: "quell-redis",
        caught_by: "holds::a_bucket_warms_up_as_in_one_process",
    },
    Mutant {
        name: "a bucket that rests before it is cold: script",
        file: WARM,
        original: "return micros(limit, plus(limit, ahead, ahead_r, in_parts(limit, quanta)))",
        replacement: "return micros(limit, ahead, ahead_r)",
        package: "quell-redis",
        caught_by: "holds::a_bucket_warms_up_as_in_one_process",
    },
    Mutant {
        name: "how warm it was is forgotten with a changed limit: script",
        file: WARM,
        original: "if from.warm then",
        replacement: "if not from then",
        package: "quell-redis",
        caught_by: "holds::a_bucket_warms_up_as_in_one_process",
    },
];
