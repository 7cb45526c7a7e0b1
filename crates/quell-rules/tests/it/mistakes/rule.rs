//! Fields of a rule outside its limit; each input follows `name: r`.

use super::Mistake;

pub(super) const TABLE: &[Mistake] = &[
    (
        "rat: 1/s",
        &["3:16: rules[0].rat: unknown field `rat`, did you mean `rate`?"],
    ),
    (
        "rate: 1/s, capacity: 3",
        &["3:27: rules[0].capacity: unknown field `capacity`, did you mean `burst`?"],
    ),
    (
        "rate: 1/s, tolerance: 3",
        &["3:27: rules[0].tolerance: unknown field `tolerance`, did you mean `burst`?"],
    ),
    (
        "rate: 1/s, key: [a]",
        &["3:27: rules[0].key: unknown field `key`, did you mean `per`?"],
    ),
    (
        "rate: 1/s, burst_size: 3",
        &["3:27: rules[0].burst_size: unknown field `burst_size`, did you mean `burst`?"],
    ),
    (
        "rate: 1/s, BURST: 3",
        &["3:27: rules[0].BURST: unknown field `BURST`, did you mean `burst`?"],
    ),
    (
        "rate: 1/s, match: /login",
        &[
            r#"3:34: rules[0].match: a single value does not belong here: write a map such as `{method: POST, path: "/api/*"}`"#,
        ],
    ),
    (
        "rate: 1/s, match: [path]",
        &[
            r#"3:34: rules[0].match: a list does not belong here: write a map such as `{method: POST, path: "/api/*"}`"#,
        ],
    ),
    (
        "rate: 1/s, match: {path: }",
        &[
            r#"3:35: rules[0].match.path: nothing in place of a value: write a value such as `"/api/*"` ("" for an empty one), or a list of values"#,
        ],
    ),
    (
        "rate: 1/s, match: {path: {a: b}}",
        &[
            r#"3:41: rules[0].match.path: a map in place of a value: write a value such as `"/api/*"` ("" for an empty one), or a list of values"#,
        ],
    ),
    (
        "rate: 1/s, match: {path: []}",
        &["3:41: rules[0].match.path: an empty list matches nothing: write at least one value"],
    ),
    (
        "rate: 1/s, match: {path: login}",
        &[
            "3:41: rules[0].match.path: a path begins with `/`, so nothing matches `login`: write `/login`",
        ],
    ),
    (
        "rate: 1/s, match: {path: \"/login?x=1\"}",
        &[
            "3:41: rules[0].match.path: a path has no query and no fragment, so nothing matches `/login?x=1`: write `/login`",
        ],
    ),
    (
        "rate: 1/s, match: {path: /100%}",
        &[
            "3:41: rules[0].match.path: nothing matches `/100%`: a `%` stands without two hexadecimal digits: write it as `%25`",
        ],
    ),
    (
        "rate: 1/s, match: {path: /lo gin}",
        &[
            "3:41: rules[0].match.path: nothing matches `/lo gin`: a space or control character in a path is encoded: write `%20` for a space",
        ],
    ),
    (
        "rate: 1/s, match: {path: /a%00}",
        &["3:41: rules[0].match.path: nothing matches `/a%00`: no path has a NUL: leave it out"],
    ),
    (
        "rate: 1/s, match: {method: [GET, post]}",
        &[
            "3:49: rules[0].match.method[1]: methods are in capitals, and `post` is none that clients send: write `POST`",
        ],
    ),
    (
        "rate: 1/s, match: {method: \"GET, post\"}",
        &[
            "3:43: rules[0].match.method: `GET, post` is not a method that clients send: write a list, `[GET, post]`",
        ],
    ),
    (
        "rate: 1/s, match: {path: \"https://shop.example/login?x\"}",
        &[
            "3:41: rules[0].match.path: nothing matches `https://shop.example/login?x`: a path has no scheme and no host: write `/login`, and the host as `host`",
        ],
    ),
    (
        "rate: 1/s, match: {path: ['/a, /b', /a|/b]}",
        &[
            "3:42: rules[0].match.path[0]: nothing matches `/a, /b`: one text is one path: write a list, `[/a, /b]`",
            "3:52: rules[0].match.path[1]: nothing matches `/a|/b`: one text is one path: write a list, `[/a, /b]`",
        ],
    ),
    (
        "rate: 1/s, match: {path: [^/api/.*$, '/users/\\d+']}",
        &[
            "3:42: rules[0].match.path[0]: nothing matches `^/api/.*$`: it is not a regular expression, only `*` means something, any run of characters: write a path such as `/api/*`",
            "3:53: rules[0].match.path[1]: nothing matches `/users/\\d+`: it is not a regular expression, only `*` means something, any run of characters: write a path such as `/api/*`",
        ],
    ),
    (
        "rate: 1/s, match: {path: '/users/{id}/<file>'}",
        &[
            "3:41: rules[0].match.path: nothing matches `/users/{id}/<file>`: names of parts mean nothing here, and `*` is any run of characters: write `/users/*/*`",
        ],
    ),
    (
        "rate: 1/s, match: {host: ['https://shop.example/', 'a.example, b.example']}",
        &[
            "3:42: rules[0].match.host[0]: a host has no scheme and no path, so nothing matches `https://shop.example/`: write `shop.example`",
            "3:67: rules[0].match.host[1]: `a.example, b.example` is not a host: write a list, `[a.example, b.example]`",
        ],
    ),
    (
        "rate: 1/s, match: {path: [./login, '!/health', ANY, ' /a']}",
        &[
            "3:42: rules[0].match.path[0]: a path begins with `/`, so nothing matches `./login`: write `/login`",
            "3:51: rules[0].match.path[1]: a path begins with `/`, so nothing matches `!/health`: write `/health`",
            "3:63: rules[0].match.path[2]: a path begins with `/`, so nothing matches `ANY`: write `\"*\"`",
            "3:68: rules[0].match.path[3]: a path begins with `/`, so nothing matches ` /a`: write `/a`",
        ],
    ),
    (
        "rate: 1/s, match: {path: '/v[12]', method: any, host: '::1'}",
        &[
            "3:41: rules[0].match.path: nothing matches `/v[12]`: it is not a regular expression, only `*` means something, any run of characters: write a path such as `/api/*`",
            "3:59: rules[0].match.method: `any` is not a method that clients send: leave `method` out for any",
            "3:70: rules[0].match.host: a host that is an IPv6 address stands in brackets, so nothing matches `::1`: write `\"[::1]\"`",
        ],
    ),
    (
        "type: fixed_window, limit: 5/min",
        &["3:16: rules[0].type: unknown field `type`, did you mean `algorithm`?"],
    ),
    (
        "rate: 1/s, match: {ip: 10.0.0.300/8}",
        &[
            "3:39: rules[0].match.ip: `10.0.0.300/8` is not a network, `10.0.0.300` is not an address: write a network such as `10.0.0.0/8`",
        ],
    ),
    (
        "rate: 1/s, ban: {after: 1, for: 1m}, per: [remote_address], match: {remote_address: 10.0.0.300}",
        &[
            "3:100: rules[0].match.remote_address: `10.0.0.300` is not an address, so nothing matches it: write one such as `10.0.0.1`, or a network such as `10.0.0.0/8`",
        ],
    ),
    (
        "rate: 1/s, match: {path: [/a, [b]]}",
        &[
            r#"3:46: rules[0].match.path[1]: a list in place of a value: write a value such as `"/api/*"`"#,
        ],
    ),
    (
        "rate: 1/s, match: {remote_address: 10.0.0.0/33}",
        &[
            "3:51: rules[0].match.remote_address: `10.0.0.0/33` is not a network, `33` is not in 0..=32: write a network such as `10.0.0.0/16`",
        ],
    ),
    (
        "rate: 1/s, match: {remote_address: '2001:db8::/x'}",
        &[
            "3:51: rules[0].match.remote_address: `2001:db8::/x` is not a network, `x` is not in 0..=128: write a network such as `2001:db8::/64`",
        ],
    ),
    (
        "rate: 1/s, match: {' a': b}",
        &[
            r#"3:41: rules[0].match[" a"]: ` a` begins or ends with a space or has control characters: write a visible entry name"#,
        ],
    ),
    (
        "rate: 1/s, per: tenant",
        &["3:32: rules[0].per: `per` is a list: write `per: [tenant]`"],
    ),
    (
        "rate: 1/s, per: {tenant: }",
        &[
            "3:32: rules[0].per: a map does not belong here: write a list such as `[tenant]` or `[{remote_address: {v4: 32, v6: 64}}]`",
        ],
    ),
    (
        "rate: 1/s, per: [tenant, user, tenant]",
        &["3:47: rules[0].per[2]: `tenant` is in the list already: write it once"],
    ),
    (
        "rate: 1/s, per: ['']",
        &["3:33: rules[0].per[0]: an empty entry name: write a name"],
    ),
    (
        "rate: 1/s, per: [[tenant]]",
        &[
            "3:33: rules[0].per[0]: a list does not belong here: write the name of an entry, or `{remote_address: {v4: 32, v6: 64}}`",
        ],
    ),
    (
        "rate: 1/s, per: [{a: {v4: 24}, b: {v4: 24}}]",
        &[
            "3:33: rules[0].per[0]: an item of `per` has one entry: write each in an item of its own",
        ],
    ),
    (
        "rate: 1/s, per: [{a: }]",
        &[
            "3:34: rules[0].per[0].a: the number of bits that count is missing: write `{v4: 32, v6: 64}`, \
            or the name alone",
        ],
    ),
    (
        "rate: 1/s, per: [{a: {}}]",
        &[
            "3:37: rules[0].per[0].a: the number of bits that count is missing: write `{v4: 32, v6: 64}`, \
            or the name alone",
        ],
    ),
    (
        "rate: 1/s, per: [{a: {v4: 33}}]",
        &["3:42: rules[0].per[0].a.v4: an address has 32 bits here: write 0 to 32"],
    ),
    (
        "rate: 1/s, per: [{a: {v6: 129}}]",
        &["3:42: rules[0].per[0].a.v6: an address has 128 bits here: write 0 to 128"],
    ),
    (
        "rate: 1/s, per: [{a: {v4: -1}}]",
        &["3:42: rules[0].per[0].a.v4: `-1` is negative: write a whole number such as `1`"],
    ),
    (
        "rate: 1/s, per: [{a: {v5: 3}}]",
        &["3:38: rules[0].per[0].a.v5: unknown field `v5`, did you mean `v4`?"],
    ),
    (
        "rate: 1/s, on_missing: share",
        &["3:39: rules[0].on_missing: unknown value `share`: write one of skip, shared_key"],
    ),
    (
        "rate: 1/s, empty: drop",
        &["3:34: rules[0].empty: unknown value `drop`: write one of missing, keep"],
    ),
    (
        "rate: 1/s, cost: 0",
        &["3:33: rules[0].cost: a cost of 0 charges nothing: write at least 1"],
    ),
    (
        "rate: 1/s, cost: 1.5",
        &["3:33: rules[0].cost: `1.5` is not a whole number: write digits only, such as `100`"],
    ),
    (
        "rate: 1/s, shadow: on",
        &["3:35: rules[0].shadow: `on` is neither true nor false: write `true`"],
    ),
    (
        "rate: 1/s, shadow: maybe",
        &["3:35: rules[0].shadow: `maybe` is neither true nor false: write `true` or `false`"],
    ),
    (
        "rate: 1/s, unlimited: true",
        &[
            "3:38: rules[0].unlimited: unlimited beside the fields of a limit: write one or the other",
        ],
    ),
    (
        "rate: 1/s, unlimited: false",
        &["3:38: rules[0].unlimited: a limit is the default: leave `unlimited` out"],
    ),
    (
        "max: 4, queue: 3, lease: 30s",
        &[
            "3:21: rules[0].max: `max` belongs to concurrency, and this is a token_bucket, the default: leave it out, or write `algorithm: concurrency`",
            "3:31: rules[0].queue: `queue` belongs to concurrency, and this is a token_bucket, the default: leave it out, or write `algorithm: concurrency`",
            "3:41: rules[0].lease: `lease` belongs to concurrency, and this is a token_bucket, the default: leave it out, or write `algorithm: concurrency`",
        ],
    ),
    (
        "algorithm: concurrency, rate: 4/s, on_expiry: release, debt: true",
        &[
            "3:46: rules[0].rate: `rate` belongs to token_bucket, leaky_bucket, and this is a concurrency: write `max` in its place, how many at a time",
            "3:62: rules[0].on_expiry: `on_expiry` belongs to token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log, and this is a concurrency: leave it out, or write `algorithm: token_bucket`",
            "3:77: rules[0].debt: `debt` belongs to token_bucket, and this is a concurrency: leave it out, or write `algorithm: token_bucket`",
        ],
    ),
    (
        "algorithm: concurrency",
        &[
            "3:5: rules[0]: concurrency needs a maximum: write `max: COUNT`, such as `max: 4`, or `adaptive: {min: 2, max: 50}`",
        ],
    ),
    (
        "algorithm: concurrency, max: 0",
        &["3:45: rules[0].max: a limit of 0 admits nothing: write a limit of at least 1"],
    ),
    (
        "algorithm: concurrency, max: 9000, queue: 2000",
        &["3:58: rules[0].queue: max and queue together must be at most 10000"],
    ),
    (
        "algorithm: concurrency, max: 4, lease: 25h",
        &["3:55: rules[0].lease: a lease must be longer than 0 and at most 1d"],
    ),
    (
        "algorithm: concurrency, max: 4, unit_delay: 1s",
        &[
            "3:60: rules[0].unit_delay: only calls in the queue are delayed: write `queue`, or leave it out",
        ],
    ),
    (
        "debt: true, refill: {amount: 1, every: 1s}",
        &["3:22: rules[0].debt: debt needs a steady rate: write rate in place of refill"],
    ),
    (
        "rate: 1/s, on_expiry: forget",
        &["3:38: rules[0].on_expiry: unknown value `forget`: write one of charge, release"],
    ),
    (
        "rate: 1/s, rung: leased",
        &[
            "3:33: rules[0].rung: the amount by which all servers together may exceed the limit is missing: \
            write `max_over_admission: 1%` beside `rung: leased`, or `rung: strict`",
        ],
    ),
    (
        "rate: 1/s, rung: synced",
        &[
            "3:33: rules[0].rung: the amount by which all servers together may exceed the limit is missing: \
            write `max_over_admission: 1%` beside `rung: synced`, or `rung: strict`",
        ],
    ),
    (
        "rate: 10/s, rung: synced, max_over_admission: 3, nodes: 2",
        &[
            "3:5: rules[0]: `token_bucket 10/s, burst 10` cannot be synced: each server's part of the bound would not cover 2 calls: it needs a bound of at least 4 units: write `rung: strict`",
        ],
    ),
    (
        "rate: 1000/s, latency_budget: 500us",
        &[
            "3:46: rules[0].latency_budget: each call of a rule that is strict waits for the store, a round trip, which is 1ms or more: write `max_over_admission: 1%` with `nodes`, and no `rung: strict`, or a `latency_budget` of 1ms or more, or `rung: local`",
        ],
    ),
    (
        "rate: 1000/s, rung: leased, max_over_admission: 1%, nodes: 2, latency_budget: 1us",
        &[
            "3:94: rules[0].latency_budget: a call waits for a lease when there is none, a round trip, which is 1ms or more: write `rung: synced`, or a `latency_budget` of 1ms or more",
        ],
    ),
    (
        "rate: 1000/s, max_over_admission: 1%, nodes: 2, latency_budget: 1us, ban: {after: 3, within: 1m, for: 1m}, per: [user]",
        &[
            "3:5: rules[0]: `token_bucket 1000/s, burst 1000` cannot be synced: a ban counts the refusals of all servers, so the store decides on each call: leave `latency_budget` out, or write 1ms or more",
        ],
    ),
    (
        "rate: 1000/s, max_over_admission: 1%, latency_budget: 1us",
        &[
            "3:50: rules[0].max_over_admission: the number of servers that exceed the limit together is \
            missing: write `nodes` beside it, such as `nodes: 2`: as many as run at a time, also in a \
            rolling restart",
        ],
    ),
    (
        "rate: 1000/s, max_over_admission: 1%",
        &[
            "3:50: rules[0].max_over_admission: the number of servers that exceed the limit together is \
            missing: write `nodes` beside it, such as `nodes: 2`: as many as run at a time, also in a \
            rolling restart",
        ],
    ),
    (
        "rate: 1000/s, max_over_admission: few, nodes: 2",
        &[
            "3:50: rules[0].max_over_admission: `few` is not a bound: write 0, a number of units such as 500, or a percentage such as 1%",
        ],
    ),
    (
        "rate: 10/s, rung: leased, max_over_admission: 1%, nodes: 2",
        &[
            "3:5: rules[0]: `token_bucket 10/s, burst 10` cannot be leased: the limit is too small to be divided: leases need a burst or limit of at least 16: write `rung: strict`",
        ],
    ),
    (
        "rate: 1000/s, rung: leased, max_over_admission: 1%, nodes: 2, ban: {after: 3, within: 1m, for: 1m}, per: [user]",
        &[
            "3:5: rules[0]: `token_bucket 1000/s, burst 1000` cannot be leased: a ban counts the refusals of all servers, so the store decides on each call: write `rung: strict`",
        ],
    ),
    (
        "rate: 10000/s, cost: 150, rung: leased, max_over_admission: 200, nodes: 2",
        &[
            "3:5: rules[0]: `token_bucket 10000/s, burst 10000` cannot be leased: each server's part of the bound would not cover 2 calls: it needs a bound of at least 600 units: write `rung: strict`",
        ],
    ),
    (
        "rate: 1000/s, cost: 150, rung: leased, max_over_admission: 600, nodes: 2",
        &[
            "3:5: rules[0]: `token_bucket 1000/s, burst 1000` cannot be leased: the limit is too small to be divided: leases need a burst or limit of at least 2400: write `rung: strict`",
        ],
    ),
    (
        "rate: 1000/s, cost: 150, rung: synced, max_over_admission: 200, nodes: 2",
        &[
            "3:5: rules[0]: `token_bucket 1000/s, burst 1000` cannot be synced: each server's part of the bound would not cover 2 calls: it needs a bound of at least 600 units: write `rung: strict`",
        ],
    ),
    (
        "rate: 1000/s, cost: 150, latency_budget: 500us, max_over_admission: 200, nodes: 2",
        &[
            "3:5: rules[0]: `token_bucket 1000/s, burst 1000` cannot be synced: each server's part of the bound would not cover 2 calls: it needs a bound of at least 600 units: leave `latency_budget` out, or write 1ms or more",
        ],
    ),
    (
        "rate: 1/s, rung: locla",
        &[
            "3:33: rules[0].rung: unknown value `locla`, did you mean `local`? write one of strict, leased, synced, shares, local",
        ],
    ),
    (
        "rate: 1/s, rung: local, on_failure: share, nodes: 2",
        &[
            "3:52: rules[0].on_failure: this process decides on a rule that is `rung: local`, and that cannot fail: leave it out, or write `rung: strict`",
            "3:66: rules[0].nodes: this process decides on a rule that is `rung: local`, and that cannot fail: leave it out, or write `rung: strict`",
        ],
    ),
    (
        "rate: 1/s, rung: strict, max_over_admission: 1%",
        &[
            "3:61: rules[0].max_over_admission: a rule that says `rung: strict`, `shares` or `local` never exceeds its limit: leave it out, or write `rung: leased` or `synced`",
        ],
    ),
    (
        "rate: 1/s, adaptive: {min: 1, max: 2}",
        &[
            "3:37: rules[0].adaptive: `adaptive` belongs to concurrency, and this is a token_bucket, the default: leave it out, or write `algorithm: concurrency`",
        ],
    ),
    (
        "algorithm: concurrency, adaptive: true",
        &[
            "3:50: rules[0].adaptive: a single value does not belong here: write a map such as `{min: 2, max: 50}`",
        ],
    ),
    (
        "algorithm: concurrency, adaptive: {min: 2}",
        &["3:50: rules[0].adaptive: what is learned needs both bounds: write `{min: 2, max: 50}`"],
    ),
    (
        "algorithm: concurrency, max: 4, adaptive: {min: 2, max: 50}",
        &["3:45: rules[0].max: `adaptive` says the bounds of what is learned: leave `max` out"],
    ),
    (
        "algorithm: concurrency, queue: 4, adaptive: {min: 2, max: 50}",
        &[
            "3:47: rules[0].queue: what learns its ceiling has no queue: leave queue out, callers can wait for a permit",
        ],
    ),
    (
        "algorithm: concurrency, adaptive: {min: 0, max: 50}",
        &["3:56: rules[0].adaptive.min: a min of 0 admits nothing: write a min of at least 1"],
    ),
    (
        "algorithm: concurrency, max: 4, queue: 2, lease: 1h, unit_delay: 25h",
        &["3:81: rules[0].unit_delay: unit_delay must be at most 1d"],
    ),
    (
        "algorithm: concurrency, adaptive: {min: 1, max: 0}",
        &["3:64: rules[0].adaptive.max: a limit of 0 admits nothing: write a limit of at least 1"],
    ),
    (
        "algorithm: concurrency, adaptive: {min: 51, max: 50}",
        &["3:56: rules[0].adaptive.min: min is above max: write at most the max"],
    ),
    (
        "algorithm: concurrency, adaptive: {min: 1, max: 10001}",
        &["3:64: rules[0].adaptive.max: max and queue together must be at most 10000"],
    ),
    (
        "rate: 1/s, warm_up: 2d",
        &["3:36: rules[0].warm_up: warm_up must be longer than 0 and at most 1d"],
    ),
    (
        "rate: 1/s, warm_up: 3s, cold_factor: 1",
        &["3:53: rules[0].cold_factor: cold_factor must lie in 2..=1000"],
    ),
    (
        "rate: 1/s, cold_factor: 3",
        &["3:40: rules[0].cold_factor: cold_factor needs warm_up: write `warm_up: 10s` beside it"],
    ),
    (
        "rate: 1/s, warm_up: 3s, burst: 5",
        &[
            "3:47: rules[0].burst: what warms up has no burst: leave burst, initial and refill out, or warm_up",
        ],
    ),
    (
        "rate: 1/s, status: 200, body: '', body_type: html",
        &[
            "3:35: rules[0].status: this status refuses nothing: write 400 to 599, such as 403",
            "3:46: rules[0].body: an empty body: write a text, or leave it out",
            "3:61: rules[0].body_type: no content type: write one such as `text/html; charset=utf-8`, of at most 127 bytes",
        ],
    ),
    (
        "rate: 1/s, max_hold: 25h",
        &[
            "3:37: rules[0].max_hold: a reservation lasts longer than 0 and at most a day: write 1h or so",
        ],
    ),
    (
        "rate: 1/s, max_hold: 0s",
        &[
            "3:37: rules[0].max_hold: a reservation lasts longer than 0 and at most a day: write 1h or so",
        ],
    ),
    (
        "rate: 1/s, status: 4oo, body_type: text/html",
        &[
            "3:35: rules[0].status: `4oo` is not a whole number: write digits only, such as `100`",
            "3:51: rules[0].body_type: there is no body of this type: write `body` as well, or leave it out",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, rate: 2/s, status: 403}]",
        &["3:65: rules[0].overrides[0].status: unknown field `status`: leave it out, {override}"],
    ),
    (
        "unlimited: true",
        &[
            "3:27: rules[0].unlimited: it limits nothing, and other rules that match still apply: leave the rule out",
        ],
    ),
    (
        "rate: 1/s, matches: {a: b}",
        &["3:27: rules[0].matches: unknown field `matches`, did you mean `match`?"],
    ),
    (
        "rate: 1/s, per: [null]",
        &[
            "3:33: rules[0].per[0]: the value is missing: write the name of an entry, or `{remote_address: \
            {v4: 32, v6: 64}}`",
        ],
    ),
    (
        "rate: 1/s, overrides: [1]",
        &[
            "3:39: rules[0].overrides[0]: a single value does not belong here: write an override such as `{when: {tenant: acme}, rate: 1000/s}`",
        ],
    ),
];
