//! Fields of a limit; each input follows `name: r`.

use super::Mistake;

pub(super) const TABLE: &[Mistake] = &[
    (
        "burst: 3",
        &[
            "3:5: rules[0]: a token_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `100/s`",
        ],
    ),
    (
        "algorithm: leaky_bucket",
        &["3:5: rules[0]: a leaky_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `2/s`"],
    ),
    (
        "algorithm: fixed_window",
        &[
            "3:5: rules[0]: a fixed_window needs a limit: write `limit: COUNT/PERIOD`, such as `5/min`",
        ],
    ),
    (
        "algorithm: sliding_window, limit: 5",
        &[
            "3:50: rules[0].limit: a sliding_window needs a window: write `limit: 5/min`, or `window: 1m` beside it",
        ],
    ),
    (
        "algorithm: sliding_log, window: 1m",
        &[
            "3:5: rules[0]: a sliding_log needs a limit: write `limit: COUNT/PERIOD`, such as `5/min`",
        ],
    ),
    (
        "algorithm: gcra, rate: 1/s",
        &[
            "3:27: rules[0].algorithm: unknown algorithm `gcra`: write one of token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log, concurrency",
        ],
    ),
    (
        "algorithm: token-bucket, rate: 1/s",
        &[
            "3:27: rules[0].algorithm: unknown algorithm `token-bucket`, did you mean `token_bucket`? write one of token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log, concurrency",
        ],
    ),
    (
        "limit: 5/min",
        &[
            "3:23: rules[0].limit: `limit` belongs to fixed_window, sliding_window, sliding_log, and this is a token_bucket, the default: write `rate` in its place, or `algorithm: sliding_window`",
        ],
    ),
    (
        "algorithm: sliding_window, rate: 5/min",
        &[
            "3:49: rules[0].rate: `rate` belongs to token_bucket, leaky_bucket, and this is a sliding_window: write `limit: COUNT/PERIOD`",
        ],
    ),
    (
        "algorithm: leaky_bucket, rate: 1/s, initial: 3, segments: 4",
        &[
            "3:61: rules[0].initial: `initial` belongs to token_bucket, and this is a leaky_bucket: leave it out, or write `algorithm: token_bucket`",
            "3:74: rules[0].segments: `segments` belongs to sliding_window, and this is a leaky_bucket: leave it out, or write `algorithm: sliding_window`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/min, max_entries: 4, burst: 3",
        &[
            "3:68: rules[0].max_entries: `max_entries` belongs to sliding_log, and this is a fixed_window: leave it out, or write `algorithm: sliding_log`",
            "3:78: rules[0].burst: `burst` belongs to token_bucket, leaky_bucket, and this is a fixed_window: leave it out, or write `algorithm: token_bucket`",
        ],
    ),
    (
        "rate: 1/s, delay_after: 1, align: calendar",
        &[
            "3:40: rules[0].delay_after: `delay_after` belongs to leaky_bucket, and this is a token_bucket, the default: leave it out, or write `algorithm: leaky_bucket`",
            "3:50: rules[0].align: `align` belongs to fixed_window, and this is a token_bucket, the default: leave it out, or write `algorithm: fixed_window`",
        ],
    ),
    (
        "rate: 100",
        &["3:22: rules[0].rate: `100` has no period: write `100/s`, `100/min` or the like"],
    ),
    (
        "rate: fast",
        &["3:22: rules[0].rate: `fast` is not a rate: write COUNT/PERIOD, such as `100/s`"],
    ),
    (
        "rate: 5/m",
        &["3:22: rules[0].rate: unknown period `m`: write `min`"],
    ),
    (
        "rate: 0/s",
        &["3:22: rules[0].rate: a rate of 0 admits nothing: write a count of at least 1"],
    ),
    (
        "rate: 0.0/s",
        &["3:22: rules[0].rate: a rate of 0 admits nothing: write a count of at least 1"],
    ),
    (
        "rate: -1/s",
        &["3:22: rules[0].rate: `-1/s` is negative: write a count above 0"],
    ),
    (
        "rate: 1000000000001/s",
        &[
            "3:22: rules[0].rate: a rate above 10^12 a second: write at most 1000000000000/s or leave the limit out",
        ],
    ),
    (
        "rate: 1/36501d",
        &["3:22: rules[0].rate: a period of more than 36500 days: write a shorter one"],
    ),
    (
        "rate: 0.0000000001/s",
        &[
            "3:22: rules[0].rate: in whole units this is 1 in more than 36500 days: write a faster rate",
        ],
    ),
    (
        "rate: 0.7692307692307693/s",
        &[
            "3:22: rules[0].rate: in whole units this is 7692307692307693 in more than 36500 days: write `10/13s`",
        ],
    ),
    (
        "rate: 0.33333333333/min",
        &[
            "3:22: rules[0].rate: in whole units this is 33333333333 in more than 36500 days: write `1/3m`",
        ],
    ),
    (
        "rate: 0.000016534391534391536/s",
        &[
            "3:22: rules[0].rate: `0.000016534391534391536/s` has more digits than can be exact: write `1/16h48m`",
        ],
    ),
    (
        "rate: 1/0s",
        &["3:22: rules[0].rate: a period must be longer than 0: write a duration such as 1s"],
    ),
    (
        "rate: [1/s]",
        &["3:22: rules[0].rate: a list does not belong here: write a rate such as `100/s`"],
    ),
    (
        "rate: ",
        &["3:16: rules[0].rate: the value is missing: write a rate such as `100/s`"],
    ),
    (
        "rate: 1/s, burst: 0",
        &["3:34: rules[0].burst: a burst of 0 admits nothing: write a burst of at least 1"],
    ),
    (
        "rate: 1/s, burst: 1_000",
        &["3:34: rules[0].burst: `1_000` is not a whole number: write `1000`"],
    ),
    (
        "rate: 1/s, burst: 18446744073709551616",
        &[
            "3:34: rules[0].burst: `18446744073709551616` is too large: write at most 18446744073709551615",
        ],
    ),
    (
        "rate: 1/s, burst: -1",
        &["3:34: rules[0].burst: `-1` is negative: write a whole number such as `1`"],
    ),
    (
        "rate: 10/s, burst: 5, initial: 6",
        &["3:47: rules[0].initial: initial is above burst: write at most the burst"],
    ),
    (
        "refill: {amount: 0, every: 1s}",
        &[
            "3:33: rules[0].refill.amount: a refill of 0 adds nothing: write an amount of at least 1",
        ],
    ),
    (
        "refill: {amount: 1, every: 0s}",
        &[
            "3:43: rules[0].refill.every: a period must be longer than 0: write a duration such as 1s",
        ],
    ),
    (
        "refill: {amount: 1}",
        &["3:24: rules[0].refill: a refill needs both fields: write `{amount: 100, every: 1s}`"],
    ),
    (
        "refill: 5",
        &[
            "3:24: rules[0].refill: a single value does not belong here: write a map such as `{amount: 100, every: 1s}`",
        ],
    ),
    (
        "refill: {amount: 1, every: 10}",
        &["3:43: rules[0].refill.every: `10` has no unit: write `10s`, `10ms` or `10m`"],
    ),
    (
        "refill: {amount: 1, interval: 10s}",
        &["3:36: rules[0].refill.interval: unknown field `interval`, did you mean `every`?"],
    ),
    (
        "rate: 100/s, refill: {amount: 100, every: 2s}",
        &[
            "3:22: rules[0].rate: rate and refill say different rates: leave rate out, refill implies it",
        ],
    ),
    (
        "algorithm: leaky_bucket, rate: 1/s, burst: 2, delay_after: Burst",
        &[
            "3:75: rules[0].delay_after: `Burst` is not a number of units: write digits such as `2`, or `burst` never to delay",
        ],
    ),
    (
        "algorithm: leaky_bucket, rate: 1/s, burst: 2, delay_after: 1.5",
        &[
            "3:75: rules[0].delay_after: `1.5` is not a whole number: write digits only, such as `100`",
        ],
    ),
    (
        "algorithm: leaky_bucket, rate: 1/s, burst: 2, delay_after: 3",
        &["3:75: rules[0].delay_after: delay_after is above burst: write at most the burst"],
    ),
    (
        "algorithm: fixed_window, limit: 5/min, window: 1m",
        &[
            "3:63: rules[0].window: `limit` says the window already: write `limit: 5`, or leave `window` out",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 0/min",
        &["3:48: rules[0].limit: a limit of 0 admits nothing: write a limit of at least 1"],
    ),
    (
        "algorithm: fixed_window, limit: 0.5/min",
        &[
            "3:48: rules[0].limit: `0.5/min` is a part of a unit: write a whole number per longer window, or `rate` with a bucket",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5, window: 60",
        &["3:59: rules[0].window: `60` has no unit: write `60s`, `60ms` or `60m`"],
    ),
    (
        "algorithm: fixed_window, limit: 5, window: 0s",
        &["3:59: rules[0].window: a period must be longer than 0: write a duration such as 1s"],
    ),
    (
        "algorithm: fixed_window, limit: 5/month",
        &[
            "3:48: rules[0].limit: a month has no fixed length: write `algorithm: fixed_window` with `align: calendar`, or days such as `30d`",
        ],
    ),
    (
        "algorithm: sliding_log, limit: 5/year",
        &[
            "3:47: rules[0].limit: a year has no fixed length: write `algorithm: fixed_window` with `align: calendar`, or days such as `365d`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5, window: 40000d",
        &["3:59: rules[0].window: a period of more than 36500 days: write a shorter one"],
    ),
    (
        "algorithm: fixed_window, limit: 5, window: 30d, align: calendar",
        &["3:59: rules[0].window: a calendar window is one unit of the calendar: write `month`"],
    ),
    (
        "algorithm: fixed_window, limit: 5, window: 2h, align: calendar",
        &[
            "3:59: rules[0].window: a calendar window is one unit of the calendar: write s, min, h, day, week, month or year, or leave `align: calendar` out",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/2s, align: calendar",
        &[
            "3:48: rules[0].limit: a calendar window is one unit of the calendar: write s, min, h, day, week, month or year, or leave `align: calendar` out",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, align: midnight",
        &["3:62: rules[0].align: unknown value `midnight`: write one of first_request, calendar"],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, time_zone: UTC",
        &[
            "3:66: rules[0].time_zone: a time zone means something on the calendar only: write `align: calendar`, or leave it out",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 32",
        &["3:82: rules[0].anchor: `32` is no day of a month: write 1 to 31"],
    ),
    (
        "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 0",
        &["3:82: rules[0].anchor: `0` is no day of a month: write 1 to 31"],
    ),
    (
        "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 2026-02-30",
        &["3:82: rules[0].anchor: `2026-02-30` is no date: write one such as `2026-01-31`"],
    ),
    (
        "algorithm: fixed_window, limit: 5/year, align: calendar, anchor: 31-01",
        &["3:81: rules[0].anchor: `31-01` is no date: write one such as `2026-01-31`"],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, align: calendar, anchor: 24:00",
        &[
            "3:80: rules[0].anchor: `24:00` is no time of a day: write 00:00 to 23:59, such as `20:00`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/week, align: calendar, anchor: Thursday",
        &[
            "3:81: rules[0].anchor: unknown anchor `Thursday`, did you mean `thursday`? write a day of the month such as `17`, a date such as `2026-01-31`, a weekday such as `thursday`, or a time such as `\"20:00\"`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: first",
        &[
            "3:82: rules[0].anchor: unknown anchor `first`: write a day of the month such as `17`, a date such as `2026-01-31`, a weekday such as `thursday`, or a time such as `\"20:00\"`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/year, align: calendar, anchor: 17",
        &["3:81: rules[0].anchor: a year begins on a date: write one such as `2026-01-31`"],
    ),
    (
        "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: thursday",
        &[
            "3:82: rules[0].anchor: a month begins on a day: write 1 to 31, or a date such as `2026-01-31`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/week, align: calendar, anchor: 20:00",
        &[
            "3:81: rules[0].anchor: a week begins on a weekday: write one such as `thursday`, or a date",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, align: calendar, anchor: 2026-01-31",
        &["3:80: rules[0].anchor: a day begins at a time: write one such as `\"20:00\"`"],
    ),
    (
        "algorithm: fixed_window, limit: 5/h, align: calendar, anchor: 00:30",
        &[
            "3:78: rules[0].anchor: the windows of a calendar hour have no anchor: leave it out, or write a window of a day, week, month or year",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, anchor: \"20:00\"",
        &[
            "3:63: rules[0].anchor: an anchor means something on the calendar only: write `align: calendar`, or leave it out",
        ],
    ),
    (
        "algorithm: sliding_window, limit: 5/day, anchor: 17",
        &[
            "3:65: rules[0].anchor: `anchor` belongs to fixed_window, and this is a sliding_window: leave it out, or write `algorithm: fixed_window`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 17, overrides: [{when: {a: b}, anchor: sunday}]",
        &[
            "3:121: rules[0].overrides[0].anchor: a month begins on a day: write 1 to 31, or a date such as `2026-01-31`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, align: calendar, time_zone: Europe/Berln",
        &[
            "3:83: rules[0].time_zone: unknown time zone `Europe/Berln`, did you mean `Europe/Berlin`? write an IANA name",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, align: calendar, time_zone: Mars",
        &[
            "3:83: rules[0].time_zone: unknown time zone `Mars`: write an IANA name such as `Europe/Berlin`",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, align: calendar, time_zone: ../etc/passwd",
        &[
            "3:83: rules[0].time_zone: unknown time zone `../etc/passwd`: write an IANA name such as `Europe/Berlin`",
        ],
    ),
    (
        "algorithm: sliding_window, limit: 5/min, segments: 1",
        &["3:67: rules[0].segments: segments must lie in 2..=3600"],
    ),
    (
        "algorithm: sliding_window, limit: 5/min, segments: 5000000000",
        &["3:67: rules[0].segments: `5000000000` is too large: write at most 4294967295"],
    ),
    (
        "algorithm: sliding_window, limit: 5/3ns",
        &["3:50: rules[0].limit: a segment is shorter than 1ns: write fewer segments"],
    ),
    (
        "algorithm: sliding_log, limit: 5/min, max_entries: 0",
        &["3:67: rules[0].max_entries: max_entries must lie in 1..=100000"],
    ),
    (
        "algorithm: sliding_log, limit: 5/min, max_entries: 100001",
        &["3:67: rules[0].max_entries: max_entries must lie in 1..=100000"],
    ),
    (
        "rate: 1/s, ban: 5m",
        &[
            "3:32: rules[0].ban: a single value does not belong here: write a map such as `{after: 3, within: 10m, for: [1m, 10m]}`",
        ],
    ),
    (
        "rate: 1/s, ban: {after: 3}",
        &[
            "3:32: rules[0].ban: a ban needs `after` and `for`: write `{after: 3, within: 10m, for: [1m, 10m]}`",
        ],
    ),
    (
        "rate: 1/s, ban: {after: 3, for: 1m}",
        &["3:32: rules[0].ban: a ban after several refusals needs within, such as 10m"],
    ),
    (
        "rate: 1/s, ban: {after: 0, for: 1m}",
        &["3:40: rules[0].ban.after: a ban's after must lie in 1..=1000"],
    ),
    (
        "rate: 1/s, ban: {after: 1001, within: 1m, for: 1m}",
        &["3:40: rules[0].ban.after: a ban's after must lie in 1..=1000"],
    ),
    (
        "rate: 1/s, ban: {after: 2, within: 0s, for: 1m}",
        &["3:51: rules[0].ban.within: a ban after several refusals needs within, such as 10m"],
    ),
    (
        "rate: 1/s, ban: {after: 1, for: []}",
        &["3:48: rules[0].ban.for: a ban's for must list 1 to 32 durations, each longer than 0"],
    ),
    (
        "rate: 1/s, ban: {after: 1, for: [1m, 0s]}",
        &["3:48: rules[0].ban.for: a ban's for must list 1 to 32 durations, each longer than 0"],
    ),
    (
        "rate: 1/s, ban: {after: 1, for: [1m, x]}",
        &[
            "3:53: rules[0].ban.for[1]: `x` is not a duration: write a number and a unit (ns, us, ms, s, m, h, d), such as `1.5s` or `1h30m`",
        ],
    ),
    (
        "rate: 1/s, ban: {after: 1, duration: 1m}",
        &["3:43: rules[0].ban.duration: unknown field `duration`, did you mean `for`?"],
    ),
    (
        "rate: 1.5/36500d",
        &[
            "3:22: rules[0].rate: in whole units this is 3 in more than 36500 days: write fewer decimal places",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5, window: minute",
        &["3:59: rules[0].window: unknown period `minute`: write `min`"],
    ),
    (
        "rate: 1/s, ban: {after: 3, within: 10m, for: [1m, [2m]]}",
        &["3:66: rules[0].ban.for[1]: a list does not belong here: write a duration such as `1m`"],
    ),
];
