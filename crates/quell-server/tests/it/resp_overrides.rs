//! `QUELL.OVERRIDE`: the overrides of single keys for clients of Redis.

use quell_host::access::{NewToken, Role};

use crate::harness::Fixture;

const RULES: &str = "
domain: shop
plans: { gold: { api: { limit: 500/day } } }
rules:
  - { name: api, per: [tenant], algorithm: fixed_window, limit: 100/day, plan: { entry: plan } }
  - { name: other, match: { kind: other }, per: [tenant], rate: 10/s }
";

/// The replies to these commands, which end with `QUIT`.
fn replies(server: &Fixture, commands: &[&[&str]]) -> Vec<String> {
    let mut bytes = String::new();
    for command in commands.iter().chain([&["QUIT"][..]].iter()) {
        bytes += &format!("*{}\r\n", command.len());
        for word in *command {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
    }
    let replies = server.resp_exchange(bytes.as_bytes());
    let lines = replies.lines().filter(|line| !line.starts_with('$'));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_client_of_redis_reads_and_changes_overrides() {
    let server = Fixture::new(RULES, "");
    let told = replies(
        &server,
        &[
            &[
                "QUELL.OVERRIDE",
                "SET",
                "shop",
                "api",
                r#"{"limit":7,"reason":"trial"}"#,
                "tenant",
                "acme & co",
            ],
            &[
                "quell.override",
                "set",
                "shop",
                "*",
                r#"{"plan":"gold"}"#,
                "tenant",
                "zeta",
            ],
            &["QUELL.ACQUIRE", "shop", "COST", "7", "tenant", "acme & co"],
            &[
                "QUELL.OVERRIDE",
                "GET",
                "shop",
                "api",
                "tenant",
                "acme & co",
            ],
            &["QUELL.OVERRIDE", "SCAN", "shop", "0", "COUNT", "1"],
            &[
                "QUELL.OVERRIDE",
                "DEL",
                "shop",
                "api",
                "tenant",
                "acme & co",
            ],
            &["QUELL.OVERRIDE", "SCAN", "shop", "0"],
        ],
    );
    let all = told.join("\n");
    let has = |text: &str| assert!(all.contains(text), "{text} is not in {all}");
    has(r#""rule":"api","entries":{"tenant":"acme & co"},"limit":7"#);
    has(r#""plan":"gold""#);
    has(r#""used":7,"remaining":0"#);
    has(r#"{"deleted":1,"revision":3}"#);
    // A page of one of two, and later the only one that is left.
    has("*2\n0\n*1\n{\"domain\":\"shop\",\"rule\":\"*\"");
    assert_eq!(all.matches("*2\n0\n").count(), 1, "{all}");
}

/// A plan with windows of its own, as over HTTP.
#[test]
fn a_client_of_redis_gives_a_plan_an_anchor_and_a_time_zone() {
    let rules = "
domain: shop
plans: { gold: { api: { limit: 500 } } }
rules:
  - { name: api, per: [tenant], algorithm: fixed_window, limit: 100/month, align: calendar }
  - { name: other, match: { kind: other }, per: [tenant], rate: 10/s }
";
    let server = Fixture::with_clock(rules, "");
    let command = |verb, rule, numbers: Option<&'static str>| {
        let words = ["QUELL.OVERRIDE", verb, "shop", rule].into_iter();
        let words = words.chain(numbers).chain(["tenant", "acme"]);
        words.collect::<Vec<_>>()
    };
    let calendar = r#"{"plan":"gold","anchor":17,"time_zone":"Europe/Berlin"}"#;
    let commands = [
        command("SET", "*", Some(calendar)),
        command("GET", "*", None),
        command("GET", "api", None),
        command("SET", "other", Some(calendar)),
        command("SET", "*", Some(r#"{"plan":"gold","anchor":"noon"}"#)),
        command("SET", "*", Some(r#"{"plan":"gold","time_zone":"Mars"}"#)),
    ];
    let commands: Vec<&[&str]> = commands.iter().map(|command| &**command).collect();
    let told = replies(&server, &commands);
    let stored = r#""anchor":17,"plan":"gold","time_zone":"Europe/Berlin""#;
    for reply in &told[..2] {
        assert!(reply.contains(stored), "{reply}");
    }
    let limit =
        r#""limit":"fixed_window 500 per calendar month from day 17 in Europe/Berlin","used":0"#;
    for (reply, words) in told[2..].iter().zip([
        limit,
        "-ERR plan `gold` has no limit with `align: calendar` for rule `other`",
        "unknown anchor `noon`",
        "Mars",
    ]) {
        assert!(reply.contains(words), "{words}: {reply}");
    }
}

#[test]
fn mistakes_say_what_to_write() {
    let server = Fixture::new(RULES, "");
    for (command, expected) in [
        (
            &["QUELL.OVERRIDE", "PUT", "shop", "api"][..],
            "-ERR unknown subcommand 'PUT' of QUELL.OVERRIDE: write SET, GET, DEL or SCAN",
        ),
        (
            &["QUELL.OVERRIDE", "GET", "shop"],
            "-ERR wrong number of arguments for 'quell.override' command",
        ),
        (
            &["QUELL.OVERRIDE", "GET", "shop", "api"],
            "-ERR wrong number of arguments for 'quell.override' command, usage: QUELL.OVERRIDE SET domain rule json name value",
        ),
        (
            &["QUELL.OVERRIDE", "GET", "shop", "api", "tenant"],
            "-ERR wrong number of arguments for 'quell.override' command, usage: QUELL.OVERRIDE SET domain rule json name value",
        ),
        (
            &["QUELL.OVERRIDE", "GET", "shop", "apo", "tenant", "x"],
            "-ERR there is no rule `apo`",
        ),
        (
            &[
                "QUELL.OVERRIDE",
                "SET",
                "shop",
                "api",
                "{\"rate\":\"1/s\"}",
                "tenant",
                "x",
            ],
            "-ERR rule api: ",
        ),
        (
            &["QUELL.OVERRIDE", "SET", "shop", "api", "7", "tenant", "x"],
            "-ERR ",
        ),
        (
            &["QUELL.OVERRIDE", "SCAN", "shop", "0", "MATCH", "x"],
            "-ERR syntax error in QUELL.OVERRIDE option 'MATCH'",
        ),
        (
            &["QUELL.OVERRIDE", "SCAN", "shop", "0", "COUNT", "0"],
            "-ERR most=0 is not a number of overrides",
        ),
        (
            &["QUELL.OVERRIDE", "SCAN", "shop", "x"],
            "-ERR the cursor is not of this list",
        ),
    ] {
        let told = replies(&server, &[command]);
        assert!(told[0].starts_with(expected), "{command:?}: {told:?}");
    }
}

#[test]
fn roles_and_domains_hold_for_clients_of_redis() {
    let mut server = Fixture::prepare(RULES, "credentials = 'DIR/credentials.toml'");
    let mut file = String::new();
    let mut token = |name: &str, role, domain: &str| {
        let token = NewToken::generate().unwrap();
        let domains = Some(vec![domain.to_owned()]);
        file += &token
            .entry(name.parse().unwrap(), vec![role], domains)
            .unwrap();
        token.text().to_string()
    };
    let cases = [
        (token("asks", Role::Ask, "shop"), "-NOPERM", "-NOPERM"),
        (
            token("elsewhere", Role::Policy, "warehouse"),
            "-NOPERM",
            "-NOPERM",
        ),
        (
            token("reads", Role::Read, "shop"),
            "-NOPERM",
            "{\"domain\":",
        ),
        (
            token("desk", Role::Policy, "shop"),
            "{\"domain\":",
            "{\"domain\":",
        ),
    ];
    std::fs::write(server.path("credentials.toml"), file).unwrap();
    server.start().unwrap();
    let set = [
        "QUELL.OVERRIDE",
        "SET",
        "shop",
        "api",
        "{\"limit\":7}",
        "tenant",
        "x",
    ];
    let get = ["QUELL.OVERRIDE", "GET", "shop", "api", "tenant", "x"];
    for (token, of_set, of_get) in &cases {
        let told = replies(&server, &[&["AUTH", token], &set, &get]);
        assert!(told[1].starts_with(of_set), "{told:?}");
        assert!(told[2].starts_with(of_get), "{told:?}");
    }
    let told = replies(&server, &[&get]);
    assert!(told[0].starts_with("-NOAUTH"), "{told:?}");
}
