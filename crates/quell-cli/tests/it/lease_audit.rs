//! The auditor of a real server: its metrics say nothing while the store remembers, and by how much each rule was
//! exceeded when the store goes on with an older state, as a replica does that lacks the last charges.

use quell_testkit::redis::Redis;

use crate::clients::ab;
use crate::files::Folder;
use crate::process::{run, until};
use crate::server::Server;

const RULES: [&str; 2] = [
    "domain: bucket
defaults: { on_failure: deny, nodes: 2, max_over_admission: 20 }
rules: [{ name: slow, rate: 5/s, burst: 400, rung: leased }]
",
    "domain: window
defaults: { on_failure: deny, nodes: 2, max_over_admission: 20 }
rules: [{ name: hourly, algorithm: fixed_window, limit: 400, window: 1h, rung: synced }]
",
];

/// The states of all keys, put aside or put back.
fn copy_states(redis: &Redis, from: &str, to: &str) {
    let script = "
        for _, name in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
            if redis.call('TYPE', name).ok == 'string' then
                local value = redis.call('GET', name)
                redis.call('SET', ARGV[2] .. string.sub(name, #ARGV[1] + 1), value, 'PX', 3600000)
            end
        end
        return 'done'";
    assert_eq!(
        redis.command(&["EVAL", script, "0", from, to]).trim(),
        "done"
    );
}

fn numbers(server: &Server, domain: &str, rule: &str) -> [u64; 4] {
    let names = [
        "over_admission_bound",
        "observed_excess",
        "lease_overdraft_units",
        "regained_units",
    ];
    names.map(|name| {
        let series = format!("quell_{name}{{domain=\"{domain}\",rule=\"{rule}\"}}");
        let number = server.metric(&series);
        number.unwrap_or_else(|| panic!("no {series}"))
    })
}

#[test]
fn a_server_says_which_rule_was_exceeded_and_by_how_much() {
    let (redis, folder) = (Redis::start(&[]), Folder::new());
    for (file, rules) in ["bucket.yaml", "window.yaml"].into_iter().zip(RULES) {
        folder.write(file, rules);
    }
    let rules = folder.path("");
    let store = ["--store", &*redis.url(), "--store-timeout", "10s"];
    let server = Server::start(&[&["--rules", &*rules], &store[..]].concat());
    let call = |domain: &str, count: &str| {
        let url = server.url(&format!("/v1/authorize?domain={domain}"));
        run(ab().args(["-k", "-n", count, "-c", "2", &url])).expect_success()
    };
    let rules = [("bucket", "slow"), ("window", "hourly")];
    for (domain, _) in rules {
        call(domain, "2");
    }
    copy_states(&redis, "quell:1:", "older:");
    for (domain, rule) in rules {
        call(domain, "1000");
        assert_eq!(numbers(&server, domain, rule), [20, 0, 0, 0], "{rule}");
    }
    for (domain, rule) in rules {
        let mut times = 0;
        // A key is judged while it is busy: on a slow machine it may rest between two attempts.
        let seen = until("the auditor sees it", || {
            copy_states(&redis, "older:", "quell:1:");
            call(domain, "1000");
            times += 1;
            let seen = numbers(&server, domain, rule);
            (seen[1] > 300 && seen[3] > 300).then_some(seen)
        });
        assert!(
            seen[1] <= 420 * times && seen[3] <= 400,
            "{seen:?} in {times}"
        );
        assert_eq!(seen[2], 0, "nothing was used that was not charged");
    }
    server.stop();
}
