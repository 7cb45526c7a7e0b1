//! Mistakes in configuration files, as they are told.

use super::RawConfig;

/// Texts of files, and what is told of them.
const MISTAKES: &[(&str, &str)] = &[
    (
        "shadow = true\n  max_keys = 'many'",
        "q.toml:2:14: max_keys: invalid type: string \"many\", expected a whole number: \
         write digits without quotes, such as 1000",
    ),
    (
        "max_keys = -1",
        "q.toml:1:12: max_keys: invalid value: integer `-1`, expected a whole number: \
         write digits without quotes, such as 1000",
    ),
    (
        "shadow = 'yes'",
        "q.toml:1:10: shadow: invalid type: string \"yes\", expected true or false: \
         write it without quotes",
    ),
    (
        "http = 8080",
        "q.toml:1:8: http: invalid type: integer `8080`, expected a string: write it in quotes",
    ),
    (
        "rules = 'a.yaml'",
        "q.toml:1:9: rules: invalid type: string \"a.yaml\", expected a list: \
         write [\"one\", \"two\"]",
    ),
    (
        "data_dir = 7",
        "q.toml:1:12: data_dir: invalid type: integer `7`, expected a path: write it in quotes",
    ),
    (
        "[authorize]\ngateway = 1",
        "q.toml:2:11: authorize.gateway: invalid type: integer `1`, expected a string: \
         write it in quotes",
    ),
    ("authorize = 7", "write [authorize], and its fields below"),
    (
        "prot = 1",
        "q.toml:1:1: unknown field `prot`, expected one of `rules`",
    ),
    (
        "htpp = 'off'",
        "q.toml:1:1: unknown field `htpp`, did you mean `http`? expected one of `rules`",
    ),
    (
        "max-keys = 7",
        "unknown field `max-keys`, did you mean `max_keys`? expected one of",
    ),
    (
        "[authorize]\ngatway = 'any'",
        "unknown field `gatway`, did you mean `gateway`? expected one of",
    ),
    ("port = 1", "unknown field `port`, did you mean `http`?"),
    (
        "redis = 'a'",
        "unknown field `redis`, did you mean `store`?",
    ),
    (
        "log_level = 'a'",
        "unknown field `log_level`, did you mean `log`?",
    ),
    (
        "authorize_gateway = 'any'",
        "unknown field `authorize_gateway`: write `gateway` below [authorize]",
    ),
    (
        "[authorize]\nentries = [{name = 'a', headers = ['b']}]",
        "unknown field `name`, did you mean `entry`?",
    ),
    (
        "http: 127.0.0.1:8080",
        "write TOML, such as http = \"127.0.0.1:8080\"",
    ),
    ("http = ", "q.toml:1:8: "),
    ("http = 'off'\nhttp = 'off'", "q.toml:2:1: duplicate key"),
];

#[test]
fn mistakes_are_told_with_their_place() {
    for (text, expected) in MISTAKES {
        let error = RawConfig::from_toml("q.toml", text)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn fields_are_found_where_they_stand() {
    let text = "\n# http\nhttp = 'off'\n[authorize]\n\ngateway = 'any'";
    for (field, line) in [
        ("http", Some(3)),
        ("authorize", Some(4)),
        ("authorize.gateway", Some(6)),
        ("gateway", None),
        ("resp", None),
        ("http.x", None),
    ] {
        assert_eq!(quell_host::config::line_of(text, field), line, "{field}");
    }
    assert_eq!(quell_host::config::line_of("= no TOML", "http"), None);
}
